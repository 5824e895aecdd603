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
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coach.core.cluster import Allocation
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    IntArray,
    JobId,
    JobState,
    Phase,
    Preempt,
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
    #: Seconds that each job has run, as of the last timer, and when that was.
    _ran: dict[JobId, float] = field(default_factory=dict, init=False, repr=False)
    _looked: float = field(default=0.0, init=False, repr=False)

    @abstractmethod
    def line(self, jobs: list[JobState], view: EngineView) -> Iterable[JobState]:
        """All `jobs` (in order of arrival), those first that should run in the coming round."""

    def turns(self, jobs: list[JobState], view: EngineView) -> Iterable[tuple[JobState, Turn]]:
        """The same, with what each gets; a job that is there several times gets the first that fits."""
        return ((job, Turn(job.maximum)) for job in self.line(jobs, view))

    def switch_seconds(self, leaving: int) -> float:
        """How long after the end of a round the next one begins, when `leaving` jobs were preempted."""
        del leaving
        return 0.0

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        if isinstance(event, TimerFired):
            self._look(view)
        if isinstance(event, Arrived):
            if self._begins < view.now:
                self._begins = view.now
                yield ScheduleTimer(view.now)
        elif not isinstance(event, TimerFired):
            if not self._between:
                yield from self._start(view)
        elif event.at < self._begins:
            self._next = self._choose(view)
        elif self._between:
            yield from self._begin(view)
        elif view.jobs:
            chosen, self._next = self._next, None
            late = self.switch_seconds((yield from self._leave(self._choose(view) if chosen is None else chosen, view)))
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

    def _look(self, view: EngineView) -> None:
        """Add the time since the last look to the jobs that run."""
        ran = {}
        for job in view.jobs.values():
            since = max(self._looked, job.since) if job.phase is Phase.RUNNING else view.now
            ran[job.id] = self._ran.get(job.id, 0.0) + max(0.0, view.now - since)
        self._ran, self._looked = ran, view.now

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
        room: dict[str | None, list[float]] = {
            kind: (view.capacity[nodes].sum(axis=0) + TOLERANCE).tolist() for kind, nodes in of_kinds(view).items()
        }
        room[None] = (view.capacity.sum(axis=0) + TOLERANCE).tolist()
        chosen: dict[JobId, Turn] = {}
        for job, turn in self.turns(sorted(view.jobs.values(), key=lambda job: job.id), view):
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
        room, plans = view.capacity.copy(), dict[JobId, Plan]()
        kinds = np.array(view.kinds)
        stays = {
            job.id
            for job in jobs
            if job.phase is not Phase.WAITING
            and (chosen[job.id].kind is None or Turn(totals(job.plan), kinds[job.plan[0][0]]) == chosen[job.id])
        }
        for job in sorted(jobs, key=lambda job: self.placed_first(chosen[job.id].size, job.id in stays)):
            kept = job.id in stays and all(
                (need <= room[node] + TOLERANCE).all() for node, need in demand(job, job.plan).items()
            )
            size, kind = chosen[job.id]
            there = room if kind is None else np.where((kinds == kind)[:, None], room, 0.0)
            plan = job.plan if kept else self.place(there, job, size)
            if plan:
                take(room, job, plan)
                plans[job.id] = plan
        leaving = [job for job in view.running.values() if plans.get(job.id) != job.plan]
        self._starting = {
            job: plan
            for job, plan in plans.items()
            if view.jobs[job].phase is not Phase.RUNNING or view.jobs[job].plan != plan
        }
        for job in leaving:
            yield Preempt(job.id)
        for job in list(view.jobs.values()):
            if job.phase is Phase.HOLDING and plans.get(job.id) != job.plan:
                yield Reserve(job.id, ())
        return len(leaving)

    def _start(self, view: EngineView) -> Iterator[SchedulingAction]:
        for number, plan in list(self._starting.items()):
            job = view.jobs.get(number)
            if job is None:
                del self._starting[number]
            elif job.phase in {Phase.WAITING, Phase.HOLDING} and _fits(view.free, job, plan):
                del self._starting[number]
                yield Start(number, plan)


def of_kinds(view: EngineView) -> dict[str, list[int]]:
    """The nodes that are there, by their kinds, in order."""
    found: dict[str, list[int]] = {}
    for node in np.flatnonzero(view.capacity.any(axis=1)).tolist():
        found.setdefault(view.kinds[node], []).append(node)
    return found


def total(job: JobState, size: Allocation | None = None) -> FloatArray:
    """What so many pods of a job request together; all of them without `size`."""
    workers, servers = size or job.maximum
    needed: FloatArray = workers * job.worker + servers * job.server + job.scheduler
    return needed


def widths(jobs: Sequence[JobState], view: EngineView) -> FloatArray:
    """The share of the cluster that each job holds while it runs: of the resource of which it takes most."""
    capacity = view.capacity.sum(axis=0)
    used = capacity > 0
    needs = np.array([total(job) for job in jobs]).reshape(-1, 3)
    shares: FloatArray = (needs[:, used] / capacity[used]).max(axis=1)
    return shares


def width(job: JobState, view: EngineView) -> float:
    """That of one job."""
    return float(widths([job], view)[0])


def seconds_left(job: JobState) -> float:
    """Predicted seconds until its end, if it runs all the time, at the speed it has now."""
    if not job.has_epochs:
        return job.remaining().expected / max(1, job.maximum.workers)
    speed = job.speed(*job.maximum)
    return job.remaining().expected / speed if speed > 0 else 0.0


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


def _fits(free: FloatArray, job: JobState, plan: Plan) -> bool:
    held = demand(job, job.plan)
    return all((need <= free[node] + held.get(node, 0.0) + TOLERANCE).all() for node, need in demand(job, plan).items())
