"""What commands show of a job, kept in its journal by the handler while it changes, so that they need not compute it.

It is a cache, made at most a fiftieth of the time. `coach.service.local.quick` reads it, and takes nothing that is
older than the job's last record.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from coach.core.errors import PermanentError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.report.rows import Rows
from coach.report.why import why
from coach.service.job_history import Stories
from coach.service.local.quick import SHAPE
from coach.service.views.answers import job_detail

#: Seconds between two looks; how many times as long as making one took passes before the next; seconds after which one
#: with a prediction of time is made anew.
PAUSE, SHARE, REFRESH = 0.2, 50.0, 30.0
#: Seconds for what has changed when the handler ends.
LAST_SECONDS = 1.0


@contextlib.asynccontextmanager
async def writing(home: StateDirectory, handler: Handler, journal: Journal) -> AsyncIterator[None]:
    """Keep what commands show up to date for the length of a block."""
    views = Views(home, handler, journal)
    handler.observers.append(views.observe)
    task = asyncio.create_task(views.run())
    try:
        yield
    finally:
        handler.observers.remove(views.observe)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with contextlib.suppress(PermanentError):  # another handler has the journal
            views.write_all(LAST_SECONDS)


class Views:
    """What is shown of a handler's jobs."""

    def __init__(self, home: StateDirectory, handler: Handler, journal: Journal) -> None:
        self._home = home
        self._handler = handler
        self._journal = journal
        self._rows = Rows()
        self._stories = Stories(home)
        self._changed: dict[str, None] = {}
        self._at: dict[str, float] = {}

    def observe(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        """These have happened."""
        if not event.job:
            self._changed |= dict.fromkeys(name for name, job in self._handler.jobs.items() if not job.ended)
        self._changed |= dict.fromkeys(one.job for one in (event, *actions) if one.job in self._handler.jobs)

    async def run(self) -> None:
        """Write what has changed, one job after the other, until it is cancelled."""
        while True:
            now = time.monotonic()
            old = [name for name, at in self._at.items() if now - at > REFRESH and not self._handler.jobs[name].ended]
            self._changed |= dict.fromkeys(old)
            took = self._write_next()
            await asyncio.sleep(max(PAUSE if not self._changed else 0.0, SHARE * took))

    def write_all(self, seconds: float = float("inf")) -> None:
        """Write what has changed, for so many seconds at most."""
        began = time.monotonic()
        while self._changed and time.monotonic() - began < seconds:
            self._write_next()

    def _write_next(self) -> float:
        """Write the job that has changed first; the seconds that it took."""
        if not self._changed:
            return 0.0
        began = time.monotonic()
        name = next(iter(self._changed))
        del self._changed[name]
        self._at[name] = began
        job = self._handler.jobs[name]
        row, now = self._rows.view(job, self._handler.now()), self._handler.now()
        live, (nodes, taken) = self._handler.jobs, self._journal.nodes()
        found = why(job, live, nodes, now, taken)
        row = replace(row, seq=self._journal.last_seq(), starts_in=found.starts_in)
        books = self._stories.books(StoredJob(job, self._journal.path, True))
        made = {"at": now, "waits": waits(job), "why": asdict(found)}
        detail = asdict(job_detail(job, row, books, self._home))
        self._journal.save_view(name, row.seq, SHAPE, _json(asdict(row) | made), _json(detail))
        return time.monotonic() - began


def waits(job: Job) -> bool:
    """Whether what is said of a job depends on others: it waits for room."""
    return not job.ended and not job.gang.pods and not job.stop.suspend


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
