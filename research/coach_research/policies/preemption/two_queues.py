"""What FitGpp, LRTP and RAND share: two FIFO queues, and best-effort jobs that are preempted by trial-and-error jobs.

FitGpp paper, section 2.1: "When a TE job arrives at a job queue, one or more BE jobs are suspended to make room
for the incoming TE job if the resource is insufficient. The preempted BE jobs are placed back on the top of the
queue to observe the FIFO."

Where the paper says nothing:

- Trial-and-error (TE) jobs have a FIFO queue of their own, ahead of that of the best-effort (BE) jobs. A TE job for
  which no preemption suffices waits at its head, and while it waits no BE job starts.
- The BE queue is in order of arrival. Preempted jobs arrived before all that never ran, so they are at its top.
- The capacity reserved for a TE job on a node, minus what its victims will release there, is kept from all others
  during the grace period. The job starts on that node as soon as it fits there, even before its victims are gone.
- A job gets its maximum, as its user specified, or waits; a single task goes to the node with the least left over
  (best fit), a larger job to few nodes (`incremental.grow`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, ClassVar

import numpy as np

from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.policies.preemption.between_epochs import BetweenEpochs
from coach_research.policies.preemption.candidates import BestEffort
from coach_research.policies.preemption.victims import Fits, Running
from coach_research.scheduling.api import (
    TRIAL,
    Arrived,
    EngineView,
    Finished,
    JobId,
    JobState,
    NodeChanged,
    NodeId,
    Preempt,
    PreemptionCompleted,
    SchedulingAction,
    SchedulingEvent,
    Start,
    demand,
)
from coach_research.scheduling.best_fit import best_fit, single, still_fits, weights
from coach_research.scheduling.incremental import grow
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import FloatArray, Plan

#: No demand.
NOTHING: FloatArray = np.zeros(3)


@dataclass(slots=True)
class Promise:
    """Capacity reserved for a TE job that waits for its victims."""

    job: JobState
    plan: Plan
    #: What it will hold, by node.
    need: dict[NodeId, FloatArray]
    #: What its victims still hold, by victim and node.
    coming: dict[JobId, dict[NodeId, FloatArray]]

    def kept(self, node: NodeId) -> FloatArray:
        """The part of a node's free capacity kept for it: its need minus what its victims will release there."""
        coming = sum((held[node] for held in self.coming.values() if node in held), NOTHING)
        kept: FloatArray = np.maximum(self.need[node] - coming, 0.0)
        return kept


