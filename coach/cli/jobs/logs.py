"""`coach logs`."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.display.output import Format, console, fields, printed
from coach.cli.jobs.events import Follow
from coach.cli.options import JobName, Output
from coach.core.errors import UserError

if TYPE_CHECKING:
    from coach.service.calls import Operations
    from coach.service.function_logs import Entry

#: Seconds between two looks at logs.
LOOK = 0.5


def command(
    job: JobName,
    functions: Annotated[
        list[str] | None,
        typer.Argument(metavar="FUNCTION", help="Such as worker-0; without one, all of the job."),
    ] = None,
    follow: Follow = False,
    output: Output = Format.TABLE,
) -> None:
    """Show the logs of a job's functions.

    Their own messages and what the model file prints, in order of time. Each function keeps its last 4 to 8 MiB.

    \b
    Examples:
      coach logs lenet-digits
      coach logs lenet-digits worker-0 -f
    """
    from coach.cli.operations import operations

    screen = console()

    def show(entry: Entry) -> None:
        if output is Format.JSON:
            typer.echo(json.dumps(fields(entry), ensure_ascii=False))
        else:
            name = entry.function.removeprefix(f"{job}-")
            screen.print(f"{_clock(entry.at)} {name:<11} {entry.message}", soft_wrap=True)

    wanted = {name if name.startswith(f"{job}-") else f"{job}-{name}" for name in functions or []}
    with operations() as coach:
        known = [one.function for one in coach.logs(job).functions]
        if wanted - {*known} and not follow:
            there = ", ".join(sorted(name.removeprefix(f"{job}-") for name in known)) or "none so far"
            raise UserError(f"{job} has no log of {', '.join(sorted(wanted - {*known}))}; there are: {there}")
        ends: dict[str, int] = {}
        past = [
            entry
            for name in known
            if not wanted or name in wanted
            for entry in [*_entries(coach, job, name, {}, before=True), *_entries(coach, job, name, ends)]
        ]
        past.sort(key=lambda entry: entry.at)
        _say_what_is_gone(past)
        if not (output is Format.JSON and follow) and printed(output, past, ("function", "at", "level", "message")):
            return
        for entry in past:
            show(entry)
        seq = 0
        while follow:
            found = coach.events(job, after=seq, wait=LOOK)
            seq, follow = found.seq, not found.over or bool(found.events)
            for one in coach.logs(job).functions:
                if (not wanted or one.function in wanted) and one.bytes != ends.get(one.function, 0):
                    for entry in _entries(coach, job, one.function, ends):
                        show(entry)


def _say_what_is_gone(shown: list[Entry]) -> None:
    """One line for each function whose first entries are not there any more."""
    from coach.platforms.local.function_log import GONE

    for name in sorted({entry.function for entry in shown if entry.message == GONE}):
        first = next(entry.at for entry in shown if entry.function == name)
        typer.echo(f"{name}: what it printed before {first} is gone: a log keeps its last 4 to 8 MiB", err=True)


def _entries(coach: Operations, job: str, function: str, ends: dict[str, int], *, before: bool = False) -> list[Entry]:
    """The entries of a function's log from byte `ends[function]` on, which becomes where the next ones begin.

    `before`: of what was written before this file.
    """
    from coach.service.function_logs import entries

    text = ""
    while True:
        found = coach.log_text(job, function, after=ends.get(function, 0), before=before)
        text, last = text + found.text, ends.get(function, 0)
        ends[function] = found.next
        if found.next <= last:
            return list(entries(function, text))


def _clock(at: str) -> str:
    """Local time of day of a log's time."""
    try:
        return datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return " " * 8
