"""`coach experiment`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.display.output import Format, Header, console, fields, printed, table
from coach.cli.options import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coach_research.comparison import Comparison
    from coach_research.experiment import Outcome
    from coach_research.scenario import Scenario


def command(  # noqa: PLR0917 - they are options
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Experiments, or scenario files of yours.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All experiments that come with Coach.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few seeds and small sizes: minutes, not hours.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where the results go, a folder for each experiment; "
            "default: results/experiments, or results/quick with --quick.",
            metavar="FOLDER",
        ),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Run again what was run already with the same parameters and code.")
    ] = False,
    no_run: Annotated[
        bool,
        typer.Option(
            "--no-run",
            help="Run nothing: judge the results in the folder again; with --all, also write their tables.",
        ),
    ] = False,
    processes: Annotated[int, typer.Option(min=0, help="Runs at the same time; 0: as many as there are cores.")] = 0,
    output: Output = Format.TABLE,
) -> None:
    """Run the papers' experiments in virtual time.

    Compares our numbers with theirs. Without a name, lists the experiments. Ctrl-C keeps what is done: the same
    command again continues from there.

    \b
    Examples:
      coach experiment
      coach experiment thesis-load --quick
      coach experiment --all --folder results/experiments
      coach experiment --all --no-run
    """
    from coach.cli.display.progress_bar import progress_bar
    from coach.core.errors import UserError
    from coach_research import scenario as scenarios
    from coach_research.experiment import run_scenario, write_outcome, write_summary

    if not names and not every:
        _list(output)
        return
    chosen = [scenarios.load(name) for name in (scenarios.names() if every else names or [])]
    folder = folder or Path("results/quick" if quick else "results/experiments")
    screen = console(stderr=True)
    outcomes: list[Outcome] = []
    for one in chosen:
        if not no_run and (get := one.missing()):
            said = f"{one.name}: its inputs are not there, it was not run; to get them: {get}"
            if not every:
                raise UserError(said)
            screen.print(said, soft_wrap=True)
            outcomes.append(_there(one, folder, quick))
            continue
        if no_run:
            outcomes.append(_there(one, folder, quick))
            if every and outcomes[-1].seeds:
                write_outcome(outcomes[-1], folder)
            continue
        with progress_bar(len(one.settings(quick)[1]), one.name) as show:
            outcome = run_scenario(
                one, quick=quick, processes=processes or None, progress=show, folder=folder, anew=anew
            )
        outcomes.append(outcome)
        written = write_outcome(outcome, folder)
        screen.print(f"{one.name}: {len(outcome.seeds)} runs; {written[1]}", soft_wrap=True)
        if outcome.interrupted:
            break
    rows = [row for one in outcomes if one.seeds for row in one.comparisons()]
    _show(rows, output)
    if outcomes[-1].interrupted:
        raise KeyboardInterrupt
    if every:
        written = write_summary(outcomes, folder)
        screen.print(f"all of them: {written[1]}", soft_wrap=True)


def _there(one: Scenario, folder: Path, quick: bool) -> Outcome:
    """The stored runs. Raises UserError for files that are broken."""
    from coach.core.errors import UserError
    from coach_research.experiment import look_up

    try:
        outcome = look_up(one, folder, quick=quick)
    except (ValueError, KeyError) as error:
        place = folder / one.name
        raise UserError(
            f"the runs in {place} cannot be read: {error}; run them again: coach experiment {one.name} --anew"
        ) from error
    if not outcome.seeds:
        console(stderr=True).print(
            f"{one.name}: no runs of its present parameters in {folder}; to run it: coach experiment {one.name}",
            soft_wrap=True,
        )
    return outcome


def _list(output: Format) -> None:
    from coach_research import scenario as scenarios

    known = [scenarios.load(name) for name in scenarios.names()]
    rows = [{"name": one.name, "paper": one.paper, "title": one.title, "targets": len(one.targets)} for one in known]
    if not printed(output, rows, ("name", "paper", "title", "targets")):
        names = [one.name for one in known]
        papers, titles = [one.paper for one in known], [one.title for one in known]
        console().print(table({"NAME": names, ("PAPER", "wrap"): papers, ("WHAT", "wrap"): titles}))


def _show(rows: Sequence[Comparison], output: Format) -> None:
    from coach_research.comparison import JUDGED, Comparison, relative_text

    document = [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in fields(row).items()}
        for row in rows
    ]
    if not printed(output, rows, Comparison, document):
        screen = console()
        for number, name in enumerate(dict.fromkeys(row.scenario for row in rows)):
            own = [row for row in rows if row.scenario == name]
            columns: dict[Header, list[str]] = {
                ("MEASURE", "wrap"): [r.measure if r.role == JUDGED else f"{r.measure} ({r.role})" for r in own],
                ("PAPER", "right"): [f"{row.paper:g}" for row in own],
                ("OURS", "right"): [f"{row.ours:.4g}" for row in own],
                ("DIFFERENCE", "right"): [relative_text(row) for row in own],
                ("TOLERANCE", "right"): [f"{100.0 * row.tolerance:g} %" for row in own],
                "WITHIN": ["yes" if row.within else "no" for row in own],
                "DIRECTION": [row.direction for row in own],
            }
            if number:
                screen.print()
            screen.print(name, style="bold")
            screen.print(table(columns))
