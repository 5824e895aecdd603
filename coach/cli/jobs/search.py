"""`coach search`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli import program
from coach.cli.display.output import Format, Header, console, fields, printed, table
from coach.cli.options import Live, MaybeFiles, Nodes, Output, Prices, Python, with_prices
from coach.core.errors import UserError
from coach.core.money import to_amount

if TYPE_CHECKING:
    from rich.console import Console

    from coach.core.jobs.events import AccountSet
    from coach.core.spec.job import TrainingJob
    from coach.handler.search.definition import Definition
    from coach.handler.search.standing import SearchRow, Standing, TrialRow
    from coach.handler.state.state_directory import StateDirectory

#: Panels of the help, behind the options that most people need.
VALUES, EARLIER = "How trials are chosen", "Of a search that is there"
Objective = Annotated[
    str,
    typer.Option(
        metavar="METRIC", help="Of a program without --target: what to make best, such as val_loss or accuracy."
    ),
]


def command(  # noqa: PLR0917 - they are options
    words: typer.Context,
    file: MaybeFiles = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUES",
            help="A parameter: a field of the job file, or a {KEY} of the command. 0.01,0.1 are values; "
            "loguniform(1e-4,0.1), uniform(0,1), randint(1,8), lograndint(16,512) are ranges; "
            "behind them, ' if OTHER=VALUES' takes it with these values of another one only.",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="AMOUNT", help="The most that all trials together may spend, such as 5USD.")
    ] = "",
    seeds: Annotated[
        int, typer.Option(min=0, help="Try each set of values with so many seeds.", rich_help_panel=VALUES)
    ] = 0,
    final_seeds: Annotated[
        int,
        typer.Option(
            min=0,
            help="At the end, train the best values again with so many other seeds: mean, interval.",
            rich_help_panel=VALUES,
        ),
    ] = 0,
    pruner: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who gets the next epoch: freeze-thaw, halving, hyperband, median, or none (all to the end).",
            rich_help_panel=VALUES,
        ),
    ] = "freeze-thaw",
    sampler: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The next values: grid, or Optuna's tpe or random; without it, grid for lists.",
            rich_help_panel=VALUES,
        ),
    ] = "",
    trials: Annotated[
        int, typer.Option(min=0, help="At most so many trials; 0: as many as are worth their money.")
    ] = 0,
    parallel: Annotated[int, typer.Option(min=1, help="Trials that train at the same time.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampler.", rich_help_panel=VALUES)] = 0,
    deadline: Annotated[
        str, typer.Option(metavar="DURATION", help="From its start; then nothing of it runs any more: 2h.")
    ] = "",
    resume: Annotated[
        str,
        typer.Option(
            metavar="SEARCH", help="Go on with a search; with --budget for more money.", rich_help_panel=EARLIER
        ),
    ] = "",
    show: Annotated[
        str, typer.Option(metavar="SEARCH", help="Show a search; start nothing.", rich_help_panel=EARLIER)
    ] = "",
    stop: Annotated[
        str, typer.Option(metavar="SEARCH", help="Stop a search of the running service.", rich_help_panel=EARLIER)
    ] = "",
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With --show: draw all curves, and Optuna's parallel coordinates and importance.",
            rich_help_panel=EARLIER,
        ),
    ] = None,
    again: Annotated[
        str,
        typer.Option(
            metavar="TRIAL", help="Train a trial again, from its beginning, with --budget.", rich_help_panel=EARLIER
        ),
    ] = "",
    target: program.Target = "",
    objective: Objective = "",
    metric: program.Metric = "",
    name: program.Name = "",
    workers: program.Workers = "",
    cpu: program.Cpu = "",
    memory: program.Memory = "",
    gpus: program.Gpus = 0,
    prices: Prices = "",
    max_epochs: Annotated[int, typer.Option(min=0, help="Most epochs of one trial.", rich_help_panel=VALUES)] = 0,
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
    from coach.cli.operations import elsewhere
    from coach.handler.search.definition import Definition, load
    from coach.handler.search.samplers import GRID
    from coach.handler.state.state_directory import StateDirectory
    from coach.jobfiles.search_space import Space
    from coach.jobfiles.training_search import is_search, load_search
    from coach.service.client import service_of

    home = StateDirectory.default()
    options = (("--resume", resume), ("--show", show), ("--stop", stop), ("--again", again))
    chosen = [option for option, value in options if value]
    if len(chosen) > 1 or (chosen and (file or set_ or words.obj)):
        raise UserError(f"{chosen[0]}: leave the job file, the program, --set and the like out")
    if plot is not None and not show:
        raise UserError("--plot: with --show SEARCH")
    if (place := elsewhere()) is not None:
        _on_cluster(place, file, budget, deadline, resume, show, stop, output, plot=plot is not None or bool(again))
    elif show:
        _show(home, load(home, show), output, plot)
    elif stop:
        with service_of(home) as client:
            found = client.stop_search(stop)
        _print(found.search, found.trials, found.next_gain, output, console())
    elif again:
        raise typer.Exit(_again(home, again, budget, nodes, output, live))
    elif resume:
        wanted = replace(load(home, resume), **_until(deadline))
        raise typer.Exit(_run(home, wanted, budget, nodes, output, live, resumed=True))
    elif file and len(file) == 1 and file[0].is_file() and is_search(data := file[0].read_bytes()):
        if set_ or words.obj:
            raise UserError(f"{file[0]}: a TrainingSearch has its parameters itself; leave --set and the program out")
        spec, base = load_search(file[0], data)
        wanted, amount = Definition.of(spec, base), f"{spec.budget.amount:.9f}{spec.budget.currency}"
        raise typer.Exit(_run(home, replace(wanted, **_until(deadline)), budget or amount, nodes, output, live))
    else:
        base = _base(words, file, budget, objective, max_epochs, prices)
        sampler = sampler or (GRID if Space.read(set_ or [], seeds).grid is not None else "tpe")
        wanted = Definition(
            name or base.name, base.to_json(), tuple(set_ or ()), seeds, sampler, pruner, trials, parallel, seed,
            base.spec.budget.account or "", final_seeds, **_until(deadline),
        )  # fmt: skip
        wanted.check()
        raise typer.Exit(_run(home, wanted, budget, nodes, output, live))


def _on_cluster(  # noqa: PLR0917
    place: tuple[str, str],
    files: list[Path] | None,
    budget: str,
    deadline: str,
    resume: str,
    show: str,
    stop: str,
    output: Format,
    *,
    plot: bool,
) -> None:
    """Apply a TrainingSearch, or show, stop or resume one that is there."""
    from coach.cli.cluster_jobs import search
    from coach.cli.operations import operations
    from coach.handler import accounts
    from coach.jobfiles.training_search import is_search

    if not (resume or show or stop):
        if not files or len(files) != 1 or plot or not files[0].is_file() or not is_search(files[0].read_bytes()):
            right = (
                "coach --context NAME search search.yaml (kind: TrainingSearch), or --show, --stop or --resume SEARCH"
            )
            raise UserError(f"one file, or options of a search that is there: {right}")
        search(place, files[0])
        return
    with operations() as coach:
        if show:
            found = coach.search(show)
        elif stop:
            found = coach.stop_search(stop)
        else:
            amount = to_amount(accounts.setting(resume, budget).amount) if budget else None
            found = coach.resume_search(resume, budget=amount, deadline=_until(deadline).get("time_limit"))
    _print(found.search, found.trials, found.next_gain, output, console())


def _base(  # noqa: PLR0917
    words: typer.Context, file: list[Path] | None, budget: str, objective: str, max_epochs: int, prices: str
) -> TrainingJob:
    """The job of a trial without its parameters."""
    from coach.cli.job_files import load
    from coach.core.spec.program import usual_goal
    from coach.handler.state.state_directory import renamed

    command: list[str] | None = words.obj
    if not budget:
        raise UserError("--budget: required, such as --budget 1USD: the most that all trials together may spend")
    given, sets = program.options(**words.params), with_prices(None, prices)
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
    found = program.loaded(words, file, given | ({"--budget": ""} if command is None else {}), sets)
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
        loaded = load(file or [], sets=sets)
        if len(loaded) != 1:
            raise UserError(f"{file and file[0]}: {len(loaded)} jobs; a search varies one")
        spec = loaded[0].spec
        if own_name:
            spec = renamed(spec, own_name)
    if max_epochs:
        spec = spec.model_copy(update={"spec": spec.spec.model_copy(update={"max_epochs": max_epochs})})
    return spec


def _until(deadline: str) -> dict[str, Any]:
    """What a deadline means for a search that starts now."""
    from coach.core.spec.quantities import seconds

    try:
        return {"time_limit": seconds(deadline), "deadline": 0.0} if deadline else {}
    except ValueError:
        raise UserError(f"--deadline {deadline}: a duration, such as 90m, 2h or 1d") from None


def _run(  # noqa: PLR0917
    home: StateDirectory,
    wanted: Definition,
    budget: str,
    nodes: str,
    output: Format,
    live: bool,
    *,
    resumed: bool = False,
) -> int:
    """Run a search until it ends or is interrupted, here or by the service; the exit code."""
    from coach.cli.clusters import local_cluster
    from coach.cli.display.display_loop import Showing
    from coach.cli.jobs.run import meanwhile
    from coach.handler import accounts
    from coach.handler.endpoint import find
    from coach.handler.interactive_run import RunObserver
    from coach.handler.search.definition import named, save
    from coach.handler.search.session import SearchSession, money_left
    from coach.plugins import policy

    by_service = find(home) is not None
    if not resumed and not by_service:
        wanted = named(home, wanted, accounts.read(home)[0].known, home.past())
    amount, _, currency = money_left(home, wanted.name)
    if budget:
        account = accounts.setting(wanted.name, budget, parent=wanted.parent)
    elif amount:
        account = accounts.terms(wanted.name, amount / 1e9, currency, parent=wanted.parent)
    else:
        raise UserError("--budget: required: the search has none yet")
    if by_service:
        return _by_service(home, wanted, account, resumed, output)
    accounts.refuse(*accounts.read(home), account)
    cluster, make_platform = local_cluster(nodes, "", [wanted.base])
    showing = Showing(output, live, result=False)
    running: list[SearchSession] = []

    def make(watcher: RunObserver) -> SearchSession:
        options: dict[str, Any] = {
            "nodes": cluster,
            "policy": policy("coach"),
            "make_platform": make_platform,
            "watcher": watcher,
            "meanwhile": partial(meanwhile, home, ""),
        }
        running.append(SearchSession(wanted, account, home, (), **options))
        return running[0]

    save(home, wanted)
    code = showing.run(make)
    _print(*_of(running[0].standing), output, showing.screen)
    return code


def _by_service(home: StateDirectory, wanted: Definition, account: AccountSet, resumed: bool, output: Format) -> int:
    """Give a search to the service, and follow it to its end."""
    from coach.handler.interactive_run import INTERRUPTED
    from coach.handler.search.standing import exit_code
    from coach.jobfiles.search_space import written
    from coach.service.client import service_of

    with service_of(home) as client:
        amount, said = to_amount(account.amount), 0
        if resumed:
            limit = wanted.time_limit if not wanted.deadline else 0.0
            found = client.resume_search(wanted.name, budget=amount, deadline=limit or None)
        else:
            path, document = str(Path("search.yaml").absolute()), wanted.document(amount, account.currency)
            found = client.start_search(path, json.dumps(document))
        name = found.search.search
        said_first = f"{name} runs in the service, and goes on without this command; end it: coach search --stop {name}"
        typer.echo(said_first, err=True)
        try:
            while True:
                for row in sorted(found.trials, key=lambda row: row.trial)[said:]:
                    typer.echo(f"{row.job}: {written(row.parameters)}", err=True)
                said = len(found.trials)
                if not found.search.running:
                    break
                found = client.search(name, after=found.seq, wait=30.0)
        except KeyboardInterrupt:
            return INTERRUPTED
    _print(found.search, found.trials, found.next_gain, output, console())
    return exit_code(found.search)


def _of(standing: Standing) -> tuple[SearchRow, list[TrialRow], float | None]:
    from coach.core.search.freeze_thaw import FreezeThaw

    row = standing.row()
    gain = FreezeThaw().outlook(standing.view(), max(row.spent, 1e-9)) if row.best is not None else None
    return row, standing.rows(), gain


def _show(home: StateDirectory, definition: Definition, output: Format, plot: Path | None) -> None:
    from coach.handler.search.session import money_left
    from coach.handler.search.standing import standing as standing_of

    amount, spent, _ = money_left(home, definition.name)
    standing = standing_of(definition, {name: one.job for name, one in home.past().items()}, to_amount(amount - spent))
    if plot is None:
        _print(*_of(standing), output, console())
        return
    from coach.report.figures.search import plot as draw

    for path in draw(standing, plot):
        typer.echo(path)


def _print(row: SearchRow, trials: list[TrialRow], gain: float | None, output: Format, screen: Console) -> None:
    """The table, and below it the best model, the money, and what more of it would bring."""
    from coach.handler.search.standing import TrialRow
    from coach.jobfiles.search_space import written
    from coach.report import formatting

    more = max(row.spent, 1e-9)
    best = fields(trials[0]) if row.best is not None else None
    every = {"next_money": more, "next_gain": gain, "trials": [fields(one) for one in trials]}
    if printed(output, trials, TrialRow, {**fields(row), "best": best, **every}):
        return
    columns: dict[Header, list[str]] = {
        ("trial", "right"): [str(one.trial) for one in trials],
        "job": [one.job for one in trials],
        ("parameters", "wrap"): [written(one.parameters) for one in trials],
        "state": [one.state for one in trials],
        ("epochs", "right"): [str(one.epochs) for one in trials],
        (row.metric, "right"): ["" if one.best is None else f"{one.best:.4g}" for one in trials],
        (row.currency, "right"): [f"{one.spent:.5f}" for one in trials],
        ("why", "wrap"): [one.why for one in trials],
    }
    screen.print(table(columns))
    if row.outcome:
        screen.print(f"{row.search}: {row.outcome}", soft_wrap=True)
    screen.print(f"spent {row.spent:.5f} {row.currency} in {len(trials)} trials, {row.left:.5f} left", soft_wrap=True)
    if row.value is not None and row.parameters is not None:
        words = f"best: trial {row.best}, {row.metric} {row.value:.4g} with {written(row.parameters)}"
        if row.final_mean is not None:
            spread = f" ± {row.final_half:.2g} (95 % interval)" if row.final_half is not None else ""
            words += f"\nwith {len(row.final_values)} other seeds: {row.metric} {row.final_mean:.4g}{spread}"
        screen.print(f"{words}\n  its model   coach model {row.job}", soft_wrap=True)
        screen.print(
            f"another {formatting.amount(more)} {row.currency} would probably improve {row.metric} by {gain:.2g}"
        )
        screen.print(f"  go on       coach search --resume {row.search} --budget AMOUNT", soft_wrap=True)


def _again(  # noqa: PLR0917
    home: StateDirectory, trial: str, budget: str, nodes: str, output: Format, live: bool
) -> int:
    """Train a trial's job once more, under another name and with a budget of its own."""
    from coach.cli.clusters import local_cluster
    from coach.cli.display.display_loop import Showing
    from coach.cli.job_lookup import find
    from coach.cli.jobs.run import run_here
    from coach.core.spec.job import TrainingJob
    from coach.handler import accounts
    from coach.plugins import policy

    document = find(trial)[1].job.job_file.to_json()
    if not budget:
        raise UserError("--again: with --budget, the most that it may spend, such as --budget 1USD")
    wanted = accounts.setting("again", budget)
    document["metadata"] = {"name": trial}
    document["spec"]["budget"] = {"amount": wanted.amount / 1e9, "currency": wanted.currency}
    spec = TrainingJob.from_json(document)
    return run_here(home, Showing(output, live), [spec], policy("coach"), partial(local_cluster, nodes, "", [spec]))
