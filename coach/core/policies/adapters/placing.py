"""Drives an `AllocationPolicy` (how many workers and servers) as a `Policy` (which nodes, and when).

The adapter calls the policy for all jobs at once, as its `cadence` says, and turns the decision into actions: first
those that release resources (smaller plans, jobs that must wait), then those that take them. Kept pods stay on their
nodes. A gang starts whole or not at all; a running job that cannot grow to its allocation grows as far as it fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coach.core.cluster import Allocation, Node, Resources, Role
from coach.core.policies.api.base import AllocationPolicy, ClusterView, Objective
from coach.core.policies.api.react import (
    TOLERANCE,
    TRIAL,
    Action,
    Arrived,
    Boundary,
    Event,
    Finished,
    FloatArray,
    IntArray,
    JobId,
    JobState,
    Phase,
    Plan,
    Preempt,
    Remaining,
    Resize,
    Start,
    Tick,
    View,
    Wake,
)

#: The lowest speed that policies see: they divide by it.
SLOWEST = 1e-12


class Placed:
    """A `JobState` as allocation policies see it (`base.JobView`). Budget and deadline are the driver's."""

    fixed = None
    deadline = None
    objective = Objective.SOONEST

    def __init__(self, job: JobState) -> None:
        """Valid until the job's speeds change."""
        #: What policies computed from it (`base.kept`).
        self.memory: dict[Any, Any] = {}
        self.id = f"{job.id:08d}"
        self.job = job
        self.created = job.arrived
        self.priority = job.priority
        self.trial = job.kind == TRIAL
        self.grace = job.grace
        self.minimum = job.minimum
        self.maximum = job.maximum
        self.busy = False
        self.current: Allocation | None = None
        self._held: Plan | None = None
        self.restart_seconds = job.rescale_seconds
        self._remaining: Remaining | None = None
        self._speeds: dict[Allocation, float] = {}

    def look(self, busy: bool) -> None:
        """Update from what the job holds now."""
        job = self.job
        self.busy = busy
        self._remaining = None
        held = job.plan if job.phase is Phase.RUNNING else None
        if held is not self._held:
            self._held = held
            self.current = None if held is None else Allocation(job.workers, job.servers)

    @property
    def requests(self) -> Mapping[Role, Resources]:
        """The requests of one pod of each role."""
        job = self.job
        vectors = {Role.SCHEDULER: job.scheduler, Role.SERVER: job.server, Role.WORKER: job.worker}
        return {role: Resources(*vector.tolist()) for role, vector in vectors.items()}

    @property
    def remaining_epochs(self) -> Remaining:
        """Predicted epochs to the end."""
        if self._remaining is None:
            self._remaining = self.job.remaining()
        return self._remaining

    def speed(self, allocation: Allocation, /) -> float:
        """Predicted epochs/s."""
        if allocation not in self._speeds:
            self._speeds[allocation] = max(SLOWEST, self.job.speed(*allocation))
        return self._speeds[allocation]

    def epoch_cost(self, allocation: Allocation, /) -> float:
        """Core-seconds of an epoch: the price of a job without a price book."""
        job = self.job
        cores = job.scheduler[0] + allocation.workers * job.worker[0] + allocation.servers * job.server[0]
        return float(cores) / self.speed(allocation)

    def epoch_budget(self, _allocation: Allocation, /) -> None:
        """None: it has no budget."""
        return None

    def affordable(self, _allocation: Allocation, /) -> bool:
        """True: it has no budget."""
        return True


