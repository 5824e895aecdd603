"""`coach ps`."""

from __future__ import annotations

import time

from coach.cli.display.output import Format, Output, console, fields, print_csv, print_json

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
    from coach.report.status import JOB_COLUMNS, job_row

    home = StateDirectory.default()
    now = time.time()
    rows = [job_row(past.job, now, orphan=past.orphan) for past in home.past().values()]
    if output is Format.JSON:
        print_json([fields(row) for row in rows])
    elif output is Format.CSV:
        print_csv(JOB_COLUMNS, map(fields, rows))
    elif rows:
        screen = console()
        made = jobs_table(rows)
        narrow = screen.measure(made).minimum + MIN_REASON > screen.width
        if narrow and all_columns_fit(rows, screen.width):
            screen.print(Text("\n").join(job_lines(rows, {}, screen.width, ended=True)))
        else:
            screen.print(made)
    else:
        console().print(f"no job was run yet in {home.path}; start one with: coach run FILE")
