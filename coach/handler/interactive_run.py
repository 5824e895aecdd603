"""A run in the foreground, in this process or by a service: it shows its jobs, and signals stop it in steps."""

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
from coach.platforms.base import Progress

log = logging.getLogger(__name__)

#: Exit code of a run that was interrupted.
INTERRUPTED = 130
#: The exit code of a run of several jobs is the first of these that any job has. Interrupted comes first, because
#: the other ends are not known then. A failure comes before ends that the job file sets, such as the budget.
EXIT_CODES_BY_WEIGHT = (INTERRUPTED, 1, 4, 3, 0)


class RunObserver(Protocol):
    """Shows a run. An OSError from any method (the terminal is gone) stops the run cleanly."""

    def said(self, text: str) -> None:
        """Show a line that is in no journal."""

    def happened(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        """An event and the actions that followed were journalled; the run's `jobs` show them."""

    async def watch(self, run: Foreground) -> None:
        """Runs concurrently with the jobs, from their start until it is cancelled at the end."""

    def close(self) -> None:
        """Restore the terminal; called once at the end, and before an immediate exit."""


class Foreground(ABC):
    """A run that a person watches: jobs of this process (`Session`), or of a service (`coach.service.client`)."""

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
        """Seconds since 1970 on the clock of the jobs' times."""

    @abstractmethod
    def run(self) -> int:
        """Until all jobs have ended or are interrupted; the exit code. Raises CoachError where it cannot go on."""

    @abstractmethod
    def _can_suspend(self) -> bool:
        """Whether the jobs were submitted, so that they can be suspended."""

    @abstractmethod
    def _suspend(self, names: Sequence[str], *, now: bool) -> None:
        """Suspend these jobs: at once, or at the checkpoint of the running epoch."""

    @property
    def stops(self) -> int:
        """The level of the last `stop`; 0 if there was none."""
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
        """The terminal is gone: show nothing any more, and stop cleanly."""
        self._muted = True
        self.stop(1)

    def _run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Run `main` to its end, or to the third signal; returns the exit code."""
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
        """The watcher runs concurrently with the block."""
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
            log.error("the display of the jobs failed, the jobs go on: %r", error)

    def _say(self, text: str) -> None:
        self._show(lambda: self._watcher.said(text))

    def _show(self, show: Callable[[], None]) -> None:
        if not self._muted:
            try:
                show()
            except OSError:
                self.output_lost()


def exit_code(jobs: Iterable[Job]) -> int:
    """The exit code of a command about `jobs`: see EXIT_CODES_BY_WEIGHT."""
    codes = {job.state.exit_code for job in jobs}
    return next((code for code in EXIT_CODES_BY_WEIGHT if code in codes), 0)


def over(job: Job) -> bool:
    """Whether the job has ended or is suspended, with all its pods released and paid."""
    return job.ended or (job.stop.suspend and job.phase is Phase.PAUSED and not job.gang.pods)
