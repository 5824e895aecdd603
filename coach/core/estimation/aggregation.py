"""Several measurements of one configuration made one.

On a machine that others use too, an epoch may fall into a slow minute; nothing makes one faster than it can be. So
the median counts, not the mean, and of two in the middle that disagree the faster one: where that is wrong, the next
epoch there says so, and where the slower one is wrong, nothing else would ever find out. Two that differ by no more
than noise explains count both: the faster one is faster than the next will be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coach.core.estimation.kriging import NOISE
from coach.core.estimation.observations import SpeedPoint

#: Two speeds further apart than this, in ln speed, disagree.
DISAGREE = 4 * NOISE


def merged(points: Sequence[SpeedPoint]) -> tuple[SpeedPoint, ...]:
    """One point a configuration, with all of their weight, and the least that any of them says of computing."""
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
    return high if math.log(high / low) > DISAGREE else math.sqrt(low * high)
