"""AlloX (Le et al., EuroSys 2020), as Gavel's authors run it: who has the least left runs until it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from coach_research.policies.rounds.fair import Shares
from coach_research.policies.rounds.rounds import seconds_left
from coach_research.scheduling.api import EngineView, JobId, JobState
from coach_research.workload import FloatArray


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

    def shares(self, jobs: list[JobState], wide: FloatArray, view: EngineView) -> FloatArray:
        """See `Shares`."""
        del view
        unit = float(wide.min())
        given = {job.id: self._given.get(job.id, 0.0) for job in jobs}
        free = round(1.0 / unit) - sum(share == 1.0 for share in given.values())
        waiting = [at for at, job in enumerate(jobs) if given[job.id] != 1.0]
        waiting = waiting[: max(int(self.alpha * len(waiting)), free)]
        if len(waiting) > free:
            # In the best matching the jobs with the least left are the first ones on each processor.
            waiting = sorted(waiting, key=lambda at: seconds_left(jobs[at]))[: max(0, free)]
        for at in waiting:
            given[jobs[at].id] = unit / float(wide[at])
        self._given = given
        return np.array([given[job.id] for job in jobs])
