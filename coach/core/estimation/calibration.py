"""A job's remaining epochs as its curve predicts them, calibrated on other tasks' curves.

Split conformal prediction (Vovk 2005; Romano, Patterson and Candès 2019, *Conformalized quantile regression*): on many
tasks the true rest was divided by each predicted bound, and a quantile of that multiplies the bound from now on.
Between the bounds a number of epochs is multiplied by what lies between their factors, by its probability.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from coach.core.estimation.convergence import TAIL
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval

#: By how many values of the metric were seen: what multiplies the lower bound, the median and the upper bound.
#: Written by `python -m benchmarks.estimation.young_curves` on 2026-11-29, whose page has the data, and how
#: many of the true values are inside: results/estimators/young-curves.md.
FACTORS = {
    3: (1.0, 2.2, 3.0),
    4: (1.0, 1.92, 2.4),
    5: (1.0, 1.67, 2.09),
    6: (1.0, 1.57, 1.84),
    8: (1.0, 1.0, 1.34),
    10: (1.0, 1.0, 1.32),
    12: (1.0, 1.0, 1.17),
    16: (0.8, 1.0, 1.09),
    20: (1.0, 1.0, 1.05),
    30: (0.9, 1.0, 1.0),
    40: (1.0, 1.0, 1.0),
}
#: k earlier runs of the same program correct the curve themselves: the factors count as this / (this + k).
RUNS_DOUBTED = 5.0

_SEEN = np.log(list(FACTORS))
_COLUMNS = np.log(list(FACTORS.values())).T


def calibrated(left: Interval, seen: int, known: int = 0) -> Interval:
    """The remaining epochs `left`, predicted after `seen` values with `known` earlier runs, with their own factors."""
    low, middle, high = (bound * math.exp(factor) for bound, factor in zip(left, _factors(seen, known), strict=True))
    return Interval(min(low, middle), middle, max(middle, high))


def calibrated_all(left: FloatArray, chance: FloatArray, seen: int, known: int = 0) -> FloatArray:
    """The same of all numbers of remaining epochs that are possible, in order, with these probabilities [n]."""
    place = np.cumsum(chance) - 0.5 * chance
    return left * np.exp(np.interp(place, (TAIL, 0.5, 1.0 - TAIL), _factors(seen, known)))


@lru_cache(maxsize=1 << 10)
def _factors(seen: int, known: int) -> tuple[float, ...]:
    """The logarithms of what multiplies the lower bound, the median and the upper bound."""
    trust, at = RUNS_DOUBTED / (RUNS_DOUBTED + known), math.log(max(seen, 1))
    return tuple(trust * float(np.interp(at, _SEEN, factors)) for factors in _COLUMNS)
