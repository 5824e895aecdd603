"""`coach try`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.display.output import Format, Output, console, fields, print_json
from coach.cli.options import Python

if TYPE_CHECKING:
    from coach.core.spec.job import TrainingJob
    from coach.platforms.local.environment import Functions
    from coach.platforms.local.trial import Trial


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job file.")],
    python: Python = None,
    output: Output = Format.TABLE,
) -> None:
    """Train two steps of a job, to see whether its model works.

    Shows the shapes of a batch, the speed, the memory, and one evaluation; or the model file's own traceback. The
    exit code is 2 where the model or the data is wrong, 5 where the process died by itself.

    \b
    Examples:
      coach try jobs/lenet-digits.yaml
      coach try job.yaml -o json
      coach try job.yaml --python ~/envs/mine/bin/python
    """
    del python  # it has set the environment
    from coach.cli.job_files import load
    from coach.platforms.local.environment import Functions
    from coach.platforms.local.trial import run

    screen = console()
    codes = [0]
    found = []
    for one in load([file]):
        functions = Functions.ready(lambda text: typer.echo(text, err=True), one.spec.spec.framework)
        with screen.status("") as status:
            trial = run(functions, one.spec, status.update)
        found.append({"job": one.spec.name} | fields(trial))
        if output is Format.TABLE:
            _show(one.spec, functions, trial)
        unmeasured = trial.good and _unmeasured(one.spec, trial)
        if unmeasured:
            typer.echo(
                f"\n{one.path}: spec.target.accuracy: none is measured, so it cannot be reached; set a loss as the "
                'target, or define metrics(outputs, batch), which returns {"accuracy": the mean of the batch}',
                err=True,
            )
        codes.append(5 if trial.crash else 2 if unmeasured or not trial.good else 0)
    if output is Format.JSON:
        print_json(found)
    raise typer.Exit(max(codes))


def _unmeasured(job: TrainingJob, trial: Trial) -> bool:
    """Whether the target is an accuracy, and the evaluation has none."""
    return job.spec.metric == "accuracy" and trial.evaluation["accuracy"] is None


def _show(job: TrainingJob, functions: Functions, trial: Trial) -> None:
    from coach.core.cluster import Role
    from coach.platforms.local.environment import NAMES
    from coach.report import formatting

    def line(name: str, text: str) -> None:
        typer.echo(f"  {name:<12}{text}")

    typer.echo(f"{job.name}: {NAMES[functions.framework]}, {functions.python}")
    if trial.data:
        line("data", f"{trial.data['train']:,} samples to train on, {trial.data['test']:,} to test on")
        line("batch", ", ".join(trial.data["batch"]))
    for number, step in enumerate(trial.steps, 1):
        line(f"step {number}", f"{formatting.duration(step['seconds'])}, loss {step['loss']:.4f}")
    if trial.steps:
        speed = trial.samples_per_second
        epoch = formatting.duration(trial.data["train"] / speed)
        line("speed", f"{speed:,.0f} samples/s: an epoch of one worker takes about {epoch}")
    for note in trial.notes:
        line("note", note)
    if trial.evaluation:
        accuracy = trial.evaluation["accuracy"]
        right = "no classes, so no accuracy" if accuracy is None else f"accuracy {accuracy:.4f}"
        line(
            "evaluation",
            f"{trial.evaluation['samples']} samples: loss {trial.evaluation['loss']:.4f}, {right}",
        )
    if trial.memory:
        requested = job.spec.resources.of(Role.WORKER).memory
        over = "; more than that: raise spec.resources.worker.memory" if trial.memory > requested else ""
        line("memory", f"{trial.memory:.2f} GiB of the {requested:g} GiB that a worker requests{over}")
    if trial.error:
        typer.echo(f"\n{trial.error['traceback']}", err=True)
        typer.echo(f"{trial.error['reason']}: {trial.error['message']}", err=True)
    if trial.crash:
        name = NAMES[functions.framework]
        typer.echo(
            f"\nThe process died by itself during {trial.phase} ({trial.crash}): a fault in {name} or beneath it, not "
            "an exception.\nTry a smaller net or batch, another layer in place of the last one you added, another "
            f"version of {name}.",
            err=True,
        )
