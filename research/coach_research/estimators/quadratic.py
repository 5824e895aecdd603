"""The thesis's speed surface (section 4.2): a quadratic by least squares, as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from coach.core.estimation.forms import FloatArray
from coach.core.estimation.observations import SpeedPoint


@dataclass(frozen=True, slots=True)
class ThesisSurface:
    """Epochs/s as -b1·(w - b2)² - b3·(s - b4)² + b5."""

    b: tuple[float, float, float, float, float]

    def predict(self, workers: int, servers: int) -> float:
        """Epochs/s; not always positive."""
        b1, b2, b3, b4, b5 = self.b
        return -b1 * (workers - b2) ** 2 - b3 * (servers - b4) ** 2 + b5


def fit_thesis_quadratic(points: Sequence[SpeedPoint]) -> ThesisSurface:
    """The thesis's surface by its own solver: least squares from five ones, bounded to >= 0.

    The result depends on the unit of speed and, with fewer than five points, on the start.
    """
    w = np.array([p.workers for p in points], dtype=float)
    s = np.array([p.servers for p in points], dtype=float)
    v = np.array([p.epochs_per_second for p in points])

    def error(b: FloatArray) -> FloatArray:
        return np.asarray(-b[0] * (w - b[1]) ** 2 - b[2] * (s - b[3]) ** 2 + b[4] - v)

    found = least_squares(error, np.ones(5), bounds=(0, np.inf))
    b1, b2, b3, b4, b5 = (float(b) for b in found.x)
    return ThesisSurface((b1, b2, b3, b4, b5))
