"""Handlers that lead by a lease, one after the other: stopped, cut off, killed, in histories that a seed draws.

The driver, its rule and the journal are the real ones. The API server is a lease in memory, and time is virtual.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coach.core.errors import PermanentError, TemporaryError
from coach.core.jobs.events import PriorityChanged
from coach.core.leadership import LEASE_SECONDS, LostError
from coach.handler.state.journal import Journal
from coach.handler.state.journal_file import acquire_fence, meta
from coach.platforms.kubernetes_api.client import ApiError
from coach.platforms.kubernetes_api.election import LOOK_SECONDS, Election

#: Seconds of a history with faults, and of the peace after it.
TROUBLE, PEACE = 120.0, 60.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waits for nothing: where no task can run, the next timer's time has come."""

    _now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Process:
    """A handler: it wins the lease, opens the journal, and pays again and again. To its election it is an `Api`."""

    namespace = "here"

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.runs, self.reached = asyncio.Event(), True
        self.runs.set()
        self.election = Election(self, "lease", name, world.written, world.now, self.sleep)  # type: ignore[arg-type]
        self.won = asyncio.Event()
        self.task = asyncio.create_task(self.live())

    async def live(self) -> None:
        """Until it dies, loses the lease, or is refused by the journal."""
        elected, working = (asyncio.create_task(one) for one in (self.election.run(self.won.set), self.work()))
        try:
            await asyncio.wait({elected, working}, return_when=asyncio.FIRST_COMPLETED)
            await self.runs.wait()
            for one in (elected, working):
                if one.done():
                    with contextlib.suppress(LostError, PermanentError):
                        one.result()
        finally:
            for one in (elected, working):
                one.cancel()
            await asyncio.gather(elected, working, return_exceptions=True)
            self.election.candidate.term = 0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.runs.wait()

    async def work(self) -> None:
        await self.won.wait()
        await self.sleep(self.world.random.uniform(0.0, 0.5))
        term = self.election.candidate.term
        token = acquire_fence(Path("journal"), self.world.connection, term)
        journal = Journal(Path("journal"), self.world.connection, None, token)
        paid = len(list(journal.records("job")))
        while True:
            await self.sleep(self.world.random.uniform(0.05, 1.0))
            if not self.election.candidate.leads(self.world.now()):
                continue
            if self.world.random.random() < 0.1:
                await self.runs.wait()
                await self.sleep(0.0)  # it may be stopped after it has looked, and write when it goes on
            journal.append([PriorityChanged(self.world.now(), "job", paid + 1)])
            paid += 1
            self.world.paid(term)

    # -- what `Api` has ------------------------------------------------------------------------------

    async def get(self, path: str) -> Any:
        return await self.request(self.world.read)

    async def create(self, path: str, body: Any) -> Any:
        return await self.request(lambda: self.world.create(body["spec"]))

    async def merge(self, path: str, body: Any) -> Any:
        return await self.request(lambda: self.world.change(body["metadata"]["resourceVersion"], body["spec"]))

    async def request(self, carry_out: Callable[[], Any]) -> Any:
        """A request takes its time both ways; one that is cut off on either is not answered."""
        await self.sleep(self.world.latency())
        if not self.reached:
            await self.sleep(30.0)
            raise TemporaryError("not reached")
        answer: Any = None
        try:
            answer = carry_out()
        except ApiError as error:
            answer = error
        await self.sleep(self.world.latency())
        if not self.reached:
            await self.sleep(30.0)
            raise TemporaryError("no answer came back")
        if isinstance(answer, ApiError):
            raise answer
        return answer


