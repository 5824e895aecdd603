"""Several measurements of one configuration combined into one.

On a shared machine an epoch may fall into a slow minute; nothing makes it faster than the configuration is. So the
median is used, not the mean. If the two middle ones disagree, the faster one is used: if it is wrong, the next epoch
with that configuration corrects it, but if the slower one were wrong, no epoch would ever show it. If the two differ by
no more than noise explains, both count, since the faster one overestimates the next measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coach.core.estimation.kriging import NOISE
from coach.core.estimation.observations import SpeedPoint

#: Two speeds further apart than this, in ln speed, disagree.
DISAGREE = 4 * NOISE


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
