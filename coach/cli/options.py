"""Options that several commands share."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coach.cli.display.output import Format
from coach.core.errors import CoachError

#: Folders of the volume that a cluster's pods have (`coach.platforms.kubernetes.manifests`), not this machine.
VOLUMES = (Path("/var/lib/coach/data"), Path("/var/lib/coach/checkpoints"))


#: Panels of the help, behind the options that most people need.
PROCESSES, PLACE, SHOWN = "Of a program's processes", "Where it runs", "What is shown and sent"


class PlatformKind(StrEnum):
    """Where functions run."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"
    NUCLIO = "nuclio"
    SLURM = "slurm"

    @property
    def on_cluster(self) -> bool:
        """Whether functions run in the pods of a Kubernetes cluster; otherwise on this machine."""
        return self in {PlatformKind.KUBERNETES, PlatformKind.NUCLIO}


Output = Annotated[
    Format,
    typer.Option("--output", "-o", help="Output format; json and csv have all fields.", show_default=True),
]
Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="Job files; each may have several jobs.")]
MaybeFiles = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", help="Job files; each may have several jobs. Or a program: -- COMMAND."),
]


def with_prices(sets: list[str] | None, prices: str) -> list[str]:
    """The texts of `--set` with those of `--prices`."""
    return [*(sets or []), *([f"prices={prices}"] if prices else [])]


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
Prices = Annotated[
    str,
    typer.Option(
        metavar="OFFER",
        help="What the jobs are billed by: an offer of `coach prices`, such as aws/p4d.24xlarge:spot, or a price book.",
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
        rich_help_panel=PLACE,
    ),
]


def _share_gpus(share: bool) -> bool:
    """What is started from here on shares them, as with the environment variable."""
    if share:
        os.environ["COACH_SHARE_GPUS"] = "1"
    return share


ShareGpus = Annotated[
    bool,
    typer.Option(
        "--share-gpus",
        callback=_share_gpus,
        help="Give jobs GPUs on which processes of others run, too; and let jobs without --gpus see them all.",
        rich_help_panel=PLACE,
    ),
]
Bandwidth = Annotated[
    str,
    typer.Option(
        metavar="RATE",
        help="Limit each virtual node's network to this bandwidth, such as 200mbit (root only).",
        rich_help_panel=PLACE,
    ),
]
PlatformName = Annotated[
    PlatformKind,
    typer.Option(
        "--platform",
        help="Where functions run: in processes of this machine, in pods of a cluster, or as its Nuclio functions; "
        "programs also as jobs of Slurm.",
    ),
]
Placement = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Who places pods on nodes: gang (all pods of a job together), default (one by one, as the stock "
        "kube-scheduler does) or thesis (one by one, by the thesis's three rules). The last two take backoff and "
        "creation, seconds: default:backoff=10. On a cluster it chooses the scheduler, or Coach's profile.",
        rich_help_panel=PLACE,
    ),
]
Context = Annotated[
    str,
    typer.Option(metavar="NAME", help="Context of the kubeconfig; without it, its current one.", rich_help_panel=PLACE),
]
Namespace = Annotated[
    str,
    typer.Option(metavar="NAME", help="Namespace of the pods; without it, the context's.", rich_help_panel=PLACE),
]
Notify = Annotated[
    str,
    typer.Option(
        metavar="URL|COMMAND",
        envvar="COACH_NOTIFY",
        help="Who is sent a message when a job ends, has spent 80 % of its budget, or is predicted anew, and notices "
        "of budgets: a URL by POST, or a command, as JSON on its standard input and as text in COACH_TEXT.",
        rich_help_panel=SHOWN,
    ),
]
Live = Annotated[
    bool,
    typer.Option(
        "--live/--no-live", help="Show a table that is updated, or a line for each event.", rich_help_panel=SHOWN
    ),
]
