"""A session whose jobs run in a service: `coach run` shows them as if they ran in its own process.

The service sends the journal's records. Folded here they give the same jobs, so that all displays of a session work.
Signals go to the service as requests.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coach.core.errors import CoachError, TemporaryError
from coach.core.jobs.job import Job
from coach.handler.interactive_run import Foreground, RunObserver, over
from coach.handler.state.codec import decode
from coach.handler.state.journal import take_in
from coach.platforms.base import Progress
from coach.service.client import Client, submit_all
from coach.service.schemas import RecordRow

#: Seconds that a request waits for new records. While an epoch runs its progress is requested more often.
WAIT = 20.0
WAIT_FOR_PROGRESS = 0.5


class Joined(Foreground):
    """Submits `files` to a service and follows their jobs. See `coach.handler.session.Session`."""

    def __init__(self, client: Client, files: Sequence[Path], policy: str, watcher: RunObserver) -> None:
        super().__init__(watcher)
        self._client = client
        self._files = files
        self._policy = policy
        self._names: list[str] = []
        self._known: dict[str, Job] = {}
        self._seq = self._submitted_at = 0
        self._offset = time.time() - time.monotonic()
        self._asking: set[asyncio.Task[Any]] = set()
        self._progress: Mapping[str, Progress] = {}

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs of these files, in their order."""
        return {name: self._known[name] for name in self._names if name in self._known}

    @property
    def progress(self) -> Mapping[str, Progress]:
        """The progress of running epochs."""
        return self._progress

    def now(self) -> float:
        """Seconds since 1970 on the service's clock."""
        return self._offset + time.monotonic()

    def run(self) -> int:
        """Wait until all jobs have ended or are suspended; the exit code. Raises CoachError."""
        return self._run(self._main)

    async def _main(self) -> None:
        taken = await asyncio.to_thread(submit_all, self._client, self._files, self._policy)
        self._listen_to_signals()
        self._names = [one.job.name for one in taken.jobs]
        self._submitted_at = taken.seq
        if not any(one.went_on for one in taken.jobs):
            self._seq = self._submitted_at
        for note in (one.note for one in taken.jobs if one.note):
            self._say(note)
        try:
            async with self._watched():
                while len(self.jobs) < len(self._names) or not all(map(over, self.jobs.values())):
                    await self._follow()
        finally:
            await asyncio.gather(*self._asking, return_exceptions=True)

    async def _follow(self) -> None:
        """Wait for the next records."""
        running = any(job.attempts.running for job in self.jobs.values())
        wait = WAIT_FOR_PROGRESS if running else WAIT
        try:
            found = await asyncio.to_thread(self._client.records, self._names, self._seq, wait)
        except TemporaryError as error:
            raise TemporaryError(
                f"{error}. Its jobs go on when it runs again (coach serve); meanwhile: coach ps"
            ) from error
        self._offset = found.now - time.monotonic()
        for row in found.records:
            self._hear(row)
        self._progress = {name: Progress(**row.model_dump()) for name, row in found.progress.items()}

    def _hear(self, row: RecordRow) -> None:
        record: Any = decode(row.type, json.dumps(row.body))
        take_in(self._known, record)
        self._seq = row.seq
        if self._seq > self._submitted_at:
            self._show(lambda: self._watcher.happened(record, ()))

    def _can_suspend(self) -> bool:
        return bool(self._names)

    def _suspend(self, names: Sequence[str], *, now: bool) -> None:
        for name in names:
            asking = asyncio.create_task(self._ask(name, now=now))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _ask(self, name: str, *, now: bool) -> None:
        try:
            await asyncio.to_thread(lambda: self._client.suspend(name, now=now))
        except CoachError as error:
            self._say(f"{name} could not be stopped: {error}")
