"""What an epoch takes and costs with (workers, servers): resource-seconds times the price book."""

from __future__ import annotations

from coach.core.budget import PriceBook
from coach.core.cluster import Resources
from coach.core.estimation.interval import Interval
from coach.core.estimation.speed import SpeedModel


def epoch_seconds(
    speed: SpeedModel, workers: int, servers: int, fixed: Interval, fraction: float = 1.0
) -> Interval:
    """Seconds of an epoch: `fixed` (start, evaluation, checkpoint) and `fraction` of an epoch at speed.

    Both are at their bounds at once in the bounds of the sum, so it holds the truth rather too often.
    """
    epochs_per_second = speed.interval(workers, servers)
    return Interval(
        fixed.low + fraction / epochs_per_second.high,
        fixed.expected + fraction / epochs_per_second.expected,
        fixed.high + fraction / epochs_per_second.low,
    )


def epoch_cost(seconds: Interval, held: Resources, prices: PriceBook, invocations: int = 0) -> Interval:
    """Currency units that an epoch of so many seconds costs; `held` is what the whole gang holds."""
    return seconds * prices.rate(held) + prices.invocation * invocations
