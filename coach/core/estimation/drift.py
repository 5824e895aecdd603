"""Speeds measured at different times, made comparable: a machine that others use too is not always as fast.

What an epoch's speed says of its (w,s) and what it says of the hour cannot be told apart, except where the same
(w,s) was measured before: then the difference is the hour's. So v = g(t) f(w,s), with a level g that moves only on
repeated points, by `GAIN` of what they show (an exponential smoothing: the rest is noise). All points are then scaled
to the level of now. Without it a machine that slows down makes every point measured earlier look better than the
present one, and the allocation goes round in circles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from coach.core.estimation.speed import SpeedPoint

#: Share of a repeated point's surprise that is taken for a change of the level.
GAIN = 0.7
#: A point says nothing of the level where it trained less than this share of an epoch.
LEAST_WEIGHT = 0.5


def at_present_level(points: Sequence[SpeedPoint]) -> list[SpeedPoint]:
    """`points`, in the order in which they were measured, as they would be measured now."""
    level = 0.0
    levels: list[float] = []
    #: (w, s) -> logarithm of the speed there at level 0, as the points so far have it, and how many they are.
    known: dict[tuple[int, int], tuple[float, int]] = {}
    before: tuple[int, int] | None = None
    for point in points:
        at = (point.workers, point.servers)
        speed = math.log(point.epochs_per_second)
        whole = point.weight >= LEAST_WEIGHT
        if whole and at in known:
            level += GAIN * (speed - known[at][0] - level)
        if whole and at != before:
            # From one epoch to the next at the same (w,s) only the hour has changed: f learns on coming back.
            mean, count = known.get(at, (0.0, 0))
            known[at] = (mean + (speed - level - mean) / (count + 1), count + 1)
            before = at
        levels.append(level)
    return [
        replace(point, epochs_per_second=point.epochs_per_second * math.exp(level - then))
        for point, then in zip(points, levels, strict=True)
    ]
