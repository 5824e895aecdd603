"""`coach ps`."""

from __future__ import annotations

import time

from coach.cli.output import Format, Output, console, fields, print_csv, print_json


def command(output: Output = Format.TABLE) -> None:
    """List the jobs of all runs, with what they do now.

    Example: coach ps -o json
    """
    from coach.cli.tables import jobs_table
    from coach.handler.home import Home
    from coach.report.status import JOB_COLUMNS, job_row

    home = Home.default()
    now = time.time()
    rows = [job_row(past.job, now, orphan=past.orphan) for past in home.past().values()]
    if output is Format.JSON:
        print_json([fields(row) for row in rows])
    elif output is Format.CSV:
        print_csv(JOB_COLUMNS, map(fields, rows))
    elif rows:
        console().print(jobs_table(rows))
    else:
        console().print(f"no job was run yet in {home.path}; start one with: coach run FILE")
