"""A run log of the thesis's handler (not JSON: ` | ` inside its arrays): each job with its last allocation."""

from __future__ import annotations

import re

from coach.core.cluster import Allocation
from coach_research.traces.clock import UTC, seconds_of
from coach_research.traces.draft import MAX_PODS, MAX_SECONDS, Draft, vector
from coach_research.traces.text import whole
from coach_research.workload import Work

NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"


def read_thesis(draft: Draft) -> None:
    """Read the file into `draft`: one core for each function of a job, for as long as it took."""
    text = whole(draft, strict=False)
    line, seen = 1, 0
    for place, found in enumerate(re.finditer(r"\{[^{}]*\}", text), 1):
        line, seen = line + text.count("\n", seen, found.start()), found.start()
        job = found[0]
        name = re.search(r'"id":\s*"([^"]*)"', job)
        called = name[1] if name else f"job-{place}"
        began = re.search(r'"startTime":\s*"([^"]{19})', job)
        took = re.search(rf'"totalTime":\s*({NUMBER})', job)
        counts = [_last(job, role) for role in ("workers", "servers")]
        arrival = seconds_of(draft, line, "startTime", began[1] if began else None, UTC)
        seconds = float(took[1]) if took else 0.0
        reasons = []
        if called in draft.lines:
            reasons.append("a job before it has its id")
        if arrival is None:
            reasons.append("its start is not known")
        if not 0 < seconds <= MAX_SECONDS:
            reasons.append("its total time is not known")
        if not (0 < counts[0] <= MAX_PODS and 0 <= counts[1] <= MAX_PODS):
            reasons.append("its workers and servers are not known")
        if reasons or arrival is None:
            draft.leave_out(called, line, reasons)
            continue
        at = Allocation(*counts)
        draft.keep(
            Work(
                arrival, seconds * at.workers, vector(1, 0, 0), vector(1, 0, 0),
                name=called, kind=draft.path.parent.name, minimum=at, maximum=at,
            ),
            line,
        )  # fmt: skip
    if draft.works:
        draft.assume("one core for each function, and the last allocation from the start")


def _last(job: str, role: str) -> int:
    """The last number of pods of a role in the array of a job; -1 where there is none."""
    array = re.search(rf'"{role}":\s*\[([^\]]*)\]', job)
    words = array[1].split() if array else []
    return int(words[-1]) if words and re.fullmatch("[0-9]{1,9}", words[-1]) else -1
