"""FitGpp: Fitting Grace Period Preemption (Yabuuchi, Taniwaki and Omura, OpML 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from coach_research.policies.preemption.candidates import BestEffort
from coach_research.policies.preemption.two_queues import TrialFirst
from coach_research.policies.preemption.victims import Fits, Rule, Running, choose
from coach_research.scheduling.api import JobId, JobState
from coach_research.workload import FloatArray


@dataclass
class FitGpp(TrialFirst):
    """Preempt a small best-effort job with a short grace period whose resources suffice by themselves.

    Equation 1: `Score(j) = |D_j| / max |D| + s GP_j / max GP`; equation 2: preempt `argmin {Score(j) | D_TE <=
    D_j + N and PC_j < P}`. It needs no prediction of durations. See `victims.scores`, `BestEffort.alone` and, for the
    queues, `TrialFirst`. Choice: where no single job suffices, those with the lowest scores are preempted together
    until the resources suffice (`BestEffort.together`).
    """

    registered: ClassVar[str] = "fitgpp"
    #: s: the weight of the grace period relative to the size.
    grace_weight: float = field(default=4.0, metadata={"symbol": "s"})

    def _tasks(self, job: JobState, room: FloatArray, running: BestEffort) -> list[JobId]:
        score = running.score(self.grace_weight)
        alone = running.alone(job.worker, room, job.priority, score)
        if alone is not None:
            return [alone]
        return running.together(job.worker, room, job.priority, score, trim=True)

    def _choice(self, candidates: Sequence[Running], fits: Fits, priority: int) -> list[Running]:
        return choose(candidates, fits, rule=Rule.FITGPP, most=self.most, priority=priority, s=self.grace_weight)
