"""The record of a run: one row for each job, the cluster's utilisation, and counts. Plain arrays: jobs are many."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Row(NamedTuple):
    """A job that left. Seconds on the run's clock.

    `executed`: seconds of its work at the speed of its plans alone on their nodes. `finished` is NaN for a job that did
    not finish; `money` is NaN without prices. `cpu_seconds`, ...: resource-seconds held. `reached`: whether it reached
    its target (a task: its end). `workers` and `servers`: the last that it had. `cpu_asked`, ...: the resources of its
    smallest allocation.
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
    workers: int
    servers: int
    cpu_asked: float
    memory_asked: float
    gpu_asked: float


COLUMNS = Row._fields

#: Maximum number of buckets of the utilisation over time; when it is exceeded, their width doubles.
BUCKETS = 4096

#: How many rows and changes are put into arrays at once.
CHUNK = 4096


class Record:
    """Filled by a simulator while it runs."""

    def __init__(self, capacity: FloatArray, bucket: float = 1.0, kinds: Sequence[str] = ()) -> None:
        """`capacity`: [node, resource]; `bucket`: initial seconds of a step of utilisation; `kinds`: of nodes."""
        of = {kind: [kind == each for each in kinds] for kind in dict.fromkeys(kinds)}
        gpus = {kind: float(capacity[nodes, 2].sum()) for kind, nodes in of.items()}
        #: The kinds of GPUs, where there are several: each is counted, and all of them together.
        self.gpu_kinds = tuple(kind for kind, count in gpus.items() if count)
        self.gpu_kinds = self.gpu_kinds if len(self.gpu_kinds) > 1 else ()
        #: Of all nodes; after the resources the GPUs of each of `gpu_kinds`, as in all that is held.
        self.capacity: FloatArray = np.append(capacity.sum(axis=0), [gpus[kind] for kind in self.gpu_kinds])
        self.kinds: dict[str, int] = {}
        self.names: dict[int, str] = {}
        #: Why a job can never run on this cluster, by job number.
        self.never_fits: dict[int, str] = {}
        self._rows = {column: array("d") for column in COLUMNS}
        self.reschedules = array("d")
        self.bucket = bucket
        #: [bucket, resource].
        self._level = np.zeros((BUCKETS + 1, len(self.capacity)))
        self._part = np.zeros((BUCKETS + 1, len(self.capacity)))
        self.ended = 0.0
        self.faults = 0
        self.nodes_lost = 0
        #: Rows and changes of what is held that are not in the columns and buckets yet: arrays take many at once.
        self._new_rows: list[Row | tuple[Any, ...]] = []
        self._new_changes: list[tuple[float, ...]] = []

    # -- written by the simulator ---------------------------------------------------------------------------------

    def took(self, at: float, held: tuple[float, ...], times: float = 1.0) -> None:
        """A job holds `held` more from `at` on (`times` -1: less). Times do not decrease."""
        changes = self._new_changes
        changes.append((at, times, *held))
        if len(changes) >= CHUNK:
            self._take_changes()

    def _take_changes(self) -> None:
        """Add the new changes to the buckets, in their order, so that the sums are rounded as one by one."""
        changes = np.array(self._new_changes, float).reshape(-1, 2 + len(self.capacity))
        self._new_changes.clear()
        while len(changes):
            at = changes[:, 0] / self.bucket
            place = at.astype(int)
            inside = int(np.searchsorted(place, BUCKETS))
            now, places = changes[:inside], place[:inside]
            held = now[:, 1:2] * now[:, 2:]
            np.add.at(self._part, places, (places + 1 - at[:inside])[:, None] * held)
            np.add.at(self._level, places + 1, held)
            changes = changes[inside:]
            if len(changes):
                self._widen()

    def _widen(self) -> None:
        """Merge each two buckets into one.

        A bucket's mean is the level at its start plus its own part. The level at the start of bucket k is the sum of
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

    def add(self, row: Row | tuple[Any, ...], name: str = "") -> None:
        """Add the row of a job that left (a `Row`, or its fields)."""
        rows = self._new_rows
        rows.append(row)
        if len(rows) >= CHUNK:
            self._take_rows()
        if name:
            self.names[int(row[0])] = name

    def _take_rows(self) -> None:
        """Add the new rows to the columns."""
        for column, values in zip(COLUMNS, np.array(self._new_rows, float).reshape(-1, len(COLUMNS)).T, strict=True):
            self._rows[column].frombytes(values.tobytes())
        self._new_rows.clear()

    def renumber(self, numbers: Sequence[int]) -> None:
        """Rename job n of the run to `numbers[n]`."""
        self._take_rows()
        self._rows["job"] = array("d", [numbers[int(job)] for job in self._rows["job"]])
        self.names = {numbers[job]: name for job, name in self.names.items()}
        self.never_fits = {numbers[job]: why for job, why in self.never_fits.items()}

    def rescheduled(self, seconds: float) -> None:
        """A preempted job runs again, `seconds` after its nodes were vacated."""
        self.reschedules.append(seconds)

    # -- read afterwards ---------------------------------------------------------------------------------------

    def column(self, name: str) -> FloatArray:
        """One column, by job number."""
        self._take_rows()
        if not self._rows["job"]:
            return np.zeros(0)
        order = np.argsort(np.frombuffer(self._rows["job"]), kind="stable")
        return np.frombuffer(self._rows[name])[order]

    def utilisation(self) -> tuple[FloatArray, FloatArray]:
        """The start of each bucket (seconds), and the mean share of each resource held in it.

        The shares are [bucket, resource]; NaN for a resource that the cluster lacks.
        """
        self._take_changes()
        while self.ended >= BUCKETS * self.bucket:
            self._widen()
        count = int(self.ended / self.bucket) + 1
        level, part = self._level[:count], self._part[:count]
        held = np.cumsum(level, axis=0) + part
        last = self.ended / self.bucket - (count - 1)
        held[-1] = held[-1] / last if last > 0 else held[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            share: FloatArray = np.where(self.capacity > 0, held / self.capacity, np.nan)
        starts: FloatArray = np.arange(count, dtype=np.float64) * self.bucket
        return starts, share
