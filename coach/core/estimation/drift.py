"""Speeds measured at different times, made comparable: a machine that others use too is not always as fast.

What an epoch's speed says of its (w,s) and what it says of the hour cannot be told apart, except where the same
(w,s) was measured before: then the difference is the hour's, or a slow minute's. So v = g(t) f(w,s), with a level g
that moves only on repeated points, and only where two of them in a row surprise in the same direction: by the lesser
surprise. All points are then scaled to the level of now. Without it a machine that slows down makes every point
measured earlier look better than the present one, and the allocation goes round in circles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from coach.core.estimation.merging import upper_median
from coach.core.estimation.points import SpeedPoint

#: A point of less weight than this, a short probe's, says nothing of the level.
LEAST_WEIGHT = 0.5


def at_present_level(points: Sequence[SpeedPoint]) -> list[SpeedPoint]:
    """`points`, in the order in which they were measured, as they would be measured now."""
    level = last = 0.0
    levels: list[float] = []
    #: (w, s) -> logarithms of the speeds measured there, at level 0.
    known: dict[tuple[int, int], list[float]] = {}
    for point in points:
        speed = math.log(point.epochs_per_second)
        before = known.setdefault((point.workers, point.servers), [])
        if before and point.weight >= LEAST_WEIGHT:
            surprise = speed - level - upper_median(before)
            if surprise * last > 0:
                level += math.copysign(min(abs(surprise), abs(last)), surprise)
            last = surprise
        before.append(speed - level)
        levels.append(level)
    return [
        replace(point, epochs_per_second=point.epochs_per_second * math.exp(level - then))
        for point, then in zip(points, levels, strict=True)
    ]
