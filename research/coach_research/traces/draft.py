"""A trace while it is read: its jobs so far, what was left out and assumed, and how a mistake in it is said."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coach.core.cluster import Allocation, Node
from coach.core.errors import UserError
from coach_research.workload import FloatArray, Work

#: What a job may have at most: seconds of any time (300 years), of a resource, and pods of a role.
MAX_SECONDS, MAX_AMOUNT, MAX_PODS = 1e10, 1e9, 10_000_000

#: The most jobs of a trace.
MAX_JOBS = 2_000_000

#: Jobs that a line names, and characters of a name or a cell that it shows.
NAMED, SHOWN = 5, 60


@dataclass(frozen=True, slots=True)
class Note:
    """What was done about a job of a trace, and why; `job` is empty where it was done about all.

    `line` is where the job begins in its file, from 1; 0 for all jobs.
    """

    job: str
    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a trace in order of arrival, the first at 0 s; `read` is how many its file has."""

    works: list[Work]
    read: int
    left_out: tuple[Note, ...]
    assumed: tuple[Note, ...]
    #: The cluster of the trace, where its file has it.
    nodes: tuple[Node, ...] = ()
    #: Seconds that jobs waited in reality, on average; NaN where the file does not say.
    waited: float = math.nan


@dataclass
class Draft:
    """A trace that is being read from `path`."""

    path: Path
    works: list[Work] = field(default_factory=list)
    left_out: list[Note] = field(default_factory=list)
    assumed: list[Note] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    #: Seconds that jobs waited in reality.
    waits: list[float] = field(default_factory=list)
    #: Where each job is, by its name.
    lines: dict[str, int] = field(default_factory=dict)
    #: What to close when the trace is read, or a mistake was found in it.
    opened: ExitStack = field(default_factory=ExitStack)

    @property
    def read(self) -> int:
        """How many jobs were read."""
        return len(self.works) + len(self.left_out)

    def mistake(self, line: int, why: str, column: int | None = None) -> UserError:
        """The error of a mistake at a place, both from 1; line 0: of the whole file."""
        place = f"{self.path}" + (f":{line}" if line else "") + (f":{column}" if column else "")
        return UserError(f"{place}: {why}" + (" Nothing" if why.endswith("?") else "; nothing") + " was simulated")

    def keep(self, work: Work, line: int, assumed: Iterable[str] = ()) -> None:
        """The job is simulated, with these assumptions."""
        self.lines[work.name] = line
        self.works.append(work)
        self.assumed += [Note(work.name, line, what) for what in assumed]
        self._limit(line)

    def leave_out(self, job: str, line: int, reasons: Iterable[str]) -> None:
        """The job is not simulated."""
        self.left_out.append(Note(job, line, " and ".join(reasons)))
        self._limit(line)

    def _limit(self, line: int) -> None:
        if self.read > MAX_JOBS:
            raise self.mistake(line, f"this is job {self.read:,}; give a part with at most {MAX_JOBS:,} jobs")

    def assume(self, what: str) -> None:
        """Something is assumed of all jobs."""
        self.assumed.append(Note("", 0, what))

    def finish(self) -> Trace:
        """The trace. Raises UserError if there is nothing to simulate."""
        if not self.read:
            raise self.mistake(0, "no job is in it")
        if not self.works:
            reasons = "; ".join(in_short(self.left_out))
            raise self.mistake(0, f"no job can be simulated: {reasons}")
        works = sorted(self.works, key=lambda work: work.arrival)
        first = works[0].arrival
        for work in works:
            work.arrival -= first
        waited = sum(self.waits) / len(self.waits) if self.waits else math.nan
        return Trace(works, self.read, tuple(self.left_out), tuple(self.assumed), tuple(self.nodes), waited)


def task(  # noqa: PLR0917
    name: str, kind: str, arrival: float, seconds: float, tasks: int, worker: FloatArray
) -> Work:
    """A job of `tasks` equal tasks that start together and each run for `seconds`."""
    count = Allocation(tasks, 0)
    return Work(arrival, seconds * tasks, worker, name=name, kind=kind, minimum=count, maximum=count)


def vector(*values: float) -> FloatArray:
    """Cores, GiB and devices of one pod."""
    made: np.ndarray[Any, np.dtype[np.float64]] = np.array(values, float)
    return made


def shown(text: str) -> str:
    """A name or a cell of a file that may come from anywhere, as a terminal may show it."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in text[:SHOWN])
    return printable + ("..." if len(text) > SHOWN else "")


def in_short(notes: Iterable[Note]) -> list[str]:
    """`2 jobs, its run time is 0: a (line 3), b (line 4)`: for each reason how many jobs it has, and the first."""
    jobs: dict[str, list[Note]] = {}
    for note in notes:
        jobs.setdefault(note.why, []).append(note)
    return [f"{_count(of)}, {why}{_names(of)}" for why, of in jobs.items()]


def _count(notes: list[Note]) -> str:
    if not notes[0].job:
        return "all jobs"
    return "1 job" if len(notes) == 1 else f"{len(notes)} jobs"


def _names(notes: list[Note]) -> str:
    named = [f"{shown(note.job)} (line {note.line})" for note in notes[:NAMED] if note.job]
    more = f" and {len(notes) - NAMED} more (-o json has all)" if len(notes) > NAMED else ""
    return f": {', '.join(named)}{more}" if named else ""
