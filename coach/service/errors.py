"""Every error of the API in one body, with a status for each kind."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from coach.core.errors import CoachError, UserError
from coach.handler.resume_rules import NotNowError
from coach.jobfiles.diagnostics import JobFileError, dotted, plain, show
from coach.service import schemas
from coach.service.operations import NoSuchJobError, ReadOnlyError, StoppingError

log = logging.getLogger("coach.http")

_STATUS: dict[type[CoachError], int] = {
    NoSuchJobError: 404,
    NotNowError: 409,
    ReadOnlyError: 409,
    StoppingError: 503,
}
_MEANT = {
    401: "No token, or another one.",
    404: "No job of that name.",
    403: "The browser is not logged in, or the request comes from another site.",
    409: "Not possible in the job's present state.",
    413: "The body is too large.",
    422: "The request, or a job file in it, has mistakes; all of them are listed.",
    503: "The service is stopping.",
}


def may_answer(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for the document."""
    every = sorted({401, 422, *statuses})
    return {status: {"model": schemas.Error, "description": _MEANT[status]} for status in every}


def answer_errors(app: FastAPI) -> None:
    """One body for all errors, and a status for each kind."""

    @app.exception_handler(CoachError)
    async def ours(request: Request, error: Exception) -> Response:
        if isinstance(error, JobFileError):
            problems = shown_problems(error)
            many = len(problems)
            said = f"{many} mistake{'' if many == 1 else 's'} in the job files; nothing was started"
            return _error(422, said, problems)
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), None)
        return _error(status or (422 if isinstance(error, UserError) else 503), str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = [
            schemas.Problem(text=f"{dotted(map(str, one['loc']))}: {plain(one['msg'])} ({_seen(one)})")
            for one in error.errors()[:100]
        ]
        return _error(422, "the request cannot be used as it is", problems)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 400:  # FastAPI's message about a body in another encoding, or nested too deep
            return _error(422, "the body is no JSON that can be read")
        words = {404: "no such page; see /openapi.json", 405: "another method is meant; see /openapi.json"}
        said = words.get(error.status_code, error.detail)
        return _error(error.status_code, said, headers=dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        log.error("%s %s", request.method, request.url.path, exc_info=error)
        return _error(500, f"this is a bug of Coach: {type(error).__name__}; the service's log has more")


def shown_problems(error: JobFileError) -> list[schemas.Problem]:
    """The mistakes of job files, for an answer."""
    return [schemas.Problem(text=str(one), **asdict(one)) for one in error.problems]


def _seen(one: Any) -> str:
    return show(one.get("input")) if not isinstance(one.get("input"), bytes) else "bytes"


def _error(
    status: int,
    said: str,
    problems: Sequence[schemas.Problem] = (),
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    body = schemas.Error(error=said, problems=list(problems))
    return JSONResponse(body.model_dump(), status_code=status, headers=headers)
