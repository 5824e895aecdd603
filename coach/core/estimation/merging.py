"""Several measurements of one configuration made one, with the doubt that their disagreement leaves.

A slow minute of a machine that others use too makes an epoch as slow as a bad choice of servers would. Measured once,
the two cannot be told apart; measured again, they can: so measurements of one configuration are taken to scatter
around its speed by NOISE² / weight, as any does, plus a variance tau² that their own disagreement shows (the
random-effects model of DerSimonian and Laird, Controlled Clinical Trials 7, 1986). Where they agree, tau² is 0 and
weights count as they are; where they do not, a short measurement says almost as much as a long one, and all of
them together say little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coach.core.estimation.kriging import NOISE
from coach.core.estimation.points import SpeedPoint

#: A measurement: ln speed, and the inverse of the variance of its noise.
Measurement = tuple[float, float]


def merged(points: Sequence[SpeedPoint]) -> tuple[tuple[SpeedPoint, ...], float]:
    """One point a configuration, usable ones only, and the variance of ln speed beyond NOISE over all of them.

    The scatter of all configurations together is the least that each of them is given: who was measured once knows
    of the machine's bad minutes from the others.
    """
    groups: dict[tuple[int, int], list[Measurement]] = {}
    for p in points:
        if p.epochs_per_second > 0 and math.isfinite(p.epochs_per_second) and p.weight > 0:
            measurement = math.log(p.epochs_per_second), p.weight / NOISE**2
            groups.setdefault((p.workers, p.servers), []).append(measurement)
    scatter = _scatter(list(groups.values()))
    found = []
    for (workers, servers), group in groups.items():
        variance = max(scatter, _scatter([group]))
        precisions = [1.0 / (1.0 / precision + variance) for _, precision in group]
        total = sum(precisions)
        mean = sum(x * p for (x, _), p in zip(group, precisions, strict=True)) / total
        found.append(SpeedPoint(workers, servers, math.exp(mean), total * NOISE**2))
    return tuple(found), scatter


def _scatter(groups: Sequence[Sequence[Measurement]]) -> float:
    """tau² by the method of moments, pooled over `groups`; 0 where nothing was measured twice."""
    excess = scale = 0.0
    for group in groups:
        total = sum(precision for _, precision in group)
        mean = sum(x * precision for x, precision in group) / total
        excess += sum(precision * (x - mean) ** 2 for x, precision in group) - (len(group) - 1)
        scale += total - sum(precision * precision for _, precision in group) / total
    return max(0.0, excess / scale) if scale > 1e-9 else 0.0
