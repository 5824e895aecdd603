"""`coach events`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.options import JobName
from coach.cli.output import Format, Output, console, print_csv, print_json

if TYPE_CHECKING:
    from coach.handler.home import Home, Past

#: Seconds between two looks at the journal. It is another process that writes it.
LOOK = 0.2

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Continue to show new lines until the job has ended.")
]


def command(job: JobName, follow: Follow = False, output: Output = Format.TABLE) -> None:
    """List what happened to a job.

    With -f it continues until the job has ended or is no longer run; -o json with -f is one JSON object a line.

    Example: coach events lenet-digits -f
    """
    import json

    from coach.cli.jobs import find, past_jobs
    from coach.handler.home import Home
    from coach.report import words
    from coach.report.history import history

    home = Home.default()
    past = find(past_jobs(home), job)
    lines = (
        {"at": words.iso(line.at), "text": line.text, "important": line.important}
        for line in history(_records(home, past, follow), job)
    )
    if output is Format.CSV:
        print_csv(("at", "text", "important"), lines)
    elif output is Format.JSON and follow:
        for line in lines:
            typer.echo(json.dumps(line, ensure_ascii=False))
    elif output is Format.JSON:
        print_json(list(lines))
    else:
        screen = console()
        for told in history(_records(home, past, follow), job):
            screen.print(f"{words.moment(told.at)} {told.text}", soft_wrap=True)
            screen.file.flush()


def _records(home: Home, past: Past, follow: bool) -> Iterator[Any]:
    """The job's records; with `follow`, also those that come, until it is over."""
    from coach.core.jobs.actions import Enter
    from coach.core.jobs.events import ResumeAsked
    from coach.core.jobs.reasons import AT_REST, MEANING

    after, over = 0, False
    while True:
        gone = not follow or not home.held(past)
        for seq, record in home.records_after(past, after):
            after = seq
            if isinstance(record, Enter):
                state = MEANING[record.reason].state
                over = record.reason in AT_REST or (state is not None and state.ended)
            elif isinstance(record, ResumeAsked):
                over = False
            yield record
        if gone or over:
            return
        time.sleep(LOOK)
