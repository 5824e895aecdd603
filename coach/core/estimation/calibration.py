"""The interval of a job's remaining epochs that is shown: the curve's, calibrated on other tasks' curves.

Split conformal prediction (Vovk 2005; Romano, Patterson and Candès 2019, *Conformalized quantile regression*): on many
tasks the true rest was divided by each predicted bound, and a quantile of that multiplies the bound from now on.
"""

from __future__ import annotations

import math

import numpy as np

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
_LOW, _MIDDLE, _HIGH = np.log(list(FACTORS.values())).T


def calibrated(left: Interval, seen: int, known: int = 0) -> Interval:
    """What is shown of the remaining epochs `left`, predicted after `seen` values, with `known` earlier runs."""
    trust = RUNS_DOUBTED / (RUNS_DOUBTED + known)
    low, middle, high = (
        bound * math.exp(trust * float(np.interp(math.log(max(seen, 1)), _SEEN, factors)))
        for bound, factors in zip(left, (_LOW, _MIDDLE, _HIGH), strict=True)
    )
    return Interval(min(low, middle), middle, max(middle, high))
