"""`coach train`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Teacher(StrEnum):
    """Whose decisions the network imitates before it learns by itself."""

    NONE = "none"
    DRF = "drf"
    FIFO = "fifo"
    SRTF = "srtf"
    OPTIMUS = "optimus"


class Reward(StrEnum):
    """What an inference is rewarded for."""

    ALL = "all"
    OWN = "own"


class RecipeName(StrEnum):
    """How it learns."""

    COACH = "coach"
    PUBLISHED = "published"


def command(  # noqa: PLR0917 - they are options
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="dl2")],
    workload: Annotated[
        str,
        typer.Option(help="Cluster and jobs: a scenario of DL²'s baselines, by name or file.", metavar="SCENARIO"),
    ] = "dl2-baselines",
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Jobs like those of real runs, in place of a scenario: a journal.db, or a COACH_HOME.",
        ),
    ] = None,
    nodes: Annotated[
        str,
        typer.Option(metavar="COUNTxCORES[xGIB[xGPUS]]|FILE", help="With --journal: the nodes, such as 1x4."),
    ] = "1x4",
    out: Annotated[Path, typer.Option(help="The file to write; the learning curve gets the same name.")] = Path(
        "dl2.npz"
    ),
    seed: Annotated[int, typer.Option(min=1, max=999)] = 1,
    batches: Annotated[int, typer.Option(min=1, max=100_000, help="Batches of 200 slots.")] = 45,
    recipe: Annotated[
        RecipeName,
        typer.Option(
            help="Coach's own, or the published one: a network over all places of the window, imitation of DRF, "
            "replay. That stays at DRF in 1,200 slots, and cannot be resumed."
        ),
    ] = RecipeName.COACH,
    teacher: Annotated[
        Teacher, typer.Option(help="Imitate its decisions first. The published recipe needs one: drf.")
    ] = Teacher.NONE,
    reward: Annotated[
        Reward,
        typer.Option(
            help="Coach's recipe: an action's reward is the progress of all jobs in the slot, or of its own job only."
        ),
    ] = Reward.ALL,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint of the same command.")] = False,
) -> None:
    """Train the network of a policy that learns.

    The same command gives the same weights. Ctrl-C keeps a checkpoint of the last batches: --resume goes on from there.

    \b
    Examples:
      coach train dl2
      coach train dl2 --seed 2 --out mine.npz
      coach train dl2 --journal ~/.local/share/coach --nodes 1x4 --out mine.npz
      coach run jobs/lenet-digits.yaml --policy dl2:mine.npz
    """
    from coach.cli.display.output import console
    from coach.cli.display.progress_bar import progress_bar
    from coach.cli.simulate import parse_cluster
    from coach.core.errors import UserError
    from coach_research.dl2.learner import START, Recipe
    from coach_research.dl2.training import (
        PUBLISHED_TRACES,
        case_of,
        case_of_journal,
        train,
        train_as_published,
    )

    if policy != "dl2":
        raise UserError(
            f"POLICY is {policy!r}, wanted dl2: this command trains the network of a policy. "
            f"To train a job, type: coach run {policy}"
        )
    if out.suffix != ".npz":
        raise UserError(f"--out is {str(out)!r}, wanted a name that ends with .npz")
    published = recipe is RecipeName.PUBLISHED
    if published and (resume or reward is not Reward.ALL):
        raise UserError("--recipe published keeps no checkpoints and has one reward: leave --resume and --reward out")
    if published and teacher is Teacher.NONE:
        teacher = Teacher.DRF
    start = {} if teacher is Teacher.NONE else {"teacher": teacher.value, **START}
    settings = Recipe(batches=batches, reward=reward.value, **start)
    if journal is None:
        case, source = case_of(workload), f"--workload {workload}"
    else:
        case, source = case_of_journal(journal, parse_cluster(nodes)), f"--journal {journal} --nodes {nodes}"
    about = {
        "workload": workload if journal is None else "journal",
        "command": f"coach train dl2 {source} --seed {seed} --batches {batches} "
        f"--teacher {teacher.value}"
        + (" --recipe published" if published else "")
        + (f" --reward {reward.value}" if reward is not Reward.ALL else ""),
    }
    with progress_bar(batches, "training") as show:
        if published:
            made = train_as_published(case, batches, seed, out, about, teacher=teacher.value, progress=show)
        else:
            made = train(case, settings, seed, out, about, resume=resume, progress=show)
    many = PUBLISHED_TRACES if published else settings.validation_traces
    console().print(
        f"{out}: mean completion of {made.about['validation']:.2f} slots on {many} traces of "
        f"validation, after {made.about['slots']:,} slots; learning curve: {out.with_suffix('.svg')}",
        soft_wrap=True,
    )
