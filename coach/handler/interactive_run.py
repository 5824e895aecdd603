"""What every run in the foreground does, wherever its jobs run: it shows them, and signals stop it in steps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import EXIT_CODE
from coach.platforms.base import Progress

log = logging.getLogger(__name__)

#: Exit code of a run that was interrupted.
INTERRUPTED = 130
#: What a run of several jobs ends with: the first of these that any of them has. Interrupted comes first, because
#: then the rest is not known yet; a failure, which wants a look, before ends that the job file itself foresaw.
EXIT_CODES_BY_WEIGHT = (INTERRUPTED, 1, 4, 3, 0)


class RunObserver(Protocol):
    """Whoever shows a run. OSError from any of these (the terminal is gone) stops the run cleanly."""

    def said(self, text: str) -> None:
        """Something worth a line, which is in no journal."""

    def happened(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        """An event and the actions that followed were journalled; the run's `jobs` show them."""

    async def watch(self, run: Foreground) -> None:
        """Runs beside the jobs, from their start until it is cancelled at the end."""

    def close(self) -> None:
        """Give the terminal back; called once at the end, and before an end that waits for nothing."""


class Foreground(ABC):
    """A run that a person watches: jobs of this process (`Session`), or of a service (`coach.service.remote_run`)."""

    def __init__(self, watcher: RunObserver) -> None:
        self._watcher = watcher
        self._stops = 0
        self._muted = False
        self._main_task: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def jobs(self) -> dict[str, Job]:
        """The jobs to show, in the order of the files."""

    @property
    @abstractmethod
    def progress(self) -> Mapping[str, Progress]:
        """How far running epochs are."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970 on the clock that the jobs' times are of."""

    @abstractmethod
    def run(self) -> int:
        """Until all jobs have ended or are interrupted; the exit code. Raises CoachError where it cannot go on."""

    @abstractmethod
    def _can_suspend(self) -> bool:
        """Whether whoever runs the jobs knows of them yet."""

    @abstractmethod
    def _suspend(self, names: Sequence[str], *, now: bool) -> None:
        """Ask for an end of these jobs: at once, or at the checkpoint of the running epoch."""

    @property
    def stops(self) -> int:
        """How urgently it was asked to stop: 0 not at all, 1 to 3 as in `stop`."""
        return self._stops

    def stop(self, level: int) -> None:
        """1: at the running epochs' checkpoints. 2: at once, from the last checkpoints. 3: do not wait for anything."""
        if level <= self._stops:
            return
        self._stops = level
        if level > 3:
            self._watcher.close()
            os._exit(INTERRUPTED)
        if level == 3 or not self._can_suspend():
            assert self._main_task is not None
            self._main_task.cancel()
            return
        self._suspend([name for name, job in self.jobs.items() if not over(job)], now=level == 2)

    def output_lost(self) -> None:
        """Nobody sees what is shown any more: show nothing, and stop cleanly."""
        self._muted = True
        self.stop(1)

    def _run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """`main` to its end, or to the third signal; the exit code."""
        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            return INTERRUPTED
        finally:
            self._watcher.close()
        return exit_code(self.jobs.values())

    def _listen_to_signals(self) -> None:
        self._main_task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: self.stop(self._stops + 1))
        loop.add_signal_handler(signal.SIGTERM, lambda: self.stop(max(2, self._stops + 1)))
        loop.add_signal_handler(signal.SIGHUP, self.output_lost)

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """The watcher runs beside what is inside."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        try:
            await self._watcher.watch(self)
        except OSError:
            self.output_lost()
        except Exception as error:
            log.error("what shows the jobs failed, the jobs go on: %r", error)

    def _say(self, text: str) -> None:
        self._show(lambda: self._watcher.said(text))

    def _show(self, show: Callable[[], None]) -> None:
        if not self._muted:
            try:
                show()
            except OSError:
                self.output_lost()


def exit_code(jobs: Iterable[Job]) -> int:
    """What a command about `jobs` ends with: see EXIT_CODES_BY_WEIGHT."""
    codes = {EXIT_CODE[job.state] for job in jobs}
    return next((code for code in EXIT_CODES_BY_WEIGHT if code in codes), 0)


def over(job: Job) -> bool:
    """Whether nothing more happens to it by itself, and all it held is given back and paid."""
    return job.ended or (job.suspend and job.phase is Phase.PAUSED and not job.pods)
