"""An estimate with its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

#: Standard normal quantile that bounds the central 80 %.
Z80 = 1.2815515655446004
#: Full epochs from which on a learning curve predicts when its job ends: its first values say little about that.
CURVE_EPOCHS = 3
#: No bound is further than this from the expected value, in ln: a factor of 5e21.
WIDEST = 50.0


@dataclass(frozen=True, slots=True)
class Interval:
    """An expected value, and bounds that hold the true value 80 % of the time (unless stated otherwise).

    Invariant: `low <= expected <= high`.
    """

    low: float
    expected: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.expected <= self.high:
            raise ValueError(f"not an interval: {self.low}, {self.expected}, {self.high}")

    def __iter__(self) -> Iterator[float]:
        return iter((self.low, self.expected, self.high))

    def __add__(self, amount: float | Interval) -> Interval:
        """Shifted; or with another one, as if both were at their bounds at once."""
        more = amount if isinstance(amount, Interval) else Interval(amount, amount, amount)
        return Interval(self.low + more.low, self.expected + more.expected, self.high + more.high)

    def __mul__(self, factor: float) -> Interval:
        """Scaled by `factor` >= 0."""
        return Interval(self.low * factor, self.expected * factor, self.high * factor)

    @property
    def spreads(self) -> tuple[float, float]:
        """How far the bounds are from the expected value, as logarithms of ratios; 0 where one of them is not positive.

        Those of a product of independent estimates add in quadrature.
        """
        if self.expected <= 0.0:
            return 0.0, 0.0
        return math.log(self.expected / self.low) if self.low > 0.0 else 0.0, math.log(self.high / self.expected)

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside."""
        return self.low <= value <= self.high

    def quantile(self, share: float) -> float:
        """The value that a positive quantity does not exceed with probability `share`, 0 < share < 1.

        Reads the interval as two half log-normals around `expected`, each bound 1.28 deviations away.
        """
        if self.low <= 0:
            raise ValueError(f"quantile needs a positive interval, got low = {self.low}")
        bound = self.high if share >= 0.5 else self.low
        width = (math.log(bound) - math.log(self.expected)) * abs(NormalDist().inv_cdf(share)) / Z80
        return self.expected * math.exp(min(width, WIDEST))


def conservative_value(expected: float, high: float) -> float:
    """Epochs to keep money or time for: the geometric mean of the expected number and its upper bound.

    A log-normal number with these is below it with a probability of three in four. A short curve predicts too few.
    """
    return min(high, expected * math.sqrt(high / expected)) if expected > 0.0 else 0.0


def log_normal(expected: float, spread: float) -> Interval:
    """The interval of a positive quantity whose logarithm has standard deviation `spread`."""
    factor = math.exp(min(Z80 * spread, WIDEST))
    return Interval(expected / factor, expected, expected * factor)
