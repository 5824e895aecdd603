"""What a run leaves behind: one row for each job, how full the cluster was, and counts. Plain arrays: jobs are many."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

import numpy as np

from coach.core.policies.react import FloatArray
from coach.simulation.cluster import Cluster
from coach.simulation.job import SimJob

#: Columns of a job's row. Seconds on the run's clock; `executed`: seconds its work took at the speed of its plans
#: alone on their nodes; `cpu_seconds`, ...: what it held. `finished` is NaN for jobs that did not.
COLUMNS = (
    "job", "kind", "arrived", "started", "finished", "executed", "work", "preemptions", "migrations", "resizes",
    "killed", "cpu_seconds", "memory_seconds", "gpu_seconds",
)  # fmt: skip

#: Most buckets of the utilisation over time; beyond, their width doubles.
BUCKETS = 4096


class Record:
    """Filled by the engine while it runs."""

    def __init__(self, cluster: Cluster, bucket: float = 60.0) -> None:
        self.capacity: FloatArray = cluster.capacity.sum(axis=0)
        self.kinds: dict[str, int] = {}
        self.names: list[str] = []
        self._rows = {column: array("d") for column in COLUMNS}
        self.reschedules = array("d")
        self.bucket = bucket
        self._level = np.zeros((BUCKETS + 1, 3))
        self._part = np.zeros((BUCKETS + 1, 3))
        self.ended = 0.0
        self.faults = 0
        self.nodes_lost = 0
        self._add = [self._rows[column].append for column in COLUMNS]

    # -- the engine's side -------------------------------------------------------------------------------------

    def took(self, at: float, held: FloatArray) -> None:
        """A job holds `held` more from `at` on."""
        place = int(at / self.bucket)
        while place >= BUCKETS:
            self._widen()
            place = int(at / self.bucket)
        self._part[place] += held * (place + 1 - at / self.bucket)
        self._level[place + 1] += held

    def gave(self, at: float, held: FloatArray) -> None:
        """A job holds `held` less from `at` on."""
        self.took(at, -held)

    def _widen(self) -> None:
        """Two buckets become one.

        A bucket's mean is the level at its start plus its own part; the level at the start of bucket k is the sum of
        `level[:k + 1]`.
        """
        level, part = self._level, self._part
        half = BUCKETS // 2
        wide_part, wide_level = np.zeros_like(part), np.zeros_like(level)
        wide_part[:half] = (part[0:BUCKETS:2] + part[1:BUCKETS:2] + level[1:BUCKETS:2]) / 2
        wide_level[0] = level[0]
        wide_level[1 : half + 1] = level[1:BUCKETS:2] + level[2 : BUCKETS + 1 : 2]
        self._level, self._part = wide_level, wide_part
        self.bucket *= 2

    def finished(self, job: SimJob, at: float, killed: bool) -> None:
        """A job left."""
        kind = self.kinds.setdefault(job.kind, len(self.kinds))
        cpu, memory, gpu = job.resource_seconds.tolist()
        row = (
            job.id, kind, job.arrived, job.started, math.nan if killed else at, job.executed, job.work,
            job.preemptions, job.migrations, job.resizes, killed, cpu, memory, gpu,
        )  # fmt: skip
        for add, value in zip(self._add, row, strict=True):
            add(value)
        if job.name:
            while len(self.names) <= job.id:
                self.names.append("")
            self.names[job.id] = job.name

    def rescheduled(self, seconds: float) -> None:
        """A job that was taken off its nodes runs again, `seconds` after they were free."""
        self.reschedules.append(seconds)

    def end(self, at: float, left: Iterable[SimJob]) -> None:
        """The run is over; the jobs that are `left` did not finish."""
        self.ended = at
        for job in left:
            job.settle(at)
            self.finished(job, math.nan, killed=False)

    # -- the reader's side -------------------------------------------------------------------------------------

    def column(self, name: str) -> FloatArray:
        """One column of all jobs that left, in the order of the jobs' numbers."""
        if not self._rows["job"]:
            return np.zeros(0)
        order = np.argsort(np.frombuffer(self._rows["job"]), kind="stable")
        return np.frombuffer(self._rows[name])[order]

    def utilisation(self) -> tuple[FloatArray, FloatArray]:
        """Times and shares: when each bucket starts (seconds), and the mean part held of each resource in it.

        The shares are [bucket, resource]; a resource that the cluster does not have is NaN.
        """
        count = int(self.ended / self.bucket) + 1
        held = np.cumsum(self._level[:count], axis=0) + self._part[:count]
        last = self.ended / self.bucket - (count - 1)
        held[-1] = held[-1] / last if last > 0 else held[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            share: FloatArray = np.where(self.capacity > 0, held / self.capacity, np.nan)
        starts: FloatArray = np.arange(count, dtype=np.float64) * self.bucket
        return starts, share
