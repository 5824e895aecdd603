"""Speeds measured at different times, made comparable: a machine that others use too is not always as fast.

What an epoch's speed says of its (w,s) and what it says of the hour cannot be told apart, except where the same
(w,s) was measured before: then the difference is the hour's, or a slow minute's. So v = g(t) f(w,s), with a level g
that moves only on repeated points, and only where two of them in a row surprise in the same direction: by the lesser
surprise. Nothing is held against a mini-epoch: where one step was lucky, all that was measured would be slowed down.
All points are then scaled to the level of now. Without it a machine that slows down makes every point measured earlier
look better than the present one, and the allocation goes round in circles.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from coach.core.estimation.aggregation import weighted_median
from coach.core.estimation.kriging import NOISE
from coach.core.estimation.observations import SpeedPoint

#: How many repeated points the belief in NOISE counts for, against those measured.
NOISE_BELIEF = 3.0
#: A surprise of more standard deviations is a slow minute and says no more of ordinary noise than this many.
MAX_DEVIATIONS = 3.0
#: The median of the square of a standard normal number.
MEDIAN_SQUARE = 0.455
#: A variance that is itself an estimate from n squares makes Student's t of the normal distribution; its 10 and 90 %
#: quantiles are those of the normal one with the squares' sum over n - TAIL (within 2 % from n = 3 on).
TAIL = 1.2


def at_present_level(points: Sequence[SpeedPoint]) -> tuple[list[SpeedPoint], float]:
    """`points`, in the order in which they were measured, as they would be measured now; and `noise_of` them."""
    level = last = 0.0
    levels: list[float] = []
    squares: list[float] = []
    #: (w, s) -> speeds measured there, at level 0; those that say something of it; and the sum of all weights.
    known: dict[tuple[int, int], list[float]] = {}
    telling: dict[tuple[int, int], list[float]] = {}
    weights: dict[tuple[int, int], float] = {}
    for point in points:
        at = point.workers, point.servers
        speed = math.log(point.epochs_per_second)
        before = known.setdefault(at, [])
        if before:
            surprise = speed - level - math.log(weighted_median(before))
            squares.append(surprise**2 / (1 + point.weight / weights[at]))
        if not point.mini:
            if told := telling.setdefault(at, []):
                surprise = speed - level - math.log(weighted_median(told))
                if surprise * last > 0:
                    level += math.copysign(min(abs(surprise), abs(last)), surprise)
                last = surprise
            told.append(math.exp(speed - level))
        before.append(math.exp(speed - level))
        weights[at] = weights.get(at, 0.0) + point.weight
        levels.append(level)
    now = [
        replace(point, epochs_per_second=point.epochs_per_second * math.exp(level - then))
        for point, then in zip(points, levels, strict=True)
    ]
    return now, noise_of(squares)


def noise_of(squares: Sequence[float]) -> float:
    """The variance of ln speed in one measurement, from the squares of how far repeated ones lay beside what was
    known before them: so it has everything in it by which such a prediction is off.

    NOISE is the belief before any. A slow minute counts as MAX_DEVIATIONS.
    """
    usual = statistics.median(squares) / MEDIAN_SQUARE if len(squares) >= NOISE_BELIEF else 0.0
    most = MAX_DEVIATIONS**2 * max(NOISE**2, usual)
    total = NOISE_BELIEF * NOISE**2 + sum(min(square, most) for square in squares)
    return total / (NOISE_BELIEF + len(squares) - TAIL)
