"""Scheduling policies, and how they answer `Policy.allocate`: they plan, and each live job follows at its boundaries.

`PlannedAllocation` keeps every job with the plan that the policy gave it. At each call of `allocate` it sends the
policy the events since the last call (arrivals, ends, completed preemptions, epochs, due timers), carries out its
actions on these plans, and answers with them: counts as allocations, nodes as `places`. A live job follows:

* Start, Resize, Migrate: the job's next epoch has these pods on these nodes. A pod on another node is ended and
  replaced by a new one, from the last checkpoint.
* Preempt, Reserve: the job gets nothing; its preemption is completed when it holds nothing any more.
* Kill: only its user ends a live job. A killed job goes back to the end of the queue, as if it arrived again.
* ScheduleTimer: it fires with the first call after its time.

Where a job in the middle of an epoch still holds the capacity of another job's plan, that job waits, or keeps what it
has, until the next call. The policy does not decide on probes.

It has state. A handler that starts again has no plans, and all its jobs arrive again; a policy with `remembered` and
`recall` gets back what it knew about them (SpeCon's categories).
"""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from coach.core.cluster import Allocation, Role
from coach.core.policies.api.allocation import (
    AllocationDecision,
    ClusterView,
    JobView,
    Reason,
    Step,
    queue_order,
)
from coach.core.policies.api.policy import Policy
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    EpochEnded,
    Finished,
    JobId,
    Kill,
    Migrate,
    NodeChanged,
    NodeId,
    Phase,
    PolicyError,
    Preempt,
    PreemptionCompleted,
    Reserve,
    Resize,
    ScheduleTimer,
    SchedulingAction,
    SchedulingEvent,
    Start,
    TimerFired,
    demand,
)
from coach_research.scheduling.incremental import take
from coach_research.scheduling.planned_jobs import LiveJob, PlannedCluster, PlannedJob
from coach_research.scheduling.validation import check
from coach_research.workload import FloatArray, Plan, totals


