"""A session whose jobs run in a service: `coach run` shows them as if they ran in its own process.

The service sends the journal's records; folded here they give the same jobs, so everything that shows a session shows
this one. Signals go to the service as requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coach.core.errors import CoachError, TemporaryError
from coach.core.jobs import events as ev
from coach.core.jobs import job as jobs
from coach.core.jobs.job import Job
from coach.handler.codec import decode
from coach.handler.session import INTERRUPTED, Watcher, exit_code, over
from coach.platforms.base import Progress
from coach.service.client import Client

log = logging.getLogger(__name__)

#: Seconds that a request waits for news. While an epoch runs its progress is asked for more often.
WAIT = 20.0
WAIT_FOR_PROGRESS = 0.5


class Joined:
    """Submits `files` to a service and follows their jobs. See `coach.handler.session.Session`."""

    def __init__(self, client: Client, files: Sequence[Path], policy: str, watcher: Watcher) -> None:
        self._client = client
        self._files = files
        self._policy = policy
        self._watcher = watcher
        self._names: list[str] = []
        self._known: dict[str, Job] = {}
        self._seq = self._submitted_at = 0
        self._offset = time.time() - time.monotonic()
        self._stops = 0
        self._muted = False
        self._task: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[Any]] = set()
        self.progress: Mapping[str, Progress] = {}

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs of these files, in their order."""
        return {name: self._known[name] for name in self._names if name in self._known}

    @property
    def stops(self) -> int:
        """How urgently it was asked to stop."""
        return self._stops

    def now(self) -> float:
        """Seconds since 1970 on the service's clock."""
        return self._offset + time.monotonic()

    def run(self) -> int:
        """Until all jobs have ended or are interrupted; the exit code. Raises CoachError."""
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            return INTERRUPTED
        finally:
            self._watcher.close()
        return exit_code(self.jobs.values())

    async def _main(self) -> None:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        taken = await asyncio.to_thread(self._client.submit, self._files, self._policy)
        loop.add_signal_handler(signal.SIGINT, lambda: self.stop(self._stops + 1))
        loop.add_signal_handler(signal.SIGTERM, lambda: self.stop(max(2, self._stops + 1)))
        loop.add_signal_handler(signal.SIGHUP, self.output_lost)
        self._names = [one["job"]["name"] for one in taken["jobs"]]
        self._submitted_at = taken["seq"]
        if not any(one["went_on"] for one in taken["jobs"]):
            self._seq = self._submitted_at
        for note in (one["note"] for one in taken["jobs"] if one["note"]):
            self._show(partial(self._watcher.said, note))
        watching = asyncio.create_task(self._watch())
        try:
            while len(self.jobs) < len(self._names) or not all(map(over, self.jobs.values())):
                await self._follow()
        finally:
            watching.cancel()
            await asyncio.gather(watching, *self._asking, return_exceptions=True)

    async def _follow(self) -> None:
        """Hear what happened next."""
        running = any(job.running for job in self.jobs.values())
        wait = WAIT_FOR_PROGRESS if running else WAIT
        try:
            found = await asyncio.to_thread(self._client.records, self._names, self._seq, wait)
        except TemporaryError as error:
            raise TemporaryError(
                f"{error}. Its jobs go on when it runs again (coach serve); meanwhile: coach ps"
            ) from error
        self._offset = found["now"] - time.monotonic()
        for row in found["records"]:
            self._hear(row)
        self.progress = {name: Progress(**row) for name, row in found["progress"].items()}

    def _hear(self, row: dict[str, Any]) -> None:
        record: Any = decode(row["type"], json.dumps(row["body"]))
        if isinstance(record, ev.JobSubmitted):
            self._known.setdefault(record.job, jobs.submitted(record))
        elif record.job:
            jobs.apply(self._known[record.job], record)
        else:
            for job in self._known.values():
                jobs.apply(job, record)
        self._seq = row["seq"]
        if self._seq > self._submitted_at:
            self._show(lambda: self._watcher.happened(record, ()))

    # -- stopping -----------------------------------------------------------------------------------------

    def stop(self, level: int) -> None:
        """1: at the running epochs' checkpoints. 2: at once. 3: wait for nothing; the service still stops them."""
        if level <= self._stops:
            return
        self._stops = level
        if level > 3:
            self._watcher.close()
            os._exit(INTERRUPTED)
        if level == 3 or not self._names:
            assert self._task is not None
            self._task.cancel()
            return
        for name in [name for name, job in self.jobs.items() if not over(job)]:
            asking = asyncio.create_task(self._interrupt(name, now=level == 2))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _interrupt(self, name: str, *, now: bool) -> None:
        try:
            await asyncio.to_thread(lambda: self._client.interrupt(name, now=now))
        except CoachError as error:
            said = str(error)
            self._show(lambda: self._watcher.said(f"{name} could not be stopped: {said}"))

    def output_lost(self) -> None:
        """Nobody sees what is shown any more: show nothing, and stop cleanly."""
        self._muted = True
        self.stop(1)

    # -- showing ------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        try:
            await self._watcher.watch(self)
        except OSError:
            self.output_lost()
        except Exception as error:
            log.error("what shows the jobs failed, the jobs go on: %r", error)

    def _show(self, show: Callable[[], None]) -> None:
        if not self._muted:
            try:
                show()
            except OSError:
                self.output_lost()
