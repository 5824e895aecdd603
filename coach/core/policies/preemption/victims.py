"""Which running best-effort jobs give way to a trial-and-error job: FitGpp, LRTP and RAND (FitGpp paper, sections
2.2, 3).

This is the rule for jobs of any shape, in the words of tests/conformance/README.md ("Who gives way"), whose cases the
kube-scheduler plugin runs too. `two_queues.py` has the same rule for single tasks, by whole arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from coach.core.policies.api.react import FloatArray

#: Decimals that count when scores are compared.
DECIMALS = 9


class Rule(StrEnum):
    """Who goes first."""

    FITGPP = "fitgpp"  #: the least score of those that make room by themselves (equation 2)
    LRTP = "lrtp"  #: the longest remaining time
    RANDOM = "random"  #: the lowest lot
    NEVER = "never"  #: nobody


@dataclass(frozen=True, slots=True)
class Running:
    """A running best-effort job."""

    #: Its name or number: decides between equals.
    job: str | int
    #: D_j: what all its pods request, each resource as a part of the most that any node has of it; shape (3,).
    demand: FloatArray
    #: GP_j, seconds.
    grace: float = 0.0
    #: PC_j.
    preempted: int = 0
    priority: int = 0
    #: Seconds it would go on; infinite where nobody knows.
    remaining: float = math.inf
    #: It is between two epochs: nothing is lost by stopping it now.
    boundary: bool = False
    #: What it drew, under RANDOM.
    lot: float = 0.0


#: Whether a job that waits would fit if those were gone.
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
    # Rounded, so that equal scores tie however they came about.
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
    """The jobs to preempt for one that waits with `priority`, in the order of the choice; [] where it has to wait.

    `fits(gone)` says whether it would fit without those; `most` is P, how often a job may be preempted in its
    life. Under FITGPP the first in order that makes room by itself goes (equation 2: `D_TE <= D_j + N and PC_j <
    P`). Where there is none, and under LRTP and RANDOM always, jobs go in order "until they can prepare enough
    resource"; then, the last first, each is put back without which there is room as well. (The paper says nothing
    of putting back: `trim` False leaves it out.)
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
    """`chosen` without those that turned out not to be in the way, the last chosen first."""
    kept = list(chosen)
    for job in reversed(chosen):
        without = [other for other in kept if other is not job]
        if fits(without):
            kept = without
    return kept
