"""`coach submit`."""

from __future__ import annotations

import typer

from coach.cli.display.output import Format, Output, console, fields, print_csv, print_json
from coach.cli.options import Files, Policy


def command(files: Files, policy: Policy = "", output: Output = Format.TABLE) -> None:
    """Give jobs to the running service.

    All of them, or none where a file has mistakes. A job that was suspended continues when its file is submitted
    again. `coach run` does the same, and stays to show them.

    Example: coach submit jobs/*.yaml
    """
    from coach.cli.display.tables import jobs_table
    from coach.cli.job_files import load
    from coach.core.jobs.reasons import State
    from coach.handler.policies import chosen_policy
    from coach.handler.state.state_directory import StateDirectory
    from coach.report.status import JOB_COLUMNS
    from coach.service.client import service_of

    chosen_policy(policy, [one.spec for one in load(files)])
    with service_of(StateDirectory.default()) as client:
        taken = client.submit(files, policy).jobs
    rows = [one.job for one in taken]
    if output is Format.JSON:
        print_json([fields(row) for row in rows])
    elif output is Format.CSV:
        print_csv(JOB_COLUMNS, map(fields, rows))
    else:
        screen = console()
        for one in taken:
            if one.note:
                screen.print(one.note, soft_wrap=True)
        screen.print(jobs_table(rows))
        names = " ".join(row.name for row in rows[:3])
        screen.print()
        screen.print(
            f"  all jobs    coach ps\n  one job     coach events {names.split()[0]} -f", soft_wrap=True
        )
    if any(row.state == State.FAILED for row in rows):
        raise typer.Exit(1)
