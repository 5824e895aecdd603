"""Tiresias (Gu et al., NSDI 2019, section 3.2): discretised two-dimensional least attained service, two queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, ClassVar

import numpy as np

from coach.core.cluster import Allocation
from coach_research.policies.rounds.rounds import Rounds, in_order
from coach_research.scheduling.api import Arrived, EngineView, Finished, JobId, JobState, Phase, SchedulingEvent
from coach_research.workload import FloatArray, Plan

#: Seconds that sums of times may be wrong by.
SOON = 1e-6


@dataclass
class Tiresias(Rounds):
    """Jobs that have had little service run before those that have had much; nothing of a job need be known.

    A job's service is the number of its GPUs times the seconds that it has run (without GPUs: of its cores). From
    `threshold` on it is in the second queue. Each queue is first come, first served. With `promote` above 0 a job of
    the second queue that has waited `promote` times as long as it has run goes back to the first, its service counted
    anew (the paper's PROMOTEKNOB). A job keeps its nodes while it runs; others go to the nodes with most room.
    """

    #: GPU-seconds; 16 GPU-hours, as Pollux's authors run it.
    threshold: float = 57600.0
    promote: float = 0.0
    registered: ClassVar[str] = "tiresias"

    #: The jobs of both queues, in the order in which they came to them; those of the first with its number there.
    _queues: tuple[dict[JobId, int], dict[JobId, int]] = field(default_factory=lambda: ({}, {}), init=False, repr=False)
    _came: int = field(default=0, init=False, repr=False)
    #: Seconds that a job had run when its service was counted anew.
    _from: dict[JobId, float] = field(default_factory=dict, init=False, repr=False)
    #: A heap of jobs by when they will have had the service of the first queue if they run on: (then, seconds, job).
    _due: list[tuple[float, float, JobId]] = field(default_factory=list, init=False, repr=False)

    def takes_all(self, view: EngineView) -> bool:
        """See `Rounds`."""
        del view
        return True

    def line(self, jobs: list[JobState], view: EngineView) -> Iterable[JobState]:
        """See `Rounds`."""
        self.count(view)
        here, (first, second) = {job.id: job for job in jobs}, self._queues
        return [here[number] for number in (*first, *second)]

    def count(self, view: EngineView) -> None:
        """See `Rounds`."""
        (first, second), served = self._queues, set[JobId]()
        while self._due and self._due[0][0] <= view.now + SOON:
            _, seconds, number = heappop(self._due)
            if number in first and self.ran(number) - self._from.get(number, 0.0) >= seconds - SOON:
                served.add(number)
        for number in sorted(served, key=first.__getitem__):
            second[number] = first.pop(number)
        for number in list(second) if self.promote else ():
            job, ran = view.jobs[number], self.ran(number)
            if job.phase is Phase.WAITING and view.now - job.since >= self.promote * (
                ran - self._from.get(number, 0.0)
            ):
                self._from[number] = ran
                del second[number]
                self._join(number)

    def note(self, event: SchedulingEvent, view: EngineView) -> None:
        """See `Rounds`."""
        super().note(event, view)
        match event:
            case Arrived() if event.job not in self._queues[1]:
                self._join(event.job)
            case Finished():
                for known in (*self._queues, self._from):
                    known.pop(event.job, None)

    def begin(self, job: JobState, now: float) -> None:
        """See `Rounds`."""
        super().begin(job, now)
        if size := _size(job):
            seconds = self.threshold / size
            heappush(self._due, (now + seconds - self.ran(job.id) + self._from.get(job.id, 0.0), seconds, job.id))

    def _join(self, job: JobId) -> None:
        """A job comes to the first queue."""
        self._came += 1
        self._queues[0][job] = self._came

    def placed_first(self, size: Allocation, stays: bool) -> tuple[int, ...]:
        """See `Rounds`."""
        del size
        return (not stays,)

    def place(self, room: FloatArray, job: JobState, size: Allocation) -> Plan:
        """See `Rounds`."""
        if size.servers:
            return super().place(room, job, size)
        scarce = 2 if job.worker[2] else 0
        emptiest = int(room[:, scarce].argmax())
        if plan := in_order(room[emptiest : emptiest + 1], job, size.workers):
            return ((emptiest, *plan[0][1:]),)
        return in_order(room, job, size.workers, np.argsort(-room[:, scarce], kind="stable"))

    def remembered(self, job: JobId, /) -> dict[str, Any]:
        """See `SchedulingPolicy`: a restarted handler knows who is in the second queue."""
        return {"queue": 2} if job in self._queues[1] else {}

    def recall(self, job: JobId, known: Mapping[str, Any], /) -> None:
        """See `SchedulingPolicy`."""
        if known.get("queue") == 2:
            self._queues[1][job] = 0


def _size(job: JobState) -> float:
    """GPUs that a job takes; cores where it takes none."""
    cores, _, gpus = job.at_maximum.tolist()
    return float(gpus or cores)
