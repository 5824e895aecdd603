"""Which running best-effort jobs are preempted for a trial-and-error job: FitGpp, LRTP, RAND (FitGpp paper, 2.2, 3).

This is the rule for jobs of any shape, as described in tests/conformance/README.md, whose cases the kube-scheduler
plugin runs too. `two_queues.py` has the same rule for single tasks, by arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from coach_research.workload import FloatArray

#: Decimals that count when scores are compared.
DECIMALS = 9


class Rule(StrEnum):
    """Which job is preempted first."""

    FITGPP = "fitgpp"  #: the lowest score of those that suffice by themselves (equation 2)
    LRTP = "lrtp"  #: the longest remaining time
    RANDOM = "random"  #: the lowest lot
    NEVER = "never"  #: none


@dataclass(frozen=True, slots=True)
class Running:
    """A running best-effort job."""

    #: Its name or number: decides between equals.
    job: str | int
    #: D_j: the requests of all its pods, each resource as a share of its maximum over the nodes; shape (3,).
    demand: FloatArray
    #: GP_j, seconds.
    grace: float = 0.0
    #: PC_j.
    preempted: int = 0
    priority: int = 0
    #: Predicted seconds to its end; infinite if unknown.
    remaining: float = math.inf
    #: It is between two epochs: stopping it now loses nothing.
    boundary: bool = False
    #: Its random lot, under RANDOM.
    lot: float = 0.0


#: Whether the waiting job would fit without these.
Fits = Callable[[Sequence[Running]], bool]


def scores(sizes: FloatArray, graces: FloatArray, s: float) -> FloatArray:
    """Equation 1: `Score(j) = |D_j| / max |D| + s GP_j / max GP`, over all running best-effort jobs.

    `sizes` are the Euclidean norms |D_j| (the paper does not say which norm), [n]; `graces` are GP_j in any unit,
    [n]. A term whose maximum is 0 is 0.
    """
    largest, longest = sizes.max(initial=0.0), graces.max(initial=0.0)
    score: FloatArray = sizes / largest if largest > 0 else np.zeros(len(sizes))
    if longest > 0:
        score = score + graces * (s / longest)
    # Rounded, so that equal scores tie whatever the order of computation.
    return score.round(DECIMALS)


def choose(
    running: Sequence[Running],
    fits: Fits,
    *,
    rule: Rule,
    s: float = 4.0,
    most: int = 1,
    priority: int = 0,
    trim: bool = True,
) -> list[Running]:
    """The jobs to preempt for a waiting one of `priority`, in the order of the choice; [] where it must wait.

    `fits(gone)` says whether it would fit without those; `most` is P, how often a job may be preempted. Under FITGPP
    the first in order that suffices by itself is preempted (equation 2: `D_TE <= D_j + N and PC_j < P`). Where there is
    none, and under LRTP and RANDOM always, jobs are preempted in order "until they can prepare enough resource"; then,
    the last first, each unnecessary one is spared. (The paper does not mention that: `trim` False leaves it out.)
    """
    allowed = [job for job in running if job.preempted < most and job.priority <= priority]
    if rule is Rule.NEVER or fits(()) or not fits(allowed):
        return []
    sizes = np.array([float(np.linalg.norm(job.demand)) for job in running])
    score = scores(sizes, np.array([job.grace for job in running]), s)
    by_score = dict(zip((job.job for job in running), score.tolist(), strict=True))
    ranks: dict[Rule, Callable[[Running], float]] = {
        Rule.FITGPP: lambda job: by_score[job.job],
        Rule.LRTP: lambda job: -job.remaining,
        Rule.RANDOM: lambda job: job.lot,
    }
    rank = ranks[rule]
    line = sorted(allowed, key=lambda job: (not job.boundary, rank(job), job.job))
    if rule is Rule.FITGPP:
        for job in line:
            if fits([job]):
                return [job]
    chosen: list[Running] = []
    for job in line:
        chosen.append(job)
        if fits(chosen):
            break
    return trimmed(chosen, fits) if trim else chosen


def trimmed(chosen: Sequence[Running], fits: Fits) -> list[Running]:
    """`chosen` without those that turned out unnecessary, the last chosen first."""
    kept = list(chosen)
    for job in reversed(chosen):
        without = [other for other in kept if other is not job]
        if fits(without):
            kept = without
    return kept
