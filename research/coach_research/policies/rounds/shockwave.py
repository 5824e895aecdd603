"""Shockwave (Zheng et al., NSDI 2023, sections 5 and 6): the rounds of a window are planned at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint
from scipy.sparse import lil_array

from coach_research.policies.rounds import integer_program
from coach_research.policies.rounds.rounds import Rounds, seconds_left, widths
from coach_research.scheduling.api import EngineView, JobId, JobState
from coach_research.workload import FloatArray

#: Shares of a job's epochs between which the logarithm of its progress is a straight line; log 0 counts as log 1e-6.
BASES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
LOGS = np.log(np.maximum(BASES, 1e-6))

#: A job that would be late has at most this weight, so that the solver can tell the others apart.
HEAVIEST = 1e6


class Outlook(NamedTuple):
    """A job as the program sees it: epochs in all and done, and seconds of an epoch, trained and left."""

    epochs: float
    done: float
    epoch: float
    past: float
    left: float


@dataclass
class Shockwave(Rounds):
    """Welfare over the next `window` rounds: the sum of the logarithms of all jobs' progress, less `k` times the most
    that is left of a job after the window; each job should end as if it had its n-th part all the time.

    The window is planned anew when a job came or ended, and after `replan` rounds. Where not all jobs can end in time,
    the progress of those that are late by a factor rho counts rho^`lam` times. What a round leaves free goes to the
    jobs with the most left.

    The authors' program has a variable for each job and round. The rounds of a window are alike in it, so here it says
    how many rounds each job gets (HiGHS, to a thousandth). Each round has those that need all that are left, then jobs
    by weight for what they get, as the authors' second program orders them. In time is: by `rhomax` times the average
    of what was predicted since the job came, weighted by how long it held.
    """

    window: int = 20
    replan: int = 8
    k: float = 1e-3
    lam: float = 12.0
    rhomax: float = 1.0
    registered: ClassVar[str] = "shockwave"

    _at: int = field(default=-1, init=False, repr=False)
    _solved: int = field(default=0, init=False, repr=False)
    _of: tuple[JobId, ...] = field(default=(), init=False, repr=False)
    #: By job, since which round it was predicted to end when, with its n-th part.
    _fair: dict[JobId, list[tuple[int, float]]] = field(default_factory=dict, init=False, repr=False)
    #: The jobs of each round of the window.
    _rounds: list[list[JobId]] = field(default_factory=list, init=False, repr=False)

    def outlook(self, job: JobState) -> Outlook:
        """What is known and predicted of a job; one of unknown length has as much left as it has trained."""
        left, seconds, done = job.remaining().expected, seconds_left(job), job.done()
        if math.isnan(left):
            left = max(1.0, done)
            seconds = left / max(1e-9, job.speed(*job.maximum))
        return Outlook(done + left, done, max(1e-9, seconds / max(1e-9, left)), self.ran(job.id), seconds)

    def takes_all(self, view: EngineView) -> bool:
        """See `Rounds`."""
        del view
        return True

    def clock(self, view: EngineView) -> float:
        """The time of the coming round."""
        return view.now + self.lead

    def line(self, jobs: list[JobState], view: EngineView) -> Iterable[JobState]:
        """See `Rounds`."""
        self._at += 1
        of, seen = tuple(job.id for job in jobs), {job.id: self.outlook(job) for job in jobs}
        if of != self._of or self._at - self._solved >= min(self.replan, self.window):
            units = max(1, round(1.0 / float(widths(jobs, view).min())))
            if of != self._of:
                part = min(1.0, units / len(jobs))
                for job in jobs:
                    ends = job.arrived + (seen[job.id].past + seen[job.id].left) / part
                    self._fair.setdefault(job.id, []).append((self._at, ends))
                self._fair = {number: self._fair[number] for number in of}
            self._of, self._solved = of, self._at
            self._rounds = self._plan(jobs, [seen[number] for number in of], units, view)
        now = self._rounds[self._at - self._solved]
        here = {job.id: job for job in jobs}
        rest = sorted((job for job in jobs if job.id not in now), key=lambda job: -seen[job.id].left)
        return [*(here[number] for number in now), *rest]

    def _plan(self, jobs: list[JobState], seen: list[Outlook], units: int, view: EngineView) -> list[list[JobId]]:
        """The jobs of each round of the window."""
        now, part = self.clock(view), min(1.0, units / len(jobs))
        wide = widths(jobs, view)
        fair = np.array([_average(self._fair[job.id], self._at) for job in jobs])
        left = np.array([one.left for one in seen])
        weights = np.ones(len(jobs))
        #: Seconds that may be left of each job after the window, if it is to end in time.
        may = (self.rhomax * fair - now - self.round * self.window) * part
        counts = self._solve(seen, wide, weights, may) if (may >= 0.0).all() else None
        if counts is None:
            late = (now + left / part) / fair
            power = np.where(left < self.round, 100.0, self.lam)
            weights = np.where(late > self.rhomax, np.minimum(late**power, HEAVIEST), 1.0)
            counts = self._solve(seen, wide, weights, None)
        return self._in_rounds(jobs, wide, weights, np.zeros(len(jobs), int) if counts is None else counts)

    def _solve(
        self, seen: list[Outlook], wide: FloatArray, weights: FloatArray, may: FloatArray | None
    ) -> FloatArray | None:
        """How many rounds each job gets; None where not all of them can end in time.

        Variables: of each job its rounds, epochs, and the weights of `BASES`; then the most seconds left of one.
        """
        count, per = len(seen), 2 + len(BASES)
        size = count * per + 1
        rows, low, high = lil_array((1 + 5 * count, size)), np.full(1 + 5 * count, -np.inf), np.zeros(1 + 5 * count)
        cost, most = np.zeros(size), np.full(size, np.inf)
        cost[-1] = self.k
        whole = np.zeros(size, int)
        high[0] = self.window
        for at, one in enumerate(seen):
            rounds, epochs, first = at * per, at * per + 1, at * per + 2
            row = 1 + 5 * at
            rows[0, rounds] = wide[at]
            whole[rounds], most[rounds] = 1, self.window
            most[epochs] = max(0.0, one.epochs - one.done)
            cost[first : first + len(BASES)] = -weights[at] / (count * self.window) * LOGS
            rows[row, epochs], rows[row, rounds] = one.epoch, -self.round
            rows[row + 1, first : first + len(BASES)] = BASES
            rows[row + 1, epochs] = -1.0 / one.epochs
            low[row + 1] = high[row + 1] = min(1.0, one.done / one.epochs)
            rows[row + 2, first : first + len(BASES)] = 1.0
            low[row + 2] = high[row + 2] = 1.0
            rows[row + 3, size - 1] = rows[row + 3, epochs] = 1.0
            rows[row + 3, epochs] = one.epoch
            low[row + 3], high[row + 3] = one.left, np.inf
            rows[row + 4, epochs] = one.epoch
            low[row + 4], high[row + 4] = -np.inf if may is None else one.left - may[at], np.inf
        found = integer_program.solve(
            cost,
            integrality=whole,
            bounds=Bounds(0.0, most),
            constraints=LinearConstraint(rows.tocsr(), low, high),
            options={"mip_rel_gap": 1e-3},
        )
        return None if found.x is None else np.round(found.x[:-1:per])

    def _in_rounds(
        self, jobs: list[JobState], wide: FloatArray, weights: FloatArray, counts: FloatArray
    ) -> list[list[JobId]]:
        need, rounds = counts.copy(), []
        order = np.argsort(-weights / np.maximum(1e-9, wide * counts), kind="stable")
        for rest in range(self.window, 0, -1):
            room, chosen = 1.0, list[JobId]()
            # First those that need every round from here on.
            for at in order[np.argsort(need[order] < rest, kind="stable")].tolist():
                if need[at] > 0 and wide[at] <= room + 1e-9:
                    room -= wide[at]
                    need[at] -= 1
                    chosen.append(jobs[at].id)
            rounds.append(chosen)
        return rounds


def _average(ends: list[tuple[int, float]], at: int) -> float:
    """A tenth the last prediction of an end, the rest their average, each by the rounds until the next."""
    held = np.diff([since for since, _ in ends] + [at])
    values = np.array([end for _, end in ends])
    average = float(values @ held / held.sum()) if held.any() else float(values[-1])
    return 0.9 * average + 0.1 * float(values[-1])
