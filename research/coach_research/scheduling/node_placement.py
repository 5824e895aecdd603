"""How policies that only say how many answer events: their counts of workers and servers become pods on nodes.

`NodePlacement` asks the policy for all jobs at once, as its `cadence` says, and turns the decision into actions: first
those that release resources (smaller plans, jobs that must wait), then those that take them. Kept pods stay on their
nodes. A gang starts whole or not at all; a running job that cannot grow to its allocation grows as far as it fits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from coach.core.cluster import Allocation, Node, Resources, Role
from coach.core.policies.api.allocation import ClusterView, Objective
from coach.core.policies.api.policy import Policy
from coach.core.policies.fifo import FifoPolicy
from coach.core.policies.sharing.capacity import Vector
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.scheduling.ample import Ample
from coach_research.scheduling.api import (
    TRIAL,
    Arrived,
    EngineView,
    EpochEnded,
    Finished,
    JobId,
    JobState,
    NodeChanged,
    Phase,
    Preempt,
    PreemptionCompleted,
    Remaining,
    Resize,
    ScheduleTimer,
    SchedulingAction,
    SchedulingEvent,
    Start,
    TimerFired,
)
from coach_research.scheduling.fifo import FifoByEvents
from coach_research.scheduling.incremental import give, grow, shrink, take
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import FloatArray, Plan

#: The lowest speed that policies see: they divide by it.
SLOWEST = 1e-12


#: What a second of these resources, [resource], costs.
Price = Callable[[FloatArray], float]


def price_of(view: EngineView) -> Price:
    """The price of a second of what a job holds, by the prices of `view`.

    Without prices, as in a trace, it is counted in nodes: the largest of its shares of all cores, memory and GPUs,
    times the number of nodes. So a rented machine is paid, too.
    """
    if view.prices is not None:
        prices = np.array(view.prices)
        return lambda held: float(held @ prices)
    total = view.capacity.sum(axis=0)
    part = np.divide(len(view.capacity), total, out=np.zeros(3), where=total > 0)
    return lambda held: float((held * part).max())


class EngineJobView:
    """A `JobState` as allocation policies see it (`allocation.JobView`). Budgets are the driver's."""

    fixed = None
    #: Its speeds are known, so there are no mini-epochs.
    measured = ()
    begun = True
    objective = Objective.SOONEST

    def __init__(self, job: JobState, price: Price) -> None:
        """Valid until the job's speeds change. `price`: of a second of what it holds."""
        #: What policies computed from it (`allocation.kept`).
        self.memory: dict[Any, Any] = {}
        self.id = f"{job.id:08d}"
        self.job = job
        self._price = price
        self._costs: dict[Allocation, float] = {}
        self.created = job.arrived
        self.priority = job.priority
        self.trial = job.kind == TRIAL
        self.grace = job.grace
        self.minimum = job.minimum
        self.maximum = job.maximum
        self.busy = False
        self.deadline: float | None = None
        self.current: Allocation | None = None
        self._held: Plan | None = None
        self.restart_seconds = job.rescale_seconds
        self._remaining: Remaining | None = None
        self._speeds: dict[Allocation, float] = {}

    def look(self, busy: bool, now: float) -> None:
        """Update from what the job holds `now`."""
        job = self.job
        self.deadline = None if job.deadline == math.inf else job.arrived + job.deadline - now
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

    def speed(self, allocation: Allocation, kind: str | None = None, /) -> float:
        """Predicted epochs/s; on nodes like the first that it is on, else like the cluster's first."""
        del kind
        if allocation not in self._speeds:
            node = self._held[0][0] if self._held else 0
            self._speeds[allocation] = max(SLOWEST, self.job.speed(*allocation, node))
        return self._speeds[allocation]

    def epoch_cost(self, allocation: Allocation, /) -> float:
        """Currency units of an epoch; node-seconds where nothing has a price (`price_of`)."""
        found = self._costs.get(allocation)
        if found is None:
            job = self.job
            held = job.scheduler + allocation.workers * job.worker + allocation.servers * job.server
            found = self._costs[allocation] = self._price(held) / self.speed(allocation)
        return found

    def epoch_budget(self, _allocation: Allocation, /) -> None:
        """None: it has no budget."""
        return None

    def affordable(self, _allocation: Allocation, /) -> bool:
        """True: it has no budget."""
        return True


