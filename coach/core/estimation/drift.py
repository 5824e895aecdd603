"""Speeds measured at different times, made comparable: a shared machine's speed varies.

The effect of (w,s) on an epoch's speed cannot be separated from that of the time, except where the same (w,s) was
measured before: then the difference is due to the time, or to a slow minute. So v = g(t) f(w,s). The level g changes
only on repeated points, and only where two of them in a row deviate in the same direction: by the smaller deviation.
Mini-epochs do not change the level: one lucky step would make all earlier measurements look slow. All points are then
scaled to the present level. Without that, on a machine that becomes slower every earlier point looks better than the
present one, and the allocation changes in circles.

Several measurements of one configuration are then combined (`merged`). On a shared machine an epoch may fall into a
slow minute; nothing makes it faster than the configuration is. So the median is used, not the mean. If the two middle
ones disagree, the faster one is used: if it is wrong, the next epoch with that configuration corrects it, but if the
slower one were wrong, no epoch would ever show it. If the two differ by no more than noise explains, both count, since
the faster one overestimates the next measurement.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from coach.core.estimation.kriging import NOISE
from coach.core.estimation.observations import SpeedPoint

#: Two speeds further apart than this, in ln speed, disagree.
DISAGREE = 4 * NOISE
#: The weight of the prior NOISE, in repeated points.
NOISE_BELIEF = 3.0
#: A larger deviation, in standard deviations, is a slow minute: it counts as this many in the ordinary noise.
MAX_DEVIATIONS = 3.0
#: The median of the square of a standard normal number.
MEDIAN_SQUARE = 0.455
#: With a variance estimated from n squares the distribution is Student's t instead of normal. Its 10 and 90 % quantiles
#: are those of a normal distribution whose variance is the sum of the squares over n - TAIL (within 2 % from n = 3 on).
TAIL = 1.2


def at_present_level(points: Sequence[SpeedPoint]) -> tuple[list[SpeedPoint], float]:
    """`points`, in the order in which they were measured, as they would be measured now; and `noise_of` them."""
    level = last = 0.0
    levels: list[float] = []
    squares: list[float] = []
    #: (w, s) -> speeds measured there, at level 0; those of whole epochs; and the sum of all weights.
    known: dict[tuple[int, int], list[float]] = {}
    whole: dict[tuple[int, int], list[float]] = {}
    weights: dict[tuple[int, int], float] = {}
    for point in points:
        at = point.workers, point.servers
        speed = math.log(point.epochs_per_second)
        before = known.setdefault(at, [])
        if before:
            deviation = speed - level - math.log(weighted_median(before))
            squares.append(deviation**2 / (1 + point.weight / weights[at]))
        if not point.mini:
            if earlier := whole.setdefault(at, []):
                deviation = speed - level - math.log(weighted_median(earlier))
                if deviation * last > 0:
                    level += math.copysign(min(abs(deviation), abs(last)), deviation)
                last = deviation
            earlier.append(math.exp(speed - level))
        before.append(math.exp(speed - level))
        weights[at] = weights.get(at, 0.0) + point.weight
        levels.append(level)
    now = [
        replace(point, epochs_per_second=point.epochs_per_second * math.exp(level - then))
        for point, then in zip(points, levels, strict=True)
    ]
    return now, noise_of(squares)


def noise_of(squares: Sequence[float]) -> float:
    """The variance of ln speed in one measurement, from the squared deviations of repeated ones from earlier ones.

    It so includes all errors of such a prediction. NOISE is the prior. A slow minute counts as MAX_DEVIATIONS.
    """
    usual = statistics.median(squares) / MEDIAN_SQUARE if len(squares) >= NOISE_BELIEF else 0.0
    limit = MAX_DEVIATIONS**2 * max(NOISE**2, usual)
    total = NOISE_BELIEF * NOISE**2 + sum(min(square, limit) for square in squares)
    return total / (NOISE_BELIEF + len(squares) - TAIL)


def merged(points: Sequence[SpeedPoint]) -> tuple[SpeedPoint, ...]:
    """One point a configuration, with the sum of their weights and the smallest of their computing parts."""
    groups: dict[tuple[int, int], list[SpeedPoint]] = {}
    for p in points:
        groups.setdefault((p.workers, p.servers), []).append(p)
    return tuple(
        SpeedPoint(
            *at,
            weighted_median([p.epochs_per_second for p in group]),
            sum(p.weight for p in group),
            min((p.computing_part for p in group if p.computing_part > 0.0), default=0.0),
        )
        for at, group in groups.items()
    )


def weighted_median(speeds: Sequence[float]) -> float:
    """The median of `speeds`, all positive; of two in the middle the geometric mean, or the faster if they disagree."""
    ordered = sorted(speeds)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return high if math.log(high / low) > DISAGREE else low * math.sqrt(high / low)