class SchedulingPolicy(Policy):
    """Reacts to events (`schedule`): it chooses nodes, and may preempt, move and reserve."""

    chooses_nodes: ClassVar[bool] = True
    #: Types of events that cost time and are sent only where wanted: `EpochEnded`.
    wants: frozenset[type] = frozenset()

    @abstractmethod
    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterable[SchedulingAction]:
        """The actions that follow from `event`; the rules are in `coach_research.scheduling.api`."""

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`: what it has planned so far, as far as live jobs can follow (`PlannedAllocation`)."""
        return self._planned.allocate(jobs, cluster)

    @property
    def places(self) -> Mapping[str, Mapping[str, Allocation]]:  # type: ignore[override]
        """See `Policy`."""
        return self._planned.places

    def memory(self, job: str) -> dict[str, Any]:
        """See `Policy`."""
        return self._planned.memory(job)

    def remembered(self, job: JobId, /) -> dict[str, Any]:
        """The state to save about a job, as JSON values; {}: nothing."""
        return {}

    def recall(self, job: JobId, known: Mapping[str, Any], /) -> None:
        """Restore what `remembered` returned, for a job that is about to arrive."""

    @cached_property
    def _planned(self) -> PlannedAllocation:
        return PlannedAllocation(self)


@dataclass(slots=True)
class PlannedAllocation:
    """The answer of a scheduling policy to `Policy.allocate`."""

    policy: SchedulingPolicy
    #: By job, the allocation on each node as decided last. For the driver, in addition to the allocations.
    places: dict[str, dict[str, Allocation]] = field(default_factory=dict, init=False)
    cluster: PlannedCluster = field(default_factory=PlannedCluster, init=False)
    _numbers: dict[str, JobId] = field(default_factory=dict, init=False)
    _next: JobId = field(default=0, init=False)
    _timers: list[float] = field(default_factory=list, init=False)
    _coming: dict[JobId, PlannedJob] = field(default_factory=dict, init=False)
    _events: deque[SchedulingEvent] = field(default_factory=deque, init=False)

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy.allocate`."""
        self._look(sorted(jobs, key=queue_order), cluster)  # type: ignore[arg-type]
        self._tell()
        while self._timers and self._timers[0] <= self.cluster.now:
            self._events.append(TimerFired(heapq.heappop(self._timers)))
            self._tell()
        return self._answer(jobs)

    def memory(self, job: str) -> dict[str, Any]:
        """See `Policy.memory`."""
        number = self._numbers.get(job)
        return {} if number is None else self.policy.remembered(number)

    # -- what happened ---------------------------------------------------------------------------------------------

    def _look(self, jobs: Sequence[LiveJob], cluster: ClusterView) -> None:
        """Update the jobs to their present state, and note the events since the last call."""
        planned = self.cluster
        planned.now = max(planned.now, cluster.now)
        rows = [(n.capacity.cpu, n.capacity.memory, n.capacity.gpu) for n in cluster.nodes]
        names = tuple(node.name for node in cluster.nodes)
        planned.capacity = np.array(rows, float).reshape(-1, 3)
        planned.kinds = tuple(node.kind for node in cluster.nodes)
        if names != planned.names:
            self._other_nodes(names)
        planned.count()
        alive = {job.id for job in jobs}
        for name in [name for name in self._numbers if name not in alive]:
            job = planned.jobs[self._numbers.pop(name)]
            self._events.append(Finished(job.id, job.plan, job))
        for view in jobs:
            if view.id not in self._numbers:
                self._arrive(view)
                continue
            job = planned.jobs[self._numbers[view.id]]
            job.look(view)
            job.kinds = planned.kinds
            if job.phase is Phase.DRAINING and not view.busy and view.current is None:
                plan = job.plan
                planned.put(job, Phase.WAITING, ())
                self._events.append(PreemptionCompleted(job.id, plan))
            elif math.floor(view.done) > job.seen and job.phase is Phase.RUNNING:
                job.seen = math.floor(view.done)
                if EpochEnded in self.policy.wants:
                    self._events.append(EpochEnded(job.id, int(job.seen)))

    def _other_nodes(self, names: tuple[str, ...]) -> None:
        """The cluster's nodes have changed: plans keep those that remain, by their new numbers."""
        planned = self.cluster
        numbers = {name: number for number, name in enumerate(names)}
        lost = [number for number, name in enumerate(planned.names) if name not in numbers]
        hit: dict[NodeId, list[JobId]] = {number: [] for number in lost}
        homeless = []
        for job in planned.jobs.values():
            gone = [part[0] for part in job.plan if part[0] in hit]
            if gone:
                hit[gone[0]].append(job.id)
                homeless.append(job)
                job.plan = ()
            else:
                job.plan = tuple((numbers[planned.names[node]], w, s) for node, w, s in job.plan)
        for job in homeless:
            planned.put(job, Phase.WAITING, ())
        self._events.extend(NodeChanged(node, False, tuple(ids)) for node, ids in hit.items() if ids)
        planned.names = names

    def _arrive(self, view: LiveJob) -> None:
        requests = {role: np.array([r.cpu, r.memory, r.gpu]) for role, r in view.requests.items()}
        number, self._next = self._next, self._next + 1
        now = self.cluster.now
        job = PlannedJob(
            number, view, view.created, now, requests[Role.WORKER], requests[Role.SERVER], requests[Role.SCHEDULER]
        )  # fmt: skip
        job.kinds = self.cluster.kinds
        self._numbers[view.id] = number
        self._coming[number] = job
        if known := view.policy_state:
            self.policy.recall(number, known)
        self._events.append(Arrived(number))

    def _leave(self, job: PlannedJob, killed: bool) -> None:
        plan = job.plan
        self.cluster.put(job, Phase.DRAINING, ())
        del self.cluster.jobs[job.id]
        self._say(Finished(job.id, plan, job, killed))

    # -- what the policy does ----------------------------------------------------------------------------------------

    def _tell(self) -> None:
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Arrived):
                # The policy sees a job from its arrival event to its end event.
                job = self._coming.pop(event.job)
                self.cluster.jobs[job.id] = self.cluster.waiting[job.id] = job
                self._say(event)
            elif isinstance(event, Finished):
                # Unless the policy has killed it since.
                if event.job in self.cluster.jobs:
                    self._leave(self.cluster.jobs[event.job], event.killed)
            else:
                self._say(event)

    def _say(self, event: SchedulingEvent) -> None:
        for action in self.policy.schedule(event, self.cluster):
            self._carry_out(action)

    def _carry_out(self, action: SchedulingAction) -> None:
        planned = self.cluster
        if isinstance(action, ScheduleTimer):
            heapq.heappush(self._timers, action.at)
            return
        job = check(action, planned.jobs.get(action.job), planned.now)
        match action:
            case Start() | Resize() | Migrate():
                job.migrations += isinstance(action, Migrate)
                job.resizes += isinstance(action, Resize)
                if job.started != job.started:
                    job.started = planned.now
                planned.put(job, Phase.RUNNING, action.plan)
                self._check_room(action)
            case Reserve():
                planned.put(job, Phase.HOLDING if action.plan else Phase.WAITING, action.plan)
                self._check_room(action)
            case Preempt():
                job.preemptions += 1
                planned.put(job, Phase.DRAINING, job.plan)
            case Kill():
                self._leave(job, killed=True)
                self._arrive(job.view)

    def _check_room(self, action: Start | Resize | Migrate | Reserve) -> None:
        """Check the plan's nodes only: on others an ending job or a probe may hold more than its plan."""
        free = self.cluster.free[[node for node, _, _ in action.plan]]
        if (free < -TOLERANCE).any():
            raise PolicyError(f"{self.policy.name}: {action}: more than there is, by {free.min():.4g}")

    # -- the answer --------------------------------------------------------------------------------------------------

    def _answer(self, views: Sequence[JobView]) -> AllocationDecision:
        planned = self.cluster
        allocations: dict[str, Allocation | None] = {view.id: None for view in views}
        self.places = {}
        room = planned.capacity.copy()
        busy = [job for job in planned.jobs.values() if job.view.busy]
        for job in busy:
            take(room, job, self._standing(job))
        for job in [*busy, *(job for job in planned.running.values() if not job.view.busy)]:
            if job.phase is not Phase.RUNNING:
                continue
            fixed = job.view.fixed
            planned_so = (job.plan,) if totals(job.plan) == fixed else ()
            for plan in self._choices(job) if fixed is None else planned_so:
                if job.view.busy or self._fits(room, job, plan):
                    allocations[job.name] = totals(plan)
                    self.places[job.name] = {planned.names[n]: Allocation(w, s) for n, w, s in plan}
                    if not job.view.busy:
                        take(room, job, plan)
                    break
            if fixed is not None:
                allocations[job.name] = fixed
        steps = [
            Step(job.name, job.view.current, given, Reason.PLANNED if given else Reason.QUEUE)
            for job in planned.jobs.values()
            for given in (allocations[job.name],)
        ]
        return AllocationDecision(allocations, tuple(steps))

    def _choices(self, job: PlannedJob) -> Iterator[Plan]:
        """Plans for a running job, best first: its plan, what it has, its plan with fewer and fewer workers."""
        yield job.plan
        held = self._standing(job)
        if held and job.minimum.workers <= totals(held).workers and job.minimum.servers <= totals(held).servers:
            yield held
        plan = list(job.plan)
        while sum(part[1] for part in plan) > job.minimum.workers:
            at = max(place for place, part in enumerate(plan) if part[1])
            node, workers, servers = plan[at]
            plan[at] = (node, workers - 1, servers)
            yield tuple(part for place, part in enumerate(plan) if part[1] or part[2] or place == 0)

    def _standing(self, job: PlannedJob) -> Plan:
        names = self.cluster.names
        return tuple((names.index(n), *counts) for n, counts in job.view.standing.items() if n in names)

    @staticmethod
    def _fits(room: FloatArray, job: PlannedJob, plan: Plan) -> bool:
        return all((need <= room[node] + TOLERANCE).all() for node, need in demand(job, plan).items())
