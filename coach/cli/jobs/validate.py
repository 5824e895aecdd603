"""`coach validate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.options import Set
from coach.core.cluster import Role

if TYPE_CHECKING:
    from coach.jobfiles.diagnostics import Problem
    from coach.jobfiles.load import LoadedJob


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Job files; each may have several jobs.")],
    check_files: Annotated[
        bool,
        typer.Option("--check-files/--no-check-files", help="Also check that the models and data they name exist."),
    ] = True,
    set_: Set = None,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="COUNTxCORES[xGIB[xGPUS]]|FILE",
            help="Also refuse a job that these nodes can never hold.",
        ),
    ] = "",
) -> None:
    """Check job files; start nothing.

    Shows all mistakes at once, each with its line and a correction. Models and data are looked at, not loaded.

    \b
    Examples:
      coach validate jobs/*.yaml
      coach validate jobs/*.yaml --nodes 4x16x64
    """
    from coach.cli.display.summary import wanted
    from coach.cli.job_files import load
    from coach.jobfiles.diagnostics import JobFileError

    loaded = load(files, check_files=check_files, sets=set_)
    if nodes and (problems := list(_never_fit(loaded, nodes))):
        raise JobFileError(problems)
    for job in loaded:
        typer.echo(f"{job.path}: {wanted(job.spec)}")


def _never_fit(jobs: Sequence[LoadedJob], nodes: str) -> Iterator[Problem]:
    """The jobs whose smallest gang the empty nodes can't hold. Raises UserError where `nodes` are none."""
    from coach.cli.simulate import parse_cluster
    from coach.core.gang.plan import never_fits
    from coach.jobfiles.diagnostics import Problem

    cluster = parse_cluster(nodes)
    for job in jobs:
        resources, (least, _) = job.spec.spec.resources, job.spec.spec.limits
        counts = {
            Role.SCHEDULER: resources.schedulers,
            Role.SERVER: least.servers,
            Role.WORKER: least.workers,
        }
        pods = {(role, resources.of(role)): count for role, count in counts.items() if count}
        if why := never_fits(pods, cluster):
            right = "smaller requests, fewer workers, or larger nodes"
            yield Problem(str(job.path), 1, 1, "spec.resources", f"no node can hold {job.spec.name}", why, right)
