"""HTTP as Nuclio's processor speaks it: a bare ASGI application over the workers."""

import base64
import json
import posixpath
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from coach.platforms.local.host.config import HostConfig
from coach.platforms.local.host.pool import NotReady, Pool
from coach.platforms.local.host.process import Answer, WrapperDied

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_PLAIN = "text/plain; charset=utf-8"
_MAX_LOGS_HEADER = 4096
_LEVELS = {"debug": 0, "info": 1, "warn": 2, "error": 3}
_NOT_ANSWERED = {"content-type", "content-length", "transfer-encoding", "connection", "date"}
_TOKEN = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_GO_NAMES = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
_GO_FIELDS = {"status_code": (int, "int"), "content_type": (str, "string"), "body": (str, "string")}


class Reply:
    """One HTTP answer."""

    def __init__(self, status: int, body: bytes = b"", content_type: str | None = None) -> None:
        self.status, self.body, self.content_type = status, body, content_type
        self.headers: list[tuple[str, str]] = []
        self.close = False

    async def send(self, send: Send, server: str | None = "nuclio") -> None:
        """Send it, with Nuclio's `Server` header unless the function set its own."""
        headers = (
            []
            if server is None or any(n.lower() == "server" for n, _ in self.headers)
            else [("Server", server)]
        )
        if self.content_type is not None:
            headers.append(("Content-Type", self.content_type))
        if self.status not in (204, 304):
            headers.append(("Content-Length", str(len(self.body))))
        if self.close:
            headers.append(("Connection", "close"))
        raw = [(name.encode("latin-1"), value.encode("utf-8")) for name, value in headers + self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if self.status in (204, 304) else self.body})


class BodyTooLarge(Exception):
    """A request's body is larger than the trigger allows."""


