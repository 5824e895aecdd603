"""`coach estimators`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coach.cli.display.output import Format, Header, console, printed, table
from coach.cli.options import Output


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A CSV of measured speeds or of learning curves, a run log of the thesis, or a folder of them.",
        ),
    ],
    output: Output = Format.TABLE,
) -> None:
    """Compare methods of prediction on measured data.

    Compares the methods of the thesis, of Optimus and of Coach. Every number is computed again, which takes a while.

    Example: coach estimators data/ps-speed/ps_speed.csv
    """
    from coach.cli.display.progress_bar import progress_bar
    from coach.report import formatting
    from coach_research.estimators.measurements import read_measurements
    from coach_research.estimators.table import ORIGIN, estimator_table

    measured = read_measurements(file)
    for sentence in measured.left_out:
        typer.echo(f"left out: {sentence}", err=True)
    with progress_bar(len(measured.speeds) + len(measured.tasks), "evaluating") as show:
        rows = estimator_table(measured, show)
    methods = ("thesis", "optimus", "coach")
    if not printed(output, rows, ("section", "subject", "measure", *methods, "target")):
        screen = console()
        for section in dict.fromkeys(row.section for row in rows):
            own = [row for row in rows if row.section == section]
            columns: dict[Header, list[str]] = {
                ("SUBJECT", "wrap"): [row.subject for row in own],
                ("MEASURE", "wrap"): [row.measure for row in own],
            }
            for method in methods:
                shares = [getattr(row, method) for row in own]
                columns[method.upper(), "right"] = [
                    formatting.UNKNOWN if share is None else formatting.percent(share) for share in shares
                ]
            columns["TARGET"] = [row.target for row in own]
            screen.print(section, style="bold")
            screen.print(table(columns, keys=2))
            screen.print()
        screen.print(ORIGIN, soft_wrap=True, end="")