class World:
    """The lease, the journal, and the processes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.slow = 0.05
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.terms: list[int] = []
        self.last_paid = 0.0
        self.processes: list[Process] = []

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def latency(self) -> float:
        return self.random.uniform(0.0, self.slow)

    def written(self) -> int:
        with contextlib.suppress(sqlite3.OperationalError):  # before the first
            return meta(self.connection, "term")
        return 0

    def read(self) -> dict[str, Any]:
        if self.lease is None:
            raise ApiError(404, "NotFound", "no lease")
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": dict(self.lease)}

    def create(self, spec: dict[str, Any]) -> dict[str, Any]:
        if self.lease is not None:
            raise ApiError(409, "AlreadyExists", "there is one")
        return self._set(spec)

    def change(self, version: str, spec: dict[str, Any]) -> dict[str, Any]:
        if self.lease is None:
            raise ApiError(404, "NotFound", "no lease")
        if version != str(self.version):
            raise ApiError(409, "Conflict", "it has changed")
        return self._set({**self.lease, **spec})

    def _set(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = spec
        return self.read()

    def start(self, name: str) -> Process:
        self.processes.append(Process(self, name))
        return self.processes[-1]

    def leaders(self) -> list[str]:
        return [one.name for one in self.processes if one.election.candidate.leads(self.now())]

    def paid(self, term: int) -> None:
        assert not self.terms or term >= self.terms[-1], "an earlier leader has written"
        assert len(self.leaders()) <= 1, f"several act: {self.leaders()}"
        self.terms.append(term)
        self.last_paid = self.now()

    def check(self) -> None:
        """Each payment is there, once: what the journal has is what was counted."""
        records = [record.priority for _, record in Journal(Path("j"), self.connection, None, 0).records("job")]  # type: ignore[union-attr]
        assert records == list(range(1, len(self.terms) + 1))


@contextlib.contextmanager
def virtual() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    try:
        yield loop
    finally:
        loop.close()


def run(body: Callable[[World], Awaitable[None]], seed: int) -> World:
    """Run a history; every task has ended at its end."""
    world = World(seed)

    async def main() -> None:
        try:
            await body(world)
        finally:
            for one in world.processes:
                one.task.cancel()
            await asyncio.gather(*(one.task for one in world.processes), return_exceptions=True)
        for one in world.processes:
            if not one.task.cancelled():
                one.task.result()
        world.check()

    with virtual() as loop:
        loop.run_until_complete(main())
    return world


async def trouble(world: World) -> None:
    """One fault at a time, or several at once, on any of the handlers; those that end are started again."""
    draw = world.random
    names = [f"handler-{one}" for one in range(draw.choice([2, 3]))]
    alive = {name: world.start(name) for name in names}

    async def heal(process: Process, seconds: float) -> None:
        await asyncio.sleep(seconds)
        process.reached = True
        process.runs.set()

    healing = set[asyncio.Task[None]]()
    while world.now() < TROUBLE + PEACE:
        await asyncio.sleep(draw.uniform(0.5, 8.0))
        for name, process in alive.items():
            if process.task.done():
                alive[name] = world.start(draw.choice([name, f"{name}-{draw.random():.4f}"]))
        if world.now() > TROUBLE:
            world.slow = 0.05
            continue
        process = alive[draw.choice(names)]
        fault = draw.choice(["stop", "cut", "stop and cut", "kill", "delete the lease", "slow", "fast", "nothing"])
        if "stop" in fault:
            process.runs.clear()
        if "cut" in fault:
            process.reached = False
        if fault == "kill":
            process.task.cancel()
        if fault == "delete the lease":
            world.lease = None
        if fault in ("slow", "fast"):
            world.slow = 5.0 if fault == "slow" else 0.05
        if "stop" in fault or "cut" in fault:
            healing.add(asyncio.create_task(heal(process, draw.uniform(0.1, 30.0))))
    await asyncio.gather(*healing)
    assert world.leaders() and world.last_paid > TROUBLE + PEACE / 2, f"nobody works: {world.leaders()} {world.lease}"


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 100), marks=pytest.mark.full)], ids=str)
def test_in_no_history_two_act_at_once_nor_is_a_payment_lost_or_made_twice(seeds: range) -> None:
    terms = [max(run(trouble, seed).terms) for seed in seeds]
    assert min(terms) >= 2, "in each history another one led at some time"


def test_another_one_leads_as_soon_as_a_lease_may_be_taken(seed: int = 7) -> None:
    gaps = list[float]()

    async def body(world: World) -> None:
        handlers = [world.start("a"), world.start("b")]
        for kill in range(30):
            await asyncio.sleep(world.random.uniform(20.0, 40.0))
            (leader,) = [one for one in handlers if one.election.candidate.leads(world.now())]
            if kill % 2:
                leader.task.cancel()
            else:
                leader.runs.clear()
            handlers.remove(leader)
            began = world.now()
            while not any(one.election.candidate.leads(world.now()) for one in handlers):
                await asyncio.sleep(0.1)
            gaps.append(world.now() - began)
            leader.runs.set()
            handlers.append(world.start(f"next-{kill}"))
        await asyncio.sleep(5.0)
        assert [one.task.done() for one in handlers].count(False) == 2

    run(body, seed)
    assert LEASE_SECONDS - 3 < max(gaps) < LEASE_SECONDS + 2 * LOOK_SECONDS
