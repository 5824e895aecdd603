"""Slurm's accounting, as `sacct -P` prints it: a line a job, `|` between the fields, the columns' names first."""

from __future__ import annotations

import re
from collections.abc import Iterator

from coach_research.traces.clock import UTC, seconds_of
from coach_research.traces.draft import MAX_PODS, Draft, task, vector
from coach_research.traces.text import ANY, Number, Row, rows

#: The command that prints what is read.
COMMAND = "sacct -aPX -S START -E END -o JobID,Partition,State,Submit,Start,ElapsedRaw,AllocTRES,ReqTRES,Priority"

HOUR = 3600.0
NODES = Number(f"a number up to {MAX_PODS}", most=MAX_PODS)
ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
GIB = {"K": 2.0**-20, "M": 2.0**-10, "": 2.0**-10, "G": 1.0, "T": 1024.0}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")


def read_sacct(draft: Draft) -> None:
    """Read the file into `draft`: a job on n nodes is n equal tasks, each with its part of what all had together.

    A job that was put back into the queue has a line for each attempt (`sacct -D`): each is simulated.
    """
    attempts = dict[str, list[tuple[float | None, float | None]]]()
    for row in rows(draft, "sacct", "|"):
        name = row.cells["JobID"]
        if "." in name:
            draft.leave_out(name, row.line, ["a step of a job that has a line of its own"])
            continue
        arrival = seconds_of(draft, row.line, "Submit", _plain(row, "Submit"), UTC)
        seconds = _elapsed(row)
        had, asked = row.cells.get("AllocTRES", ""), row.cells.get("ReqTRES", "")
        tres = _tres(row, "AllocTRES" if had else "ReqTRES", had or asked)
        start = seconds_of(draft, row.line, "Start", _plain(row, "Start"), UTC)
        before = attempts.setdefault(name, [])
        reasons = list(_reasons(row, (arrival, start) in before, arrival, seconds))
        before.append((arrival, start))
        if reasons or arrival is None or seconds is None:
            draft.leave_out(name, row.line, reasons)
            continue
        if not tres and (cpus := row.number("AllocCPUS", NODES, 0)):
            tres = {"cpu": cpus}
        nodes = max(1, round(tres.get("node", row.number("NNodes", NODES, 1) or 1)))
        each = vector(*(tres.get(what, 0.0) / nodes for what in ("cpu", "mem", "gres/gpu")))
        assumed = ["what it asked for, as what it had is not known"] if asked and not had else []
        if "mem" not in tres:
            assumed.append("no memory, as none is known")
        if start is not None and arrival - HOUR <= start < arrival:
            start += HOUR
            assumed.append("the clock was put back an hour before it started, as it started before it was submitted")
        if len(before) > 1:
            name = f"{name} (attempt {len(before)})"
        work = task(name, row.cells.get("Partition", ""), arrival, seconds, nodes, each)
        work.priority = int(row.number("Priority", ANY, 0))
        if start is not None and start >= arrival:
            draft.waits.append(start - arrival)
        draft.keep(work, row.line, assumed)
    if draft.works:
        draft.assume("its times are of one zone, as sacct does not say")


def _plain(row: Row, column: str) -> str | None:
    text = row.cells.get(column, "")
    return None if text in {"", "Unknown", "None"} else text.replace("T", " ", 1)


def _reasons(row: Row, twice: bool, arrival: float | None, seconds: float | None) -> Iterator[str]:
    """Why the job is not simulated; `twice`: it has had a line with the same times."""
    if twice:
        yield "a job before it has its number"
    if row.cells["State"].partition(" ")[0] in {
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "CONFIGURING",
        "COMPLETING",
    }:
        yield "it has not ended"
    elif seconds is None:
        yield "its run time is not known"
    elif seconds <= 0:
        yield "its run time is 0"
    if arrival is None:
        yield "its submit time is not known"


def _elapsed(row: Row) -> float | None:
    """Seconds of `ElapsedRaw`, of `Elapsed` ([days-]hours:minutes:seconds), or between `Start` and `End`."""
    if row.cells.get("ElapsedRaw"):
        return row.number("ElapsedRaw", ANY)
    if text := row.cells.get("Elapsed", ""):
        if not (found := ELAPSED.fullmatch(text)):
            raise row.mistake("Elapsed", "use days-hours:minutes:seconds, such as 1-02:03:04")
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    start, end = (seconds_of(row.draft, row.line, of, _plain(row, of), UTC) for of in ("Start", "End"))
    return None if start is None or end is None else end - start


def _tres(row: Row, column: str, text: str) -> dict[str, float]:
    """`cpu=8,mem=32G,node=2,gres/gpu=4` as numbers, memory in GiB. A device's type (gres/gpu:a100) counts once."""
    found: dict[str, float] = {}
    typed = 0.0  # gres/gpu:a100=4 is counted in gres/gpu=4, where that is there
    for part in filter(None, text.split(",")):
        what, _, amount = part.partition("=")
        if not (number := AMOUNT.fullmatch(amount)) or float(number[1]) > MAX_PODS:
            raise row.mistake(column, "use amounts such as cpu=8,mem=32G,node=2,gres/gpu=4")
        if what == "mem":
            found[what] = float(number[1]) * GIB[number[2]]
        elif what.startswith("gres/gpu:"):
            typed += float(number[1])
        else:
            found[what] = float(number[1])
    return {"gres/gpu": typed, **found} if typed else found
