"""Calling a service from a command: plain functions over its API, with Coach's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from coach.core.cluster import Node, Resources
from coach.core.errors import CoachError, PermanentError, TemporaryError, UserError
from coach.handler.endpoint import API, Endpoint, find
from coach.handler.state.state_directory import StateDirectory
from coach.jobfiles.diagnostics import JobFileError, Problem

#: Seconds for an answer in addition to the waiting time in the request.
TIMEOUT = 30.0


class Client:
    """One service. Use as a context manager, or close it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._http = httpx.Client(
            base_url=endpoint.url + API,
            headers={"Authorization": f"Bearer {endpoint.token}"},
            timeout=TIMEOUT,
            trust_env=False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def cluster(self) -> dict[str, Any]:
        """Its cluster and policy."""
        return self._ask("GET", "/cluster")

    def nodes(self) -> tuple[Node, ...]:
        """The nodes it runs jobs on."""
        return tuple(Node(n["name"], Resources(n["cpu"], n["memory"])) for n in self.cluster()["nodes"])

    def submit(self, files: Sequence[Path], policy: str = "") -> dict[str, Any]:
        """Send job files. Raises JobFileError with every mistake, UserError, TemporaryError."""
        sent = [
            {"path": str(file.absolute()), "text": file.read_bytes().decode("utf-8", "replace")}
            for file in files
        ]
        try:
            return self._ask("POST", "/jobs", json={"files": sent, "policy": policy})
        except JobFileError as error:
            raise JobFileError([_near(problem, files) for problem in error.problems]) from None

    def job(self, name: str) -> dict[str, Any]:
        """One job, with its epochs."""
        return self._ask("GET", f"/jobs/{name}")

    def wait_for(self, name: str, after: int, seconds: float) -> dict[str, Any]:
        """One job, once it has a record later than `after`, or after `seconds`."""
        return self._ask("GET", f"/jobs/{name}", params={"after": after, "wait": seconds}, wait=seconds)

    def records(self, names: Sequence[str], after: int, seconds: float) -> dict[str, Any]:
        """Records of jobs later than `after`; waits up to `seconds` for one."""
        return self._ask(
            "GET", "/records", params={"job": names, "after": after, "wait": seconds}, wait=seconds
        )

    def cancel(self, name: str) -> dict[str, Any]:
        """End a job for good."""
        return self._ask("POST", f"/jobs/{name}/cancel")

    def resume(self, name: str, add_budget: float) -> dict[str, Any]:
        """Resume a job."""
        return self._ask("POST", f"/jobs/{name}/resume", json={"add_budget": add_budget})

    def suspend(self, name: str, *, now: bool) -> dict[str, Any]:
        """Stop a job so that it can be resumed."""
        return self._ask("POST", f"/jobs/{name}/suspend", json={"now": now})

    def _ask(self, method: str, path: str, *, wait: float = 0.0, **more: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, timeout=TIMEOUT + wait, **more)
        except httpx.HTTPError as error:
            raise TemporaryError(
                f"the service at {self.endpoint.url} (process {self.endpoint.pid}) does not answer: "
                f"{error or type(error).__name__}; is it stopping? see: coach doctor"
            ) from error
        with contextlib.suppress(ValueError):
            body = answer.json()
            if isinstance(body, dict):
                if answer.is_success:
                    return body
                raise _error(answer.status_code, body)
        raise PermanentError(
            f"{self.endpoint.url}{API}{path}: no answer of Coach's ({answer.status_code} "
            f"{answer.headers.get('content-type', 'without a type')}); is another program on that port?"
        )


def service_of(home: StateDirectory) -> Client:
    """The running service of a state folder. Raises UserError where there is none."""
    endpoint = find(home)
    if endpoint is None:
        raise UserError(
            f"no service runs in {home.path}; start one with `coach serve`, or run jobs here: coach run FILE"
        )
    return Client(endpoint)


def _error(status: int, body: dict[str, Any]) -> CoachError:
    said = str(body.get("error", status))
    problems = [problem for problem in body.get("problems") or [] if isinstance(problem, dict)]
    if status == 422 and problems and all(problem.get("path") for problem in problems):
        keys = ("path", "line", "column", "field", "problem", "seen", "right")
        return JobFileError([Problem(**{key: problem[key] for key in keys}) for problem in problems])
    said = "; ".join([said, *(str(problem.get("text")) for problem in problems[:5])])
    if status == 401:
        return PermanentError(f"the service does not know this token: {said}")
    if status >= 500:
        return TemporaryError(f"the service: {said}")
    return UserError(said)


def _near(problem: Problem, files: Sequence[Path]) -> Problem:
    """The problem with the file named as the user named it."""
    shown = next((str(file) for file in files if str(file.absolute()) == problem.path), problem.path)
    return Problem(
        shown, problem.line, problem.column, problem.field, problem.problem, problem.seen, problem.right
    )
