"""`coach logs`."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.display.output import Format, Output, console, fields, printed
from coach.cli.jobs.events import LOOK, Follow
from coach.cli.options import JobName
from coach.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coach.service.function_logs import Entry


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
    from coach.cli.job_lookup import find
    from coach.service.function_logs import log_files, past_entries

    home, past = find(job)
    folder = home.logs(job)
    wanted = {name if name.startswith(f"{job}-") else f"{job}-{name}" for name in functions or []}
    known = set(log_files(folder))
    if wanted - known and not follow:
        there = ", ".join(sorted(name.removeprefix(f"{job}-") for name in known)) or "none so far"
        raise UserError(f"{job} has no log of {', '.join(sorted(wanted - known))}; there are: {there}")
    entries, ends = past_entries(folder)
    chosen = (entry for entry in entries if not wanted or entry.function in wanted)
    if not (output is Format.JSON and follow) and printed(output, chosen, ("function", "at", "level", "message")):
        return
    screen = console()

    def show(entry: Entry) -> None:
        if output is Format.JSON:
            typer.echo(json.dumps(fields(entry), ensure_ascii=False))
        else:
            name = entry.function.removeprefix(f"{job}-")
            screen.print(f"{_clock(entry.at)} {name:<11} {entry.message}", soft_wrap=True)

    for entry in chosen:
        show(entry)
    if follow:
        for entry in _more(folder, ends, lambda: home.held(past)):
            if not wanted or entry.function in wanted:
                show(entry)


def _more(folder: Path, ends: dict[str, int], alive: Callable[[], bool]) -> Iterator[Entry]:
    """New lines, until no process is left that could write any."""
    from coach.service.function_logs import entries, log_files, read

    while True:
        last = not alive()
        for function, file in log_files(folder).items():
            lines, ends[function] = read(file, ends.get(function, 0))
            yield from entries(function, lines)
        if last:
            return
        time.sleep(LOOK)


def _clock(at: str) -> str:
    """Local time of day of a log's time."""
    try:
        return datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return " " * 8
