"""`coach serve`."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.options import (
    VOLUMES,
    Bandwidth,
    Context,
    Namespace,
    Nodes,
    Notify,
    Placement,
    PlatformKind,
    PlatformName,
    Policy,
    Python,
    ShareGpus,
)
from coach.core.errors import UserError
from coach.service.logging import LogFormat

if TYPE_CHECKING:
    from coach.handler.endpoint import Endpoint


def command(  # noqa: PLR0917 - they are options
    nodes: Nodes = "",
    policy: Policy = "",
    share_gpus: ShareGpus = False,
    bandwidth: Bandwidth = "",
    python: Python = None,
    platform: PlatformName = PlatformKind.LOCAL,
    placement: Placement = "gang",
    context: Context = "",
    namespace: Namespace = "",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; any but loopback needs --token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8421,
    token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the callers' token; without it, `token` in COACH_HOME."),
    ] = None,
    allow: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Folder in which job files may name models and data; may be repeated. Default: the current one.",
        ),
    ] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name by which browsers may reach the page, such as a proxy's; may be repeated. Addresses and "
            "localhost need none.",
        ),
    ] = None,
    notify: Notify = "",
    clock_is_right: Annotated[
        bool,
        typer.Option(
            "--clock-is-right",
            help="Begin the next period of budgets over jobs, though no handler was here for more than a day.",
        ),
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="Format of the log on stderr.")] = LogFormat.TEXT,
) -> None:
    """Run jobs as a service, for other commands and over HTTP.

    Jobs that no user stopped continue when it starts. Ctrl-C stops at the end of the running epochs, a second one or
    SIGTERM at once; after each of them, and after a crash, the next `coach serve` continues.

    \b
    Examples:
      coach serve
      coach serve --nodes 4x2 --allow ~/jobs --log-format json
      coach serve --host 0.0.0.0 --token /run/secrets/coach --allow /srv/jobs
    """
    from coach.cli.clusters import check_placement, chosen_cluster, controller, led
    from coach.core.policies import StaticPolicy
    from coach.handler.state.state_directory import StateDirectory
    from coach.plugins import policy as parsed_policy
    from coach.service.logging import begin_logging
    from coach.service.serve import Serving, serve
    from coach.service.views.messages import checked

    allocator = parsed_policy(policy or "coach")
    if isinstance(allocator, StaticPolicy):
        raise UserError(f"--policy {policy}: a static allocation is a job's own: coach submit FILE --policy {policy}")
    check_placement(placement, allocator)
    folders = tuple(folder.expanduser().resolve() for folder in allow or [Path.cwd()])
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--allow {folder}: no such folder")
    begin_logging(log_format)
    del python, share_gpus  # they have set the environment
    home, local = StateDirectory.default(), not platform.on_cluster

    def ready(endpoint: Endpoint) -> None:
        logging.getLogger("coach.service").info(
            "serving at %s; token in %s; job files may name paths in %s; give it jobs: coach submit FILE; "
            "look at them: coach ui",
            endpoint.url,
            endpoint.token_file,
            ", ".join(map(str, folders)),
        )

    with contextlib.nullcontext() if local else led(home, context, namespace, host, port) as lead:
        may_write = lead.check if lead else None
        companion = None if local else controller(context, namespace, folders, may_write)
        cluster, make_platform = chosen_cluster(
            platform, nodes, bandwidth, context, namespace, placement=placement, may_write=may_write
        )
        serving = Serving(
            home,
            cluster,
            allocator,
            make_platform,
            host=host,
            port=port,
            token=token.expanduser().absolute() if token else None,
            folders=folders,
            host_names=frozenset(name.lower() for name in host_name or ()),
            companion=companion,
            notify=checked(notify),
            volumes=() if local else VOLUMES,
            lead=lead,
            clock_is_right=clock_is_right,
        )
        raise typer.Exit(serve(serving, ready))
