"""`coach try`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli import program
from coach.cli.display.output import Format, console, fields, print_json
from coach.cli.options import Output, Python, Set
from coach.core.cluster import Role
from coach.report import formatting

if TYPE_CHECKING:
    from coach.core.spec.job import TrainingJob
    from coach.platforms.local.environment import Functions
    from coach.platforms.local.trial import Trial


def command(  # noqa: PLR0917 - they are options
    words: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A job file. Or a program: -- COMMAND.")] = None,
    target: program.Target = "",
    metric: program.Metric = "",
    seconds: Annotated[float, typer.Option(min=1, help="Of a program: how long to wait for its first report.")] = 60.0,
    set_: Set = None,
    python: Python = None,
    output: Output = Format.TABLE,
) -> None:
    """Train two steps of a job, or try a program briefly.

    Shows the shapes of a batch, the speed, the memory, and one evaluation; or the model file's own traceback. Of a
    program it shows the metric that it found, or what was printed instead. The exit code is 2 where the model, the
    data or the program is wrong, 5 where the process died by itself.

    \b
    Examples:
      coach try jobs/lenet-digits.yaml
      coach try --target eval_loss=0.3 -- python train.py
      coach try job.yaml -o json
      coach try job.yaml --python ~/envs/mine/bin/python
    """
    del python  # it has set the environment
    from coach.cli.job_files import load
    from coach.platforms.local.environment import Functions
    from coach.platforms.local.trial import run

    given = program.options(target=target, metric=metric, budget=program.UNLIMITED if words.obj else "")
    own = program.loaded(words, [file] if file else None, given, set_ or ())
    screen = console()
    codes = [0]
    found: list[dict[str, Any]] = []
    for one in [own] if own is not None else load([file] if file else [], sets=set_):
        if one.spec.spec.program is not None:
            codes.append(_try_program(one.spec, seconds, found, output))
            continue
        functions = Functions.ready(lambda text: typer.echo(text, err=True), one.spec.spec.framework)
        with screen.status("") as status:
            trial = run(functions, one.spec, status.update)
        found.append({"job": one.spec.name} | fields(trial))
        if output is Format.TABLE:
            _show(one.spec, functions, trial)
        unmeasured = trial.good and _unmeasured(one.spec, trial)
        if unmeasured:
            typer.echo(f"\n{one.path}: spec.target cannot be reached: {unmeasured}", err=True)
        codes.append(5 if trial.crash else 2 if unmeasured or not trial.good else 0)
    if output is Format.JSON:
        print_json(found)
    raise typer.Exit(max(codes))


#: The sources of a program's metric, by their kinds.
_SOURCES = {
    "pattern": "its name, or a pattern, in what it prints",
    "lines": "JSON or a dictionary that it prints",
    "status": "Kubeflow's status that it sends",
    "report": "coach_program.report()",
}


def _try_program(job: TrainingJob, seconds: float, found: list[dict[str, Any]], output: Format) -> int:
    """Try a program and show what came of it; the exit code."""
    from coach.platforms.local.program_trial import run

    typer.echo(f"{job.name}: until it reports {job.spec.metric}, for at most {seconds:g} s", err=True)
    trial = run(job, seconds)
    found.append({"job": job.name} | fields(trial))
    if output is not Format.TABLE:
        return 0 if trial.good else 2
    for line in trial.printed:
        typer.echo(f"  | {line}")
    if trial.good:
        ordered = {trial.metric: 0.0} | trial.values
        values = ", ".join(f"{name} {value:g}" for name, value in ordered.items())
        epoch = "" if trial.epoch is None else f" in epoch {trial.epoch:g}"
        source = _SOURCES.get(trial.by, f"a file ({trial.by})")
        typer.echo(f"found {values}{epoch} after {formatting.duration(trial.seconds)}, by {source}")
        if trial.line:
            typer.echo(f"in: {trial.line}")
        return 0
    ended = trial.ended
    how = f"in {seconds:g} s" if ended is None else f"before it ended with exit code {ended.code}"
    if ended is not None and ended.cause == "cannot start":
        typer.echo(f"cannot start {ended.words}", err=True)
        return 2
    typer.echo(f"it reported no {trial.metric} {how}", err=True)
    if trial.doubt:
        typer.echo(trial.doubt, err=True)
    elif trial.others:
        typer.echo(f"numbers that it printed or wrote: {', '.join(trial.others[:10])}", err=True)
        typer.echo(f"to take one of them: --metric {shlex.quote(trial.source)}", err=True)
    return 2


def _unmeasured(job: TrainingJob, trial: Trial) -> str:
    """What is wrong where the evaluation has no value of the job's metric; empty where it has."""
    from coach.platforms.gang_client import not_measured

    metric, others = job.spec.metric, trial.evaluation["metrics"]
    missing = ({"loss": 0.0, "accuracy": trial.evaluation["accuracy"]} | others).get(metric) is None
    return not_measured(metric, others) if missing else ""


def _show(job: TrainingJob, functions: Functions, trial: Trial) -> None:
    from coach.platforms.local.environment import NAMES

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
        takes = formatting.duration(trial.data["train"] / speed)
        what = "an epoch" if job.spec.epoch is None else "a pass over the data"
        line("speed", f"{speed:,.0f} samples/s: {what} takes one worker about {takes}")
    for note in trial.notes:
        line("note", note)
    if trial.evaluation:
        accuracy = trial.evaluation["accuracy"]
        right = "no classes, so no accuracy" if accuracy is None else f"accuracy {accuracy:.4f}"
        line(
            "evaluation",
            f"{trial.evaluation['samples']} samples: loss {trial.evaluation['loss']:.4f}, {right}"
            + "".join(f", {name} {value:.4g}" for name, value in trial.evaluation["metrics"].items()),
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
