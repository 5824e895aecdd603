"""Several measurements of one configuration made one.

On a machine that others use too, an epoch may fall into a slow minute; nothing makes one faster than it can be. So
the median counts, not the mean, and of two that disagree the faster one: where that is wrong, the next epoch there
says so, and where the slower one is wrong, nothing else would ever find out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coach.core.estimation.kriging import NOISE
from coach.core.estimation.points import SpeedPoint

#: A deviation beyond this, in ln speed, is a slow minute and says no more of ordinary noise than this much would.
MOST_DEVIATION = 3 * NOISE


def merged(points: Sequence[SpeedPoint]) -> tuple[tuple[SpeedPoint, ...], float]:
    """One point a configuration, usable ones only, and the variance of ln speed beyond NOISE that repetitions show."""
    groups: dict[tuple[int, int], list[SpeedPoint]] = {}
    for p in points:
        if p.epochs_per_second > 0 and math.isfinite(p.epochs_per_second) and p.weight > 0:
            groups.setdefault((p.workers, p.servers), []).append(p)
    found = []
    squares, noise, repetitions = 0.0, 0.0, 0
    for (workers, servers), group in groups.items():
        speed = upper_median([p.epochs_per_second for p in group])
        found.append(SpeedPoint(workers, servers, speed, sum(p.weight for p in group)))
        if len(group) > 1:
            deviations = (abs(math.log(p.epochs_per_second / speed)) for p in group)
            squares += sum(min(deviation, MOST_DEVIATION) ** 2 for deviation in deviations)
            noise += sum(min(NOISE**2 / p.weight, MOST_DEVIATION**2) for p in group) * (1 - 1 / len(group))
            repetitions += len(group) - 1
    return tuple(found), max(0.0, squares - noise) / max(repetitions, 1)


def upper_median(values: Sequence[float]) -> float:
    """The middle one of `values`, of two in the middle the larger."""
    return sorted(values)[len(values) // 2]
