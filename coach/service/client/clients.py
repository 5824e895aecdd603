"""The two clients: the same calls, sent by a thread or by a coroutine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, overload

import httpx

from coach.core.cluster import Node, Resources
from coach.core.errors import TemporaryError, UserError
from coach.handler.endpoint import API, Endpoint, find
from coach.handler.state.state_directory import StateDirectory
from coach.service.client import calls
from coach.service.client.calls import TIMEOUT, Call
from coach.service.client.events import Change, Decoder

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds between two attempts to follow a service that does not answer, and for how long it is tried.
PAUSE, PATIENCE = 0.5, 60.0


class _Operation(Generic[P, T]):
    """A call as a method of a client, which a `Client` sends and an `AsyncClient` awaits."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> _Operation[P, T]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self

        def send(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(self._make(*args, **kwargs))

        send.__doc__ = self.__doc__
        return send


class _Operations:
    """Where the service is, and its operations.

    Without arguments: the running one of COACH_HOME. Raises UserError where there is none.
    """

    health = _Operation(calls.health)
    metrics_page = _Operation(calls.metrics_page)
    cluster = _Operation(calls.cluster)
    accounts = _Operation(calls.accounts)
    set_account = _Operation(calls.set_account)
    remove_account = _Operation(calls.remove_account)
    spending = _Operation(calls.spending)
    records = _Operation(calls.records)
    login_codes = _Operation(calls.login_codes)
    log_in = _Operation(calls.log_in)
    log_out = _Operation(calls.log_out)
    list_searches = _Operation(calls.list_searches)
    search = _Operation(calls.search)
    start_search = _Operation(calls.start_search)
    resume_search = _Operation(calls.resume_search)
    stop_search = _Operation(calls.stop_search)
    list_jobs = _Operation(calls.list_jobs)
    job = _Operation(calls.job)
    events = _Operation(calls.events)
    why_job = _Operation(calls.why_job)
    job_consequences = _Operation(calls.job_consequences)
    job_figures = _Operation(calls.job_figures)
    job_picture = _Operation(calls.job_picture)
    job_table = _Operation(calls.job_table)
    logs = _Operation(calls.logs)
    log_text = _Operation(calls.log_text)
    validate = _Operation(calls.validate)
    plan = _Operation(calls.plan)
    compare_jobs = _Operation(calls.compare_jobs)
    simulate_jobs = _Operation(calls.simulate_jobs)
    submit = _Operation(calls.submit)
    cancel = _Operation(calls.cancel)
    suspend = _Operation(calls.suspend)
    resume = _Operation(calls.resume)

    def __init__(self, endpoint: Endpoint | None = None, *, url: str = "", token: str = "") -> None:
        if bool(url) != bool(token):
            raise UserError("a client needs both url and token, or neither: then it finds the service of COACH_HOME")
        if not url:
            endpoint = endpoint or _found(StateDirectory.default())
            url, token = endpoint.url, endpoint.token
        self.url = url.rstrip("/")
        self.endpoint = endpoint
        self._headers = {"Authorization": f"Bearer {token}"}

    def _silent(self, error: Exception) -> TemporaryError:
        process = f" (process {self.endpoint.pid})" if self.endpoint else ""
        return TemporaryError(
            f"the service at {self.url}{process} does not answer: {error or type(error).__name__}; "
            "is it stopping? see: coach doctor"
        )


class Client(_Operations):
    """One service. Use as a context manager, or close it. Methods have the names of the API's operations.

    `url` and `token`: of a service elsewhere; without them that of COACH_HOME.
    """

    def __init__(self, endpoint: Endpoint | None = None, *, url: str = "", token: str = "") -> None:
        super().__init__(endpoint, url=url, token=token)
        self._http = httpx.Client(base_url=self.url, headers=self._headers, timeout=TIMEOUT, trust_env=False)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def send(self, call: Call[T]) -> T:
        """Send a call. Raises JobFileError, UserError, TemporaryError, PermanentError."""
        try:
            return call.read(self._http.send(call.request(self._http)))
        except httpx.HTTPError as error:
            raise self._silent(error) from error

    def nodes(self) -> tuple[Node, ...]:
        """The nodes that it runs jobs on."""
        return tuple(
            Node(node.name, Resources(node.cpu, node.memory, node.gpu), node.price) for node in self.cluster().nodes
        )

    def stream(self, job: str = "", *, after: str = "", log: str = "") -> Iterator[Change]:
        """Changes as they happen, of all jobs or one; it goes on when the service was restarted.

        `after`: `stream` of a list of jobs. `log`: JOB/FUNCTION, whose log's lines come too.
        Raises TemporaryError where the service stays away, UserError.
        """
        decoder, tried = Decoder(job, after, log), time.monotonic()
        while True:
            try:
                with self._http.stream("GET", f"{API}/stream", params=decoder.asked, timeout=TIMEOUT) as answer:
                    if not answer.is_success:
                        answer.read()
                        calls.health().read(answer)
                    for line in answer.iter_lines():
                        tried = time.monotonic()
                        yield from decoder.changes([line])
            except httpx.HTTPError as error:
                if time.monotonic() - tried > PATIENCE:
                    raise self._silent(error) from error
            time.sleep(PAUSE)

    def follow(self, name: str) -> Iterator[Change]:
        """The changes of one job, its present row first, until it has ended."""
        listed = self.list_jobs(q=name)
        first = [row for row in listed.jobs if row.name == name] or [self.job(name).job]
        yield Change(jobs=first)
        if first[0].ended_at is None:
            for change in self.stream(name, after=listed.stream):
                yield change
                if any(row.ended_at is not None for row in change.jobs):
                    return


class AsyncClient(_Operations):
    """The same for coroutines: `async with AsyncClient() as coach: await coach.list_jobs()`."""

    def __init__(self, endpoint: Endpoint | None = None, *, url: str = "", token: str = "") -> None:
        super().__init__(endpoint, url=url, token=token)
        self._http = httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=TIMEOUT, trust_env=False)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        """See `Client.send`."""
        try:
            return call.read(await self._http.send(call.request(self._http)))
        except httpx.HTTPError as error:
            raise self._silent(error) from error

    async def stream(self, job: str = "", *, after: str = "", log: str = "") -> AsyncIterator[Change]:
        """See `Client.stream`."""
        decoder, tried = Decoder(job, after, log), time.monotonic()
        while True:
            try:
                async with self._http.stream("GET", f"{API}/stream", params=decoder.asked, timeout=TIMEOUT) as answer:
                    if not answer.is_success:
                        await answer.aread()
                        calls.health().read(answer)
                    async for line in answer.aiter_lines():
                        tried = time.monotonic()
                        for change in decoder.changes([line]):
                            yield change
            except httpx.HTTPError as error:
                if time.monotonic() - tried > PATIENCE:
                    raise self._silent(error) from error
            await asyncio.sleep(PAUSE)


def service_of(home: StateDirectory) -> Client:
    """The running service of a state folder. Raises UserError where there is none."""
    return Client(_found(home))


def _found(home: StateDirectory) -> Endpoint:
    endpoint = find(home)
    if endpoint is None:
        raise UserError(
            f"no service runs in {home.path}; start one with `coach serve`, or run jobs here: coach run FILE"
        )
    return endpoint
