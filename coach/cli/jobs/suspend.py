"""`coach suspend`."""

from __future__ import annotations

from typing import Annotated

import typer

from coach.cli.options import JobNames
from coach.core.errors import UserError


def command(
    jobs: JobNames,
    now: Annotated[
        bool, typer.Option("--now", help="Stop at once; what the running epoch trained so far is lost.")
    ] = False,
) -> None:
    """Stop jobs of the service when their epochs end.

    They give their workers and servers back, cost nothing from then on, and continue from their checkpoint with
    `coach resume`. A job of a `coach run` stops with Ctrl-C in its terminal.

    Example: coach suspend lenet-digits
    """
    from coach.cli.operations import operations
    from coach.core.jobs.reasons import RESUMABLE

    with operations() as coach:
        for job in [coach.job(name).job for name in dict.fromkeys(jobs)]:
            if job.ended_at is not None:
                raise UserError(f"{job.name} has ended already: {job.state}; nothing was suspended")
        for name in dict.fromkeys(jobs):
            row = coach.suspend(name, now=now)
            done = row.reason in {reason.value for reason in RESUMABLE}
            when = "is suspended" if done else "stops now" if now else "stops when its epoch ends"
            typer.echo(f"{name} {when}; continue it with: coach resume {name}")
