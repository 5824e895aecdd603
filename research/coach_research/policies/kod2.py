"""KOD2 (Jeong and Yu, "Dynamic Resource Adjustment Operator..."): small jobs first, all jobs elastic.

A job starts with its minimum of workers, on as few nodes as possible; idle resources then go to running jobs as further
workers, and are taken from them again for a waiting job of higher weight. Algorithm 1 of the paper is `KOD2._schedule`,
2 is `scale_in`, 3 is `scale_out`; `weight` is Equation 1, `fewest_nodes` section 4.1. The baseline is `tf_operator.py`.

Where the paper says nothing, we chose:

1. w' is the job's minimum of workers over the sum of the CPU and memory that they, its servers and its scheduler take
   together, each as a share of what a node has (the mean over nodes). In doubles the sigmoid is 1 from w' = 37 on:
   jobs that request less than that share of a node for a worker tie, and the earlier goes first.
2. "If j is waiting longer than STARVELIMIT then update w_j": to 1, the sigmoid's limit, "so that they can be scheduled
   first". It is measured from t_j (first entered the queue), checked when it passes and at each later event. 300 s.
3. Algorithm 1 runs at each arrival, each end and each STARVELIMIT, and again while it starts something (the
   operator's reconcile loop puts back in its queue what it could not reconcile). It starts min workers; lines 31-36
   then add more.
4. Line 6 compares sums; a job starts only where its tasks also fit node by node.
5. Algorithm 2 tests line 15 before it takes each worker, and so not after the last worker of a node. Here it is tested
   after each worker taken, too.
6. Plans may contain removals that did not help (line 24 updates the plan for any): carried out as printed; scale-out
   in the same pass returns what is left over.
7. Line 8 of Algorithm 3 is a strict ">", so a worker that would fill its node is not added. We compare the
   resources that a worker requests: strictly, as printed.
8. The number of a running job's servers does not change. Jobs of equal weight: in order of arrival.
9. Lines 37-40 ("trained as much as the maximum number of worker tasks") are the driver's: a job ends when its work
   is done.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import ClassVar

from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.policies.consolidated import fewest_nodes, whole
from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    Finished,
    JobId,
    JobState,
    Resize,
    ScheduleTimer,
    SchedulingAction,
    SchedulingEvent,
    Start,
)
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import FloatArray, Plan


def weight(job: JobState, capacity: FloatArray) -> float:
    """Equation 1: w = 1 / (1 + exp(-w')), with w' = min workers / (CPU share + memory share) of choice 1."""
    node = capacity[capacity.any(axis=1)].mean(axis=0)
    need = whole(job, job.minimum)[:2]
    share = float((need / node[:2]).sum())
    return 1.0 / (1.0 + math.exp(-job.minimum.workers / share)) if share else 1.0


def scale_in(
    job: JobState, running: Sequence[JobState], weights: Mapping[JobId, float], free: FloatArray
) -> dict[JobId, Plan] | None:
    """Algorithm 2: running jobs' plans with fewer workers, so that `job`'s minimum fits on a node; None: impossible."""
    free = free.copy()
    need = whole(job, job.minimum)
    plans: dict[JobId, Plan] = {}
    for other in sorted(running, key=lambda r: (weights[r.id], r.arrived, r.id)):  # line 3
        if weights[other.id] == weights[job.id] and (other.arrived, other.id) < (job.arrived, job.id):
            continue  # lines 4-8
        spare = other.workers - other.minimum.workers  # l_dw
        parts = {node: (workers, servers) for node, workers, servers in other.plan}
        for node in sorted(parts, key=lambda n: parts[n][1] > 0):  # line 12: the servers' node last
            while (fits := bool((free[node] >= need - TOLERANCE).all())) or (spare and parts[node][0]):
                if fits:  # lines 15-18, choice 5
                    return plans
                free[node] += other.worker  # lines 19-25
                workers, servers = parts[node]
                parts[node] = workers - 1, servers
                plans[other.id] = tuple((n, w, s) for n, (w, s) in parts.items() if w or s)
                spare -= 1
    return None  # line 32


def scale_out(running: Sequence[JobState], weights: Mapping[JobId, float], free: FloatArray) -> dict[JobId, Plan]:
    """Algorithm 3: plans of running jobs with more workers, as many as fit."""
    free = free.copy()
    plans: dict[JobId, Plan] = {}
    for job in sorted(running, key=lambda r: (-weights[r.id], r.arrived, r.id)):  # line 3
        requested = job.worker > 0
        left = job.maximum.workers - job.workers  # l_iw
        parts = {node: (workers, servers) for node, workers, servers in job.plan}
        for node in range(len(free)):  # line 7
            while left and (free[node][requested] > job.worker[requested] + TOLERANCE).all():  # lines 8-12, choice 7
                free[node] -= job.worker  # line 13
                workers, servers = parts.get(node, (0, 0))
                parts[node] = workers + 1, servers  # line 15
                left -= 1
                plans[job.id] = tuple((n, w, s) for n, (w, s) in parts.items())
    return plans


@dataclass(slots=True)
class KOD2(SchedulingPolicy):
    """KOD2. `starve_limit` is STARVELIMIT in seconds."""

    starve_limit: float = 300.0
    registered: ClassVar[str] = "kod2"
    weights: dict[JobId, float] = field(default_factory=dict, init=False)
    #: Jobs that may have more workers than their minimum: the only ones that Algorithms 2 and 3 can change.
    _elastic: set[JobId] = field(default_factory=set, init=False)
    #: A heap of the jobs that were started, the heaviest first: (-weight, job).
    _started: list[tuple[float, JobId]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if not self.starve_limit > 0:
            raise ValueError(f"KOD2 needs a starve_limit above zero, got {self.starve_limit}")

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        match event:
            case Arrived():  # Algorithm 1, lines 1-4
                job = view.jobs[event.job]
                self.weights[event.job] = weight(job, view.capacity)
                if job.minimum.workers < job.maximum.workers:
                    self._elastic.add(event.job)
                yield ScheduleTimer(view.now + self.starve_limit)
            case Finished():  # lines 37-40
                self.weights.pop(event.job, None)
                self._elastic.discard(event.job)
        yield from self._schedule(view)

    def _schedule(self, view: EngineView) -> Iterator[SchedulingAction]:
        """Algorithm 1, lines 5-36."""
        while view.waiting and (yield from self._start(view)):
            pass
        running = self._resizable(view)
        if any(job.workers < job.maximum.workers for job in running):  # lines 31-36
            for job, plan in scale_out(running, self.weights, view.free).items():
                yield Resize(job, plan)

    def _start(self, view: EngineView) -> Generator[SchedulingAction, None, bool]:
        """Lines 5-30 once; whether they changed anything."""
        waiting = sorted(view.waiting.values(), key=lambda j: (-self.weights[j.id], j.arrived, j.id))
        job = waiting[0]
        if self.weights[job.id] >= self._heaviest(view):  # line 5
            if fewest_nodes(job, job.minimum, view.free, view.capacity) is None:  # line 6
                cut = scale_in(job, self._resizable(view), self.weights, view.free)  # lines 11-13
                if cut is None:
                    return False
                for other, smaller in cut.items():
                    yield Resize(other, smaller)
            plan = fewest_nodes(job, job.minimum, view.free, view.capacity)
            assert plan is not None
            yield self._starts(job, plan)  # lines 7-9, 14-15
            return True
        changed = False
        for job in waiting:  # lines 19-26
            plan = fewest_nodes(job, job.minimum, view.free, view.capacity)
            if plan is not None:
                yield self._starts(job, plan)
                changed = True
            elif self._starves(job, view):  # lines 27-29
                self.weights[job.id] = 1.0
                changed = True
        return changed

    def _starts(self, job: JobState, plan: Plan) -> Start:
        heappush(self._started, (-self.weights[job.id], job.id))
        return Start(job.id, plan)

    def _heaviest(self, view: EngineView) -> float:
        """The largest weight of a running job; 0 without one."""
        while self._started and self._started[0][1] not in view.running:
            heappop(self._started)
        return -self._started[0][0] if self._started else 0.0

    def _resizable(self, view: EngineView) -> list[JobState]:
        return [view.running[number] for number in self._elastic if number in view.running]

    def _starves(self, job: JobState, view: EngineView) -> bool:
        """Whether the job waits longer than the limit, and its weight is not 1 yet."""
        return view.now - job.arrived >= self.starve_limit and self.weights[job.id] < 1.0
