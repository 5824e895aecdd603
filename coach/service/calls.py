"""The operations of the API: what is sent, and what type the answer has. `coach.service.client.clients` sends it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from pydantic import TypeAdapter, ValidationError

from coach.core.errors import CoachError, PermanentError, TemporaryError, UserError
from coach.core.optional_feature import OptionalFeature
from coach.handler.endpoint import API, Endpoint, find
from coach.handler.state.checkpoints import Surplus
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.jobfiles.diagnostics import JobFileError, Problem
from coach.report.comparison import Comparison
from coach.report.row_types import AccountRow, JobDetail, JobList, JobRow, Why
from coach.service import schemas

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds for an answer in addition to the waiting time in the request.
TIMEOUT = 30.0
#: Seconds of the longest simulation, and of the first figure, which imports what draws.
MAX_SIMULATION, MAX_DRAWING = 180.0, 90.0
Files = Sequence[Path | str]


class Picture(bytes):
    """The bytes of a file; a notebook shows those of a PNG or SVG figure."""

    def _repr_png_(self) -> bytes | None:
        return bytes(self) if self.startswith(b"\x89PNG") else None

    def _repr_svg_(self) -> str | None:
        return self.decode() if b"<svg" in self[:1000] else None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and the type of its answer. `wait`: seconds that the service may wait before it answers."""

    method: str
    path: str
    answer: type[T]
    params: dict[str, Any] = field(default_factory=dict)
    body: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    wait: float = 0.0
    #: The files that were sent: mistakes in them are named as the caller named them.
    files: tuple[Path, ...] = ()

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """The request as HTTP."""
        params = {key: value for key, value in self.params.items() if value not in (None, "", [], ())}
        return http.build_request(
            self.method,
            self.path,
            params=params,
            json=self.body,
            headers=self.headers,
            timeout=TIMEOUT + self.wait,
        )

    def read(self, answer: httpx.Response) -> T:
        """The answer. Raises JobFileError, UserError, TemporaryError, PermanentError."""
        if answer.is_success and self.answer is bytes:
            return Picture(answer.content)  # type: ignore[return-value]
        if answer.is_success and self.answer is str:
            return answer.text  # type: ignore[return-value]
        with contextlib.suppress(ValueError):
            if answer.is_success:
                with contextlib.suppress(ValidationError):
                    return cast(T, _adapter(cast(Any, self.answer)).validate_json(answer.content))
            elif isinstance(body := answer.json(), dict):
                raise _error(answer.status_code, body, self.files)
        raise PermanentError(
            f"{answer.url}: no answer of Coach's ({answer.status_code} "
            f"{answer.headers.get('content-type', 'without a type')}); is another program on that port, "
            "or a service of another version?"
        )


@lru_cache(maxsize=64)
def _adapter(answer: Any) -> TypeAdapter[Any]:
    return TypeAdapter(answer)


def _error(status: int, body: dict[str, Any], files: tuple[Path, ...]) -> CoachError:
    said = str(body.get("error", status))
    problems = [problem for problem in body.get("problems") or [] if isinstance(problem, dict)]
    if status == 422 and problems and all(problem.get("path") for problem in problems):
        keys = ("line", "column", "field", "problem", "seen", "right")
        named = {str(file.absolute()): str(file) for file in files}
        found = [{key: one[key] for key in keys} | {"path": named.get(one["path"], one["path"])} for one in problems]
        return JobFileError([Problem(**one) for one in found])
    said = "; ".join([said, *(str(problem.get("text")) for problem in problems[:5])])
    if status == 401:
        return PermanentError(f"the service does not know this token: {said}")
    if status >= 500:
        return TemporaryError(f"the service: {said}")
    return UserError(said)


