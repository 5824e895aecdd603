"""Middleware of every request: it checks the token, the size and the query's names, and logs the answer."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from fastapi import HTTPException, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coach.core.errors import UserError
from coach.handler.endpoint import API
from coach.jobfiles.diagnostics import show
from coach.service.page.login import Logins, host_is_ours, of_our_page
from coach.service.page.routes import LOGIN, PAGE
from coach.service.schemas import MAX_BODY

log = logging.getLogger("coach.http")

#: Paths that need no token.
OPEN_PATHS = frozenset({"/health", "/openapi.json"})
#: Routes whose answers take as long as their caller listens: their time says nothing.
ENDLESS = frozenset({f"{API}/stream"})
_UNKNOWN = "show the service's token: Authorization: Bearer TOKEN; it is in the file `token` of COACH_HOME"
_HOST = "this name is not the service's; allow it with: coach serve --host-name NAME"
_ELSEWHERE = "a logged-in browser's requests come from the service's own page alone, and their bodies are JSON"

#: Called after each answer with method, route, status and seconds.
Note = Callable[[str, str, int, float], None]


_TOO_LARGE = f"a body of more than {MAX_BODY >> 20} MiB; send fewer files at once"


async def remember_route(request: Request) -> None:
    """Record the route for the middleware: a dependency of the whole application."""
    route = request.scope.get("route")
    request.scope["coach"]["route"] = getattr(route, "path", "")


async def refuse_unknown_queries(request: Request) -> None:
    """Raises UserError for a query parameter that the route does not know: it may be a misspelt one."""
    route = request.scope.get("route")
    if not request.query_params or not getattr(route, "include_in_schema", False) or route is None:
        return  # a redirect passes them on
    known = sorted(each.alias for each in get_flat_params(route.dependant) if isinstance(each.field_info, params.Query))
    for name in request.query_params:
        if name not in known:
            right = f"one of {', '.join(known)}" if known else "none"
            raise UserError(f"unknown query parameter {show(name)} - this request knows {right}")


@dataclass
class Guard:
    """ASGI middleware. Without token or cookie a request gets 401 before its body is read; a body over the limit 413.

    `hosts`: names of the service in addition to its addresses, for browsers.
    """

    app: ASGIApp
    _: KW_ONLY
    token: str
    note: Note
    logins: Logins
    hosts: frozenset[str]

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
            headers = Headers(scope=scope)
            if self._knows(headers.get("authorization", "")):
                refused, error, scope["coach"]["known"] = 200, "", True
            else:
                refused, error = self._refusal(scope, headers)
            if error:
                await _refuse(scope, receive, noting, refused, error)
            elif _declared(headers) > MAX_BODY:
                await _refuse(scope, receive, noting, 413, _TOO_LARGE)
            else:
                await self.app(scope, bounded, noting)
        finally:
            seconds = time.monotonic() - began
            route = scope["coach"].get("route") or "other"
            if route not in ENDLESS:
                self.note(scope["method"], route, status, seconds)
            level = logging.DEBUG if scope["method"] == "GET" and status < 400 else logging.INFO
            log.log(level, "%s %s %d %.1f ms", scope["method"], _shown(scope), status, seconds * 1000)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str]:
        """Status and error for a request without the token that is not let in; 200 and nothing for another."""
        method, path = scope["method"], scope["path"]
        if path in OPEN_PATHS:
            return 200, ""
        page = method in ("GET", "HEAD") and (path in ("/", PAGE) or path.startswith(f"{PAGE}/"))
        login = path == LOGIN and method == "POST"
        known = not page and self.logins.knows(headers.get("cookie", ""))
        if not (page or login or known):
            return 401, _UNKNOWN
        if not host_is_ours(headers.get("host", ""), self.hosts):
            return 403, _HOST
        if page:
            return 200, ""
        json_body = headers.get("content-type", "").partition(";")[0].strip() == "application/json"
        if (known and not of_our_page(method, headers)) or (method not in ("GET", "HEAD") and not json_body):
            return 403, _ELSEWHERE
        scope["coach"]["known"] = known
        return 200, ""

    def _knows(self, header: str) -> bool:
        """Whether this is our token, in constant time."""
        kind, _, shown = header.partition(" ")
        return kind.lower() == "bearer" and secrets.compare_digest(shown.strip().encode(), self.token.encode())


def _shown(scope: Scope) -> str:
    """The path for a log: without line breaks and without the query."""
    path = scope["path"][:200]
    return path if path.isprintable() else ascii(path)


def _declared(headers: Headers) -> int:
    length = headers.get("content-length", "0")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, error: str) -> None:
    headers = {"www-authenticate": "Bearer"} if status == 401 else {"connection": "close"}
    await JSONResponse({"error": error, "problems": []}, status, headers)(scope, receive, send)
