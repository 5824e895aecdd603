"""RAND: preemption of randomly chosen jobs, with which FitGpp (section 3, appendix A) compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from coach_research.policies.preemption.candidates import BestEffort
from coach_research.policies.preemption.two_queues import TrialFirst
from coach_research.policies.preemption.victims import Fits, Rule, Running, choose
from coach_research.scheduling.api import JobId, JobState
from coach_research.workload import FloatArray


@dataclass
class RandomPreemption(TrialFirst):
    """Preempt randomly chosen best-effort jobs, cluster-wide, until a node has enough free capacity.

    Choices: as those of LRTP. It draws from `rng` alone, so that all policies of a comparison have the same workload.
    """

    registered: ClassVar[str] = "rand"
    trim: bool = True
    free_room: bool = True
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), repr=False)

    def _counted(self, room: FloatArray) -> FloatArray:
        return room if self.free_room else np.minimum(room, 0.0)

    def _tasks(self, job: JobState, room: FloatArray, running: BestEffort) -> list[JobId]:
        lots = self.rng.random(len(running))
        return running.together(job.worker, room, job.priority, lots, trim=self.trim)

    def _lots(self, count: int) -> Sequence[float]:
        lots: list[float] = self.rng.random(count).tolist()
        return lots

    def _choice(self, candidates: Sequence[Running], fits: Fits, priority: int) -> list[Running]:
        return choose(candidates, fits, rule=Rule.RANDOM, most=self.most, priority=priority, trim=self.trim)
