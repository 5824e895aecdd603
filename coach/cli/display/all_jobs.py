"""All jobs in one table: what `coach ps` shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coach.cli.display.output import Format, console, printed
from coach.cli.display.tables import jobs_table
from coach.cli.operations import operations
from coach.report import formatting
from coach.report.row_types import JobRow

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Columns that a reason needs in the table; with fewer, it gets a line of its own.
MIN_REASON = 24


def ps(output: Format = Format.TABLE) -> None:
    """Print a row a job."""
    with operations() as coach:
        rows = coach.list_jobs().jobs
    for number, row in enumerate(rows):
        if row.starts_in is not None:
            expected = f"expected to start in {formatting.duration_interval(row.starts_in)}"
            rows[number] = replace(row, message=f"{row.message}; {expected}")
    if printed(output, rows, JobRow):
        return
    screen = console()
    if rows:
        made: RenderableType = jobs_table(rows)
        narrow = screen.measure(made).minimum + MIN_REASON > screen.width
        if narrow:
            from rich.text import Text

            from coach.cli.display.status_lines import all_columns_fit, job_lines

            if all_columns_fit(rows, screen.width):
                made = Text("\n").join(job_lines(rows, {}, screen.width, ended=True))
        screen.print(made)
    else:
        screen.print("no job was run yet; start one with: coach run FILE")
