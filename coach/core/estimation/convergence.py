"""The learning curve of a job, and when it reaches its target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coach.core.estimation.interval import Z80, Interval
from coach.core.estimation.points import CurvePoint as CurvePoint

Metric = Literal["loss", "accuracy"]


@dataclass(frozen=True, slots=True)
class ConvergenceModel:
    """A fitted learning curve. JSON round trip through `to_dict` and `from_dict`."""

    metric: Metric
    start: float
    rate: float
    level: float
    spread: float

    def predict(self, x: float) -> float:
        """The metric expected at `x`."""
        return self.level + self.start / (1.0 + self.rate * max(x, 0.0))

    @property
    def asymptote(self) -> Interval:
        """Where the curve ends."""
        return Interval(self.level - Z80 * self.spread, self.level, self.level + Z80 * self.spread)

    def epochs_to(self, target: float, in_a_row: int, x_now: float) -> Interval | None:
        """The x of the last epoch needed: `target` held `in_a_row` epochs. None = no solution."""
        expected = self._reach(target)
        if expected is None:
            return None
        sign = -1.0 if self.metric == "loss" else 1.0
        early = self._reach(target - sign * self.spread)
        late = self._reach(target + sign * self.spread)
        first = x_now + 1.0
        more = in_a_row - 1
        low = max(first, early if early is not None else expected) + more
        mid = max(first, expected) + more
        high = max(first, late if late is not None else 10.0 * expected) + more
        return Interval(min(low, mid), mid, max(mid, high))

    def _reach(self, target: float) -> float | None:
        gap = target - self.level
        if self.start == 0 or gap / self.start <= 0 or self.rate <= 0:
            return None
        return math.ceil(max(0.0, (self.start / gap - 1.0) / self.rate))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "metric": self.metric,
            "start": self.start,
            "rate": self.rate,
            "level": self.level,
            "spread": self.spread,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConvergenceModel:
        """The model `to_dict` described."""
        return cls(data["metric"], data["start"], data["rate"], data["level"], data["spread"])


def fit_convergence(points: Sequence[CurvePoint], metric: Metric) -> ConvergenceModel:
    """The hyperbola 1/(b0·x + b1) + b2 with late points weighted; b0 on a grid, the rest by least squares.

    Works from one point upward. Raises ValueError without any finite point.
    """
    known = [p for p in points if math.isfinite(p.x) and math.isfinite(p.value)]
    if not known:
        raise ValueError("fit_convergence needs at least one finite point")
    x = np.array([p.x for p in known])
    y = np.array([p.value for p in known])
    weight = np.sqrt((1.0 + x) / (1.0 + x.max()))
    sign = 1.0 if metric == "loss" else -1.0
    goal = min(0.0, float(y.min())) if metric == "loss" else max(1.0, float(y.max()))
    best: tuple[float, float, float, float] | None = None
    for rate in np.geomspace(0.01, 10.0, 25):
        basis = 1.0 / (1.0 + rate * x)
        # Faint pull of the asymptote towards a perfect score: it decides what few points leave open.
        rows = np.stack([np.append(basis * weight, 0.0), np.append(weight, 0.05)], axis=1)
        (start, level), *_ = np.linalg.lstsq(rows, np.append(y * weight, 0.05 * goal), rcond=None)
        if start * sign < 0:
            start, level = 0.0, float(np.average(y, weights=weight**2))
        error = float(np.sum((weight * (start * basis + level - y)) ** 2) + (0.05 * (level - goal)) ** 2)
        if best is None or error < best[0]:
            best = (error, float(start), float(rate), float(level))
    assert best is not None  # noqa: S101 - the grid is not empty
    error, start, rate, level = best
    return ConvergenceModel(metric, start, rate, level, math.sqrt(error / len(known)))
