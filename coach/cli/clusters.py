"""The cluster that a command's options choose: its nodes, and what makes a platform of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coach.cli.options import PlatformKind
from coach.core.cluster import Node
from coach.core.errors import PermanentError, UserError
from coach.core.policies import Policy
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Framework
from coach.handler.session import MakePlatform
from coach.handler.state.state_directory import StateDirectory
from coach.jobfiles.prices import instance_of
from coach.platforms.base import Platform
from coach.platforms.local.cluster import parse_nodes
from coach.platforms.local.devices.pool import DevicePool
from coach.platforms.local.environment import Functions
from coach.platforms.local.platform import LocalPlatform
from coach.plugins import extension
from coach.plugins import placement as parsed_placement

if TYPE_CHECKING:
    from coach.platforms.kubernetes_api.client import Api
    from coach.platforms.kubernetes_api.election import Lead
    from coach.service.operations import Service

#: The scheduler's profile that places pods on a cluster; "": the one that the chart's values say.
PROFILES = {"gang": "", "default": "default-scheduler", "thesis": "coach-thesis"}


def chosen_cluster(  # noqa: PLR0917 - they are options
    platform: PlatformKind,
    nodes: str,
    bandwidth: str,
    context: str,
    namespace: str,
    specs: Sequence[TrainingJob] = (),
    placement: str = "gang",
    may_write: Callable[[], None] | None = None,
) -> tuple[tuple[Node, ...], MakePlatform]:
    """The nodes of the platform, and what makes it, ready for the frameworks of `specs`; `may_write` as in `Api`.

    On a cluster `placement`, unless `gang`, chooses another scheduler, or profile of Coach's, than the chart's values
    do. Raises UserError, PermanentError.
    """
    if not platform.on_cluster:
        if context or namespace:
            raise UserError("--context, --namespace: only with --platform kubernetes or nuclio")
        if platform is PlatformKind.SLURM:
            return _slurm(nodes, bandwidth, specs, placement)
        return local_cluster(nodes, bandwidth, specs, placement)
    if nodes or bandwidth:
        raise UserError("--nodes, --bandwidth: only with --platform local; a cluster has its own nodes")
    if placement not in PROFILES:
        raise UserError(f"--placement {placement}: on a cluster one of {', '.join(PROFILES)}, without parameters")
    if PROFILES[placement]:
        os.environ["COACH_SCHEDULER_NAME"] = PROFILES[placement]
    from coach.platforms.kubernetes.node_prices import NodePrices
    from coach.platforms.kubernetes.platform import KubernetesPlatform
    from coach.platforms.kubernetes.settings import Settings
    from coach.platforms.kubernetes_api.client import CORE
    from coach.platforms.kubernetes_api.nodes import unavailable

    connect = _connecting(context, namespace, may_write)

    async def read() -> tuple[Node, ...]:
        async with await connect() as api:
            found = (await api.get(f"{CORE}/nodes"))["items"]
            prices = NodePrices(instance_of, Settings.read("").opencost)
            await prices.look()
            return tuple(prices.of(node) for node in found if not unavailable(node))

    def make(home: StateDirectory, now: Callable[[], float]) -> Platform:
        settings = Settings.read(home.handler_id())
        if platform is PlatformKind.KUBERNETES:
            return KubernetesPlatform(connect, settings, home.logs, now, instance_of)
        from coach.platforms.nuclio.platform import NuclioPlatform

        return NuclioPlatform(Functions.folder_only(), connect, settings, home.logs, now, instance_of)

    return asyncio.run(read()), make


def _slurm(
    nodes: str, bandwidth: str, specs: Sequence[TrainingJob], placement: str
) -> tuple[tuple[Node, ...], MakePlatform]:
    if nodes or bandwidth or placement != "gang":
        raise UserError("--nodes, --bandwidth, --placement: not with --platform slurm, which has its own nodes")
    from coach.platforms.slurm.platform import SlurmPlatform, refusal
    from coach.platforms.slurm.queue import nodes_now

    for spec in specs:
        if why := refusal(spec):
            raise UserError(f"{spec.name}: {why}")

    def make(home: StateDirectory, now: Callable[[], float]) -> Platform:
        return SlurmPlatform(home.path, home.handler_id(), home.logs, home.checkpoints, now)

    return asyncio.run(nodes_now()).nodes, make


def check_placement(placement: str, policy: Policy) -> None:
    """Raises UserError for a placement that there is not live, or under which `policy` cannot decide."""
    kind = parsed_placement(placement)
    if kind is None:
        return
    if policy.chooses_nodes:
        raise UserError(f"--placement {placement}: policy {policy.name} chooses nodes itself; leave the option out")
    if kind.deadlock_timeout is not None:
        raise UserError("--placement: deadlock_timeout is simulated only; live, such jobs stand still")


def controller(
    context: str, namespace: str, folders: tuple[Path, ...], may_write: Callable[[], None] | None = None
) -> Callable[[Service], Coroutine[Any, Any, None]]:
    """What follows the TrainingJobs of a cluster while a service runs. Models are in one of `folders`."""
    from coach.controller.controller import Controller

    connect = _connecting(context, namespace, may_write)
    return lambda service: Controller(connect, service, folders).run()


def _connecting(
    context: str, namespace: str, may_write: Callable[[], None] | None = None
) -> Callable[[], Coroutine[Any, Any, Api]]:
    from coach.platforms.kubernetes_api.client import Api

    check = may_write or (lambda: None)
    return lambda: Api.connect(context or None, namespace or None, may_write=check)


@contextlib.contextmanager
def led(home: StateDirectory, context: str, namespace: str, host: str, port: int) -> Iterator[Lead | None]:
    """Wait for the lease that COACH_LEASE names, and hold it for the length of the block; without it, at once.

    Raises CoachError.
    """
    if not (name := os.environ.get("COACH_LEASE")):
        yield None
        return
    from coach.platforms.kubernetes_api.election import leading

    me = os.environ.get("COACH_POD") or f"{os.uname().nodename}-{os.getpid()}"
    with leading(_connecting(context, namespace), name, me, home.term, host, port) as lead:
        yield lead


def local_cluster(
    nodes: str, bandwidth: str, specs: Sequence[TrainingJob] = (), placement: str = "gang"
) -> tuple[tuple[Node, ...], MakePlatform]:
    """The nodes of `--nodes` and `--bandwidth`, and a factory of their platform, ready for the frameworks of `specs`.

    Without `specs`, for one framework that this machine has. Raises UserError, PermanentError.
    """
    cluster, platform = parse_nodes(nodes, instance_of), LocalPlatform
    DevicePool(cluster)  # this machine has as many GPUs
    if bandwidth or placement != "gang":
        cluster, platform = extension("local-platform", "--bandwidth, --placement")(cluster, bandwidth, placement)

    def say(text: str) -> None:
        typer.echo(text, err=True)

    def make(home: StateDirectory, now: Callable[[], float]) -> Platform:
        return platform(cluster, functions, home.logs, now)

    frameworks = dict.fromkeys(one.spec.framework for one in specs)
    found = [Functions.ready(say, each) for each in frameworks if each is not Framework.ANY]
    functions = found[0] if found else None if frameworks else _any_functions(say)
    return cluster, make


def _any_functions(say: Callable[[str], None]) -> Functions:
    """Those of MXNet, or of PyTorch where only its Python is there; a service does not know its jobs yet."""
    try:
        return Functions.ready(say)
    except PermanentError as error:
        try:
            return Functions.ready(say, Framework.PYTORCH)
        except PermanentError:
            raise error from None
