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
    from coach.cli.job_lookup import find_all
    from coach.handler import endpoint, offline
    from coach.service.client import service_of

    home, chosen = find_all(jobs)
    for past in chosen:
        if past.job.ended:
            raise UserError(f"{past.job.name} has ended already: {past.job.state.value}")
    served = [past for past in chosen if past.journal == home.journal(1)] if endpoint.find(home) else []
    others = [past for past in chosen if past not in served]
    for past in others:
        if past.held:
            raise UserError(f"another `coach run` has {past.job.name} now: stop it there with Ctrl-C, then cancel it")
    if served:
        with service_of(home) as client:
            for past in served:
                client.cancel(past.job.name)
    for journal in dict.fromkeys(past.journal for past in others):
        opened = home.open_journal(journal)
        try:
            offline.cancel(opened, [past.job.name for past in others if past.journal == journal])
        finally:
            opened.close()
    for past in chosen:
        typer.echo(f"{past.job.name} is cancelled; its checkpoint stays: {past.job.weights or 'none was written'}")
