"""LRTP: longest remaining time preemption (Big-C, USENIX ATC 2017), as FitGpp (section 3, appendix A) compares
with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coach_research.policies.preemption.candidates import BestEffort
from coach_research.policies.preemption.two_queues import TrialFirst, seconds_left
from coach_research.policies.preemption.victims import Fits, Rule, Running, choose
from coach_research.scheduling.api import EngineView, JobId, JobState
from coach_research.workload import FloatArray


@dataclass
class Lrtp(TrialFirst):
    """Preempt best-effort jobs with the longest remaining time, cluster-wide, until a node has enough free capacity.

    Choices: P limits its victims too. `trim` spares victims that turn out unnecessary; the paper does not mention that,
    so its experiments here run with `trim=no`. `free_room`: what is free on a node counts too; the paper adds it (N) in
    FitGpp's equation 2 only, so with `free_room=no` the victims alone must make the room. Live it always counts.
    """

    registered: ClassVar[str] = "lrtp"
    trim: bool = True
    free_room: bool = True

    def _end(self, job: JobState, view: EngineView) -> float:
        return view.now + seconds_left(job)

    def _counted(self, room: FloatArray) -> FloatArray:
        return room if self.free_room else np.minimum(room, 0.0)

    def _tasks(self, job: JobState, room: FloatArray, running: BestEffort) -> list[JobId]:
        return running.together(job.worker, room, job.priority, -running.ends(), trim=self.trim)

    def _choice(self, candidates: Sequence[Running], fits: Fits, priority: int) -> list[Running]:
        return choose(candidates, fits, rule=Rule.LRTP, most=self.most, priority=priority, trim=self.trim)
