"""Scheduling in rounds, as Gavel does it (Narayanan et al., OSDI 2020, section 5): each round the first in a line run.

At the end of a round the next one's jobs are those first in the line of a policy (`line`) that fit; a job that does
not fit is passed over. Each gets all its pods, on any nodes; a policy that knows kinds of nodes says how many pods on
which kind (`turns`). A job that ran before keeps its nodes if it can: jobs with more pods
are placed first, and of those with as many first the ones that stay. Everybody else is preempted, and what was freed
is given to the new jobs as it becomes free. With `lead` a round is decided so many seconds before it begins, as on
Gavel's real clusters: a job that ends in between leaves its nodes idle for a round, and one that arrives waits for
the next.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from coach.core.cluster import Allocation
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    Finished,
    IntArray,
    JobId,
    JobState,
    NodeChanged,
    NodeId,
    Phase,
    Preempt,
    PreemptionCompleted,
    Reserve,
    ScheduleTimer,
    SchedulingAction,
    SchedulingEvent,
    Start,
    TimerFired,
    demand,
)
from coach_research.scheduling.incremental import grow, most, take
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import FloatArray, Plan, totals


class Turn(NamedTuple):
    """What a job has in a round: so many workers and servers, on nodes of one kind; None: on any."""

    size: Allocation
    kind: str | None = None


@dataclass
class Rounds(SchedulingPolicy):
    """See the module. A policy defines `line`, or `turns`."""

    round: float = 120.0
    lead: float = 0.0

    #: When the next round should begin, and whether this one has: between two, jobs have left and none has started.
    _begins: float = field(default=-1.0, init=False, repr=False)
    _between: bool = field(default=False, init=False, repr=False)
    #: The jobs of the coming round; None: not decided yet.
    _next: dict[JobId, Turn] | None = field(default=None, init=False, repr=False)
    #: Jobs of this round whose nodes are not free yet.
    _starting: dict[JobId, Plan] = field(default_factory=dict, init=False, repr=False)
    #: Their places in that order, and by node those that wait for it.
    _places: dict[JobId, int] = field(default_factory=dict, init=False, repr=False)
    _awaited: dict[NodeId, list[JobId]] = field(default_factory=dict, init=False, repr=False)
    #: The last timer; since when the jobs that run do, and what others, and they before, had run.
    _looked: float = field(default=0.0, init=False, repr=False)
    _began: dict[JobId, float] = field(default_factory=dict, init=False, repr=False)
    _before: dict[JobId, float] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def line(self, jobs: list[JobState], view: EngineView) -> Iterable[JobState]:
        """All `jobs` (in order of arrival), those first that should run in the coming round."""

    def turns(self, jobs: list[JobState], view: EngineView) -> Iterable[tuple[JobState, Turn]]:
        """The same, with what each gets; a job that is there several times gets the first that fits."""
        whole: dict[Allocation, Turn] = {}
        for job in self.line(jobs, view):
            yield job, whole.get(job.maximum) or whole.setdefault(job.maximum, Turn(job.maximum))

    def takes_all(self, view: EngineView) -> bool:
        """Whether all jobs run, each with its maximum and on any nodes, where there is room for all."""
        del view
        return False

    def count(self, view: EngineView) -> None:
        """Count a coming round in which all jobs run. Nobody is in line."""
        list(self.line(by_arrival(view), view))

    def ran(self, job: JobId) -> float:
        """Seconds that a job has run, as of the last timer."""
        return self._before.get(job, 0.0) + max(0.0, self._looked - self._began.get(job, self._looked))

    def switch_seconds(self, leaving: int) -> float:
        """How long after the end of a round the next one begins, when `leaving` jobs were preempted."""
        del leaving
        return 0.0

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        self.note(event, view)
        if isinstance(event, Arrived):
            if self._begins < view.now:
                self._begins = view.now
                yield ScheduleTimer(view.now)
        elif not isinstance(event, TimerFired):
            if not self._between:
                yield from self._start(view, event)
        elif event.at < self._begins:
            self._next = self._choose(view)
        elif self._between:
            yield from self._begin(view)
        elif view.jobs:
            chosen, self._next = self._next, None
            if chosen is None and self.takes_all(view) and self._beside(view):
                self.count(view)
                leaving = 0
            else:
                leaving = yield from self._leave(self._choose(view) if chosen is None else chosen, view)
            late = self.switch_seconds(leaving)
            if late:
                self._between, self._begins = True, view.now + late
                yield ScheduleTimer(self._begins)
            else:
                yield from self._begin(view)

    def placed_first(self, size: Allocation, stays: bool) -> tuple[int, ...]:
        """Jobs of a round are placed in this order; `stays`: it runs already."""
        return -size.workers, not stays

    def place(self, room: FloatArray, job: JobState, size: Allocation) -> Plan:
        """The nodes of a job that does not keep its own; () where its pods do not fit.

        The first ones with room: wide jobs come first, so they gather there, and are seldom in the way of those that
        stay.
        """
        if size.servers:
            return grow(room, job, (), size, whole=True)
        return in_order(room, job, size.workers)

    def note(self, event: SchedulingEvent, view: EngineView) -> None:
        """Take note of what happened: how long each job has run changes with jobs that something happens to alone."""
        match event:
            case TimerFired():
                self._looked = view.now
            case Finished():
                self._began.pop(event.job, None)
                self._before.pop(event.job, None)
            case NodeChanged():
                for job in event.jobs:
                    self.stop(job)

    def begin(self, job: JobState, now: float) -> None:
        """A job starts."""
        self._began[job.id] = now

    def stop(self, job: JobId) -> None:
        """A job stops, by this policy or by another; seconds since the last timer do not count."""
        self._before[job] = self.ran(job)
        self._began.pop(job, None)

    def _begin(self, view: EngineView) -> Iterator[SchedulingAction]:
        self._between, self._begins = False, view.now + self.round
        yield from self._start(view)
        if self.lead:
            yield ScheduleTimer(self._begins - self.lead)
        yield ScheduleTimer(self._begins)

    def _choose(self, view: EngineView) -> dict[JobId, Turn]:
        """The jobs of the coming round, by what the cluster, or all nodes of a kind, hold together."""
        if not view.jobs:
            return {}
        turns = list(self.turns(by_arrival(view), view))
        all_room = view.capacity.sum(axis=0) + TOLERANCE
        if all(turn.kind is None for _, turn in turns):
            needs = np.array([total(job, turn.size) for job, turn in turns]).reshape(-1, 3).sum(axis=0)
            if (needs <= all_room).all():
                return {job.id: turn for job, turn in turns}
        room: dict[str | None, list[float]] = {
            kind: (view.capacity[nodes].sum(axis=0) + TOLERANCE).tolist() for kind, nodes in of_kinds(view).items()
        }
        room[None] = all_room.tolist()
        chosen: dict[JobId, Turn] = {}
        for job, turn in turns:
            if job.id in chosen:
                continue
            needs, left = total(job, turn.size).tolist(), room[turn.kind]
            fits = [need <= have for need, have in zip(needs, left, strict=True)]
            if all(fits):
                room[turn.kind] = [have - need for need, have in zip(needs, left, strict=True)]
                chosen[job.id] = turn
            elif turn.kind is None and not any(fits):
                break
        return chosen

    def _leave(self, chosen: dict[JobId, Turn], view: EngineView) -> Generator[SchedulingAction, None, int]:
        """Plan the round of the `chosen` jobs, and preempt those that are not in it, or change; how many."""
        jobs = [view.jobs[job] for job in chosen if job in view.jobs]
        anywhere = chosen.keys() == view.jobs.keys() and all(turn.kind is None for turn in chosen.values())
        if anywhere and self._beside(view, chosen):
            return 0
        room, plans = np.ascontiguousarray(view.capacity.copy()), dict[JobId, Plan]()
        cells, kinds = room.data, np.array(view.kinds)
        stays = {
            job.id
            for job in jobs
            if job.phase is not Phase.WAITING
            and (chosen[job.id].kind is None or Turn(totals(job.plan), kinds[job.plan[0][0]]) == chosen[job.id])
        }
        first = lru_cache(None)(self.placed_first)
        for job in sorted(jobs, key=lambda job: first(chosen[job.id].size, job.id in stays)):
            size, kind = chosen[job.id]
            plan = job.plan
            if job.id not in stays or not _stays(cells, job):
                there = room if kind is None else np.where((kinds == kind)[:, None], room, 0.0)
                plan = self.place(there, job, size)
                take(room, job, plan)
            if plan:
                plans[job.id] = plan
        leaving = [job for job in view.running.values() if plans.get(job.id) != job.plan]
        self._starting = {
            job: plan
            for job, plan in plans.items()
            if view.jobs[job].phase is not Phase.RUNNING or view.jobs[job].plan != plan
        }
        self._await()
        for job in leaving:
            self.stop(job.id)
            yield Preempt(job.id)
        for job in list(view.jobs.values()):
            if job.phase is Phase.HOLDING and plans.get(job.id) != job.plan:
                yield Reserve(job.id, ())
        return len(leaving)

    def _beside(self, view: EngineView, chosen: Mapping[JobId, Turn] | None = None) -> bool:
        """Plan a round of all jobs in which nobody moves: those that wait start in the room that the others leave.

        Each with its maximum, or as `chosen`. False where that is not possible.
        """
        if len(view.jobs) != len(view.running) + len(view.waiting):
            return False
        room, plans = view.free.copy(), dict[JobId, Plan]()
        waiting = [(job.maximum if chosen is None else chosen[job.id].size, job) for job in view.waiting.values()]
        for size, job in sorted(waiting, key=lambda each: (*self.placed_first(each[0], False), each[1].id)):
            plans[job.id] = plan = self.place(room, job, size)
            if not plan:
                return False
            take(room, job, plan)
        self._starting = plans
        self._await()
        return True

    def _await(self) -> None:
        self._places = {job: place for place, job in enumerate(self._starting)}
        self._awaited = {}
        for number, plan in self._starting.items():
            for node, _, _ in plan:
                self._awaited.setdefault(node, []).append(number)

    def _start(self, view: EngineView, event: SchedulingEvent | None = None) -> Iterator[SchedulingAction]:
        """Start jobs of this round that have room now; after `event` those alone for which it can have made room."""
        numbers = list(self._starting)
        if isinstance(event, Finished | PreemptionCompleted) and numbers:
            freed = {event.job, *(job for node, _, _ in event.plan for job in self._awaited.get(node, ()))}
            numbers = sorted(freed & self._starting.keys(), key=self._places.__getitem__)
        for number in numbers:
            plan, job = self._starting[number], view.jobs.get(number)
            if job is None:
                del self._starting[number]
            elif job.phase in {Phase.WAITING, Phase.HOLDING} and _fits(view.free, job, plan):
                del self._starting[number]
                self.begin(job, view.now)
                yield Start(number, plan)


def of_kinds(view: EngineView) -> dict[str, list[int]]:
    """The nodes that are there, by their kinds, in order."""
    found: dict[str, list[int]] = {}
    if len(set(view.kinds)) == 1:
        there: list[int] = np.flatnonzero(view.capacity.any(axis=1)).tolist()
        return {view.kinds[0]: there} if there else {}
    for node in np.flatnonzero(view.capacity.any(axis=1)).tolist():
        found.setdefault(view.kinds[node], []).append(node)
    return found


def total(job: JobState, size: Allocation | None = None) -> FloatArray:
    """What so many pods of a job request together; all of them without `size`."""
    if size is None or size == job.maximum:
        return job.at_maximum
    workers, servers = size
    needed: FloatArray = workers * job.worker + servers * job.server + job.scheduler
    return needed


def widths(jobs: Sequence[JobState], view: EngineView) -> FloatArray:
    """The share of the cluster that each job holds while it runs: of the resource of which it takes most."""
    return widest(np.array([job.at_maximum for job in jobs]).reshape(-1, 3), view)


def widest(needs: FloatArray, view: EngineView) -> FloatArray:
    """The same for what jobs request in all, [job, resource]."""
    capacity = view.capacity.sum(axis=0)
    used = capacity > 0
    shares: FloatArray = (needs[:, used] / capacity[used]).max(axis=1)
    return shares


def width(job: JobState, view: EngineView) -> float:
    """That of one job."""
    return float(widths([job], view)[0])


def seconds_left(job: JobState, epochs: float | None = None) -> float:
    """Predicted seconds until its end, if it runs all the time, at the speed it has now. `epochs`: those left."""
    epochs = job.remaining().expected if epochs is None else epochs
    if not job.has_epochs:
        return epochs / max(1, job.maximum.workers)
    speed = job.speed(*job.maximum)
    return epochs / speed if speed > 0 else 0.0


def in_order(room: FloatArray, job: JobState, workers: int, nodes: IntArray | None = None) -> Plan:
    """The workers of a job on the first of `nodes` with room, or of all; () where they do not fit."""
    plan, missing = [], workers
    holds = most(room + TOLERANCE, job.worker)
    there = holds.nonzero()[0] if nodes is None else nodes[holds[nodes] > 0]
    for node in there[:workers].tolist():
        if missing:
            plan.append((node, min(int(holds[node]), missing), 0))
            missing -= plan[-1][1]
    return () if missing else tuple(plan)


def by_arrival(view: EngineView) -> list[JobState]:
    """All jobs, in order of arrival."""
    return sorted(view.jobs.values(), key=attrgetter("id"))


def _stays(cells: memoryview[Any], job: JobState) -> bool:
    """Take what a job holds from the room [node, resource] that `cells` shows; False where a node has less."""
    if len(job.plan) == 1 and job.plan[0][1:] == job.maximum:
        # Plain numbers: this is asked of every job in every round.
        held = [(job.plan[0][0], *job.at_maximum.tolist())]
    else:
        held = [(node, *need.tolist()) for node, need in demand(job, job.plan).items()]
    for node, cpu, memory, gpu in held:
        if cpu > cells[node, 0] + TOLERANCE or memory > cells[node, 1] + TOLERANCE or gpu > cells[node, 2] + TOLERANCE:
            return False
    for node, cpu, memory, gpu in held:
        cells[node, 0] -= cpu
        cells[node, 1] -= memory
        cells[node, 2] -= gpu
    return True


def _fits(free: FloatArray, job: JobState, plan: Plan) -> bool:
    held = demand(job, job.plan)
    return all((need <= free[node] + held.get(node, 0.0) + TOLERANCE).all() for node, need in demand(job, plan).items())
