"""Metrics of a run: its jobs' times, the cluster's utilisation, changes, money; and one run compared with another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coach.core.jobs.reasons import Reason
from coach.simulation.recorder import COLUMNS, FloatArray, Record

#: The placement of policies that choose nodes themselves: the table's and the rows' `placement`.
OWN = "own"

#: How a job without a target succeeds.
FINISHED = "finished"

#: Completion times that differ by less than this share count as the same.
SAME = 0.01


@dataclass(frozen=True, slots=True)
class Result:
    """A run, ready to be sent between processes and measured. Columns by name, each by job number."""

    policy: str
    seed: int
    columns: dict[str, FloatArray]
    names: dict[int, str]
    kinds: dict[str, int]
    times: FloatArray
    used: FloatArray
    ended: float
    events: int = 0
    seconds: float = 0.0
    #: The reason each job ended with, if the run was of the reducer.
    reasons: dict[int, str] | None = None
    #: How pods were placed: `gang`, `default` or `OWN`.
    placement: str = "gang"
    #: Why a job can never run on these nodes, by job number.
    never_fits: dict[int, str] = field(default_factory=dict)
    #: Cores, GiB and devices of all nodes; after them, as in `used`, the devices of each of `gpu_kinds`.
    capacity: FloatArray = field(default_factory=lambda: np.zeros(3))
    gpu_kinds: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name in a comparison: the policy, and the placement if that is default placement."""
        return f"{self.policy}, {self.placement}" if self.placement.startswith("default") else self.policy

    @classmethod
    def of(
        cls,
        record: Record,
        policy: str,
        seed: int,
        events: int = 0,
        seconds: float = 0.0,
        *,
        placement: str = "gang",
    ) -> Result:
        """The result of a run with this `record`, which took `events` events and `seconds` real seconds."""
        columns = {name: np.array(record.column(name)) for name in COLUMNS}
        times, used = record.utilisation()
        return cls(
            policy,
            seed,
            columns,
            dict(record.names),
            dict(record.kinds),
            times,
            used,
            record.ended,
            events,
            seconds,
            placement=placement,
            never_fits=dict(record.never_fits),
            capacity=record.capacity,
            gpu_kinds=record.gpu_kinds,
        )

    @property
    def ends(self) -> Counter[str]:
        """How many jobs ended in which way: by the reducer's reasons, or as the engine records it."""
        if self.reasons is not None:
            return Counter(self.reasons.values())
        killed = int(self.columns["killed"].sum())
        finished, never = int(self.columns["reached"].sum()), len(self.never_fits)
        left = len(self.columns["job"]) - finished - killed - never
        found = {FINISHED: finished, Reason.NEVER_FITS.value: never, "killed": killed, "not finished": left}
        return Counter({way: count for way, count in found.items() if count})

    @property
    def completion(self) -> FloatArray:
        """Seconds from arrival to finish; NaN for jobs that did not finish."""
        return self.columns["finished"] - self.columns["arrived"]

    @property
    def waiting(self) -> FloatArray:
        """Seconds from arrival to finish in which its work was not done at its full speed; NaN as `completion`."""
        return self.completion - self.columns["executed"]

    @property
    def slowdown(self) -> FloatArray:
        """Completion over execution time, >= 1: 1 + waiting / execution (FitGpp, section 3)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.completion / self.columns["executed"]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Seconds, shares, currency units; means over the jobs that finished. NaN: nothing was measured.

    A percentile is a nearest rank: the smallest value that so many percent of the finished jobs do not exceed.
    """

    jobs: int
    finished: int
    killed: int
    #: Jobs that reached their target (a task: its end).
    reached: int
    completion_mean: float
    completion_p50: float
    completion_p95: float
    completion_p99: float
    makespan: float
    waiting_mean: float
    slowdown_mean: float
    slowdown_p95: float
    #: Jain's index of the slowdowns: 1 if all are equal, 1/jobs if one job bears all.
    fairness: float
    cpu_used: float
    memory_used: float
    gpu_used: float
    preemptions: int
    migrations: int
    resizes: int
    money: float


def measure(result: Result) -> Metrics:
    """All metrics of one run."""
    at = result.columns
    completion = result.completion
    done = ~np.isnan(completion)
    times, slowdown = completion[done], result.slowdown[done]
    slowdown = slowdown[np.isfinite(slowdown)]
    money = at["money"][~np.isnan(at["money"])]
    if len(result.used):
        widths = np.diff(np.append(result.times, max(result.ended, result.times[-1])))
        used = (result.used * widths[:, None]).sum(axis=0) / max(widths.sum(), 1e-12)
    else:
        used = np.full(3, math.nan)
    return Metrics(
        jobs=len(completion),
        finished=int(done.sum()),
        killed=int(at["killed"].sum()),
        reached=int(at["reached"].sum()),
        completion_mean=_mean(times),
        completion_p50=nearest_rank(times, 0.5),
        completion_p95=nearest_rank(times, 0.95),
        completion_p99=nearest_rank(times, 0.99),
        makespan=float(at["finished"][done].max() - at["arrived"].min()) if done.any() else math.nan,
        waiting_mean=_mean(times - at["executed"][done]),
        slowdown_mean=_mean(slowdown),
        slowdown_p95=nearest_rank(slowdown, 0.95),
        fairness=jain(slowdown),
        cpu_used=float(used[0]),
        memory_used=float(used[1]),
        gpu_used=float(used[2]),
        preemptions=int(at["preemptions"].sum()),
        migrations=int(at["migrations"].sum()),
        resizes=int(at["resizes"].sum()),
        money=float(money.sum()) if len(money) else math.nan,
    )


@dataclass(frozen=True, slots=True)
class Changes:
    """Completion times against a baseline on the same workload, job by job. Shares (-0.1: 10 % sooner)."""

    better: int
    worse: int
    same: int
    #: Mean change of the better jobs and of the worse jobs; the best and the worst single change.
    better_mean: float
    worse_mean: float
    best: float
    worst: float


def compare(result: Result, baseline: Result) -> Changes:
    """Compare `result` with `baseline`, over the jobs that finished in both."""
    ours, theirs = result.completion, baseline.completion
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    change = (ours[both] - theirs[both]) / theirs[both]
    better, worse = change[change < -SAME], change[change > SAME]
    return Changes(
        better=len(better),
        worse=len(worse),
        same=len(change) - len(better) - len(worse),
        better_mean=_mean(better),
        worse_mean=_mean(worse),
        best=float(change.min()) if len(change) else math.nan,
        worst=float(change.max()) if len(change) else math.nan,
    )


def jain(values: FloatArray) -> float:
    """Jain's fairness index: (sum x)^2 / (n sum x^2)."""
    square = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * square) if len(values) and square > 0 else math.nan


def nearest_rank(values: FloatArray, share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed; NaN if there are none."""
    if not len(values):
        return math.nan
    rank = max(0, math.ceil(share * len(values)) - 1)
    return float(np.partition(values, rank)[rank])


def mean_of(metrics: Sequence[Metrics], field: str) -> float:
    """The mean of one metric over the runs that have it."""
    values = np.array([float(getattr(run, field)) for run in metrics])
    return _mean(values[~np.isnan(values)])


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else math.nan
