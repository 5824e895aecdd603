"""Finish-time fairness (Themis: Mahajan et al., NSDI 2020), as Gavel (OSDI 2020, section 4.2) writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from coach_research.policies.rounds.fair import Shares
from coach_research.policies.rounds.rounds import seconds_left
from coach_research.scheduling.api import EngineView, JobId, JobState
from coach_research.workload import FloatArray


@dataclass
class Themis(Shares):
    """The worst rho of all jobs is as small as possible; rho is a job's finish time over that with 1/n of the cluster.

    With a share x of the time a job needs `left / x` seconds more. So it needs x = left / (rho T - t) for a rho, where
    it is here since t seconds and would take T alone on its n-th part. The least rho for which all fit is found by
    bisection. What is over goes to all jobs in the same proportion.
    """

    registered: ClassVar[str] = "themis"

    #: By job: seconds that its work so far would have taken on its part, epochs left then, epochs/s on its part then.
    _alone: dict[JobId, tuple[float, float, float]] = field(default_factory=dict, init=False, repr=False)

    def shares(self, jobs: list[JobState], wide: FloatArray, view: EngineView) -> FloatArray:
        """See `Shares`."""
        epochs = [job.remaining().expected for job in jobs]
        left = np.array([seconds_left(job, each) for job, each in zip(jobs, epochs, strict=True)])
        here = np.array([view.now - job.arrived for job in jobs])
        part = np.minimum(1.0, 1.0 / len(jobs) / wide)
        alone = self._finish_alone(jobs, np.array(epochs), left, part)
        low, high = 0.0, 1e6
        while high - low > 1e-6 * high:
            rho = (low + high) / 2
            x = _needed(rho, left, here, alone)
            fits = bool((x <= 1.0).all() and x @ wide <= 1.0)
            low, high = (low, rho) if fits else (rho, high)
        x = _needed(high, left, here, alone)
        shares: FloatArray = np.minimum(1.0, x / max(1e-12, float(x @ wide)))
        return shares

    def _finish_alone(self, jobs: list[JobState], epochs: FloatArray, left: FloatArray, part: FloatArray) -> FloatArray:
        """Seconds that each job takes in all on its part of the cluster."""
        known = [self._alone.get(job.id, (0.0, math.nan, 1.0)) for job in jobs]
        so_far, before, rate = np.array(known).T
        so_far = so_far + np.where(np.isnan(before), 0.0, before - epochs) / rate
        rates = np.maximum(1e-12, epochs / np.maximum(1e-9, left) * part)
        rows = zip(so_far.tolist(), epochs.tolist(), rates.tolist(), strict=True)
        self._alone = {job.id: row for job, row in zip(jobs, rows, strict=True)}
        found: FloatArray = so_far + left / part
        return found


def _needed(rho: float, left: FloatArray, here: FloatArray, alone: FloatArray) -> FloatArray:
    time = rho * alone - here
    needed: FloatArray = np.divide(left, time, out=np.full(len(left), np.inf), where=time > 0)
    return needed
