"""`coach events`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.display.output import Format, Output, console, printed
from coach.cli.options import JobName
from coach.report import formatting

if TYPE_CHECKING:
    from coach.handler.state.state_directory import StateDirectory, StoredJob

#: Seconds between two reads of the journal, which another process writes.
LOOK = 0.2

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue to show new lines until the job has ended.")]


def command(job: JobName, follow: Follow = False, output: Output = Format.TABLE) -> None:
    """List what happened to a job.

    With -f it continues until the job has ended or is no longer run; -o json with -f is one JSON object a line.

    Example: coach events lenet-digits -f
    """
    from coach.cli.job_lookup import find
    from coach.report.history import history

    home, past = find(job)
    lines = history(_records(home, past, follow), job)
    rows = ({"at": formatting.iso(line.at), "text": line.text, "important": line.important} for line in lines)
    if output is Format.JSON and follow:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
    elif not printed(output, rows, ("at", "text", "important")):
        screen = console()
        for line in lines:
            screen.print(f"{formatting.moment(line.at)} {line.text}", soft_wrap=True)
            screen.file.flush()


def _records(home: StateDirectory, past: StoredJob, follow: bool) -> Iterator[Any]:
    """The job's records; with `follow`, also new ones, until it ends or no handler runs it."""
    from coach.core.jobs.actions import SetStatus
    from coach.core.jobs.events import ResumeRequested
    from coach.core.jobs.reasons import RESUMABLE

    after, over = 0, False
    while True:
        gone = not follow or not home.held(past)
        for seq, record in home.records_after(past, after):
            after = seq
            if isinstance(record, SetStatus):
                state = record.reason.state
                over = record.reason in RESUMABLE or (state is not None and state.ended)
            elif isinstance(record, ResumeRequested):
                over = False
            yield record
        if gone or over:
            return
        time.sleep(LOOK)
