"""The routes of the page: its files, which are open to all, and the login of a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles

from coach.handler.endpoint import API
from coach.service import schemas
from coach.service.errors import may_answer
from coach.service.page.login import CODE_SECONDS, Logins

PAGE = "/ui"
LOGIN = f"{API}/login"
STATIC = Path(__file__).parent / "static"
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


class Files(StaticFiles):
    """The files of the page."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """A file, or that it has not changed, with our headers."""
        response = super().file_response(*args, **options)
        response.headers.update(HEADERS)
        return response


page.mount(PAGE, Files(directory=STATIC, html=True))


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
    """End the browser's login: its cookie counts no more, and the answer removes it."""
    logins: Logins = request.app.state.logins
    logins.end(request.headers.get("cookie", ""))
    response.headers["Set-Cookie"] = logins.set_cookie("", secure=request.url.scheme == "https")
    return schemas.LoggedIn(ok=False)