@dataclass
class TrialFirst(SchedulingPolicy):
    """See the module. Subclasses choose the victims: `_tasks` by arrays, `_choice` for jobs of any shape."""

    #: P: how often a best-effort job may be preempted.
    most: int = field(default=1, metadata={"symbol": "P"})
    chooses_nodes: ClassVar[bool] = False
    preempts: ClassVar[bool] = True

    _between: BetweenEpochs | None = field(default=None, init=False, repr=False)
    _trials: deque[JobId] = field(default_factory=deque, init=False, repr=False)
    #: A heap: jobs are numbered in order of arrival.
    _others: list[JobId] = field(default_factory=list, init=False, repr=False)
    #: Heads that fit on no node: they are tried again only on nodes where pods were released.
    _stuck: set[JobId] = field(default_factory=set, init=False, repr=False)
    _promises: dict[JobId, Promise] = field(default_factory=dict, init=False, repr=False)
    #: The promises on each node.
    _promised: dict[NodeId, list[Promise]] = field(default_factory=dict, init=False, repr=False)
    _of_victim: dict[JobId, Promise] = field(default_factory=dict, init=False, repr=False)
    _running: BestEffort | None = field(default=None, init=False, repr=False)
    #: [node, resource]: kept for promises; and each resource's weight in a node's slack.
    _kept: FloatArray = field(default_factory=lambda: NOTHING, init=False, repr=False)
    _weight: FloatArray = field(default_factory=lambda: NOTHING, init=False, repr=False)

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`: the same rule for live jobs, between their epochs."""
        if self._between is None:
            self._between = BetweenEpochs(self._choice, self._lots)
        return self._between.allocate(jobs, cluster)

    def memory(self, job: str) -> dict[str, Any]:
        """See `Policy`."""
        return self._between.memory(job) if self._between is not None else {}

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        if self._running is None:
            self._begin(view)
        assert self._running is not None
        match event:
            case Arrived(number):
                if view.jobs[number].kind == TRIAL:
                    self._trials.append(number)
                else:
                    heappush(self._others, number)
                # Behind other waiting jobs there is nothing to do: nothing was released.
                if self._trials[0] != number if self._trials else self._others[0] != number:
                    return
                freed: tuple[NodeId, ...] = ()
            case Finished(number, plan, _, killed):
                self._running.remove(number)
                if killed:
                    self._strike(number)
                freed = tuple(part[0] for part in plan)
            case PreemptionCompleted(number, plan):
                heappush(self._others, number)
                freed = tuple(part[0] for part in plan)
                if (promise := self._of_victim.pop(number, None)) is not None:
                    del promise.coming[number]
                    self._keep(promise)
            case NodeChanged(node, up, lost):
                freed = (node,) if up else ()
                self._stuck.clear()
                self._lose(node, lost, view)
            case _:
                return
        if self._promised:
            for node in freed:
                for promise in list(self._promised.get(node, ())):
                    if self._ready(promise, view):
                        self._fulfil(promise)
                        yield Start(promise.job.id, promise.plan)
        yield from self._serve(view, freed)

    def _begin(self, view: EngineView) -> None:
        self._weight = weights(view.capacity)
        self._running = BestEffort(self._weight, self.most)
        self._kept = np.zeros_like(view.capacity)

    # -- the queues ------------------------------------------------------------------------------------------------

    def _serve(self, view: EngineView, freed: tuple[NodeId, ...]) -> Iterator[SchedulingAction]:
        """Start the jobs that fit, in turn; preempt for TE jobs."""
        running = self._running
        assert running is not None
        while self._trials:
            job = view.jobs[self._trials[0]]
            plan = self._place(job, view, freed)
            if plan:
                self._trials.popleft()
                self._stuck.discard(job.id)
                yield Start(job.id, plan)
                continue
            room = self._room(view)
            victims = self._victims(job, room, view)
            if not victims:
                self._wait(job)
                return
            self._trials.popleft()
            self._stuck.discard(job.id)
            self._promise(job, victims, room, view)
            for victim in victims:
                running.remove(victim.id)
                yield Preempt(victim.id)
        while self._others:
            job = view.jobs[self._others[0]]
            plan = self._place(job, view, freed)
            if not plan:
                self._wait(job)
                return
            heappop(self._others)
            self._stuck.discard(job.id)
            yield Start(job.id, plan)
            self._note(job, plan, view)

    def _place(self, job: JobState, view: EngineView, freed: tuple[NodeId, ...]) -> Plan:
        """Nodes for a job's maximum; () where it does not fit. A stuck job is tried on `freed` nodes only."""
        room = self._room(view)
        if job.id in self._stuck:
            return still_fits(room, job, freed)
        if not single(job):
            return grow(room, job, (), job.maximum, whole=True)
        return best_fit(room, job, self._weight)

    def _wait(self, job: JobState) -> None:
        """The head of a queue fits on no node."""
        if single(job):
            self._stuck.add(job.id)

    def _room(self, view: EngineView) -> FloatArray:
        """Free and not promised capacity, [node, resource]: N of equation 2."""
        return view.free - self._kept if self._promised else view.free

    def _note(self, job: JobState, plan: Plan, view: EngineView) -> None:
        assert self._running is not None
        if single(job):
            self._running.add(job, job.worker, plan[0][0], self._end(job, view))
        else:
            held = sum(demand(job, plan).values(), NOTHING)
            self._running.add(job, held, -1, math.nan)

    def _strike(self, number: JobId) -> None:
        """Remove a killed job, which may have waited."""
        self._stuck.clear()
        if number in self._promises:
            self._fulfil(self._promises[number])
        if (promise := self._of_victim.pop(number, None)) is not None:
            del promise.coming[number]
            self._keep(promise)
        self._trials = deque(waiting for waiting in self._trials if waiting != number)
        self._others = sorted(waiting for waiting in self._others if waiting != number)

    # -- promises --------------------------------------------------------------------------------------------------

    def _promise(self, job: JobState, victims: Sequence[JobState], room: FloatArray, view: EngineView) -> None:
        """Reserve for `job` what the victims release."""
        held = {victim.id: demand(victim, victim.plan) for victim in victims}
        if single(job):
            # The node on which the job then fits: that of the last victim, or of an earlier one.
            node = next(at for v in reversed(victims) for at in held[v.id] if _suffices(at, held, room, job))
            plan: Plan = ((node, 1, 0),)
        else:
            after = room.copy()
            for nodes in held.values():
                for at, amount in nodes.items():
                    after[at] += amount
            plan = grow(after, job, (), job.maximum, whole=True)
        need = demand(job, plan)
        promise = Promise(job, plan, need, held)
        self._promises[job.id] = promise
        for victim in victims:
            self._of_victim[victim.id] = promise
        for at in need:
            self._promised.setdefault(at, []).append(promise)
        self._keep(promise)

    def _keep(self, promise: Promise) -> None:
        for node in promise.need:
            self._kept[node] = sum((other.kept(node) for other in self._promised.get(node, ())), NOTHING)

    def _ready(self, promise: Promise, view: EngineView) -> bool:
        """Whether its plan fits now, in addition to what is kept for others."""
        return all(
            bool((view.free[node] - self._kept[node] + promise.kept(node) >= need - TOLERANCE).all())
            for node, need in promise.need.items()
        )

    def _fulfil(self, promise: Promise) -> None:
        """End a promise that is fulfilled or void: its capacity is not kept any longer."""
        del self._promises[promise.job.id]
        for victim in promise.coming:
            del self._of_victim[victim]
        for node in promise.need:
            self._promised[node].remove(promise)
            if not self._promised[node]:
                del self._promised[node]
        self._keep(promise)

    def _lose(self, node: NodeId, lost: tuple[JobId, ...], view: EngineView) -> None:
        """Queue the jobs of a lost node again, and the jobs that were promised capacity there."""
        assert self._running is not None
        for promise in list(self._promised.get(node, ())):
            self._fulfil(promise)
            self._trials.appendleft(promise.job.id)
        for number in lost:
            if (promise_of := self._of_victim.pop(number, None)) is not None:
                del promise_of.coming[number]
                self._keep(promise_of)
            self._running.remove(number)
            if view.jobs[number].kind == TRIAL:
                self._trials.append(number)
            else:
                heappush(self._others, number)
        self._trials = deque(sorted(self._trials))

    # -- victims ---------------------------------------------------------------------------------------------------

    def _victims(self, job: JobState, room: FloatArray, view: EngineView) -> list[JobState]:
        """The jobs to preempt for `job`; [] where no preemption suffices."""
        assert self._running is not None
        if not len(self._running):
            return []
        room = self._counted(room)
        if single(job) and not self._running.wide:
            return [view.jobs[number] for number in self._tasks(job, room, self._running)]
        return self._any(job, room, view, self._running)

    def _counted(self, room: FloatArray) -> FloatArray:
        """What counts in addition to what the victims release, [node, resource]: N of equation 2."""
        return room

    def _end(self, _job: JobState, _view: EngineView) -> float:
        """When a single task that starts now is predicted to end, for rules that use it."""
        return math.nan

    @abstractmethod
    def _tasks(self, job: JobState, room: FloatArray, running: BestEffort) -> list[JobId]:
        """Victims among single tasks, for a single task."""

    def _lots(self, count: int) -> Sequence[float]:
        """A random lot for each, under RANDOM."""
        return [0.0] * count

    def _any(self, job: JobState, room: FloatArray, view: EngineView, running: BestEffort) -> list[JobState]:
        """Victims among jobs of any shape, for a job of any shape."""
        jobs = sorted(running.jobs, key=lambda other: other.id)
        held = {other.id: demand(other, other.plan) for other in jobs}
        candidates = [
            Running(
                other.id,
                sum(held[other.id].values(), NOTHING) * self._weight,
                other.grace,
                other.preemptions,
                other.priority,
                seconds_left(other),
                lot=lot,
            )
            for other, lot in zip(jobs, self._lots(len(jobs)), strict=True)
        ]

        def fits(gone: Sequence[Running]) -> bool:
            after = room.copy()
            for one in gone:
                for node, amount in held[int(one.job)].items():
                    after[node] += amount
            return bool(grow(after, job, (), job.maximum, whole=True))

        chosen = self._choice(candidates, fits, job.priority)
        return [view.jobs[int(one.job)] for one in chosen]

    @abstractmethod
    def _choice(self, candidates: Sequence[Running], fits: Fits, priority: int) -> list[Running]:
        """`choose`, with the rule's parameters."""


def seconds_left(job: JobState) -> float:
    """Predicted seconds until a running job ends."""
    speed = job.speed(job.workers, job.servers)
    return job.remaining().expected / speed if speed > 0 else math.inf


def _suffices(node: NodeId, held: dict[JobId, dict[NodeId, FloatArray]], room: FloatArray, job: JobState) -> bool:
    there = room[node] + sum((nodes[node] for nodes in held.values() if node in nodes), NOTHING)
    return bool((there >= job.worker - TOLERANCE).all())
