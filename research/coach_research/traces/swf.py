"""The Standard Workload Format, version 2.2, of the Parallel Workloads Archive.

(Feitelson, Tsafrir and Krakov, "Experience with using the Parallel Workloads Archive", JPDC 2014.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from coach_research.traces.draft import MAX_PODS, MAX_SECONDS, Draft, shown, task, vector
from coach_research.traces.text import lines

#: The columns, in their order; -1: unknown.
COLUMNS = (
    "job number", "submit time", "wait time", "run time", "processors", "average CPU time", "memory",
    "processors requested", "time requested", "memory requested", "status", "user", "group", "executable", "queue",
    "partition", "preceding job", "think time",
)  # fmt: skip
#: Those that are read, counted from 0.
(JOB, SUBMITTED, RUN_TIME, PROCESSORS, MEMORY, REQUESTED_PROCESSORS, REQUESTED_MEMORY, STATUS) = (
    0, 1, 3, 4, 6, 7, 9, 10,
)  # fmt: skip
STATUSES = {-1: "unknown", 0: "failed", 1: "completed", 5: "cancelled"}
#: Statuses of the parts of a job, which has a line of its own.
PARTS = (2, 3, 4)
UNKNOWN = -1
KIB_PER_GIB = 1024.0**2


def read_swf(draft: Draft) -> None:
    """Read the file into `draft`: a line a job, 18 numbers; lines that begin with `;` are comments.

    A job of n processors is n tasks of one core each, with the memory that each used or requested.
    """
    for number, line in enumerate(lines(draft, strict=False), 1):
        if not line.startswith(";") and line.strip():
            name, row = line.split(maxsplit=1)[0], _row(draft, number, line)
            if reasons := list(_reasons(draft, name, row)):
                draft.leave_out(name, number, reasons)
                continue
            processors = row[PROCESSORS] if row[PROCESSORS] >= 1 else row[REQUESTED_PROCESSORS]
            memory = max(0.0, row[MEMORY] if row[MEMORY] > 0 else row[REQUESTED_MEMORY]) / KIB_PER_GIB
            draft.keep(
                task(
                    name,
                    STATUSES[int(row[STATUS])],
                    row[SUBMITTED],
                    row[RUN_TIME],
                    int(processors),
                    vector(1, memory, 0),
                ),
                number,
                _assumptions(row),
            )


def _row(draft: Draft, number: int, line: str) -> list[float]:
    """The 18 numbers of a line. Raises UserError."""
    fields = list(re.finditer(r"\S+", line))
    if len(fields) < len(COLUMNS):
        raise draft.mistake(number, f"the line has {len(fields)} columns; a job has {len(COLUMNS)}")
    row = []
    for at, (column, found) in enumerate(zip(COLUMNS, fields, strict=False)):
        try:
            value = float(found[0])
        except ValueError:
            value = math.nan
        most = MAX_PODS if at in (PROCESSORS, REQUESTED_PROCESSORS) else math.inf
        if at in (SUBMITTED, RUN_TIME):
            most = MAX_SECONDS
        if not (math.isfinite(value) and abs(value) <= most):
            right = "a number" if most == math.inf else f"a number of {most:.0f} at most"
            raise draft.mistake(number, f'{column}: "{shown(found[0])}" is given; use {right}', found.start() + 1)
        row.append(value)
    return row


def _reasons(draft: Draft, name: str, row: list[float]) -> Iterator[str]:
    """Why the job of a line is not simulated."""
    if row[STATUS] in PARTS:
        yield "part of a job that has a line of its own"
        return
    if row[STATUS] not in STATUSES:
        yield "no such status"
    if name in draft.lines:
        yield "a job before it has its number"
    if row[SUBMITTED] < 0:
        yield "its submit time is " + ("not known" if row[SUBMITTED] == UNKNOWN else "negative")
    if row[RUN_TIME] == UNKNOWN:
        yield "its run time is not known"
    elif row[RUN_TIME] <= 0:
        yield "its run time is " + ("negative" if row[RUN_TIME] < 0 else "0")
    if max(row[PROCESSORS], row[REQUESTED_PROCESSORS]) < 1:
        yield "its number of processors is not known"


def _assumptions(row: list[float]) -> Iterator[str]:
    if row[PROCESSORS] < 1:
        yield "the processors that it asked for, as those that it had are not known"
    if row[MEMORY] <= 0:
        yield "the memory that it asked for" if row[REQUESTED_MEMORY] > 0 else "no memory, as none is known"
