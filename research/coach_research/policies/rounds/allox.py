"""AlloX (Le et al., EuroSys 2020), as Gavel's authors run it: who has the least left runs until it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from coach_research.policies.rounds.fair import Shares
from coach_research.policies.rounds.rounds import seconds_left, width
from coach_research.scheduling.api import EngineView, JobId, JobState


@dataclass
class AlloX(Shares):
    """Jobs are matched with places on processors so that the sum of their completion times is smallest.

    On processors of one kind the matching puts the jobs with the least left first. A job keeps its processor to its
    end. Only the oldest `alpha` of those that wait are matched, at least as many as there are processors, so that
    long jobs do not starve. A processor is the width of the narrowest job.
    """

    alpha: float = 0.2
    registered: ClassVar[str] = "allox"

    _given: dict[JobId, float] = field(default_factory=dict, init=False, repr=False)

    def shares(self, jobs: list[JobState], view: EngineView) -> Mapping[JobId, float]:
        """See `Shares`."""
        unit = min(width(job, view) for job in jobs)
        given = {job.id: self._given.get(job.id, 0.0) for job in jobs}
        free = round(1.0 / unit) - sum(share == 1.0 for share in given.values())
        waiting = [job for job in jobs if given[job.id] != 1.0]
        waiting = waiting[: max(int(self.alpha * len(waiting)), free)]
        seconds = np.repeat(np.array([[seconds_left(job)] for job in waiting]).reshape(-1, 1), max(0, free), axis=1)
        # Column (place - 1) free + processor: as the place-th from its end the job delays itself and those behind it.
        costs = np.concatenate([place * seconds for place in range(1, len(waiting) + 1)] or [seconds], axis=1)
        first: dict[int, tuple[int, JobState]] = {}
        for row, column in zip(*linear_sum_assignment(costs), strict=True):
            place, processor = divmod(int(column), free)
            first[processor] = max(first.get(processor, (-1, jobs[0])), (place, waiting[row]), key=lambda one: one[0])
        for _, job in first.values():
            given[job.id] = unit / width(job, view)
        self._given = given
        return given
