"""A service over the journals of a state folder that changes nothing: for `coach ui` where no `coach serve` runs.

Jobs that a `coach run` trains at the same time are followed: the journals are read again when they have grown.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from coach.core.cluster import Node
from coach.core.errors import UserError
from coach.core.jobs.accounts import Accounts
from coach.core.jobs.job import Job
from coach.handler import accounts
from coach.handler.handler import Handler
from coach.handler.offline import NullPlatform
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.plugins import policy
from coach.report.row_types import JobDetails, JobRow
from coach.service.bind import answering, listen
from coach.service.http_app import make_app
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
            if (seq := self._written()) != self._seen:
                past, known = await asyncio.to_thread(lambda: (self.home.past(), accounts.read(self.home)[0]))
                self._take_in(past, known, seq)
                self.wake()

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


def _nodes(home: StateDirectory, newest: StoredJob) -> tuple[Node, ...]:
    with contextlib.suppress(UserError):
        return home.nodes(newest)
    return ()


def _grown(before: StoredJob, now: StoredJob) -> bool:
    def seen(job: Job) -> object:
        ledger, running = job.ledger, job.running
        token = running.token if running else ""
        return job.state, job.reason, job.message, len(job.epochs), ledger, token, len(job.pods)

    return before.held != now.held or seen(before.job) != seen(now.job)


# -- serving it ------------------------------------------------------------------------------------------------


def serve_page(home: StateDirectory, port: int, ready: Callable[[str, str], None]) -> int:
    """Serve it on loopback; the exit code. `ready` is called with the URL and a login code.

    Raises UserError where there are no jobs, or the port is taken.
    """
    with contextlib.closing(ReadOnlyService(home)) as service, listen("127.0.0.1", port) as listening:
        asyncio.run(_serve(service, listening, ready))
    return 0


async def _serve(service: ReadOnlyService, listening: socket.socket, ready: Callable[[str, str], None]) -> None:
    port = listening.getsockname()[1]
    # Nothing but the browser calls it, so its token is for this process alone.
    app = make_app(service, secrets.token_urlsafe(32), port=port)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    looking = asyncio.create_task(service.look())
    async with answering(service, app, listening) as answers:
        ready(f"http://127.0.0.1:{port}", app.state.logins.code())
        ends = {answers, looking, asyncio.create_task(stopped.wait())}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
