"""`coach cancel`."""

from __future__ import annotations

import typer

from coach.cli.options import JobNames
from coach.core.errors import UserError


def command(
    jobs: JobNames,
) -> None:
    """Cancel jobs at once, for good.

    Their checkpoints and logs stay, and what they used is paid. To stop one that is to continue later: `coach suspend`,
    or Ctrl-C in its `coach run`.

    Example: coach cancel lenet-digits
    """
    from coach.cli.operations import operations

    with operations() as coach:
        rows = [coach.job(name).job for name in dict.fromkeys(jobs)]
        for row in rows:
            if row.ended_at is not None:
                raise UserError(f"{row.name} has ended already: {row.state}")
        for row in rows:
            coach.cancel(row.name)
            kept = coach.job(row.name).checkpoint
            typer.echo(f"{row.name} is cancelled; its checkpoint stays: {kept or 'none was written'}")
