"""Gavel's policies for the whole cluster (OSDI 2020, section 4.2): most throughput, earliest end of all jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from coach_research.policies.rounds.fair import Shares, most_of
from coach_research.policies.rounds.rounds import seconds_left
from coach_research.scheduling.api import EngineView, JobId, JobState
from coach_research.workload import FloatArray


@dataclass
class MaxThroughput(Shares):
    """The sum of all jobs' speeds is as large as possible: jobs by speed for their width, until the cluster is full."""

    registered: ClassVar[str] = "max-throughput"
    #: The speeds of the jobs; those of jobs without epochs do not change.
    _known: dict[JobId, float] = field(default_factory=dict, init=False, repr=False)

    def speed(self, job: JobState) -> float:
        """What is summed up: epochs/s."""
        return job.speed(*job.maximum)

    def shares(self, jobs: list[JobState], wide: FloatArray, view: EngineView) -> FloatArray:
        """See `Shares`."""
        del view
        known = self._known
        self._known = {
            job.id: self.speed(job) if job.has_epochs or job.id not in known else known[job.id] for job in jobs
        }
        order = np.argsort(-np.fromiter(self._known.values(), float, len(jobs)) / wide, kind="stable")
        sorted_ = wide[order]
        given = np.zeros(len(jobs))
        given[order] = np.clip((1.0 - (sorted_.cumsum() - sorted_)) / sorted_, 0.0, 1.0)
        return given

    def rate(self, job: JobState, node: int) -> float:
        """See `Shares`: in the units of `speed`."""
        there, first = job.speed(*job.maximum, node), job.speed(*job.maximum)
        return self.speed(job) * there / first if first else 0.0

    def shares_by_kind(self, jobs: list[JobState], rates: FloatArray, wide: FloatArray) -> FloatArray:
        """See `Shares`: the linear program."""
        del jobs
        return most_of(rates, wide)[0]


@dataclass
class MinMakespan(Shares):
    """The last of the jobs that are here ends as early as possible, within 5 %: the paper's linear program for an end.

    Where one long job decides the end, many shares reach it, and completion times depend on which of them a solver
    happens to return. Here it is about what the authors' interior-point solver returns, ECOS: see `_middle`.
    """

    registered: ClassVar[str] = "min-makespan"

    def shares(self, jobs: list[JobState], wide: FloatArray, view: EngineView) -> FloatArray:
        """See `Shares`."""
        del view
        left = np.array([seconds_left(job) for job in jobs])
        earliest, low, high = max(float(left.max()), float(left @ wide)), 100.0, 1e6
        while earliest > high:
            high *= 10.0
        while 1.05 * low < high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if middle >= earliest else (middle, high)
        return _middle(left / high, wide)


def _middle(least: FloatArray, wide: FloatArray) -> FloatArray:
    """Shares from `least` to 1 that the cluster can hold, nearest to the middle of x > 0, x > least and x < 1.

    That is where ECOS begins: the least squares of what each constraint leaves.
    """
    middle: FloatArray = np.clip((1.0 + least) / 3.0, least, 1.0)
    if float(middle @ wide) <= 1.0:
        return middle
    low, high = 0.0, 1.0 / float(wide.min())
    while high - low > 1e-9 * high:
        price = (low + high) / 2.0
        x = np.clip((1.0 + least) / 3.0 - price * wide, least, 1.0)
        low, high = (low, price) if float(x @ wide) <= 1.0 else (price, high)
    middle = np.clip((1.0 + least) / 3.0 - high * wide, least, 1.0)
    return middle
