"""`coach validate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coach.core.cluster import Node
    from coach.jobfiles.diagnostics import Problem
    from coach.jobfiles.load import LoadedJob


def command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Job files; each may have several jobs.")
    ],
    check_files: Annotated[
        bool,
        typer.Option(
            "--check-files/--no-check-files", help="Also check that the models and data they name exist."
        ),
    ] = True,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="COUNTxCORES[xGIB[xGPUS]]|FILE",
            help="Also refuse a job that these nodes can never hold. Without it, the nodes of the running service.",
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
    from coach.cli.simulate import parse_cluster
    from coach.jobfiles.diagnostics import JobFileError

    loaded = load(files, check_files=check_files)
    known = parse_cluster(nodes) if nodes else _of_service()
    if problems := list(_never_fit(loaded, known)):
        raise JobFileError(problems)
    for job in loaded:
        typer.echo(f"{job.path}: {wanted(job.spec)}")


def _of_service() -> tuple[Node, ...]:
    """The nodes of the service that runs the jobs here; none without one."""
    from coach.handler.endpoint import find
    from coach.handler.state.state_directory import StateDirectory
    from coach.service.client import service_of

    home = StateDirectory.default()
    if not find(home):
        return ()
    with service_of(home) as client:
        return client.nodes()


def _never_fit(jobs: Sequence[LoadedJob], nodes: tuple[Node, ...]) -> Iterator[Problem]:
    """The jobs whose smallest gang the empty `nodes` can't hold; none where no node is known."""
    from coach.core.cluster import Role
    from coach.core.gang import never_fits
    from coach.jobfiles.diagnostics import Problem

    for job in jobs if nodes else ():
        resources, (least, _) = job.spec.spec.resources, job.spec.spec.limits
        counts = {
            Role.SCHEDULER: resources.schedulers,
            Role.SERVER: least.servers,
            Role.WORKER: least.workers,
        }
        pods = {(role, resources.of(role)): count for role, count in counts.items() if count}
        if why := never_fits(pods, nodes):
            right = "smaller requests, fewer workers, or larger nodes"
            yield Problem(
                str(job.path), 1, 1, "spec.resources", f"no node can hold {job.spec.name}", why, right
            )
