"""`coach run`."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coach.cli import program
from coach.cli.display.output import Format
from coach.cli.options import (
    VOLUMES,
    Bandwidth,
    Context,
    Live,
    MaybeFiles,
    Namespace,
    Nodes,
    Notify,
    Output,
    Placement,
    PlatformKind,
    PlatformName,
    Policy,
    Prices,
    Python,
    Set,
    ShareGpus,
    with_prices,
)
from coach.core.cluster import Node
from coach.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from coach.cli.display.display_loop import Showing
    from coach.core import policies
    from coach.core.spec.job import TrainingJob
    from coach.handler.handler import Handler
    from coach.handler.session import MakePlatform
    from coach.handler.state.journal import Journal
    from coach.handler.state.state_directory import StateDirectory


def command(  # noqa: PLR0917 - they are options
    words: typer.Context,
    files: MaybeFiles = None,
    budget: program.Budget = "",
    target: program.Target = "",
    metric: program.Metric = "",
    image: program.Image = "",
    name: program.Name = "",
    workers: program.Workers = "",
    cpu: program.Cpu = "",
    memory: program.Memory = "",
    gpus: program.Gpus = 0,
    resumes: program.Resumes = False,
    stop_early: program.StopEarly = False,
    slurm: program.Slurm = "",
    dry_run: program.DryRun = False,
    prices: Prices = "",
    set_: Set = None,
    nodes: Nodes = "",
    policy: Policy = "",
    share_gpus: ShareGpus = False,
    bandwidth: Bandwidth = "",
    python: Python = None,
    platform: PlatformName = PlatformKind.LOCAL,
    placement: Placement = "gang",
    context: Context = "",
    namespace: Namespace = "",
    notify: Notify = "",
    output: Output = Format.TABLE,
    live: Live = True,
) -> None:
    """Train jobs to their targets, within their budgets.

    The jobs are those of job files, or any program behind `--`.
    A job that was suspended continues when its file is run again. Ctrl-C stops at the end of the running epochs, a
    second one stops at once, a third does not wait for anything. Where a service runs (coach serve), it runs the
    jobs, and this command shows them.

    \b
    Examples:
      coach run --budget 5USD --target eval_loss=0.3 -- python train.py --lr 0.1
      coach run --budget 1USD --target 'wins>=9' --metric 'won ([0-9]+)' -- ./a
      coach run --gpus 2 --budget 20gpuh --target eval_loss=0.3 -- python train.py
      coach run --platform slurm --slurm "--partition=gpu" --budget 5USD -- ./a
      coach --context NAME run --budget 5USD --image me/train:1 -- python train.py
      coach run jobs/a.yaml jobs/b.yaml --nodes 3x2
      coach run job.yaml --set optimizer.learningRate=0.1 --policy static:2x1
    """
    from coach.cli.clusters import check_placement, chosen_cluster
    from coach.cli.display.display_loop import Showing
    from coach.cli.job_files import load
    from coach.cli.operations import elsewhere
    from coach.handler.endpoint import ServiceRunsError, find
    from coach.handler.policies import chosen_policy
    from coach.handler.state.state_directory import StateDirectory

    sets = with_prices(set_, prices)
    found = program.loaded(words, files, program.options(**words.params), sets)
    if found is not None and dry_run:
        typer.echo(program.text_of(found), nl=False)
        raise typer.Exit(0)
    place = elsewhere()
    if image and not place:
        raise UserError("--image: for a cluster: coach --context NAME run ...")
    volumes = VOLUMES if platform.on_cluster or place else ()
    loaded = [found] if found is not None else load(files or [], volumes=volumes, sets=sets)
    if place:
        own = {
            "--nodes": nodes, "--policy": policy, "--bandwidth": bandwidth, "--python": python is not None,
            "--platform": platform is not PlatformKind.LOCAL, "--placement": placement != "gang",
            "--context": context, "--namespace": namespace, "--share-gpus": share_gpus,
        }  # fmt: skip
        if not_there := [option for option, value in own.items() if value]:
            raise UserError(f"{', '.join(not_there)}: not with coach --context NAME run; the cluster has its own")
        from coach.cli import cluster_jobs

        raise typer.Exit(cluster_jobs.run(place, loaded, as_json=output is Format.JSON))
    allocator, specs = chosen_policy(policy, [one.spec for one in loaded])
    check_placement(placement, allocator)
    home = StateDirectory.default()
    showing = Showing(output, live)
    if not find(home):
        cluster = partial(chosen_cluster, platform, nodes, bandwidth, context, namespace, specs, placement)
        try:
            raise typer.Exit(run_here(home, showing, specs, allocator, cluster, notify=notify))
        except ServiceRunsError:
            pass  # it has started since
    kind, pods = platform.value if platform is not PlatformKind.LOCAL else "", "" if placement == "gang" else placement
    own_cluster = nodes or bandwidth or str(python or "") or kind or pods or "--share-gpus" * share_gpus
    if notify:
        typer.echo("--notify: the service sends its own messages; coach serve has --notify", err=True)
    with program.as_files(loaded, files or []) as sent:
        raise typer.Exit(_there(home, showing, sent, specs, policy, own_cluster))


def run_here(
    home: StateDirectory,
    showing: Showing,
    specs: Sequence[TrainingJob],
    allocator: policies.Policy,
    choose: Callable[[], tuple[tuple[Node, ...], MakePlatform]],
    *,
    notify: str = "",
    **resumed: Any,
) -> int:
    """Run them in this process. `resumed`: of jobs that go on, what a `Session` has of them."""
    from coach.cli.display.summary import beginning
    from coach.handler.interactive_run import RunObserver
    from coach.handler.session import Session

    if notify:
        from coach.service.views.messages import checked

        checked(notify)
    cluster, make_platform = choose()
    beginning(showing.screen, specs, cluster, allocator.name)

    def make(watcher: RunObserver) -> Session:
        return Session(
            home,
            () if resumed else specs,
            nodes=cluster,
            policy=allocator,
            make_platform=make_platform,
            watcher=watcher,
            meanwhile=partial(meanwhile, home, notify),
            **resumed,
        )

    return showing.run(make)


@contextlib.asynccontextmanager
async def meanwhile(home: StateDirectory, notify: str, handler: Handler, journal: Journal) -> AsyncIterator[None]:
    """What runs next to a handler: it writes what commands show, and sends messages."""
    from coach.service.local.written import writing

    async with contextlib.AsyncExitStack() as stack:
        if notify:
            from coach.service.views.messages import sending

            await stack.enter_async_context(sending(notify, handler, journal))
        await stack.enter_async_context(writing(home, handler, journal))
        yield


def _there(  # noqa: PLR0917
    home: StateDirectory,
    showing: Showing,
    files: Sequence[Path],
    specs: Sequence[TrainingJob],
    policy: str,
    own_cluster: str,
) -> int:
    """Submit them to the service, and show them."""
    from coach.cli.display.summary import beginning
    from coach.service.client import service_of
    from coach.service.client.remote_run import Joined

    with service_of(home) as client:
        if own_cluster:
            raise UserError(
                f"--nodes, --bandwidth, --python, --platform, --placement, --share-gpus {own_cluster}: a service runs "
                f"at {client.url}, and has its nodes and its Python already; leave the option out, or set COACH_HOME "
                "to another folder"
            )
        where = f", by the service at {client.url}"
        beginning(showing.screen, specs, client.nodes(), client.cluster().policy, where)
        return showing.run(lambda watcher: Joined(client, files, policy, watcher))
