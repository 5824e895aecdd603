"""A service over the journals of a state folder that changes nothing: for `coach ui` where no `coach serve` runs.

Jobs that a `coach run` trains at the same time are followed: the journals are read again when they have grown.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coach.core.cluster import Node, Taken, without
from coach.core.errors import UserError
from coach.core.estimation.interval import Interval
from coach.core.jobs.accounts import Accounts
from coach.core.jobs.job import Job
from coach.handler import accounts
from coach.handler.handler import Handler
from coach.handler.offline import NullPlatform
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.plugins import policy
from coach.report.row_types import JobDetails, JobRow
from coach.service.operations import ReadOnlyError, Service

#: Seconds between two looks at the journals.
LOOK = 0.5


class _Looking(Handler):
    """A handler that is never started: it only holds the jobs."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(NullPlatform(), journal, policy("coach"))

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def show(self, jobs: dict[str, Job], known: Accounts) -> None:
        """Hold these jobs and budgets over jobs instead."""
        self.jobs.clear()
        self.jobs.update(jobs)
        self._reducer.accounts = known


class ReadOnlyService(Service):
    """The jobs of all journals of a state folder. Raises UserError where there are none."""

    read_only = True

    def __init__(self, home: StateDirectory) -> None:
        past = home.past()
        if not past:
            raise UserError(f"no job was run yet in {home.path}; start one with: coach run FILE")
        self._readers = [Journal.read(path) for path in home.journals()]
        self._seen = 0
        newest = max(past.values(), key=lambda one: one.asked_at)
        self._looking = _Looking(self._readers[0])
        super().__init__(
            home,
            self._looking,
            journal=newest.journal,
            past={},
            nodes=_nodes(home, newest),
            policy=policy("coach"),
            folders=(),
        )
        self._take_in(past, accounts.read(home)[0], self._written())

    def close(self) -> None:
        """Close the journals."""
        super().close()
        for reader in self._readers:
            reader.close()

    async def look(self) -> None:
        """Follow the journals until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            if await self.read_again():
                self.wake()

    async def read_again(self) -> bool:
        """Read the journals if they have grown, or a handler has gone; whether that was so."""
        seq = self._written()
        held = {one.journal: one for one in self._past.values() if one.held}
        if seq == self._seen and all(map(self.home.held, held.values())):
            return False
        past, known = await asyncio.to_thread(lambda: (self.home.past(), accounts.read(self.home)[0]))
        self._take_in(past, known, seq)
        return True

    def news(self, names: Sequence[str], after: int) -> bool:
        """Whether there is a record later than `after` of these jobs."""
        by_path = {reader.path: reader for reader in self._readers}
        return any(next(by_path[self.past(name).journal].rows([name], after, 1), None) for name in names)

    def others(self, name: str) -> tuple[Mapping[str, Job], tuple[Node, ...], tuple[Taken, ...]]:
        """The jobs of the same journal, and its handler's nodes."""
        past = self.past(name)
        return {key: one.job for key, one in self._past.items() if one.journal == past.journal}, *self.home.nodes(past)

    def expected_starts(self) -> dict[str, Interval]:
        """When the jobs that wait for room are expected to start, in each journal that a handler has."""
        found: dict[str, Interval] = {}
        held = {one.journal: name for name, one in self._past.items() if one.held and not one.job.ended}
        for name in held.values():
            jobs, nodes, taken = self.others(name)
            if any(not job.ended and not job.gang.pods for job in jobs.values()):
                from coach.core.lifecycle.start_forecast import expected_starts

                found |= expected_starts(jobs.values(), without(nodes, taken), self.handler.now())
        return found

    def last_seq(self) -> int:
        """How many records there were at the last look, in all journals."""
        return self._seen

    def _written(self) -> int:
        return sum(reader.last_seq() for reader in self._readers)

    def _take_in(self, past: dict[str, StoredJob], known: Accounts, seq: int) -> None:
        self._seen = seq
        before = self._past
        self._past = past
        self._looking.show({name: one.job for name, one in past.items()}, known)
        changed = {name for name, one in past.items() if name not in before or _grown(before[name], one)}
        self.changed_at = {name: seq if name in changed else self.changed_at[name] for name in past}

    def row(self, name: str) -> JobRow:
        """The row of a job."""
        return self._rows.row(self.job(name), self.handler.now(), orphan=self._past[name].orphan)

    def view(self, name: str) -> JobDetails:
        """The row of a job with what a page shows in addition."""
        orphan, seq = self.past(name).orphan, self.changed_at.get(name, 0)
        return self._rows.view(self.job(name), self.handler.now(), seq=seq, orphan=orphan)

    # -- what it does not do -------------------------------------------------------------------------------

    async def _refuse(self, *_: Any, **__: Any) -> Any:
        """Raises ReadOnlyError."""
        raise ReadOnlyError("this page only shows jobs; to submit and steer them: coach serve")

    take = submit = resume = cancel = suspend = set_account = remove_account = _refuse


class Journals(ReadOnlyService):
    """The same for one command, which follows the journals while it waits."""

    read_only = False

    async def changed(self, seconds: float, enough: Callable[[], bool] = lambda: True) -> None:
        """See `Service.changed`."""
        del enough  # asked again by the caller
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(LOOK)
            if await self.read_again():
                return


def _nodes(home: StateDirectory, newest: StoredJob) -> tuple[Node, ...]:
    with contextlib.suppress(UserError):
        return home.nodes(newest)[0]
    return ()


def _grown(before: StoredJob, now: StoredJob) -> bool:
    def seen(job: Job) -> object:
        ledger, running = job.money.ledger, job.attempts.running
        token = running.token if running else ""
        return job.state, job.reason, job.message, len(job.epochs), ledger, token, len(job.gang.pods)

    return before.held != now.held or seen(before.job) != seen(now.job)