@dataclass
class Placing:
    """`policy` as a `Policy`: with a cadence all jobs are decided at each tick; without one, each at its epochs."""

    policy: AllocationPolicy
    wants: frozenset[type] = field(init=False)
    #: Demand of each live job's maximum, and its largest pod: what `_ample` sums up.
    _most: dict[JobId, tuple[FloatArray, FloatArray]] = field(default_factory=dict, init=False)
    _sum: FloatArray = field(default_factory=lambda: np.zeros(3), init=False)
    _largest: FloatArray = field(default_factory=lambda: np.zeros(3), init=False)
    #: Each live job's view since its last epoch.
    _views: dict[JobId, Placed] = field(default_factory=dict, init=False)
    #: Tasks decided on alone since all jobs fit (`_ample`): nothing of theirs changes while all fit.
    _alone: set[JobId] = field(default_factory=set, init=False)
    #: Whether a Tick is under way.
    _ticking: bool = field(default=False, init=False)
    _nodes: ClusterView = field(default=ClusterView(()), init=False)
    _capacity: FloatArray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.wants = frozenset() if self.policy.cadence else frozenset({Boundary})

    def react(self, event: Event, view: View) -> Iterator[Action]:
        """See `Policy`."""
        cadence = self.policy.cadence
        self._count(event, view)
        if cadence is None:
            yield from self.decide(view, event.job if isinstance(event, Boundary) else None)
        elif isinstance(event, Tick):
            self._ticking = False
            yield from self.decide(view, None)
        if cadence is not None and not self._ticking and view.jobs:
            self._ticking = True
            slots = view.now / cadence
            due = round(slots) + 1 if isinstance(event, Tick) else math.ceil(slots - TOLERANCE)
            yield Wake(max(view.now, due * cadence))

    def decide(self, view: View, at_boundary: JobId | None) -> Iterator[Action]:
        """Call the policy and carry out its decision.

        Without a cadence a job with epochs changes only while it waits or is `at_boundary`.
        """
        free = self.policy.cadence is not None
        # Preempted tasks count as waiting at once: without them each one's end would find room for it again.
        jobs = [job for job in view.jobs.values() if job.phase is not Phase.DRAINING or not job.has_epochs]
        if not free and self._ample(view):
            # Each job's allocation depends on that job alone, and only these can change now.
            jobs = [
                job
                for job in jobs
                if job.phase is not Phase.RUNNING
                or job.id == at_boundary
                or not (job.has_epochs or job.id in self._alone)
            ]
            self._alone.update(job.id for job in jobs if not job.has_epochs)
        else:
            self._alone.clear()
        if not jobs:
            return
        views = []
        for job in jobs:
            placed = self._views.get(job.id) or self._views.setdefault(job.id, Placed(job))
            placed.look(not free and job.phase is Phase.RUNNING and job.id != at_boundary and job.has_epochs)
            views.append(placed)
        wanted = self.policy.allocate(views, self._cluster(view)).allocations
        growing: list[tuple[JobState, Allocation]] = []
        for placed in views:
            job = placed.job
            if placed.busy or job.phase is Phase.DRAINING or (goal := wanted[placed.id]) == placed.current:
                continue
            if job.phase is not Phase.RUNNING:
                if goal:
                    growing.append((job, goal))
            elif goal is None:
                yield Preempt(job.id)
            else:
                less = Allocation(min(goal.workers, job.workers), min(goal.servers, job.servers))
                if less == goal:
                    yield Resize(job.id, shrink(job.plan, less))
                else:
                    growing.append((job, goal))
        for job, goal in growing:
            kept: Plan = ()
            room = view.free
            if job.phase is Phase.RUNNING:
                # What it releases and what it takes are one change.
                kept = shrink(
                    job.plan, Allocation(min(goal.workers, job.workers), min(goal.servers, job.servers))
                )
                room = view.free.copy()
                give(room, job, job.plan)
                take(room, job, kept)
            plan = grow(room, job, kept, goal, whole=not kept)
            if job.phase is not Phase.RUNNING:
                if plan:
                    yield Start(job.id, plan)
            elif plan != job.plan:
                yield Resize(job.id, plan)

    def _count(self, event: Event, view: View) -> None:
        if isinstance(event, Boundary | Finished):
            self._views.pop(event.job, None)
            self._alone.discard(event.job)
        elif isinstance(event, Tick):
            self._views.clear()
        if isinstance(event, Arrived):
            job = view.jobs[event.job]
            pods = np.stack([job.worker, job.server, job.scheduler])
            most = np.array([job.maximum.workers, job.maximum.servers, 1]) @ pods
            self._most[job.id] = most, pods.max(axis=0)
            self._sum += most
            self._largest = np.maximum(self._largest, self._most[job.id][1])
        elif isinstance(event, Finished) and event.job in self._most:
            self._sum -= self._most.pop(event.job)[0]

    def _ample(self, view: View) -> bool:
        """Whether all jobs fit at their maximum at once, on whichever nodes their pods are.

        A pod fits on some node as long as the nodes hold, on average, less than a node's capacity minus that pod. Only
        for policies that declare that they then decide on each job alone (`separable`): they need not see all jobs
        whenever one ends an epoch.
        """
        if not getattr(self.policy, "separable", False) or len(self._most) != len(view.jobs):
            return False
        usable: FloatArray = np.maximum(0.0, view.capacity - self._largest).sum(axis=0)
        return bool((self._sum <= usable + TOLERANCE).all())

    def _cluster(self, view: View) -> ClusterView:
        if self._capacity is None or not np.array_equal(self._capacity, view.capacity):
            self._capacity = view.capacity.copy()
            rows = enumerate(view.capacity.tolist())
            self._nodes = ClusterView(tuple(Node(f"node-{at:05d}", Resources(*row)) for at, row in rows))
        return self._nodes


