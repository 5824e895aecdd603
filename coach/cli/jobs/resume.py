"""`coach resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.display.output import Format, Output
from coach.cli.options import Bandwidth, JobName, Live, Nodes
from coach.core.errors import UserError
from coach.core.money import to_money

if TYPE_CHECKING:
    from coach.core.spec.training import Model
    from coach.handler.state.state_directory import StateDirectory, StoredJob


def command(  # noqa: PLR0917 - they are options
    job: JobName,
    add_budget: Annotated[
        float,
        typer.Option(metavar="AMOUNT", min=0.0, max=1e6, help="More money, in the job's currency."),
    ] = 0.0,
    accept_model: Annotated[
        bool,
        typer.Option("--accept-model", help="Go on with the model file as it is now, if it was changed."),
    ] = False,
    nodes: Nodes = "",
    bandwidth: Bandwidth = "",
    output: Output = Format.TABLE,
    live: Live = True,
) -> None:
    """Continue a job from its last checkpoint.

    One that was stopped, failed, was cancelled or ran out of money; a running one is only given more money. Where a
    service runs, it continues there, else in the foreground, as with `coach run`.

    \b
    Examples:
      coach resume lenet-digits
      coach resume lenet-digits --add-budget 2.50
      coach resume lenet-digits --accept-model
    """
    from coach.cli.job_lookup import find
    from coach.handler import endpoint
    from coach.handler.model_change import to_accept
    from coach.handler.resume_rules import refuse_resume

    home, past = find(job)
    added = to_money(add_budget)
    if endpoint.find(home) and past.journal == home.journal(1):
        _there(home, past, add_budget, accept_model)
        return
    if past.held:
        raise UserError(f"another `coach run` has {job} now; stop it there with Ctrl-C first")
    refuse_resume(past.job, added, orphan=past.orphan)
    accepted = to_accept(past.job, accept=accept_model)
    raise typer.Exit(_here(home, past, added, accepted, nodes, bandwidth, output, live))


def _there(home: StateDirectory, past: StoredJob, add_budget: float, accept_model: bool) -> None:
    from coach.cli.display.output import console
    from coach.cli.display.tables import jobs_table
    from coach.service.client import service_of

    with service_of(home) as client:
        row = client.resume(past.job.name, add_budget=add_budget, accept_model=accept_model)
    screen = console()
    screen.print(jobs_table([row]))
    screen.print(f"\n  follow it   coach events {past.job.name} -f", soft_wrap=True)


def _here(  # noqa: PLR0917
    home: StateDirectory,
    past: StoredJob,
    added: int,
    accepted: Model | None,
    nodes: str,
    bandwidth: str,
    output: Format,
    live: bool,
) -> int:
    from coach.cli.display.display_loop import Showing
    from coach.cli.display.summary import beginning
    from coach.cli.options import local_cluster
    from coach.handler.interactive_run import RunObserver
    from coach.handler.session import Session
    from coach.plugins import policy

    cluster, make_platform = local_cluster(nodes, bandwidth, [past.job.job_file])
    showing = Showing(output, live)
    allocator = policy("coach")
    beginning(showing.screen, [past.job.job_file], cluster, allocator.name)

    def make(watcher: RunObserver) -> Session:
        return Session(
            home,
            (),
            nodes=cluster,
            policy=allocator,
            make_platform=make_platform,
            watcher=watcher,
            resumed=(past.job.name,),
            added_budget=added,
            accepted=accepted,
        )

    return showing.run(make)