def _pods(job: JobState, counts: Allocation) -> Counter[Vector]:
    """The pods of a job, by their requests."""
    found = Counter[Vector]()
    for request, count in ((job.worker, counts.workers), (job.server, counts.servers), (job.scheduler, 1)):
        cpu, memory, gpu = request.tolist()
        if count and (cpu or memory or gpu):
            found[cpu, memory, gpu] += count
    return found


@dataclass
class NodePlacement:
    """With a cadence all jobs are decided at each of its ticks; without one, each at its epochs."""

    policy: Policy
    view: EngineView
    #: The pods of each live job's maximum, by their requests, and whether those of all fit; None: not asked yet.
    _most: dict[JobId, Counter[Vector]] = field(default_factory=dict, init=False)
    _ample: Ample | None = field(default=None, init=False)
    #: Each live job's view since its last epoch.
    _views: dict[JobId, EngineJobView] = field(default_factory=dict, init=False)
    #: Running tasks that were not decided on alone since all jobs fit: then nothing of theirs changes while all fit.
    _unasked: set[JobId] = field(default_factory=set, init=False)
    #: Tasks that are being preempted.
    _leaving: set[JobId] = field(default_factory=set, init=False)
    #: Live jobs whose allocation may change while they run; not those of one size without epochs.
    _elastic: set[JobId] = field(default_factory=set, init=False)
    #: Whether a timer is under way.
    _timer_set: bool = field(default=False, init=False)
    _nodes: ClusterView = field(default=ClusterView(()), init=False)
    _capacity: FloatArray | None = field(default=None, init=False)
    _price: Price = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._price = price_of(self.view)

    def schedule(self, event: SchedulingEvent) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        cadence, view = self.policy.cadence, self.view
        self._count(event)
        if cadence is None:
            yield from self._decide(event.job if isinstance(event, EpochEnded) else None)
        elif isinstance(event, TimerFired):
            self._timer_set = False
            yield from self._decide(None)
        if cadence is not None and not self._timer_set and view.jobs:
            self._timer_set = True
            slots = view.now / cadence
            due = round(slots) + 1 if isinstance(event, TimerFired) else math.ceil(slots - TOLERANCE)
            yield ScheduleTimer(max(view.now, due * cadence))

    def _decide(self, at_boundary: JobId | None) -> Iterator[SchedulingAction]:
        """Call the policy and carry out its decision.

        Without a cadence a job with epochs changes only while it waits or is `at_boundary`.
        """
        view, free = self.view, self.policy.cadence is not None
        if not (free or self._elastic or view.waiting):
            return  # no job can start, and those that run cannot change
        if not free and self._all_fit():
            # Each job's allocation depends on that job alone, and only these can change now.
            moving = {*view.waiting, *self._leaving, *self._unasked}
            if at_boundary is not None:
                moving.add(at_boundary)
            jobs = [view.jobs[number] for number in sorted(moving)]
            self._unasked.clear()
        else:
            # Preempted tasks count as waiting at once: without them each one's end would find room for it again.
            jobs = [job for job in view.jobs.values() if job.phase is not Phase.DRAINING or not job.has_epochs]
            self._unasked = {job.id for job in jobs if not job.has_epochs}
        if not jobs:
            return
        views = []
        for job in jobs:
            placed = self._views.get(job.id) or self._views.setdefault(job.id, EngineJobView(job, self._price))
            placed.look(not free and job.phase is Phase.RUNNING and job.id != at_boundary and job.has_epochs, view.now)
            views.append(placed)
        wanted = self.policy.allocate(views, self._cluster()).allocations
        growing: list[tuple[JobState, Allocation]] = []
        for placed in views:
            job = placed.job
            if placed.busy or job.phase is Phase.DRAINING or (goal := wanted[placed.id]) == placed.current:
                continue
            if job.phase is not Phase.RUNNING:
                if goal:
                    growing.append((job, goal))
            elif goal is None:
                if not job.has_epochs:
                    self._leaving.add(job.id)
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
                kept = shrink(job.plan, Allocation(min(goal.workers, job.workers), min(goal.servers, job.servers)))
                room = view.free.copy()
                give(room, job, job.plan)
                take(room, job, kept)
            plan = grow(room, job, kept, goal, whole=not kept)
            if job.phase is not Phase.RUNNING:
                if plan:
                    yield Start(job.id, plan)
            elif plan != job.plan:
                yield Resize(job.id, plan)

    def _count(self, event: SchedulingEvent) -> None:
        if isinstance(event, EpochEnded | Finished):
            self._views.pop(event.job, None)
        elif isinstance(event, TimerFired):
            self._views.clear()
        if isinstance(event, Arrived):
            job = self.view.jobs[event.job]
            if job.has_epochs or job.minimum != job.maximum:
                self._elastic.add(job.id)
            if self.policy.separable or self.policy.separable_if_rigid:
                self._most[job.id] = pods = _pods(job, job.maximum)
                if self._ample is not None:
                    self._ample.come(pods)
        elif isinstance(event, Finished):
            self._elastic.discard(event.job)
            self._unasked.discard(event.job)
            self._leaving.discard(event.job)
            if event.job in self._most:
                pods = self._most.pop(event.job)
                if self._ample is not None:
                    self._ample.go(pods)
        elif isinstance(event, PreemptionCompleted):
            self._leaving.discard(event.job)
        elif isinstance(event, NodeChanged):
            self._leaving.difference_update(event.jobs)
            self._unasked.difference_update(event.jobs)

    def _all_fit(self) -> bool:
        """Whether all jobs fit at their maximum at once, on the nodes without what they hold.

        Only for policies that declare that they then decide on each job alone (`separable`,
        `separable_if_rigid`): they need not see all jobs
        whenever something happens to one.
        """
        separable = self.policy.separable or (self.policy.separable_if_rigid and not self._elastic)
        if not separable or len(self._most) != len(self.view.jobs):
            return False
        nodes = self._cluster().nodes
        if self._ample is None or self._ample.nodes is not nodes:
            self._ample = Ample(nodes, sum(self._most.values(), Counter()))
        return self._ample.fits()

    def _cluster(self) -> ClusterView:
        capacity = self.view.capacity
        if self._capacity is None or not np.array_equal(self._capacity, capacity):
            self._capacity = capacity.copy()
            rows = zip(capacity.tolist(), self.view.kinds, strict=True)
            nodes = (Node(f"node-{at:05d}", Resources(*row), kind=kind) for at, (row, kind) in enumerate(rows))
            self._nodes = ClusterView(tuple(nodes))
        return replace(self._nodes, now=self.view.now)


class EventPolicy(Protocol):
    """What the engine calls."""

    @property
    def wants(self) -> frozenset[type]:
        """See `SchedulingPolicy`."""

    def schedule(self, event: SchedulingEvent, view: EngineView, /) -> Iterable[SchedulingAction]:
        """See `SchedulingPolicy`."""


class Placed:
    """A policy that only says how many, as an `EventPolicy` of one run."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._placement: NodePlacement | None = None
        #: With a cadence no job is asked about at its epochs.
        self.wants: frozenset[type] = frozenset() if policy.cadence else frozenset({EpochEnded})

    def schedule(self, event: SchedulingEvent, view: EngineView, /) -> Iterable[SchedulingAction]:
        """See `NodePlacement`."""
        self._placement = self._placement or NodePlacement(self._policy, view)
        return self._placement.schedule(event)


def by_events(policy: Policy | EventPolicy) -> EventPolicy:
    """What answers events for `policy`."""
    if isinstance(policy, FifoPolicy):
        return FifoByEvents(policy.cadence)
    return Placed(policy) if isinstance(policy, Policy) and not isinstance(policy, SchedulingPolicy) else policy