class Application:
    """The function's address and the health address of one host: two ASGI applications, `function` and `health`."""

    def __init__(self, config: HostConfig, pool: Pool) -> None:
        self._config, self._pool = config, pool
        #: When the last request came, on the monotonic clock.
        self.last_request = time.monotonic()

    async def health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request on the health address."""
        await self._health(scope).send(send, server=None)

    async def function(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request on the function's address."""
        self.last_request = time.monotonic()
        if scope["path"].startswith("/__internal/health"):
            await Reply(200 if self._pool.ready else 503).send(send)
            return
        try:
            body = await self._body(scope, receive)
        except BodyTooLarge:
            reply = Reply(400, b"Error when parsing request", _PLAIN)
            reply.close = True
            await reply.send(send)
            return
        if body is None:
            return
        headers = {_canonical(name): value for name, value in scope["headers"]}
        try:
            head = self._head(
                scope, {name: value.decode("utf-8") for name, value in headers.items()}, len(body)
            )
        except UnicodeDecodeError as error:
            text = f'Exception caught while serving - "{error}": {error}\n'
            await Reply(500, text.encode(), "text/plain").send(send)
            return
        await self._event(head, body, headers.get("X-Nuclio-Log-Level"), send)

    def _health(self, scope: Scope) -> Reply:
        if scope["path"] not in ("/live", "/ready"):
            return _refusal(404, b"404 page not found\n")
        if scope["method"] != "GET":
            return _refusal(405, b"method not allowed\n")
        checks = {"processor_liveness": "OK"}
        ok = True
        if scope["path"] == "/ready":
            ok = self._pool.ready
            checks["processor_readiness"] = "OK" if ok else "Processor not ready yet"
        full = b"full=1" in scope["query_string"].split(b"&")
        text = json.dumps(checks if full else {}, indent=4) + "\n"
        return Reply(200 if ok else 503, text.encode(), "application/json; charset=utf-8")

    async def _event(self, head: dict[str, Any], body: bytes, wanted: bytes | None, send: Send) -> None:
        """Have a worker handle one event and answer it; `wanted` is the log level that the caller asks for."""
        worker = await self._pool.take()
        logs: list[dict[str, Any]] = []
        lost = None
        try:
            if worker is None:
                reply = Reply(503)
            else:
                answer = await self._pool.call(worker, head, body)
                reply, logs = _reply(answer), answer.logs
        except NotReady as error:
            reply = Reply(500, str(error).encode(), _PLAIN)
        except TimeoutError:
            reply = Reply(408, b'{"error": "handler timed out"}', _PLAIN)
            wanted = None
        except WrapperDied as error:
            reply = Reply(500, b"EOF", _PLAIN)
            wanted, lost = None, f"a wrapper ended by itself while it handled an event ({error})"
        if wanted is not None:
            logs_text = _logs_header(logs, wanted.decode("latin-1"), self._config.trigger_name)
            if logs_text is not None:
                reply.headers.append(("X-Nuclio-Logs", logs_text))
        await reply.send(send)
        if lost is not None:
            self._pool.lose(lost)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body, or None when the client went away. Raises BodyTooLarge."""
        limit = self._config.max_body
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            raise BodyTooLarge
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise BodyTooLarge
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _head(self, scope: Scope, headers: dict[str, str], size: int) -> dict[str, Any]:
        path = scope["path"]
        normal = re.sub("^//+", "/", posixpath.normpath(path))
        return {
            "content_type": headers.get("Content-Type", ""),
            "fields": dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
            "headers": headers,
            "method": scope["method"],
            "path": normal + "/" if path.endswith("/") and normal != "/" else normal,
            "timestamp": int(time.time()),
            "url": "",
            "shard_id": -1,
            "num_shards": 0,
            "type": "",
            "type_version": "",
            "version": "",
            "topic": "",
        }


def _refusal(status: int, body: bytes) -> Reply:
    """An error of the health address, which is another server in Nuclio."""
    reply = Reply(status, body, _PLAIN)
    reply.headers.append(("X-Content-Type-Options", "nosniff"))
    return reply


def _reply(answer: Answer) -> Reply:
    """The HTTP answer to what the SDK made of a handler's return value."""
    result = json.loads(answer.payload)
    if isinstance(result, list):
        if not result:
            return Reply(500)
        result = result[0]
    for name, (kind, go_kind) in _GO_FIELDS.items():
        value = result[name]
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            seen = _GO_NAMES[type(value)] + (f" {value}" if isinstance(value, float) else "")
            text = f"json: cannot unmarshal {seen} into Go struct field Result.{name} of type {go_kind}"
            return Reply(500, text.encode(), _PLAIN)
    status = result["status_code"] or 200
    if not 200 <= status <= 999:
        return Reply(500, f"status code {status} cannot be sent".encode(), _PLAIN)
    body = result["body"] or ""
    encoded = result.get("body_encoding") == "base64"
    reply = Reply(
        status, base64.b64decode(body) if encoded else body.encode(), result["content_type"] or "text/plain"
    )
    for name, value in (result.get("headers") or {}).items():
        if isinstance(value, str) and _TOKEN.match(name) and name.lower() not in _NOT_ANSWERED:
            reply.headers.append((_canonical(name.encode()), _CONTROL.sub(" ", value)))
    return reply


def _canonical(name: bytes) -> str:
    """A header's name as Nuclio's HTTP server spells it: `x-some-HEADER` is `X-Some-Header`."""
    return "-".join(part.capitalize() for part in name.decode("latin-1").split("-"))


def _logs_header(logs: list[dict[str, Any]], level: str, trigger: str) -> str | None:
    """The call's log entries from `level` up as compact JSON; None when they exceed 4096 bytes."""
    entries = [
        {"level": e["level"], "time": e["time"], "name": trigger, "message": e["message"], **e["with"]}
        for e in logs
        if _LEVELS.get(e["level"], 0) >= _LEVELS.get(level, 0)
    ]
    text = json.dumps(entries, separators=(",", ":"))
    return text if len(text) < _MAX_LOGS_HEADER else None
