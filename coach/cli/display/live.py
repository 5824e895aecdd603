"""The output of `coach run` on a terminal: a line for each important event, and below them a display of the jobs.

The display is updated in place and removed at the end; the lines stay.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import sys
import termios
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from coach.cli.display.status_lines import Running, event_line, screen
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.handler.interactive_run import Foreground
from coach.report.history import EventFormatter, Line
from coach.report.rows import Rows

#: Seconds between two refreshes: often enough for a bar, not too often for a slow connection.
REFRESH = 0.25
#: Lines printed again where a terminal of another size is drawn anew.
AGAIN = 20
HINTS = (
    "Ctrl-C stops at the end of the running epochs",
    "stopping at the end of the running epochs; Ctrl-C again to stop now",
    "stopping; Ctrl-C again to wait for nothing",
    "",
)


class LiveDisplay:
    """An observer of a session (see coach.handler.interactive_run.RunObserver)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._session: Foreground | None = None
        self._narrator = EventFormatter(self._jobs)
        self._lines: list[Line] = []
        self._printed: collections.deque[Text] = collections.deque(maxlen=AGAIN)
        self._quiet = _QuietTerminal()
        self._rows = Rows()

    def _jobs(self) -> dict[str, Job]:
        return self._session.jobs if self._session else {}

    def attach(self, session: Foreground) -> None:
        """The session to show."""
        self._session = session

    def said(self, text: str) -> None:
        """A line of the session's own."""
        self._lines.append(Line(time.time(), "", text))

    def happened(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        """Remember the lines; the next refresh shows them."""
        self._lines.extend(line for line in self._narrator.happened(event, actions) if line.important)

    async def watch(self, session: Foreground) -> None:
        """Refresh until cancelled; then remove the display, and put the cursor back to its start."""
        self._quiet.begin()
        size = self._console.size
        shown, live = self._begin(session)
        try:
            while True:
                await asyncio.sleep(REFRESH)
                if self._console.size != size:
                    # The terminal has wrapped our lines anew: their position is unknown now.
                    size = self._console.size
                    live.stop()
                    self._console.clear()
                    for line in self._printed:
                        self._console.print(line)
                    shown, live = self._begin(session)
                self._print_lines()
                drawn = self._screen(session)
                if drawn != shown:
                    shown = drawn
                    live.update(drawn, refresh=True)
        finally:
            with contextlib.suppress(OSError):
                self._print_lines()
                live.stop()

    def _print_lines(self) -> None:
        """What happened since the last time, above the display."""
        lines, self._lines = self._lines, []
        for line in lines:
            text = event_line(line, several=len(self._jobs()) > 1)
            self._console.print(text)
            self._printed.append(text)

    def close(self) -> None:
        """Give the terminal back."""
        self._quiet.end()

    def _begin(self, session: Foreground) -> tuple[Text, Live]:
        drawn = self._screen(session)
        live = Live(
            drawn,
            console=self._console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
        )
        live.start(refresh=True)
        return drawn, live

    def _screen(self, session: Foreground) -> Text:
        now = session.now()
        jobs = session.jobs
        if not jobs:
            return Text("starting the functions' Python", "dim")
        rows = [self._rows.row(job, now) for job in jobs.values()]
        running = {}
        for name, seen in session.progress.items():
            order = jobs[name].attempts.running if name in jobs else None
            if order is not None and seen.token == order.token:
                kind = "mini-epoch" if order.kind is EpochKind.PROBE else "epoch"
                running[name] = Running(f"{kind} {jobs[name].ordinal(order.number, order.kind)}", seen)
        return screen(rows, running, HINTS[min(session.stops, 3)], self._console.size)


class _QuietTerminal:
    """Turns off the terminal's echo of typed characters, `^C` included, while there is a display."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def begin(self) -> None:
        if sys.stdin is None or not sys.stdin.isatty():
            return
        with contextlib.suppress(termios.error, OSError):
            self._before = termios.tcgetattr(sys.stdin)
            changed = termios.tcgetattr(sys.stdin)
            changed[3] &= ~(termios.ECHO | termios.ECHOCTL)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)

    def end(self) -> None:
        if self._before is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)
            self._before = None
