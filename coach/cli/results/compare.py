"""`coach compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.display.output import Format, Header, console, fields, printed, table
from coach.cli.options import Output, complete_job
from coach.report import formatting

if TYPE_CHECKING:
    from rich.console import Console

    from coach.report.comparison import Comparison

Figure = Annotated[
    Path | None, typer.Option("--figure", metavar="FILE", help="Draw it too: a .png, .svg or .pdf file.")
]


def command(
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOB JOB...", help="Names of jobs, two or more.", autocompletion=complete_job)
    ],
    figure: Figure = None,
    output: Output = Format.TABLE,
) -> None:
    """Compare jobs at equal money and time.

    And what each level took: the best loss (or accuracy) so far of each job's whole epochs, by the money it had spent
    and the time it had taken.

    \b
    Examples:
      coach compare lenet-1 lenet-2
      coach compare small large --figure compared.png
    """
    from coach.cli.operations import operations

    with operations() as coach:
        made = coach.compare_jobs(list(dict.fromkeys(jobs)))
    if figure is not None:
        from coach.report.figures.comparison import draw
        from coach.report.figures.style import save

        save(figure, lambda: draw(made))
    rows = [
        {"job": one.name, "epoch": index, "money": money, "seconds": seconds, made.metric: best}
        for one in made.jobs
        for index, (money, seconds, best) in enumerate(zip(one.money, one.seconds, one.best, strict=True), 1)
    ]
    if not printed(output, rows, ("job", "epoch", "money", "seconds", made.metric), fields(made)):
        _show(console(), made)
        if figure is not None:
            typer.echo(figure)


def _show(screen: Console, made: Comparison) -> None:
    names = [one.name for one in made.jobs]
    lower = made.lower

    def rows(
        title: str,
        found: Sequence[tuple[str, Sequence[float | None]]],
        words: Callable[[float | None], str],
        low: bool,
    ) -> None:
        cells = []
        for _, values in found:
            best = (min if low else max)((value for value in values if value is not None), default=None)
            cells.append([words(value) + (" *" if value is not None and value == best else "  ") for value in values])
        columns: dict[Header, Sequence[str]] = {(title, "right"): [first for first, _ in found]}
        columns |= {(name, "right"): each for name, each in zip(names, zip(*cells, strict=True), strict=True)}
        screen.print(table(columns))
        screen.print()

    currency, metric = made.currency, made.metric.upper()
    money = [(formatting.amount(amount), values) for amount, values in made.by_money]
    times = [(formatting.duration(seconds), values) for seconds, values in made.by_time]
    rows(f"{metric} WITH {currency}", money, formatting.score, lower)
    rows(f"{metric} AFTER", times, formatting.score, lower)
    levels = [(formatting.score(level.value), level) for level in made.levels]
    rows(f"{currency} TO {metric}", [(value, level.money) for value, level in levels], formatting.amount, True)
    rows(f"TIME TO {metric}", [(value, level.seconds) for value, level in levels], formatting.duration, True)
    screen.print("* the best of its row; the best epoch so far counts")
    if made.differences:
        given = zip(*(one.values for one in made.differences), strict=True)
        columns: dict[Header, list[str]] = {"DIFFERENCE": [one.field for one in made.differences]}
        columns |= {name: [value or "-" for value in each] for name, each in zip(names, given, strict=True)}
        screen.print()
        screen.print(table(columns))
