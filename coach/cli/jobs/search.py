"""`coach search`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli import program
from coach.cli.display.output import Format, Output, console, fields, print_csv, print_json, table
from coach.cli.options import Live, MaybeFiles, Nodes, Python

if TYPE_CHECKING:
    from rich.console import Console

    from coach.core.spec.job import TrainingJob
    from coach.handler.search import Definition, SearchSession, Standing
    from coach.handler.state.state_directory import StateDirectory

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUES",
        help="A parameter: a field of the job file, or a {KEY} of the command. 0.01,0.1 are values; "
        "loguniform(1e-4,0.1), uniform(0,1), randint(1,8), lograndint(16,512) are ranges.",
    ),
]
Objective = Annotated[
    str,
    typer.Option(
        metavar="METRIC", help="Of a program without --target: what to make best, such as val_loss or accuracy."
    ),
]


def command(  # noqa: PLR0917 - they are options
    words: typer.Context,
    file: MaybeFiles = None,
    set_: Set = None,
    budget: Annotated[
        str, typer.Option(metavar="AMOUNT", help="The most that all trials together may spend, such as 5USD.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=0, help="Try each set of values with so many seeds.")] = 0,
    pruner: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who gets the next epoch: freeze-thaw, halving, hyperband, median, or none (all to the end).",
        ),
    ] = "freeze-thaw",
    sampler: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The next values: grid, or Optuna's tpe or random; without it, grid for lists."
        ),
    ] = "",
    trials: Annotated[
        int, typer.Option(min=0, help="At most so many trials; 0: as many as are worth their money.")
    ] = 0,
    parallel: Annotated[int, typer.Option(min=1, help="Trials that train at the same time.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampler.")] = 0,
    resume: Annotated[
        str, typer.Option(metavar="SEARCH", help="Go on with a search; with --budget for more money.")
    ] = "",
    show: Annotated[str, typer.Option(metavar="SEARCH", help="Show a search; start nothing.")] = "",
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="With --show: draw all curves, and Optuna's parallel coordinates and importance."
        ),
    ] = None,
    again: Annotated[
        str, typer.Option(metavar="TRIAL", help="Train a trial again, from its beginning, with --budget.")
    ] = "",
    target: program.Target = "",
    objective: Objective = "",
    metric: program.Metric = "",
    name: program.Name = "",
    workers: program.Workers = "",
    cpu: program.Cpu = "",
    memory: program.Memory = "",
    gpus: program.Gpus = 0,
    max_epochs: Annotated[int, typer.Option(min=0, help="Most epochs of one trial.")] = 0,
    resumes: program.Resumes = False,
    nodes: Nodes = "",
    python: Python = None,
    output: Output = Format.TABLE,
    live: Live = True,
) -> None:
    """Find the best of many trials under one budget.

    Each trial is a job. After each epoch Coach predicts the curves, and gives the next epoch to the trial that is
    expected to gain most for its money; the others are paused, and may come back. The same command, or --resume, goes
    on.

    \b
    Examples:
      coach search job.yaml --set optimizer.learningRate=0.01,0.1 --budget 0.02USD
      coach search --set 'lr=loguniform(1e-4,0.1)' --budget 1USD \\
          --objective val_loss --resumes -- python train.py --lr {lr}
      coach search --resume train --budget 2USD
      coach search --show train -o json
    """
    from coach.core.errors import UserError
    from coach.handler.search import load
    from coach.handler.state.state_directory import StateDirectory

    home = StateDirectory.default()
    chosen = [option for option, value in (("--resume", resume), ("--show", show), ("--again", again)) if value]
    if len(chosen) > 1 or (chosen and (file or set_ or words.obj)):
        raise UserError(f"{chosen[0]}: leave the job file, the program, --set and the like out")
    if plot is not None and not show:
        raise UserError("--plot: with --show SEARCH")
    if show:
        _show(home, load(home, show), output, plot)
        return
    if again:
        raise typer.Exit(_again(home, again, budget, nodes, output, live))
    if resume:
        wanted = load(home, resume)
    else:
        base = _base(words, file, budget, objective, {
            "--target": target, "--metric": metric, "--name": name, "--workers": workers, "--cpu": cpu,
            "--memory": memory, "--gpus": gpus, "--resumes": resumes,
        }, max_epochs)  # fmt: skip
        wanted = _defined(home, base, set_ or [], seeds, pruner, sampler, trials, parallel, seed, name)
    raise typer.Exit(_run(home, wanted, budget, nodes, output, live))


def _base(  # noqa: PLR0917
    words: typer.Context,
    file: list[Path] | None,
    budget: str,
    objective: str,
    given: dict[str, Any],
    max_epochs: int,
) -> TrainingJob:
    """The job of a trial without its parameters."""
    from coach.cli.job_files import load
    from coach.core.errors import UserError
    from coach.core.spec.program import usual_goal

    command: list[str] | None = words.obj
    if not budget:
        raise UserError("--budget: required, such as --budget 1USD: the most that all trials together may spend")
    own_name = given.pop("--name") if command is None else ""
    if objective:
        if command is None or given["--target"]:
            raise UserError("--objective: of a program without --target; a job file says its own")
        if usual_goal(objective) is None:
            right = f"--target '{objective}>=VALUE' or '{objective}<=VALUE'"
            raise UserError(f"--objective {objective}: is less or more of it better? Say what would be enough: {right}")
    metric = given["--metric"]
    if command is not None and not given["--target"]:
        given["--metric"] = ""
    found = program.loaded(words, file, given | ({"--budget": budget} if command is not None else {}))
    if found is not None:
        spec = found.spec
        if not spec.spec.target:
            if not objective:
                raise UserError("--target loss=0.3 or --objective loss: which metric is a better trial known by?")
            pattern = metric or rf"""["']?\b{objective}["']?\s*[:= ]\s*([-+0-9.eE]+)"""
            assert spec.spec.program is not None
            own = spec.spec.program.model_copy(update={"metrics": {objective: pattern}})
            spec = spec.model_copy(update={"spec": spec.spec.model_copy(update={"program": own})})
    else:
        loaded = load(file or [])
        if len(loaded) != 1:
            raise UserError(f"{file and file[0]}: {len(loaded)} jobs; a search varies one")
        spec = loaded[0].spec
        if own_name:
            spec = spec.model_copy(update={"metadata": spec.metadata.model_copy(update={"name": own_name})})
    return (
        spec.model_copy(update={"spec": spec.spec.model_copy(update={"max_epochs": max_epochs})})
        if max_epochs
        else spec
    )


def _defined(  # noqa: PLR0917
    home: StateDirectory,
    base: TrainingJob,
    sets: list[str],
    seeds: int,
    pruner: str,
    sampler: str,
    trials: int,
    parallel: int,
    seed: int,
    name: str,
) -> Definition:
    """The search that a command means: the one that it has begun before, or a new one. Raises UserError."""
    from coach.handler.samplers import GRID
    from coach.handler.search import Definition, named
    from coach.jobfiles.search_space import Space

    sampler = sampler or (GRID if Space.read(sets, seeds).grid is not None else "tpe")
    parent = base.spec.budget.account or ""
    wanted = Definition(
        name or base.name, base.to_json(), tuple(sets), seeds, sampler, pruner, trials, parallel, seed, parent
    )
    wanted.check()
    return named(home, wanted)


def _run(  # noqa: PLR0917
    home: StateDirectory, wanted: Definition, budget: str, nodes: str, output: Format, live: bool
) -> int:
    """Run a search until it ends or is interrupted; the exit code."""
    from coach.cli.display.display_loop import Showing
    from coach.cli.options import local_cluster
    from coach.core.errors import UserError
    from coach.handler import accounts
    from coach.handler.endpoint import find
    from coach.handler.interactive_run import RunObserver
    from coach.handler.search import SearchSession, money_left, save
    from coach.plugins import policy

    if found := find(home):
        raise UserError(
            f"a service runs in {home.path} (process {found.pid}), and has its accounts; "
            "end it, or set COACH_HOME to another folder"
        )
    amount, _, currency = money_left(home, wanted.name)
    if budget:
        account = accounts.setting(wanted.name, budget, parent=wanted.parent)
    elif amount:
        account = accounts.terms(wanted.name, amount / 1e9, currency, "ever", "UTC", wanted.parent)
    else:
        raise UserError("--budget: required: the search has none yet")
    accounts.refuse(*accounts.read(home), account)
    cluster, make_platform = local_cluster(nodes, "", [wanted.base])
    showing = Showing(output, live, result=False)
    running: list[SearchSession] = []

    def make(watcher: RunObserver) -> SearchSession:
        options = {"nodes": cluster, "policy": policy("coach"), "make_platform": make_platform, "watcher": watcher}
        running.append(SearchSession(wanted, account, home, (), **options))
        return running[0]

    save(home, wanted)
    code = showing.run(make)
    session = running[0]
    _print(session.standing, session.outcome or "interrupted", session.currency, output, showing.screen)
    return code


def _show(home: StateDirectory, definition: Definition, output: Format, plot: Path | None) -> None:
    from coach.core.money import to_amount
    from coach.handler.search import Standing, money_left, trials_of

    past = home.past()
    amount, spent, currency = money_left(home, definition.name)
    jobs = trials_of(definition, {name: one.job for name, one in past.items()})
    standing = Standing(definition, jobs, to_amount(amount - spent))
    if plot is not None:
        _plot(home, standing, plot)
        return
    _print(standing, "", currency, output, console())


def _print(standing: Standing, outcome: str, currency: str, output: Format, screen: Console) -> None:
    """The table, and below it the best model, the money, and what more of it would bring."""
    from coach.core.search.freeze_thaw import FreezeThaw
    from coach.handler.search import TrialRow
    from coach.jobfiles.search_space import written

    rows, best, definition = standing.rows(), standing.best, standing.definition
    spent = sum(row.spent for row in rows)
    metric = definition.base.spec.metric
    more = max(spent, 1e-9)
    gain = FreezeThaw().outlook(standing.view({}), more) if best is not None else None
    if output is Format.JSON:
        print_json({
            "search": definition.name, "outcome": outcome, "metric": metric, "currency": currency, "spent": spent,
            "left": standing.money, "best": fields(rows[0]) if best is not None else None,
            "checkpoint": standing.jobs[best].weights if best is not None else None,
            "next_money": more, "next_gain": gain, "trials": [fields(row) for row in rows],
        })  # fmt: skip
        return
    if output is Format.CSV:
        print_csv(list(TrialRow.__dataclass_fields__), map(fields, rows))
        return
    made = table(
        ("trial", "right"),
        "job",
        ("parameters", "wrap"),
        "state",
        ("epochs", "right"),
        (metric, "right"),
        (currency, "right"),
        ("why", "wrap"),
    )
    for row in rows:
        value = "" if row.best is None else f"{row.best:.4g}"
        made.add_row(
            str(row.trial),
            row.job,
            written(row.parameters),
            row.state,
            str(row.epochs),
            value,
            f"{row.spent:.5f}",
            row.why,
        )
    screen.print(made)
    if outcome:
        screen.print(f"{definition.name}: {outcome}", soft_wrap=True)
    screen.print(f"spent {spent:.5f} {currency} in {len(rows)} trials, {standing.money:.5f} left", soft_wrap=True)
    if best is not None and gain is not None:
        words = f"best: trial {best}, {metric} {rows[0].best:.4g} with {written(rows[0].parameters)}"
        screen.print(f"{words}\n  its model   coach model {rows[0].job}", soft_wrap=True)
        screen.print(f"another {more:.4g} {currency} would probably improve {metric} by {gain:.2g}", soft_wrap=True)
        screen.print(f"  go on       coach search --resume {definition.name} --budget AMOUNT", soft_wrap=True)


def _again(  # noqa: PLR0917
    home: StateDirectory, trial: str, budget: str, nodes: str, output: Format, live: bool
) -> int:
    """Train a trial's job once more, under another name and with a budget of its own."""
    from functools import partial

    from coach.cli.display.display_loop import Showing
    from coach.cli.job_lookup import find, past_jobs
    from coach.cli.jobs.run import run_here
    from coach.cli.options import local_cluster
    from coach.core.errors import UserError
    from coach.core.spec.job import TrainingJob
    from coach.handler import accounts
    from coach.plugins import policy

    document = find(past_jobs(home), trial).job.job_file.to_json()
    if not budget:
        raise UserError("--again: with --budget, the most that it may spend, such as --budget 1USD")
    wanted = accounts.setting("again", budget)
    document["metadata"] = {"name": trial}
    document["spec"]["budget"] = {"amount": wanted.amount / 1e9, "currency": wanted.currency}
    spec = TrainingJob.from_json(document)
    return run_here(home, Showing(output, live), [spec], policy("coach"), partial(local_cluster, nodes, "", [spec]))


def _plot(home: StateDirectory, standing: Standing, folder: Path) -> None:
    from coach.report.figures.search import plot

    for path in plot(standing, folder):
        typer.echo(path)
