"""The routes of the page: its files, which are open to all, and the login of a browser."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from coach.handler.endpoint import API
from coach.service import schemas
from coach.service.errors import may_answer
from coach.service.page.login import CODE_SECONDS, Logins

PAGE = "/ui"
LOGIN = f"{API}/login"
STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
#: Only our own files run, and no text becomes a document or a script.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

page = APIRouter(include_in_schema=False)
login = APIRouter(prefix=API, tags=["login"])


@page.get("/")
async def root() -> Response:
    """Where the page is."""
    return RedirectResponse("ui/", 307)


@page.get(PAGE)
async def without_slash() -> Response:
    """Its links are relative to the folder."""
    return RedirectResponse("ui/", 307)


@page.get(f"{PAGE}/{{name:path}}")
async def file(name: str, request: Request) -> Response:
    """One file of the page."""
    found = files().get(name or "index.html")
    if found is None:
        raise HTTPException(404)
    content, media, tag = found
    headers = HEADERS | {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media, headers=headers)


@cache
def files() -> dict[str, tuple[bytes, str, str]]:
    """The page's files: content, type and tag of each, by name."""
    found = {}
    for path in sorted(STATIC.iterdir()):
        content = path.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        found[path.name] = content, _TYPES[path.suffix], tag
    return found


@login.post("/login-codes", responses=may_answer(403))
async def login_codes(request: Request) -> schemas.LoginCode:
    """Make a code with which a browser logs in once: `/ui/#login=CODE`."""
    logins: Logins = request.app.state.logins
    return schemas.LoginCode(code=logins.code(), seconds=CODE_SECONDS)


@login.post("/login", responses=may_answer(403, 413, 422))
async def log_in(request: Request, response: Response, given: schemas.Login) -> schemas.LoggedIn:
    """Use a code: the answer sets the browser's cookie. Needs no token."""
    logins: Logins = request.app.state.logins
    value = logins.use(given.code)
    if value is None:
        raise HTTPException(403, "this code is not valid (any more); get a new one: coach ui")
    response.headers["Set-Cookie"] = logins.set_cookie(value, secure=request.url.scheme == "https")
    return schemas.LoggedIn(ok=True)


@login.post("/logout", responses=may_answer(403))
async def log_out(request: Request, response: Response) -> schemas.LoggedIn:
    """End the browser's login: the answer removes its cookie."""
    logins: Logins = request.app.state.logins
    response.headers["Set-Cookie"] = logins.set_cookie("", secure=request.url.scheme == "https")
    return schemas.LoggedIn(ok=False)
