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
    from coach.cli.job_lookup import find_all
    from coach.core.jobs.reasons import RESUMABLE
    from coach.handler import endpoint
    from coach.service.client import service_of

    home, chosen = find_all(jobs)
    served = home.journal(1) if endpoint.find(home) else None
    for stored in chosen:
        name = stored.job.name
        if stored.job.ended:
            raise UserError(f"{name} has ended already: {stored.job.state.value}; nothing was suspended")
        if stored.journal != served:
            if stored.held:
                raise UserError(f"a `coach run` has {name}: stop it there with Ctrl-C; nothing was suspended")
            raise UserError(f"{name} does not run; continue it with: coach resume {name}")
    with service_of(home) as client:
        for stored in chosen:
            row = client.suspend(stored.job.name, now=now)
            done = row.reason in {reason.value for reason in RESUMABLE}
            when = "is suspended" if done else "stops now" if now else "stops when its epoch ends"
            typer.echo(f"{stored.job.name} {when}; continue it with: coach resume {stored.job.name}")
