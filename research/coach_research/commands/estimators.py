"""`coach estimators`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coach.cli.display.output import Format, Output, console, printed, table


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
    columns = ("section", "subject", "measure", *methods, "target")
    if not printed(output, rows, columns):
        screen = console()
        for section in dict.fromkeys(row.section for row in rows):
            made = table(
                ("SUBJECT", "wrap"),
                ("MEASURE", "wrap"),
                *((method.upper(), "right") for method in methods),
                "TARGET",
                keys=2,
            )
            for row in rows:
                if row.section == section:
                    values = [
                        formatting.percent(v) if v is not None else formatting.UNKNOWN
                        for v in (row.thesis, row.optimus, row.coach)
                    ]
                    made.add_row(row.subject, row.measure, *values, row.target)
            screen.print(section, style="bold")
            screen.print(made)
            screen.print()
        screen.print(ORIGIN, soft_wrap=True, end="")
