"""The event engine: jobs on nodes in virtual time, under any `Policy`.

Theory of operation. A heap holds the coming events, ordered by (time, kind, sequence). At equal times finishes come
before ends of grace periods, and those before lost nodes, arrivals and ticks. Work is piecewise linear. Whenever a
job's rate changes, its work so far is settled and its finish is scheduled again with a new `version`; an event with an
old version is dropped. After each event the policy reacts. Each of its actions is carried out before the next is
requested.

Only faults draw random numbers, from a generator of the run, not of the policy. All policies of a comparison therefore
see the same jobs and the same faults.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from coach.core.policies.api.policy import Policy
from coach.simulation.faults import Faults
from coach_research.engine.cluster import Cluster
from coach_research.engine.feasibility import Feasibility
from coach_research.engine.job import Knowledge, SimJob
from coach_research.engine.knowledge import PerfectKnowledge
from coach_research.engine.occupancy import Floor
from coach_research.engine.record import EngineRecord
from coach_research.scheduling.api import (
    Arrived,
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
)
from coach_research.scheduling.node_placement import EventPolicy, by_events
from coach_research.scheduling.validation import check
from coach_research.workload import NOTHING, ONE_WORKER, Plan, Work, Workload

#: Kinds of events, in the order in which they happen at one time.
FINISH, DRAIN, EPOCH, RESUME, FAULT, NODE, ARRIVAL, TICK = range(8)

#: A job with less work left than this many epochs is done, since sums of floats are inexact.
EPSILON = 1e-9


class Engine:
    """One run. It is also the `EngineView` that the policy reads."""

    def __init__(
        self,
        cluster: Cluster,
        workload: Workload,
        policy: Policy | EventPolicy,
        *,
        record: EngineRecord | None = None,
        knowledge: Knowledge | None = None,
        faults: Faults | None = None,
        seed: int = 0,
        closed_load: float | None = None,
        slot: float | None = None,
        log: Callable[[str], object] | None = None,
        first_job: int = 0,
    ) -> None:
        """`closed_load`: submit the next job when the demand of all jobs (their minima) is below this multiple of the
        cluster's capacity, instead of at its arrival time. `slot`: work ends only at multiples of this many seconds.
        `log` gets one line for each event and action. `first_job`: its number, in a record of several runs.
        """
        self.cluster = cluster
        self.kinds = cluster.kinds or ("",) * len(cluster.capacity)
        self.policy = by_events(policy)
        self.knowledge = knowledge or PerfectKnowledge()
        self.record = record or EngineRecord(cluster)
        self.prices = self.record.prices
        self.now = 0.0
        self._floor = Floor(cluster, self.record)
        self._feasibility = Feasibility(cluster)
        self.capacity = self._floor.capacity
        self.free = self._floor.free
        self.jobs: dict[JobId, SimJob] = {}
        self.waiting: dict[JobId, SimJob] = {}
        self.running: dict[JobId, SimJob] = {}
        self._on = self._floor.jobs
        self._shared = cluster.contention is not None
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._sequence = 0
        self._next_job = first_job
        self._workload: Iterator[Work] = iter(workload)
        self._coming: Work | None = None
        self._closed = closed_load
        self._per_unit = [1.0 / total if total > 0 else 0.0 for total in self.capacity.sum(axis=0).tolist()]
        self._demand = (0.0, 0.0, 0.0)
        self._slot = slot
        self._boundaries = EpochEnded in self.policy.wants
        self._faults = faults
        self._seed = seed
        self._log = log
        self.events = 0
        self._orders: dict[type, Callable[[SimJob, Any], None]] = {
            Start: self._start,
            Reserve: self._hold,
            Resize: self._change,
            Migrate: self._change,
            Preempt: self._preempt,
            Kill: self._kill,
        }

    # -- the view ----------------------------------------------------------------------------------------------

    def on_node(self, node: NodeId) -> Iterable[SimJob]:
        """See `EngineView.on_node`."""
        return self._on[node].values()

    def noise(self, job: SimJob) -> float:
        """A standard normal number for this job at this time. It does not depend on earlier calls."""
        return float(np.random.default_rng([self._seed, job.id, int(self.now * 1e3)]).standard_normal())

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self, until: float = math.inf) -> EngineRecord:
        """Run until all jobs have arrived and left (or `until` seconds), and return the record.

        Jobs that the policy leaves waiting are in `jobs` at the end, and recorded as not finished. The policy never
        sees a job that the empty cluster cannot hold: it is recorded with the reason (`EngineRecord.never_fits`).
        """
        self._fetch()
        if self._faults is not None:
            for node in range(len(self.free)):
                self._push(self._faults.lost_after(node), NODE, node, 0)
        heap = self._heap
        pop = heapq.heappop
        handlers = (
            self._finish, self._drain, self._epoch, self._resume, self._fault, self._node, self._arrive, self._tick,
        )  # fmt: skip
        while heap and (self.jobs or self._coming is not None):
            time, kind, _, number, version = pop(heap)
            if time > until:
                break
            if kind <= FAULT:
                job = self.jobs.get(number)
                if job is None or job.version != version:
                    continue
            self.now = time
            handlers[kind](number)
            if self._closed is not None:
                self._fetch()
        self.record.end(self.now, self.jobs.values())
        return self.record

    def _push(self, time: float, kind: int, number: int, version: int) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time, kind, self._sequence, number, version))

    def _fetch(self) -> None:
        """Push the next arrival; in a closed loop only if the load is below its goal."""
        if self._coming is not None:
            return
        if self._closed is not None and not self._below_load():
            return
        work = next(self._workload, None)
        if work is not None:
            work.check()
            self._coming = work
            due = self.now if self._closed is not None else work.arrival
            if due < self.now:
                raise ValueError(f"job {work.name!r} arrives at {due} s, after one that arrived at {self.now} s")
            self._push(due, ARRIVAL, 0, 0)

    def _below_load(self) -> bool:
        cpu, memory, gpu = self._demand
        a, b, c = self._per_unit
        load = self._closed or 0.0
        return cpu * a < load and memory * b < load and gpu * c < load

    def _send(self, event: SchedulingEvent) -> None:
        self.events += 1
        if self._log is not None:
            self._log(f"{self.now!r} {_words(event)}\n")
        for action in self.policy.schedule(event, self):
            if self._log is not None:
                self._log(f"{self.now!r} > {_words(action)}\n")
            self._carry_out(action)

    # -- events ------------------------------------------------------------------------------------------------

    def _arrive(self, _: int) -> None:
        work = self._coming
        assert work is not None
        self._coming = None
        job = SimJob(self._next_job, work, self)
        self._next_job += 1
        if (why := self._feasibility.never_fits(work)) is not None:
            self.record.never_fits[job.id] = why
            self.record.finished(job, math.nan, killed=False)
            self._fetch()
            return
        self.jobs[job.id] = self.waiting[job.id] = job
        if self._closed is not None:
            smallest = job.worker
            if job.minimum != ONE_WORKER or job.scheduler is not NOTHING:
                smallest = job.minimum.workers * smallest + job.minimum.servers * job.server + job.scheduler
            cpu, memory, gpu = job.smallest = tuple(smallest.tolist())
            self._demand = (self._demand[0] + cpu, self._demand[1] + memory, self._demand[2] + gpu)
        else:
            self._fetch()
        self._send(Arrived(job.id))

    def _finish(self, number: int) -> None:
        job = self.jobs[number]
        job.settle(self.now)
        job.done_at_mark = job.work
        self._leave(job, killed=False)

    def _leave(self, job: SimJob, killed: bool) -> None:
        plan = job.plan
        self._vacate(job)
        del self.jobs[job.id]
        self.running.pop(job.id, None)
        self.waiting.pop(job.id, None)
        job.version += 1
        if self._closed is not None:
            cpu, memory, gpu = job.smallest
            self._demand = (self._demand[0] - cpu, self._demand[1] - memory, self._demand[2] - gpu)
        self.record.finished(job, self.now, killed)
        self._send(Finished(job.id, plan, job, killed))

    def _drain(self, number: int) -> None:
        job = self.jobs[number]
        plan = job.plan
        self._vacate(job)
        self._queue(job)
        job.vacated = self.now
        self._send(PreemptionCompleted(number, plan))

    def _epoch(self, number: int) -> None:
        job = self.jobs[number]
        job.settle(self.now)
        # Rounded, so that the sum of many rates ends exactly at the epoch's boundary.
        job.done_at_mark = float(round(job.done_at_mark))
        if job.done_at_mark >= job.pace_ends:
            before = job.solo
            job.keep_pace()
            job.solo = job.true_speed(job.plan)
            job.rate *= job.solo / before
        self._stamp(job)
        if self._boundaries:
            self._send(EpochEnded(number, int(job.done_at_mark)))

    def _resume(self, number: int) -> None:
        """A pause on shared nodes is over: the node's other jobs get a smaller share from now on."""
        self._rerate(self.jobs[number].plan)

    def _fault(self, number: int) -> None:
        """A function was lost: the job resumes from its last checkpoint, in place, after the pause of a resize."""
        job = self.jobs[number]
        job.settle(self.now)
        self._lose_work(job)
        self.record.faults += 1
        self._pause(job, job.rescale_seconds)

    def _node(self, node: int) -> None:
        assert self._faults is not None
        up = not self.capacity[node].any()
        if up:
            self._floor.restore(node)
            self._push(self.now + self._faults.lost_after(node), NODE, node, 0)
            self._send(NodeChanged(node, True))
            return
        self._push(self.now + self._faults.back_after(node), NODE, node, 0)
        lost = list(self._on[node].values())
        for job in lost:
            job.settle(self.now)
            self._lose_work(job)
            self._vacate(job)
            self._queue(job)
            job.vacated = self.now
        self._floor.lose(node)
        self.record.nodes_lost += 1
        self._send(NodeChanged(node, False, tuple(job.id for job in lost)))

    def _lose_work(self, job: SimJob) -> None:
        step = job.dynamics.checkpoint
        if step > 0.0:
            job.done_at_mark = math.floor(job.done_at_mark / step + EPSILON) * step

    def _tick(self, _: int) -> None:
        self._send(TimerFired(self.now))

    # -- actions of policies -----------------------------------------------------------------------------------

    def _carry_out(self, action: SchedulingAction) -> None:
        if isinstance(action, ScheduleTimer):
            if not action.at >= self.now:
                raise PolicyError(f"{action}: it is {self.now} s already")
            self._push(action.at, TICK, 0, 0)
            return
        job = check(action, self.jobs.get(action.job), self.now)
        self._orders[type(action)](job, action)

    def _start(self, job: SimJob, action: Start) -> None:
        if job.plan:
            self._vacate(job)
        self._floor.occupy(job, action.plan, action, self.now)
        self.waiting.pop(job.id, None)
        self.running[job.id] = job
        job.phase = Phase.RUNNING
        job.since = self.now
        if job.started != job.started:
            job.started = self.now
        if job.vacated == job.vacated:
            self.record.rescheduled(self.now - job.vacated)
            job.vacated = math.nan
        self._pause(job, job.dynamics.start_seconds)

    def _change(self, job: SimJob, action: Resize | Migrate) -> None:
        if action.plan == job.plan:
            return
        job.settle(self.now)
        self._vacate(job)
        self._floor.occupy(job, action.plan, action, self.now)
        if isinstance(action, Migrate):
            job.migrations += 1
            self._pause(job, job.migration_seconds)
        else:
            job.resizes += 1
            self._pause(job, job.rescale_seconds)

    def _preempt(self, job: SimJob, _: Preempt) -> None:
        job.settle(self.now)
        job.preemptions += 1
        job.phase = Phase.DRAINING
        job.since = self.now
        job.rate = 0.0
        job.version += 1
        del self.running[job.id]
        if self._shared:
            self._rerate(job.plan)
        self._push(self.now + job.grace, DRAIN, job.id, job.version)

    def _hold(self, job: SimJob, action: Reserve) -> None:
        self._vacate(job)
        if action.plan:
            self._floor.occupy(job, action.plan, action, self.now)
            self.waiting.pop(job.id, None)
            job.phase = Phase.HOLDING
            job.since = self.now
        elif job.phase is Phase.HOLDING:
            self._queue(job)

    def _kill(self, job: SimJob, _: Kill) -> None:
        job.settle(self.now)
        self._leave(job, killed=True)

    def _queue(self, job: SimJob) -> None:
        self.running.pop(job.id, None)
        self.waiting[job.id] = job
        job.phase = Phase.WAITING
        job.since = self.now
        job.rate = 0.0
        job.version += 1

    def _vacate(self, job: SimJob) -> None:
        plan = job.plan
        if plan:
            self._floor.vacate(job, self.now)
            if self._shared:
                self._rerate(plan)

    # -- rates -------------------------------------------------------------------------------------------------

    def _pause(self, job: SimJob, seconds: float) -> None:
        """Set the rate of a job for its plan, effective in `seconds` from now."""
        if job.dynamics.paces:
            job.keep_pace()  # work may have been lost
        job.solo = job.true_speed(job.plan)
        job.mark = self.now + seconds
        if self._shared:
            if seconds > 0.0:
                job.rate = 0.0
                job.version += 1
                self._push(job.mark, RESUME, job.id, job.version)
            self._rerate(job.plan)
        else:
            job.rate = job.solo
            self._stamp(job)

    def _rerate(self, plan: Plan) -> None:
        """Update the rates of jobs on these shared nodes after a change in how many there are."""
        affected = {number: job for part in plan for number, job in self._on[part[0]].items()}
        for job in affected.values():
            if job.phase is Phase.RUNNING and job.mark <= self.now:
                job.settle(self.now)
                job.rate = job.solo * min(self.cluster.share(self._busy(part[0])) for part in job.plan)
                self._stamp(job)

    def _busy(self, node: NodeId) -> int:
        return sum(job.phase is Phase.RUNNING and job.mark <= self.now for job in self._on[node].values())

    def _stamp(self, job: SimJob) -> None:
        """Schedule again, from the job's rate, the end of its next epoch or of its work."""
        job.version += 1
        if not job.rate > 0.0:
            if math.isnan(job.rate):
                raise ValueError(f"job {job.name!r}: its speed with {job.plan} is {job.rate} epochs/s")
            return
        done, kind, goal = job.done_at_mark, FINISH, job.work
        if self._boundaries and job.has_epochs:
            boundary = math.floor(done + EPSILON) + 1.0
            if boundary < goal - EPSILON:
                kind, goal = EPOCH, boundary
        if job.pace_ends < goal - EPSILON:
            kind, goal = EPOCH, job.pace_ends
        due = job.mark + max(0.0, goal - done) / job.rate
        if self._slot is not None and kind == FINISH:
            due = max(self.now, math.ceil(due / self._slot - EPSILON) * self._slot)
        if self._faults is not None:
            fails = job.mark + self._faults.function_after(job.id, job.version)
            if fails < due:
                due, kind = fails, FAULT
        self._push(due, kind, job.id, job.version)


def _words(thing: SchedulingEvent | SchedulingAction) -> str:
    """An event or action as one line; a `Finished` without its state."""
    if isinstance(thing, Finished):
        return f"Finished(job={thing.job}, plan={thing.plan}, killed={thing.killed})"
    return str(thing)
