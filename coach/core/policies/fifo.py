"""First come, first served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import ClassVar

import numpy as np

from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason
from coach.core.policies.api.scheduling import (
    Arrived,
    EngineView,
    Finished,
    FloatArray,
    JobId,
    NodeChanged,
    PreemptionCompleted,
    Resize,
    SchedulingAction,
    SchedulingEvent,
    Start,
)
from coach.core.policies.kinds.scheduling_policy import SchedulingPolicy
from coach.core.policies.placement.best_fit import best_fit, single, still_fits, weights
from coach.core.policies.placement.incremental import grow
from coach.core.policies.sharing.progressive_filling import Filling, Share, one_by_one


@dataclass
class FifoPolicy(SchedulingPolicy):
    """Each job in its turn gets its maximum; behind the first job that gets less, no job gets anything.

    DL² (section 1) on FIFO schedulers: they "allocate resources according to user specification". FitGpp (section
    3) compares with "(non-preemptive) vanilla FIFO". Where the papers say nothing: jobs that hold pods keep their turn
    before those that wait; the last one served takes what is free, at least its minimum, and the rest when it becomes
    free (as DL²'s published simulator does); single tasks go to the node with the least left over, others to few nodes.

    `allocate` decides for all jobs at once; `schedule` does the same event by event, for very many jobs.
    """

    cadence: float | None = None
    registered: ClassVar[str] = "fifo"
    chooses_nodes: ClassVar[bool] = False

    #: A heap: jobs are numbered in order of arrival.
    _line: list[JobId] = field(default_factory=list, init=False, repr=False)
    #: The head that fits on no node: it is tried again only on nodes where pods were released.
    _stuck: JobId | None = field(default=None, init=False, repr=False)
    #: The last one served, if it has less than its maximum.
    _short: JobId | None = field(default=None, init=False, repr=False)

    _weight: FloatArray | None = field(default=None, init=False, repr=False)

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        filling = Filling(jobs, cluster)
        line = sorted(filling.shares, key=_turn)
        filling.fill(lambda filling: one_by_one(line, filling, in_line=True), in_line=True)
        place = {id(share): n for n, share in enumerate(line, 1)}
        return filling.decision(Reason.QUEUE, lambda share: place[id(share)], "in line")

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        if self._weight is None:
            self._weight = weights(view.capacity)
        freed: tuple[int, ...] = ()
        match event:
            case Arrived(number):
                heappush(self._line, number)
                if self._short is not None or self._line[0] != number:
                    return
            case Finished(number, plan, _, killed):
                freed = tuple(part[0] for part in plan)
                if killed:
                    self._line = sorted(waiting for waiting in self._line if waiting != number)
                if self._short == number:
                    self._short = None
            case PreemptionCompleted(number, plan):
                heappush(self._line, number)
                freed = tuple(part[0] for part in plan)
            case NodeChanged(_, _, lost):
                self._line = sorted([*self._line, *lost])
                self._stuck = None
                if self._short in lost:
                    self._short = None
            case _:
                return
        if self._short is not None:
            job = view.jobs[self._short]
            plan = grow(view.free, job, job.plan, job.maximum, whole=False)
            if plan != job.plan:
                yield Resize(job.id, plan)
            if (job.workers, job.servers) != job.maximum:
                return
            self._short = None
        while self._line:
            job = view.jobs[self._line[0]]
            if single(job):
                tried = job.id == self._stuck
                plan = still_fits(view.free, job, freed) if tried else best_fit(view.free, job, self._weight)
            else:
                plan = grow(view.free, job, (), job.maximum, whole=False)
            counts = np.sum([part[1:] for part in plan], axis=0) if plan else (0, 0)
            if counts[0] < job.minimum.workers or counts[1] < job.minimum.servers or not plan:
                self._stuck = job.id
                return
            heappop(self._line)
            yield Start(job.id, plan)
            if (job.workers, job.servers) != job.maximum:
                self._short = job.id
                return


def _turn(share: Share) -> tuple[bool, bool, int]:
    return not share.job.busy, share.job.current is None, share.place
