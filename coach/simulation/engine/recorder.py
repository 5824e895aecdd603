"""The record of a run: one row for each job, the cluster's utilisation, and counts. Plain arrays: jobs are many."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from coach.core.policies.api.scheduling import FloatArray
from coach.simulation.engine.cluster import Cluster
from coach.simulation.engine.job import SimJob


class Row(NamedTuple):
    """A job that left. Seconds on the run's clock.

    `executed`: seconds of its work at the speed of its plans alone on their nodes. `finished` is NaN for a job that did
    not finish; `money` is NaN without prices. `cpu_seconds`, ...: resource-seconds held. `reached`: whether it reached
    its target (a task: its end).
    """

    job: int
    kind: int
    arrived: float
    started: float
    finished: float
    executed: float
    work: float
    preemptions: int
    migrations: int
    resizes: int
    killed: bool
    cpu_seconds: float
    memory_seconds: float
    gpu_seconds: float
    money: float
    reached: bool


COLUMNS = Row._fields

#: Maximum number of buckets of the utilisation over time; when it is exceeded, their width doubles.
BUCKETS = 4096


class Record:
    """Filled by the engine while it runs."""

    def __init__(
        self, cluster: Cluster, bucket: float = 1.0, prices: tuple[float, float, float] | None = None
    ) -> None:
        """`bucket`: initial width in seconds of a step of utilisation; `prices`: of a second of each resource."""
        self.prices = prices
        self.capacity: FloatArray = cluster.capacity.sum(axis=0)
        self.kinds: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self._rows = {column: array("d") for column in COLUMNS}
        self.reschedules = array("d")
        self.bucket = bucket
        #: [bucket, resource], flat.
        self._level = [0.0] * (3 * BUCKETS + 3)
        self._part = [0.0] * (3 * BUCKETS + 3)
        self.ended = 0.0
        self.faults = 0
        self.nodes_lost = 0
        self._add = [self._rows[column].append for column in COLUMNS]

    # -- written by the engine ---------------------------------------------------------------------------------

    def took(self, at: float, held: tuple[float, float, float], times: float = 1.0) -> None:
        """A job holds `held` more from `at` on (`times` -1: less)."""
        place = int(at / self.bucket)
        while place >= BUCKETS:
            self._widen()
            place = int(at / self.bucket)
        # Plain numbers: this is called twice for each job, and arrays of three are slow.
        part = times * (place + 1 - at / self.bucket)
        here, next_ = 3 * place, 3 * place + 3
        cpu, memory, gpu = held
        self._part[here] += part * cpu
        self._part[here + 1] += part * memory
        self._part[here + 2] += part * gpu
        self._level[next_] += times * cpu
        self._level[next_ + 1] += times * memory
        self._level[next_ + 2] += times * gpu

    def _widen(self) -> None:
        """Merge each two buckets into one.

        A bucket's mean is the level at its start plus its own part. The level at the start of bucket k is the sum of
        `level[:k + 1]`.
        """
        level, part = (np.array(values).reshape(-1, 3) for values in (self._level, self._part))
        half = BUCKETS // 2
        wide_part, wide_level = np.zeros_like(part), np.zeros_like(level)
        wide_part[:half] = (part[0:BUCKETS:2] + part[1:BUCKETS:2] + level[1:BUCKETS:2]) / 2
        wide_level[0] = level[0]
        wide_level[1 : half + 1] = level[1:BUCKETS:2] + level[2 : BUCKETS + 1 : 2]
        self._level, self._part = wide_level.ravel().tolist(), wide_part.ravel().tolist()
        self.bucket *= 2

    def finished(self, job: SimJob, at: float, killed: bool) -> None:
        """A job left."""
        kind = self.kinds.setdefault(job.kind, len(self.kinds))
        cpu, memory, gpu = job.cpu_seconds, job.memory_seconds, job.gpu_seconds
        ended = math.nan if killed else at
        prices = self.prices
        money = math.nan if prices is None else cpu * prices[0] + memory * prices[1] + gpu * prices[2]
        self.add(
            (
                job.id, kind, job.arrived, job.started, ended, job.executed, job.work, job.preemptions,
                job.migrations, job.resizes, killed, cpu, memory, gpu, money, not math.isnan(ended),
            ),
            job.name,
        )  # fmt: skip

    def add(self, row: Row | tuple[Any, ...], name: str = "") -> None:
        """Add the row of a job that left (a `Row`, or its fields)."""
        for add, value in zip(self._add, row, strict=True):
            add(value)
        if name:
            self.names[int(row[0])] = name

    def renumber(self, numbers: Sequence[int]) -> None:
        """Rename job n of the run to `numbers[n]`."""
        self._rows["job"] = array("d", [numbers[int(job)] for job in self._rows["job"]])
        self._add[0] = self._rows["job"].append
        self.names = {numbers[job]: name for job, name in self.names.items()}

    def rescheduled(self, seconds: float) -> None:
        """A preempted job runs again, `seconds` after its nodes were vacated."""
        self.reschedules.append(seconds)

    def end(self, at: float, left: Iterable[SimJob]) -> None:
        """The run is over; jobs in `left` did not finish."""
        self.ended = at
        for job in left:
            job.settle(at)
            self.finished(job, math.nan, killed=False)

    # -- read afterwards ---------------------------------------------------------------------------------------

    def column(self, name: str) -> FloatArray:
        """One column, by job number."""
        if not self._rows["job"]:
            return np.zeros(0)
        order = np.argsort(np.frombuffer(self._rows["job"]), kind="stable")
        return np.frombuffer(self._rows[name])[order]

    def utilisation(self) -> tuple[FloatArray, FloatArray]:
        """The start of each bucket (seconds), and the mean share of each resource held in it.

        The shares are [bucket, resource]; NaN for a resource that the cluster lacks.
        """
        count = int(self.ended / self.bucket) + 1
        level, part = (np.array(values[: 3 * count]).reshape(-1, 3) for values in (self._level, self._part))
        held = np.cumsum(level, axis=0) + part
        last = self.ended / self.bucket - (count - 1)
        held[-1] = held[-1] / last if last > 0 else held[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            share: FloatArray = np.where(self.capacity > 0, held / self.capacity, np.nan)
        starts: FloatArray = np.arange(count, dtype=np.float64) * self.bucket
        return starts, share
