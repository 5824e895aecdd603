"""Options that several commands share, and the objects made from them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.core.cluster import Node
from coach.core.errors import CoachError, PermanentError, UserError

if TYPE_CHECKING:
    from coach.core import policies
    from coach.core.spec.job import TrainingJob
    from coach.handler.session import MakePlatform
    from coach.handler.state.state_directory import StateDirectory
    from coach.platforms.base import Platform
    from coach.platforms.kubernetes_api.client import Api
    from coach.platforms.kubernetes_api.election import Lead
    from coach.platforms.local.environment import Functions
    from coach.service.operations import Service


#: The scheduler's profile that places pods on a cluster; "": the one that the chart's values say.
PROFILES = {"gang": "", "default": "default-scheduler", "thesis": "coach-thesis"}
#: Folders of the volume that a cluster's pods have (`coach.platforms.kubernetes.manifests`), not this machine.
VOLUMES = (Path("/var/lib/coach/data"), Path("/var/lib/coach/checkpoints"))


class PlatformKind(StrEnum):
    """Where functions run."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"
    NUCLIO = "nuclio"

    @property
    def on_cluster(self) -> bool:
        """Whether functions run in the pods of a Kubernetes cluster; otherwise on this machine."""
        return self in {PlatformKind.KUBERNETES, PlatformKind.NUCLIO}


Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="Job files; each may have several jobs.")]
MaybeFiles = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="Job files; each may have several jobs. Or a program: -- COMMAND."),
]


def complete_job(incomplete: str) -> list[str]:
    """Names of jobs that begin so, newest first: what a shell completes. Errors complete nothing."""
    from coach.handler.state.state_directory import StateDirectory

    try:
        return [name for name in reversed(StateDirectory.default().past()) if name.startswith(incomplete)]
    except (CoachError, OSError):
        return []


JobName = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's name, as `coach ps` shows it.", autocompletion=complete_job),
]
JobNames = Annotated[
    list[str],
    typer.Argument(metavar="JOB", help="Names of jobs, as `coach ps` shows them.", autocompletion=complete_job),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field of the jobs, such as optimizer.learningRate=0.1 or workers.max=4; may be repeated.",
    ),
]
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


def _use_python(python: Path | None) -> Path | None:
    """What is started from here on uses it, as with the environment variable."""
    if python is not None:
        # Not resolved: an environment's python is a link, and its name decides its packages.
        os.environ["COACH_PYTORCH_PYTHON"] = str(python.absolute())
    return python


