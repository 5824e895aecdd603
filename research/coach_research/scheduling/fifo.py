"""First come, first served, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    Finished,
    JobId,
    NodeChanged,
    PreemptionCompleted,
    Resize,
    SchedulingAction,
    SchedulingEvent,
    Start,
)
from coach_research.scheduling.best_fit import best_fit, single, still_fits, weights
from coach_research.scheduling.incremental import grow
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import FloatArray


@dataclass
class FifoByEvents(SchedulingPolicy):
    """What `FifoPolicy` decides for all jobs at once, event by event, for very many jobs."""

    cadence: float | None = None

    #: A heap: jobs are numbered in order of arrival.
    _line: list[JobId] = field(default_factory=list, init=False, repr=False)
    #: The head that fits on no node: it is tried again only on nodes where pods were released.
    _stuck: JobId | None = field(default=None, init=False, repr=False)
    #: The last one served, if it has less than its maximum.
    _short: JobId | None = field(default=None, init=False, repr=False)

    _weight: FloatArray | None = field(default=None, init=False, repr=False)

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
