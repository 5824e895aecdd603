"""What was read of a trace, left out and assumed: in words, and as JSON."""

from __future__ import annotations

import math
from typing import Any

from coach.report.formatting import number
from coach_research.traces.draft import Note, Trace, in_short


def summary(trace: Trace) -> list[str]:
    """How many jobs were read, left out and assumed something of, and the first ones by name."""
    counts = f"{len(trace.works)} simulated, {len(trace.left_out)} left out"
    return [
        f"trace: {trace.read} job{'' if trace.read == 1 else 's'} read, {counts}",
        *([] if math.isnan(trace.waited) else [f"in reality: a job waited {number(trace.waited, 4)} s on average"]),
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