Python = Annotated[
    Path | None,
    typer.Option(
        "--python",
        metavar="PATH",
        exists=True,
        dir_okay=False,
        callback=_use_python,
        help="The Python of PyTorch jobs, with your torch and what your model files import; "
        "without it, COACH_PYTORCH_PYTHON or the first with PyTorch that is found.",
    ),
]
Bandwidth = Annotated[
    str,
    typer.Option(
        metavar="RATE",
        help="Limit each virtual node's network to this bandwidth, such as 200mbit (root only).",
    ),
]
PlatformName = Annotated[
    PlatformKind,
    typer.Option(
        "--platform",
        help="Where functions run: in processes of this machine, in pods of a cluster, or as its Nuclio functions.",
    ),
]
Placement = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Who places pods on nodes: gang (all pods of a job together), default (one by one, as the stock "
        "kube-scheduler does) or thesis (one by one, by the thesis's three rules). The last two take backoff and "
        "creation, seconds: default:backoff=10. On a cluster it chooses the scheduler, or Coach's profile.",
    ),
]
Context = Annotated[
    str,
    typer.Option(metavar="NAME", help="Context of the kubeconfig; without it, its current one."),
]
Namespace = Annotated[
    str,
    typer.Option(metavar="NAME", help="Namespace of the pods; without it, the context's."),
]
Notify = Annotated[
    str,
    typer.Option(
        metavar="URL|COMMAND",
        envvar="COACH_NOTIFY",
        help="Who is sent a message when a job ends, has spent 80 % of its budget, or is predicted anew, and notices "
        "of budgets: a URL by POST, or a command, as JSON on its standard input and as text in COACH_TEXT.",
    ),
]
Live = Annotated[
    bool,
    typer.Option("--live/--no-live", help="Show a table that is updated, or a line for each event."),
]


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

    Raises UserError, PermanentError.
    """
    if not platform.on_cluster:
        if context or namespace:
            raise UserError("--context, --namespace: only with --platform kubernetes or nuclio")
        return local_cluster(nodes, bandwidth, specs, placement)
    if nodes or bandwidth:
        raise UserError("--nodes, --bandwidth: only with --platform local; a cluster has its own nodes")
    nuclio = platform is PlatformKind.NUCLIO
    return kubernetes_cluster(context, namespace, nuclio=nuclio, placement=placement, may_write=may_write)


def check_placement(placement: str, policy: policies.Policy) -> None:
    """Raises UserError for a placement that there is not live, or under which `policy` cannot decide."""
    from coach.plugins import placement as parsed

    kind = parsed(placement)
    if kind is None:
        return
    if policy.chooses_nodes:
        raise UserError(f"--placement {placement}: policy {policy.name} chooses nodes itself; leave the option out")
    if kind.deadlock_timeout is not None:
        raise UserError("--placement: deadlock_timeout is simulated only; live, such jobs stand still")


def kubernetes_cluster(
    context: str,
    namespace: str,
    *,
    nuclio: bool,
    placement: str = "gang",
    may_write: Callable[[], None] | None = None,
) -> tuple[tuple[Node, ...], MakePlatform]:
    """The nodes of a Kubernetes cluster, and what makes a platform of them. Raises UserError, PermanentError.

    `placement`, unless `gang`, chooses another scheduler, or profile of Coach's, than the chart's values do.
    """
    import asyncio

    from coach.jobfiles.prices import instance_of
    from coach.platforms.kubernetes.node_prices import NodePrices
    from coach.platforms.kubernetes.platform import KubernetesPlatform
    from coach.platforms.kubernetes.settings import Settings
    from coach.platforms.kubernetes_api import nodes
    from coach.platforms.kubernetes_api.client import CORE

    if placement not in PROFILES:
        raise UserError(f"--placement {placement}: on a cluster one of {', '.join(PROFILES)}, without parameters")
    if PROFILES[placement]:
        os.environ["COACH_SCHEDULER_NAME"] = PROFILES[placement]

    connect = _connecting(context, namespace, may_write)

    async def read() -> tuple[Node, ...]:
        async with await connect() as api:
            found = (await api.get(f"{CORE}/nodes"))["items"]
            prices = NodePrices(instance_of, Settings.read("").opencost)
            await prices.look()
            return tuple(prices.of(node) for node in found if not nodes.unavailable(node))

    def make(home: StateDirectory, now: Callable[[], float]) -> Platform:
        settings = Settings.read(home.handler_id())
        if not nuclio:
            return KubernetesPlatform(connect, settings, home.logs, now, instance_of)
        from coach.platforms.local.environment import Functions
        from coach.platforms.nuclio.platform import NuclioPlatform

        return NuclioPlatform(Functions.folder_only(), connect, settings, home.logs, now, instance_of)

    return asyncio.run(read()), make


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
    from coach.core.spec.training import Framework
    from coach.jobfiles.prices import instance_of
    from coach.platforms.local.cluster import parse_nodes
    from coach.platforms.local.environment import Functions
    from coach.platforms.local.platform import LocalPlatform
    from coach.plugins import extension

    cluster, platform = parse_nodes(nodes, instance_of), LocalPlatform
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
    from coach.core.spec.training import Framework
    from coach.platforms.local.environment import Functions

    try:
        return Functions.ready(say)
    except PermanentError as error:
        try:
            return Functions.ready(say, Framework.PYTORCH)
        except PermanentError:
            raise error from None
