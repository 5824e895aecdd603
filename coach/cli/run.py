"""`coach run`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.output import Format, Output, console, fields, print_csv, print_json

if TYPE_CHECKING:
    from coach.core.cluster import Node
    from coach.handler.home import Home
    from coach.handler.session import MakePlatform
    from coach.platforms.base import Platform
    from coach.platforms.local.network import Bandwidth


def command(  # noqa: PLR0917 - they are options
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Job files; each may have several jobs.")
    ],
    nodes: Annotated[
        str,
        typer.Option(
            metavar="COUNTxCORES|FILE",
            help="Virtual nodes such as 3x2, or a cluster file; without it, this machine as one node.",
        ),
    ] = "",
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who chooses workers and servers, instead of the job files: coach, coach:cheapest or static:2x1.",
        ),
    ] = "",
    bandwidth: Annotated[
        str,
        typer.Option(
            metavar="RATE",
            help="Give each virtual node a network of its own with this limit, such as 200mbit (root only).",
        ),
    ] = "",
    output: Output = Format.TABLE,
    live: Annotated[
        bool,
        typer.Option("--live/--no-live", help="A table that stays up to date, or a line for what happens."),
    ] = True,
) -> None:
    """Train jobs to their targets, within their budgets.

    A job that was interrupted goes on when its file is run again. Ctrl-C stops at the end of the running epochs, a
    second one stops at once, a third does not wait for anything.

    \b
    Examples:
      coach run jobs/lenet-digits.yaml
      coach run jobs/a.yaml jobs/b.yaml --nodes 3x2
      coach run job.yaml --policy static:2x1 -o json
      sudo coach run job.yaml --nodes 4x1 --bandwidth 200mbit
    """
    from coach.cli.ending import beginning, ending
    from coach.cli.lines import Lines
    from coach.cli.live import LiveView
    from coach.cli.policies import chosen_policy
    from coach.core.jobs.job import Job
    from coach.handler.home import Home
    from coach.handler.session import Session
    from coach.jobfiles.load import load_jobs
    from coach.platforms.local.cluster import parse_nodes
    from coach.platforms.local.network import Bandwidth, limited, require
    from coach.report.status import JOB_COLUMNS, job_row

    loaded = load_jobs(files)
    allocator, specs = chosen_policy(policy, [one.spec for one in loaded])
    cluster = parse_nodes(nodes)
    #: With -o json or csv, stdout is for the result alone.
    screen = console(stderr=output is not Format.TABLE)
    limit = Bandwidth.parse(bandwidth) if bandwidth else None
    if limit:
        require(cluster)
        cluster = limited(cluster, limit)
    beginning(screen, specs, cluster, allocator)
    session: Session

    def jobs() -> dict[str, Job]:
        return session.jobs

    display = LiveView(screen) if live and screen.is_terminal else None
    watcher = display or Lines(screen, jobs)
    session = Session(
        Home.default(),
        specs,
        nodes=cluster,
        policy=allocator,
        make_platform=_local_platform(cluster, limit),
        watcher=watcher,
    )
    if display:
        display.attach(session)
    code = session.run()
    rows = [job_row(job, time.time()) for job in session.jobs.values()]
    if output is Format.JSON:
        print_json([fields(row) for row in rows])
    elif output is Format.CSV:
        print_csv(JOB_COLUMNS, map(fields, rows))
    elif rows:
        ending(screen, rows, files)
    raise typer.Exit(code)


def _local_platform(nodes: tuple[Node, ...], bandwidth: Bandwidth | None) -> MakePlatform:
    from coach.platforms.local.environment import Functions
    from coach.platforms.local.platform import LocalPlatform

    functions = Functions.find()

    def make(home: Home, now: Callable[[], float]) -> Platform:
        return LocalPlatform(nodes, functions, home.logs, now, bandwidth)

    return make
