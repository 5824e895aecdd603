"""Showing a session from its start to its summary, whether the jobs run here or in a service."""

from __future__ import annotations

import time
from collections.abc import Callable

from coach.cli.display.line_output import Lines
from coach.cli.display.live import LiveDisplay
from coach.cli.display.output import Format, console, fields, printed
from coach.cli.display.summary import ending
from coach.handler.interactive_run import Foreground, RunObserver
from coach.report.row_types import JobRow
from coach.report.status import forecast_rows, job_row


class Showing:
    """How a session is shown. With -o json or csv, stdout is for the result alone; `result`: whether to show one."""

    def __init__(self, output: Format, live: bool, *, result: bool = True) -> None:
        self._result = result
        self.screen = console(stderr=output is not Format.TABLE)
        self._output = output
        self._live = live and self.screen.is_terminal

    def run(self, make: Callable[[RunObserver], Foreground]) -> int:
        """Run the session that `make` makes, and show how its jobs ended. Returns the exit code."""
        display = LiveDisplay(self.screen) if self._live else None
        session: Foreground = make(display or Lines(self.screen, lambda: session.jobs))
        if display:
            display.attach(session)
        code = session.run()
        if not self._result:
            return code
        rows = [job_row(job, time.time()) for job in session.jobs.values()]
        forecasts = {job.name: forecast_rows(job) for job in session.jobs.values()}
        document = [fields(row) | {"forecasts": [fields(one) for one in forecasts[row.name]]} for row in rows]
        if not printed(self._output, rows, JobRow, document) and rows:
            ending(self.screen, rows, forecasts)
        return code
