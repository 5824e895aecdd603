"""`coach events`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.display.output import Format, console, fields, printed
from coach.cli.options import JobName, Output
from coach.report import formatting

if TYPE_CHECKING:
    from coach.service.calls import Operations
    from coach.service.schemas import EventLine

#: Seconds that a request waits for something new.
LOOK = 20.0

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue to show new lines until the job has ended.")]


def command(job: JobName, follow: Follow = False, output: Output = Format.TABLE) -> None:
    """List what happened to a job.

    With -f it continues until the job has ended or is no longer run; -o json with -f is one JSON object a line.

    Example: coach events lenet-digits -f
    """
    from coach.cli.operations import operations

    with operations() as coach:
        rows = _rows(coach, job, follow)
        if output is Format.JSON and follow:
            for row in rows:
                typer.echo(json.dumps(fields(row), ensure_ascii=False))
        elif not printed(output, rows, ("at", "text", "important")):
            screen = console()
            for row in rows:
                screen.print(f"{formatting.local(row.at)} {row.text}", soft_wrap=True)
                screen.file.flush()


def _rows(coach: Operations, job: str, follow: bool) -> Iterator[EventLine]:
    """The job's lines; with `follow`, also new ones, until it ends or no handler runs it."""
    found = coach.events(job)
    while True:
        yield from found.events
        if not found.events and (found.over or not follow):
            return
        found = coach.events(job, after=found.seq, wait=LOOK if follow and not found.over else 0.0)
