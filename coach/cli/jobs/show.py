"""`coach show`."""

from __future__ import annotations

from typing import Annotated

import typer

from coach.cli.display.output import Format
from coach.cli.options import JobName, Output


def command(
    job: JobName,
    output: Output = Format.TABLE,
    events: Annotated[bool, typer.Option("--events", help="Also list its events.")] = False,
) -> None:
    """Show one job: its decisions, epochs, models and cost.

    With -o csv, the epochs; with -o json, everything.

    Example: coach show lenet-digits
    """
    from coach.cli.display import one_job

    one_job.show(job, output, events=events)
