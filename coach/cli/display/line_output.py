"""The output of `coach run` without a terminal: one line for each event, with the time of day."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from rich.console import Console

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.handler.interactive_run import Foreground
from coach.report import formatting
from coach.report.history import EventFormatter


class Lines:
    """An observer of a session (see coach.handler.interactive_run.RunObserver)."""

    def __init__(self, console: Console, jobs: Callable[[], dict[str, Job]], now: Callable[[], float] = time.time):
        self._console = console
        self._jobs = jobs
        self._narrator = EventFormatter(jobs)
        self._now = now

    def said(self, text: str) -> None:
        """A line of the session's own."""
        self.print(self._now(), "", text)

    def happened(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        """The important lines of an event and its actions."""
        hint = "; Ctrl-C again to stop now" if isinstance(event, ev.SuspendRequested) and not event.now else ""
        for line in self._narrator.happened(event, actions):
            if line.important:
                self.print(line.at, line.job, line.text + hint)

    async def watch(self, session: Foreground) -> None:
        """Nothing to do: each line is printed at once."""
        await asyncio.Event().wait()

    def close(self) -> None:
        """Nothing to do: the terminal was not changed."""

    def print(self, at: float, job: str, text: str) -> None:
        """One line, never wrapped: scripts and logs read it."""
        self._console.print(f"{formatting.clock(at)} {job + ': ' if job else ''}{text}", soft_wrap=True)
        self._console.file.flush()
