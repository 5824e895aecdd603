"""The two clients: the same calls, sent by a thread or by a coroutine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, ParamSpec, TypeVar, overload

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


class _Sent(Generic[P, T]):
    """A call as a method of `Client`."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> _Sent[P, T]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    def __get__(self, client: Client | None, owner: type) -> _Sent[P, T] | Callable[P, T]:
        if client is None:
            return self

        def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return client.send(self._make(*args, **kwargs))

        send.__doc__ = self.__doc__
        return send


class _Awaited(Generic[P, T]):
    """A call as a method of `AsyncClient`."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> _Awaited[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: AsyncClient | None, owner: type) -> _Awaited[P, T] | Callable[P, Awaitable[T]]:
        if client is None:
            return self

        async def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return await client.send(self._make(*args, **kwargs))

        send.__doc__ = self.__doc__
        return send


class _Connection:
    """Where the service is. Without arguments: the running one of COACH_HOME. Raises UserError where there is none."""

    def __init__(self, endpoint: Endpoint | None = None, *, url: str = "", token: str = "") -> None:
        if bool(url) != bool(token):
            raise UserError(
                "a client needs both url and token, or neither: then it finds the service of COACH_HOME"
            )
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


class Client(_Connection):
    """One service. Use as a context manager, or close it. Methods have the names of the API's operations.

    `url` and `token`: of a service elsewhere; without them that of COACH_HOME.
    """

    health = _Sent(calls.health)
    metrics_page = _Sent(calls.metrics_page)
    cluster = _Sent(calls.cluster)
    accounts = _Sent(calls.accounts)
    set_account = _Sent(calls.set_account)
    remove_account = _Sent(calls.remove_account)
    spending = _Sent(calls.spending)
    records = _Sent(calls.records)
    login_codes = _Sent(calls.login_codes)
    log_in = _Sent(calls.log_in)
    log_out = _Sent(calls.log_out)
    list_jobs = _Sent(calls.list_jobs)
    job = _Sent(calls.job)
    events = _Sent(calls.events)
    why_job = _Sent(calls.why_job)
    job_consequences = _Sent(calls.job_consequences)
    job_figures = _Sent(calls.job_figures)
    job_picture = _Sent(calls.job_picture)
    job_table = _Sent(calls.job_table)
    logs = _Sent(calls.logs)
    log_text = _Sent(calls.log_text)
    validate = _Sent(calls.validate)
    plan = _Sent(calls.plan)
    simulate_jobs = _Sent(calls.simulate_jobs)
    submit = _Sent(calls.submit)
    cancel = _Sent(calls.cancel)
    suspend = _Sent(calls.suspend)
    resume = _Sent(calls.resume)

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
            Node(node.name, Resources(node.cpu, node.memory, node.gpu)) for node in self.cluster().nodes
        )

    def stream(self, job: str = "", *, after: str = "", log: str = "") -> Iterator[Change]:
        """Changes as they happen, of all jobs or one; it goes on when the service was restarted.

        `after`: `stream` of a list of jobs. `log`: JOB/FUNCTION, whose log's lines come too.
        Raises TemporaryError where the service stays away, UserError.
        """
        decoder, tried = Decoder(job, after, log), time.monotonic()
        while True:
            try:
                with self._http.stream(
                    "GET", f"{API}/stream", params=decoder.asked, timeout=TIMEOUT
                ) as answer:
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


class AsyncClient(_Connection):
    """The same for coroutines: `async with AsyncClient() as coach: await coach.list_jobs()`."""

    health = _Awaited(calls.health)
    metrics_page = _Awaited(calls.metrics_page)
    cluster = _Awaited(calls.cluster)
    accounts = _Awaited(calls.accounts)
    set_account = _Awaited(calls.set_account)
    remove_account = _Awaited(calls.remove_account)
    spending = _Awaited(calls.spending)
    records = _Awaited(calls.records)
    login_codes = _Awaited(calls.login_codes)
    log_in = _Awaited(calls.log_in)
    log_out = _Awaited(calls.log_out)
    list_jobs = _Awaited(calls.list_jobs)
    job = _Awaited(calls.job)
    events = _Awaited(calls.events)
    why_job = _Awaited(calls.why_job)
    job_consequences = _Awaited(calls.job_consequences)
    job_figures = _Awaited(calls.job_figures)
    job_picture = _Awaited(calls.job_picture)
    job_table = _Awaited(calls.job_table)
    logs = _Awaited(calls.logs)
    log_text = _Awaited(calls.log_text)
    validate = _Awaited(calls.validate)
    plan = _Awaited(calls.plan)
    simulate_jobs = _Awaited(calls.simulate_jobs)
    submit = _Awaited(calls.submit)
    cancel = _Awaited(calls.cancel)
    suspend = _Awaited(calls.suspend)
    resume = _Awaited(calls.resume)

    def __init__(self, endpoint: Endpoint | None = None, *, url: str = "", token: str = "") -> None:
        super().__init__(endpoint, url=url, token=token)
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=self._headers, timeout=TIMEOUT, trust_env=False
        )

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
                async with self._http.stream(
                    "GET", f"{API}/stream", params=decoder.asked, timeout=TIMEOUT
                ) as answer:
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
