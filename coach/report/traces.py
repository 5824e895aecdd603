"""What was read of a trace, left out and assumed, and which jobs can never run: in words, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from coach.report.formatting import number
from coach.simulation.metrics import Result
from coach.simulation.traces.draft import NAMED, Note, Trace, in_short, shown


def summary(trace: Trace) -> list[str]:
    """How many jobs were read, left out and assumed something of, and the first ones by name."""
    counts = f"{len(trace.works)} simulated, {len(trace.left_out)} left out"
    return [
        f"trace: {_jobs(trace.read)} read, {counts}",
        *(
            []
            if math.isnan(trace.waited)
            else [f"in reality: a job waited {number(trace.waited, 4)} s on average"]
        ),
        *(f"left out: {words}" for words in in_short(trace.left_out)),
        *(f"assumed: {words}" for words in in_short(trace.assumed) or ["nothing"]),
    ]


def document(trace: Trace) -> dict[str, Any]:
    """The whole list."""
    return {
        "jobs_read": trace.read,
        "jobs_left_out": [_note(note) for note in trace.left_out],
        "assumed": [_note(note) for note in trace.assumed],
    }


def _note(note: Note) -> dict[str, Any]:
    return {"job": note.job or None, "line": note.line or None, "why": note.why}


def never_fit(results: Iterable[Result]) -> dict[str, str]:
    """Why jobs can never run on the nodes of these runs, by their names."""
    return {
        result.names.get(number, str(number)): why
        for result in results
        for number, why in result.never_fits.items()
    }


def never_fit_lines(jobs: Mapping[str, str]) -> list[str]:
    """A line for each of the first such jobs, and how many more there are."""
    lines = [f"NeverFits: job {shown(name)} {why}" for name, why in list(jobs.items())[:NAMED]]
    more = len(jobs) - NAMED
    return [*lines, f"NeverFits: {_jobs(more)} more; -o json has all"] if more > 0 else lines


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"
