"""Gavel's max-min fairness (Narayanan et al., OSDI 2020, section 4.1), on nodes of one kind or of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coach_research.policies.rounds.fair import Shares, most_of
from coach_research.scheduling.api import EngineView, JobState
from coach_research.workload import FloatArray


@dataclass
class Gavel(Shares):
    """All jobs get as much of the cluster as the one with the least: max min of share times width.

    With one kind of nodes the paper's linear program has this solution: a level that all jobs reach, except those that
    run all the time below it (water-filling). A job twice as wide runs half as long.

    With several kinds it is the linear program itself: a job's speed over all its time, as a multiple of what it would
    be with an equal share of each kind. Of all solutions the one with the largest sum of these.
    """

    registered: ClassVar[str] = "gavel"

    def shares(self, jobs: list[JobState], wide: FloatArray, view: EngineView) -> FloatArray:
        """See `Shares`."""
        del view
        level = 0.0
        if wide.sum() <= 1.0:
            return np.ones(len(jobs))
        left, order = 1.0, np.argsort(wide)
        for place, at in enumerate(order):
            level = left / (len(order) - place)
            if wide[at] >= level:
                break
            left -= wide[at]
        shares: FloatArray = np.minimum(1.0, level / wide)
        return shares

    def shares_by_kind(self, jobs: list[JobState], rates: FloatArray, wide: FloatArray) -> FloatArray:
        """See `Shares`."""
        fits = wide <= 1.0 + 1e-9
        equal = (rates * np.where(fits, 1.0 / np.maximum(wide, 1e-12), 0.0)).sum(axis=1, keepdims=True) / len(jobs)
        gains = rates / np.maximum(equal, 1e-300)
        return most_of(gains, wide, gains)[0]