class Operation(Generic[P, T]):
    """A method that makes a call: a client sends the call; of `Awaited` operations it is awaited."""

    def __init__(self, make: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self.make = make
        self.name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Operation[P, T]: ...
    @overload
    def __get__(self, client: Awaited, owner: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, client: Operations, owner: type) -> Callable[P, T]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self

        def send(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.perform(self, *args, **kwargs)

        send.__doc__ = self.__doc__
        return send


class Operations:
    """What can be asked and done, one method for each operation of the API, of the same name.

    A client asks a service; `coach.service.local.here` answers in this process.
    """

    def perform(self, operation: Operation[..., T], *args: Any, **kwargs: Any) -> Any:
        """Do it: send its call."""
        return self.send(operation.make(self, *args, **kwargs))

    def send(self, call: Call[T]) -> Any:
        """Send a call. Raises JobFileError, UserError, TemporaryError, PermanentError."""
        raise NotImplementedError

    def _find(self, endpoint: Endpoint | None, url: str, token: str) -> dict[str, Any]:
        """Options of a connection."""
        if bool(url) != bool(token):
            raise UserError("a client needs both url and token, or neither: then it finds the service of COACH_HOME")
        if not url:
            endpoint = endpoint or running(StateDirectory.default())
            url, token = endpoint.url, endpoint.token
        self.url = url.rstrip("/")
        self.endpoint = endpoint
        headers = {"Authorization": f"Bearer {token}"}
        return {"base_url": self.url, "headers": headers, "timeout": TIMEOUT, "trust_env": False}

    def _silent(self, error: Exception) -> TemporaryError:
        process = f" (process {self.endpoint.pid})" if self.endpoint else ""
        return TemporaryError(
            f"the service at {self.url}{process} does not answer: {error or type(error).__name__}; "
            "is it stopping? see: coach doctor"
        )

    def to_run_here(self, name: str) -> StoredJob | None:
        """A job that a command has to run itself; None where it runs elsewhere."""
        del name
        return None

    def page(self, port: int, opened: Callable[[str, str, str], None]) -> None:
        """Have `opened` called with the address of the jobs' page, a login's code, and what to say of it."""
        raise NotImplementedError

    def save_model(self, name: str, to: BinaryIO, epoch: str = "best") -> None:
        """Write a job's checkpoint to a file."""
        raise NotImplementedError

    # -- the process and the whole service -------------------------------------------------------------------

    @Operation
    def health(self) -> Call[schemas.Health]:
        """Whether the service runs."""
        return Call("GET", "/health", schemas.Health)

    @Operation
    def metrics_page(self) -> Call[str]:
        """Numbers for Prometheus."""
        return Call("GET", "/metrics", str)

    @Operation
    def cluster(self, *, limit: int = 0, cursor: str = "") -> Call[schemas.Cluster]:
        """Its nodes with what is used of them, its queue (of it `limit` rows, 0: 100) and its policy."""
        return _get("/cluster", schemas.Cluster, limit=limit, cursor=cursor)

    @Operation
    def checks(self, also: Collection[OptionalFeature] = ()) -> Call[list[schemas.Check]]:
        """Whether its machine can run jobs: what `coach doctor` shows."""
        return _get("/checks", list[schemas.Check], also=list(also))

    @Operation
    def records(self, names: Sequence[str], after: int = 0, wait: float = 0.0) -> Call[schemas.Records]:
        """Records of jobs later than `after`; waits up to `wait` seconds for one."""
        return _get("/records", schemas.Records, wait, job=list(names), after=after, wait=wait)

    @Operation
    def login_codes(self) -> Call[schemas.LoginCode]:
        """A code with which a browser logs in once."""
        return Call("POST", f"{API}/login-codes", schemas.LoginCode)

    @Operation
    def log_in(self, code: str) -> Call[schemas.LoggedIn]:
        """Use a code; the answer's cookie is for browsers."""
        return Call("POST", f"{API}/login", schemas.LoggedIn, body={"code": code})

    @Operation
    def log_out(self) -> Call[schemas.LoggedIn]:
        """End a browser's login."""
        return Call("POST", f"{API}/logout", schemas.LoggedIn)

    @Operation
    def accounts(self) -> Call[schemas.Accounts]:
        """The budgets over jobs."""
        return _get("/accounts", schemas.Accounts)

    @Operation
    def set_account(  # noqa: PLR0917 - they are the body's fields
        self,
        name: str,
        amount: float,
        currency: str,
        period: str = "ever",
        timezone: str = "UTC",
        parent: str = "",
        labels: dict[str, str] | None = None,
    ) -> Call[AccountRow]:
        """Make a budget over jobs, or change its terms."""
        body = {
            "amount": amount, "currency": currency, "period": period, "timezone": timezone, "parent": parent,
            "labels": labels or {},
        }  # fmt: skip
        return Call("PUT", f"{API}/accounts/{name}", AccountRow, body=body)

    @Operation
    def remove_account(self, name: str) -> Call[schemas.Accounts]:
        """Remove a budget over jobs; the others."""
        return Call("DELETE", f"{API}/accounts/{name}", schemas.Accounts)

    @Operation
    def spending(self) -> Call[schemas.Spending]:
        """What each job paid out of which account."""
        return _get("/spending", schemas.Spending)

    # -- searches --------------------------------------------------------------------------------------------

    @Operation
    def list_searches(self) -> Call[schemas.SearchList]:
        """All searches."""
        return _get("/searches", schemas.SearchList)

    @Operation
    def search(self, name: str, *, after: int = 0, wait: float = 0.0) -> Call[schemas.SearchDetail]:
        """One search with its trials; with `wait` once it has a record later than `after`, or so many seconds after."""
        return _get(f"/searches/{name}", schemas.SearchDetail, wait, after=after, wait=wait)

    @Operation
    def start_search(self, path: str, text: str) -> Call[schemas.SearchDetail]:
        """Begin the search of a file, or go on with it."""
        return Call("POST", f"{API}/searches", schemas.SearchDetail, body={"file": {"path": path, "text": text}})

    @Operation
    def resume_search(
        self, name: str, *, budget: float | None = None, deadline: float | None = None
    ) -> Call[schemas.SearchDetail]:
        """Go on with a search. `budget`: its whole budget from now on; `deadline`: seconds from now."""
        body = {"budget": budget, "deadline": deadline}
        return Call("POST", f"{API}/searches/{name}/resume", schemas.SearchDetail, body=body)

    @Operation
    def stop_search(self, name: str, *, now: bool = False) -> Call[schemas.SearchDetail]:
        """Give no job of a search another epoch, or stop them `now`."""
        return Call("POST", f"{API}/searches/{name}/stop", schemas.SearchDetail, body={"now": now})

    # -- looking at jobs -------------------------------------------------------------------------------------

    @Operation
    def list_jobs(
        self,
        *,
        state: Sequence[str] = (),
        q: str = "",
        limit: int = 0,
        cursor: str = "",
        after: int = 0,
        wait: float = 0.0,
    ) -> Call[JobList]:
        """Jobs in the order of their submission. `limit` 0: all; `cursor`: `next` of the answer before."""
        return _get(
            "/jobs",
            JobList,
            wait,
            state=list(state),
            q=q,
            limit=limit,
            cursor=cursor,
            after=after,
            wait=wait,
        )

    @Operation
    def job(self, name: str, *, after: int = 0, wait: float = 0.0) -> Call[JobDetail]:
        """One job with its epochs; with `wait` once it has a record later than `after`, or after so many seconds."""
        return _get(f"/jobs/{name}", JobDetail, wait, after=after, wait=wait)

    @Operation
    def events(self, name: str, *, after: int = 0, wait: float = 0.0) -> Call[schemas.Events]:
        """What happened to a job, in words."""
        return _get(f"/jobs/{name}/events", schemas.Events, wait, after=after, wait=wait)

    @Operation
    def why_job(self, name: str) -> Call[Why]:
        """Why a job waits, or has its allocation."""
        return _get(f"/jobs/{name}/why", Why)

    @Operation
    def job_consequences(self, name: str, of: str) -> Call[schemas.Consequences]:
        """What a request (`cancel`, `suspend`, `suspend-now`, `resume`, `add-budget`) would do."""
        return _get(f"/jobs/{name}/consequences", schemas.Consequences, of=of)

    @Operation
    def job_figures(self, name: str) -> Call[schemas.Figures]:
        """The data of a job's figures."""
        return _get(f"/jobs/{name}/figures", schemas.Figures)

    @Operation
    def job_picture(self, name: str, picture: str = "page", kind: str = "png") -> Call[bytes]:
        """A figure (`page`, `curve`, `allocation`, `money`, `speed`, `prediction`) as `png` or `svg`."""
        return _get(f"/jobs/{name}/figures/{picture}.{kind}", bytes, MAX_DRAWING)

    @Operation
    def job_table(self, name: str, table: str = "epochs") -> Call[str]:
        """The `epochs` or the `ledger` of a job as CSV."""
        return _get(f"/jobs/{name}/{table}.csv", str)

    @Operation
    def logs(self, name: str) -> Call[schemas.LogFiles]:
        """The logs of a job's functions."""
        return _get(f"/jobs/{name}/logs", schemas.LogFiles)

    @Operation
    def log_text(self, name: str, function: str, *, after: int = 0, before: bool = False) -> Call[schemas.LogText]:
        """The log of one function from byte `after` on; `before`: of what was written before it and is kept."""
        return _get(f"/jobs/{name}/logs/{function}", schemas.LogText, after=after, before=before)

    # -- job files -------------------------------------------------------------------------------------------

    @Operation
    def validate(self, files: Files) -> Call[schemas.Checked]:
        """Whether job files could be submitted, with every mistake."""
        return Call("POST", f"{API}/validate", schemas.Checked, body=_sent(files))

    @Operation
    def plan(self, files: Files, policy: str = "") -> Call[schemas.Plans]:
        """The predicted time and cost of the jobs of files; starts nothing."""
        return Call("POST", f"{API}/plan", schemas.Plans, body=_sent(files, policy), files=_paths(files))

    @Operation
    def compare_jobs(self, names: Sequence[str]) -> Call[Comparison]:
        """Jobs side by side: best values by money and time, and what their files differ in."""
        return _get("/comparison", Comparison, job=list(names))

    @Operation
    def simulate_jobs(
        self,
        jobs: Sequence[str] = (),
        files: Files = (),
        *,
        policies: Sequence[str] = ("coach",),
        nodes: schemas.SimulatedNodes | None = None,
        budget: float | None = None,
        timeline: bool = False,
    ) -> Call[schemas.Simulated]:
        """Simulate jobs of the service, and of files, under each policy, on `nodes` or on those of the service.

        `budget`: of each job, in its currency, instead of its own. `timeline`: also what is used over time.
        """
        return Call(
            "POST",
            f"{API}/simulations",
            schemas.Simulated,
            body={
                "jobs": list(jobs),
                "files": _sent(files)["files"],
                "policies": list(policies),
                "nodes": nodes.model_dump() if nodes else None,
                "budget": budget,
                "timeline": timeline,
            },
            wait=MAX_SIMULATION,
            files=_paths(files),
        )

    @Operation
    def submit(self, files: Files, policy: str = "", *, key: str = "") -> Call[schemas.Submitted]:
        """Submit job files, all or none. `key`: called again with it, also after a restart, it starts nothing twice."""
        return Call(
            "POST",
            f"{API}/jobs",
            schemas.Submitted,
            body=_sent(files, policy),
            headers=_key(key),
            files=_paths(files),
        )

    # -- steering jobs ---------------------------------------------------------------------------------------

    @Operation
    def write_note(self, name: str, text: str) -> Call[schemas.Note]:
        """Keep what a user writes about a job."""
        return Call("PUT", f"{API}/jobs/{name}/note", schemas.Note, body={"text": text})

    @Operation
    def job_model(self, name: str, epoch: str = "best") -> Call[bytes]:
        """The checkpoint of a job's best epoch, of its last, or of a number."""
        return _get(f"/jobs/{name}/model", bytes, epoch=epoch)

    @Operation
    def model_card(self, name: str, epoch: str = "best") -> Call[dict[str, Any]]:
        """What that model was trained on, how, to what, and for how much."""
        return _get(f"/jobs/{name}/model-card", dict[str, Any], epoch=epoch)

    @Operation
    def prune(
        self, names: Sequence[str] = (), *, everything: bool = False, dry_run: bool = False
    ) -> Call[list[Surplus]]:
        """Delete checkpoints of ended jobs, of all without names: all but the best and the last, or `everything`."""
        body = {"jobs": list(names), "everything": everything, "dry_run": dry_run}
        return Call("POST", f"{API}/prune", list[Surplus], body=body)

    @Operation
    def cancel(self, name: str) -> Call[JobRow]:
        """End a job for good."""
        return Call("POST", f"{API}/jobs/{name}/cancel", JobRow)

    @Operation
    def suspend(self, name: str, *, now: bool = False) -> Call[JobRow]:
        """Stop a job so that it can be resumed, at the end of its epoch or `now`."""
        return Call("POST", f"{API}/jobs/{name}/suspend", JobRow, body={"now": now})

    @Operation
    def resume(
        self,
        name: str,
        *,
        budget: float | None = None,
        add_budget: float = 0.0,
        accept_model: bool = False,
        key: str = "",
    ) -> Call[JobRow]:
        """Resume a job. `budget`: its whole budget from now on; a retry does not raise it again. `key`: see `submit`.

        `accept_model`: a model file that was changed since is trained as it is now, else refused.
        """
        return Call(
            "POST",
            f"{API}/jobs/{name}/resume",
            JobRow,
            body={"budget": budget, "add_budget": add_budget, "accept_model": accept_model},
            headers=_key(key),
        )


class Awaited(Operations):
    """The same, each awaited."""


def _key(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key} if key else {}


def _get(path: str, answer: type[T], seconds: float = 0.0, /, **params: Any) -> Call[T]:
    return Call("GET", API + path, answer, params={k: v for k, v in params.items() if v}, wait=seconds)


def _paths(files: Files) -> tuple[Path, ...]:
    return tuple(Path(file) for file in files)


def _sent(files: Files, policy: str = "") -> dict[str, Any]:
    sent = [
        {"path": str(file.absolute()), "text": file.read_bytes().decode("utf-8", "replace")} for file in _paths(files)
    ]
    return {"files": sent, "policy": policy}


def running(home: StateDirectory) -> Endpoint:
    """The running service of a state folder. Raises UserError where there is none."""
    endpoint = find(home)
    if endpoint is None:
        raise UserError(
            f"no service runs in {home.path}; start one with `coach serve`, or run jobs here: coach run FILE"
        )
    return endpoint