def shrink(plan: Plan, to: Allocation) -> Plan:
    """`plan` with at most as many workers and servers as `to`: pods on the nodes with the fewest are removed first."""
    workers, servers = sum(p[1] for p in plan) - to.workers, sum(p[2] for p in plan) - to.servers
    kept = {node: [w, s] for node, w, s in plan}
    for node, w, s in sorted(plan[1:], key=lambda part: (part[1] + part[2], -part[0])) + list(plan[:1]):
        less_workers, less_servers = min(w, max(0, workers)), min(s, max(0, servers))
        kept[node][0] -= less_workers
        kept[node][1] -= less_servers
        workers -= less_workers
        servers -= less_servers
    # The first node keeps the scheduler, even without another pod.
    return tuple((node, w, s) for at, (node, (w, s)) in enumerate(kept.items()) if at == 0 or w or s)


def grow(room: FloatArray, job: JobState, kept: Plan, to: Allocation, *, whole: bool) -> Plan:
    """`kept` with more pods, up to `to`, in the remaining `room`; () if `whole` and they do not all fit.

    To use few nodes, those that the job is on come first, then the one that takes the most pods, of equals the
    tightest.
    """
    plan = {node: [w, s] for node, w, s in kept}
    missing = [to.workers - sum(p[1] for p in kept), to.servers - sum(p[2] for p in kept)]
    first = not plan
    slack = room + TOLERANCE  # a copy
    while sum(missing) > 0:
        takes = _takes(slack, job, missing, scheduler=first)
        counts = takes.sum(axis=1)
        node = max(plan, key=lambda n: counts[n], default=-1)
        if node < 0 or not counts[node]:
            best = np.flatnonzero(counts == counts.max())
            if not counts[best[0]]:
                break
            node = int(best[np.argmin(slack[best].sum(axis=1))]) if len(best) > 1 else int(best[0])
        workers, servers = takes[node].tolist()
        part = plan.setdefault(node, [0, 0])
        part[0] += workers
        part[1] += servers
        missing[0] -= workers
        missing[1] -= servers
        slack[node] -= workers * job.worker + servers * job.server + (job.scheduler if first else 0.0)
        first = False
    if whole and sum(missing) > 0:
        return ()
    return tuple((node, w, s) for node, (w, s) in plan.items())


def _takes(slack: FloatArray, job: JobState, missing: Iterable[int], *, scheduler: bool) -> IntArray:
    """[node, (workers, servers)]: how many of the missing pods each node takes, servers and workers evenly."""
    left = slack - job.scheduler if scheduler else slack
    workers, servers = missing
    counts = np.zeros((len(slack), 2), int)
    if servers > 0:
        counts[:, 1] = np.minimum(servers, most(left, job.server))
        if workers > 0:
            # At least one worker on the servers' node if it fits.
            pair = most(left, job.worker + job.server)
            counts[:, 1] = np.minimum(counts[:, 1], np.maximum(1, pair)) * (counts[:, 1] > 0)
        left = left - counts[:, 1:] * job.server
    if workers > 0:
        counts[:, 0] = np.minimum(workers, most(left, job.worker))
    if scheduler:
        counts[(slack < job.scheduler).any(axis=1)] = 0
    return counts


def most(room: FloatArray, need: FloatArray) -> IntArray:
    """How many times `need` [resource] fits into each row of `room` [node, resource]; whole numbers."""
    needed = need > 0
    if not needed.any():
        return np.full(len(room), 1_000_000)
    counts: IntArray = np.maximum(0, np.floor(room[:, needed] / need[needed]).min(axis=1)).astype(np.intp)
    return counts


def take(room: FloatArray, job: JobState, plan: Plan) -> None:
    """Subtract what `plan` holds from `room`."""
    for place, (node, workers, servers) in enumerate(plan):
        room[node] -= workers * job.worker + servers * job.server + (job.scheduler if place == 0 else 0.0)


def give(room: FloatArray, job: JobState, plan: Plan) -> None:
    """Add what `plan` holds to `room`."""
    for place, (node, workers, servers) in enumerate(plan):
        room[node] += workers * job.worker + servers * job.server + (job.scheduler if place == 0 else 0.0)
