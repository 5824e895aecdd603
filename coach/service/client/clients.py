"""The two clients: the same calls, sent by a thread or by a coroutine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import BinaryIO, TypeVar

import httpx

from coach.core.cluster import Node, Resources
from coach.handler.endpoint import API, Endpoint
from coach.handler.state.state_directory import StateDirectory
from coach.service.calls import TIMEOUT, Awaited, Call, Operations, running
from coach.service.client.events import Change, Decoder

T = TypeVar("T")

#: Seconds between two attempts to follow a service that does not answer, and for how long it is tried.
PAUSE, PATIENCE = 0.5, 60.0


class Client(Operations):
    """One service. Use as a context manager, or close it. Methods have the names of the API's operations.

    `url` and `token`: of a service elsewhere; without them that of COACH_HOME.
    """

    def __init__(self, endpoint: Endpoint | None = None, *, url: str = "", token: str = "") -> None:
        self._http = httpx.Client(**self._find(endpoint, url, token))

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

    def page(self, port: int, opened: Callable[[str, str, str], None]) -> None:
        """Have `opened` called with the address of the service and a login's code."""
        del port  # the service has its own
        opened(self.url, self.login_codes().code, "")

    def save_model(self, name: str, to: BinaryIO, epoch: str = "best") -> None:
        """Write a job's checkpoint to a file."""
        try:
            with self._http.stream("GET", f"{API}/jobs/{name}/model", params={"epoch": epoch}) as answer:
                if not answer.is_success:
                    answer.read()
                    Call("GET", "", str).read(answer)  # raises its error
                for part in answer.iter_bytes():
                    to.write(part)
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
                        Call("GET", "", str).read(answer)  # raises its error
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


class AsyncClient(Awaited):
    """The same for coroutines: `async with AsyncClient() as coach: await coach.list_jobs()`."""

    def __init__(self, endpoint: Endpoint | None = None, *, url: str = "", token: str = "") -> None:
        self._http = httpx.AsyncClient(**self._find(endpoint, url, token))

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
                        Call("GET", "", str).read(answer)  # raises its error
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
    return Client(running(home))
