"""Options that several commands share, and the objects made from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from coach.core.cluster import Node
    from coach.handler.session import MakePlatform
    from coach.handler.state.state_directory import StateDirectory
    from coach.platforms.base import Platform

Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="Job files; each may have several jobs.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as `coach ps` shows it.")]
Nodes = Annotated[
    str,
    typer.Option(
        metavar="COUNTxCORES|FILE",
        help="Virtual nodes such as 3x2, or a cluster file; without it, this machine as one node.",
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Allocation policy, in place of the job files' own: coach, coach:cheapest or static:2x1.",
    ),
]
Bandwidth = Annotated[
    str,
    typer.Option(
        metavar="RATE",
        help="Limit each virtual node's network to this bandwidth, such as 200mbit (root only).",
    ),
]
Live = Annotated[
    bool,
    typer.Option("--live/--no-live", help="Show a table that is updated, or a line for each event."),
]


def local_cluster(nodes: str, bandwidth: str) -> tuple[tuple[Node, ...], MakePlatform]:
    """The nodes of `--nodes` and `--bandwidth`, and a factory of their platform. Raises UserError, PermanentError."""
    from coach.platforms.local.cluster import parse_nodes
    from coach.platforms.local.environment import Functions
    from coach.platforms.local.network import Bandwidth, limited, require
    from coach.platforms.local.platform import LocalPlatform

    cluster = parse_nodes(nodes)
    limit = Bandwidth.parse(bandwidth) if bandwidth else None
    if limit:
        require(cluster)
        cluster = limited(cluster, limit)

    def make(home: StateDirectory, now: Callable[[], float]) -> Platform:
        return LocalPlatform(cluster, functions, home.logs, now, limit)

    functions = Functions.ready(lambda text: typer.echo(text, err=True))
    return cluster, make
