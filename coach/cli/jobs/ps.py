"""`coach ps`."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from coach.cli.display.output import Format, Output, console, fields, printed
from coach.report import formatting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coach.core.estimation.interval import Interval
    from coach.handler.state.state_directory import StateDirectory, StoredJob

#: Columns that a reason needs in the table; with fewer, it gets a line of its own.
MIN_REASON = 24


def command(output: Output = Format.TABLE) -> None:
    """List the jobs of all runs and their states.

    Example: coach ps -o json
    """
    from rich.text import Text

    from coach.cli.display.status_lines import all_columns_fit, job_lines
    from coach.cli.display.tables import jobs_table
    from coach.handler.state.state_directory import StateDirectory
    from coach.report.row_types import JobRow
    from coach.report.status import job_row

    home = StateDirectory.default()
    now = time.time()
    past = home.past()
    starts = _starts(home, past.values(), now)
    rows = []
    for name, one in past.items():
        row, start = job_row(one.job, now, orphan=one.orphan), starts.get(name)
        expected = f"; expected to start in {formatting.duration_interval(start)}" if start else ""
        rows.append(replace(row, message=f"{row.message}{expected}"))
    begins = {name: asdict(start) for name, start in starts.items()}
    if printed(output, rows, JobRow, [fields(row) | {"starts_in": begins.get(row.name)} for row in rows]):
        return
    if rows:
        screen = console()
        made = jobs_table(rows)
        narrow = screen.measure(made).minimum + MIN_REASON > screen.width
        if narrow and all_columns_fit(rows, screen.width):
            screen.print(Text("\n").join(job_lines(rows, {}, screen.width, ended=True)))
        else:
            screen.print(made)
    else:
        console().print(f"no job was run yet in {home.path}; start one with: coach run FILE")


def _starts(home: StateDirectory, past: Iterable[StoredJob], now: float) -> dict[str, Interval]:
    """When the jobs that wait for room are expected to start."""
    queues: dict[Any, list[StoredJob]] = {}
    for one in past:
        if one.held and not one.job.ended:
            queues.setdefault(one.journal, []).append(one)
    found: dict[str, Interval] = {}
    for queue in queues.values():
        if all(one.job.pods for one in queue):
            continue
        from coach.core.lifecycle.start_forecast import expected_starts

        found |= expected_starts((one.job for one in queue), home.nodes(queue[0]), now)
    return found
