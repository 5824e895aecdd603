"""Seconds and cost of an epoch with (workers, servers): resource-seconds times the price book."""

from __future__ import annotations

from typing import TypeVar

from coach.core.cluster import Resources
from coach.core.estimation.interval import Interval
from coach.core.estimation.speed import SpeedModel
from coach.core.money import PriceBook

#: Calls that a pod of a formed group usually takes for an epoch, and for each second of it: full epochs of 0.1 to 11 s
#: took 2.5 + 1.4 to 1.7 a second.
USUAL_CALLS = 2.5
USUAL_CALLS_PER_SECOND = 1.6


#: A best guess alone, or with its bounds.
Guess = TypeVar("Guess", float, Interval)


def expected_seconds(speed: SpeedModel, workers: int, servers: int, fixed: Interval, fraction: float = 1.0) -> float:
    """The expected value of `epoch_seconds`."""
    return fixed.expected + fraction / speed.interval(workers, servers).expected


def epoch_seconds(speed: SpeedModel, workers: int, servers: int, fixed: Interval, fraction: float = 1.0) -> Interval:
    """Seconds of an epoch: `fixed` (start, evaluation, checkpoint) and `fraction` of an epoch at speed.

    The bounds of the sum assume both at their bounds at once, so it holds the true value more often than 80 %.
    """
    low, expected, high = speed.interval(workers, servers)
    return fixed + Interval(fraction / high, fraction / expected, fraction / low)


def second_cost(held: Resources, prices: PriceBook, pods: int) -> float:
    """Currency units that a second of training costs with a gang of `pods` pods that hold `held` together."""
    return prices.rate(held) + prices.invocation * pods * USUAL_CALLS_PER_SECOND


def epoch_cost(seconds: Guess, held: Resources, prices: PriceBook, pods: int) -> Guess:
    """Currency units that an epoch of `seconds` costs with a gang of `pods` pods that hold `held` together."""
    return seconds * second_cost(held, prices, pods) + prices.invocation * pods * USUAL_CALLS
