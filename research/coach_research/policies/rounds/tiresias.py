"""Tiresias (Gu et al., NSDI 2019, section 3.2): discretised two-dimensional least attained service, two queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from coach.core.cluster import Allocation
from coach_research.policies.rounds.rounds import Rounds, in_order
from coach_research.scheduling.api import EngineView, JobId, JobState, Phase
from coach_research.workload import FloatArray, Plan


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

    #: The jobs of both queues, in the order in which they came to them.
    _queues: tuple[list[JobId], list[JobId]] = field(default=([], []), init=False, repr=False)
    #: Seconds that a job had run when its service was counted anew.
    _from: dict[JobId, float] = field(default_factory=dict, init=False, repr=False)

    def line(self, jobs: list[JobState], view: EngineView) -> Iterable[JobState]:
        """See `Rounds`."""
        here = {job.id: job for job in jobs}
        first, second = ([number for number in queue if number in here] for queue in self._queues)
        known = {*first, *second}
        first += [number for number in here if number not in known]
        self._from = {number: seconds for number, seconds in self._from.items() if number in here}
        ran = self._ran
        if self._from:
            ran = {number: ran.get(number, 0.0) - self._from.get(number, 0.0) for number in here}
        served = {number for number in first if ran.get(number, 0.0) * _size(here[number]) >= self.threshold}
        second += [number for number in first if number in served]
        first = [number for number in first if number not in served]
        for number in list(second) if self.promote else ():
            job = here[number]
            if job.phase is Phase.WAITING and view.now - job.since >= self.promote * ran.get(number, 0.0):
                self._from[number] = self._ran.get(number, 0.0)
                second.remove(number)
                first.append(number)
        self._queues = first, second
        return [here[number] for number in (*first, *second)]

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
            self._queues[1].append(job)


def _size(job: JobState) -> float:
    """GPUs that a job takes; cores where it takes none."""
    cores, _, gpus = job.at_maximum.tolist()
    return float(gpus or cores)
