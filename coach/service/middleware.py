"""Middleware of every request: it checks the token, the size and the query's names, and logs the answer."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable

from fastapi import HTTPException, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coach.core.errors import UserError
from coach.jobfiles.diagnostics import show
from coach.service.schemas import MAX_BODY

log = logging.getLogger("coach.http")

#: Paths that need no token.
OPEN_PATHS = frozenset({"/health", "/openapi.json"})

#: Called after each answer with method, route, status and seconds.
Note = Callable[[str, str, int, float], None]


_TOO_LARGE = f"a body of more than {MAX_BODY >> 20} MiB; send fewer files at once"


async def remember_route(request: Request) -> None:
    """Record the route for the middleware: a dependency of the whole application."""
    route = request.scope.get("route")
    request.scope["coach"]["route"] = getattr(route, "path", "")


async def refuse_unknown_queries(request: Request) -> None:
    """Raises UserError for a query parameter that the route does not know: it may be a misspelt one."""
    path = getattr(request.scope.get("route"), "path", "")
    documented = request.app.openapi()["paths"].get(path)
    if documented is None:
        return  # a redirect passes them on
    parameters = documented[request.method.lower()].get("parameters", ())
    known = sorted(one["name"] for one in parameters if one["in"] == "query")
    for name in request.query_params:
        if name not in known:
            right = f"one of {', '.join(known)}" if known else "none"
            raise UserError(f"unknown query parameter {show(name)} - this request knows {right}")


class Guard:
    """ASGI middleware. Without the token a request gets 401 before its body is read; a body over the limit gets 413."""

    def __init__(self, app: ASGIApp, *, token: str, note: Note) -> None:
        self._app = app
        self._token = token.encode()
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return  # no websockets here
        began = time.monotonic()
        scope["coach"] = {}
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                raise HTTPException(413, _TOO_LARGE)
            return message

        try:
            headers = dict(scope["headers"])
            if scope["path"] not in OPEN_PATHS and not self._knows(headers.get(b"authorization", b"")):
                await _refuse(
                    noting,
                    401,
                    "show the service's token: Authorization: Bearer TOKEN; it is in the file `token` of COACH_HOME",
                )
            elif _declared(headers) > MAX_BODY:
                await _refuse(noting, 413, _TOO_LARGE)
            else:
                await self._app(scope, bounded, noting)
        finally:
            seconds = time.monotonic() - began
            route = scope["coach"].get("route") or "other"
            self._note(scope["method"], route, status, seconds)
            level = logging.DEBUG if scope["method"] == "GET" and status < 400 else logging.INFO
            log.log(level, "%s %s %d %.1f ms", scope["method"], _shown(scope), status, seconds * 1000)

    def _knows(self, header: bytes) -> bool:
        """Whether this is our token, in constant time."""
        kind, _, shown = header.partition(b" ")
        return kind.lower() == b"bearer" and secrets.compare_digest(shown.strip(), self._token)


def _shown(scope: Scope) -> str:
    """The path for a log: without line breaks and without the query."""
    path = scope["path"][:200]
    return path if path.isprintable() else ascii(path)


def _declared(headers: dict[bytes, bytes]) -> int:
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() and len(length) < 20 else 0


async def _refuse(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error, "problems": []}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    else:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
