"""`coach resume`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from coach.cli.display.output import Format, console
from coach.cli.options import Bandwidth, JobName, Live, Nodes, Output, ShareGpus
from coach.core.errors import UserError
from coach.core.money import to_money


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
    share_gpus: ShareGpus = False,
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
    from coach.cli.clusters import local_cluster
    from coach.cli.display.display_loop import Showing
    from coach.cli.display.tables import jobs_table
    from coach.cli.jobs.run import run_here
    from coach.cli.operations import operations
    from coach.handler.model_change import to_accept
    from coach.handler.resume_rules import refuse_resume
    from coach.handler.state.state_directory import StateDirectory
    from coach.plugins import policy

    with operations() as coach:
        past = coach.to_run_here(job)
        if past is None:
            row = coach.resume(job, add_budget=add_budget, accept_model=accept_model)
            screen = console()
            screen.print(jobs_table([row]))
            screen.print(f"\n  follow it   coach events {job} -f", soft_wrap=True)
            return
    if past.held:
        raise UserError(f"another `coach run` has {job} now; stop it there with Ctrl-C first")
    added = to_money(add_budget)
    refuse_resume(past.job, added, orphan=past.orphan)
    spec = past.job.job_file
    accepted = to_accept(past.job, accept=accept_model)
    more: dict[str, Any] = {"resumed": (job,), "added_budget": added, "accepted": accepted}
    cluster = partial(local_cluster, nodes, bandwidth, [spec])
    home = StateDirectory.default()
    raise typer.Exit(run_here(home, Showing(output, live), [spec], policy("coach"), cluster, **more))
