"""The methods Coach is compared with, as published: the thesis's (section 4.2) and Optimus's (EuroSys 2018).

They have no intervals, and may predict speeds <= 0 and targets that are never reached. Only comparisons use them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from coach.core.estimation.forms import FloatArray
from coach.core.estimation.numerics import nnls
from coach.core.estimation.observations import CurvePoint, SpeedPoint
from coach_research.estimators.quadratic import ThesisSurface, fit_thesis_quadratic

__all__ = [
    "OptimusSurface",
    "ThesisCurve",
    "ThesisSurface",
    "fit_optimus_speed",
    "fit_thesis_curve",
    "fit_thesis_quadratic",
]


@dataclass(frozen=True, slots=True)
class OptimusSurface:
    """Epochs/s as 1 / (a/w + b + c·w/s + d·w + e·s)."""

    coefficients: tuple[float, ...]

    def predict(self, workers: int, servers: int) -> float:
        """Epochs/s; infinite if every fitted term is zero."""
        a, b, c, d, e = self.coefficients
        seconds = a / workers + b + c * workers / servers + d * workers + e * servers
        return 1.0 / seconds if seconds > 0 else math.inf


def fit_optimus_speed(points: Sequence[SpeedPoint]) -> OptimusSurface:
    """Optimus's speed function (synchronous training, its eq. 4) by NNLS on the relative error."""
    w = np.array([p.workers for p in points], dtype=float)
    s = np.array([p.servers for p in points], dtype=float)
    v = np.array([p.epochs_per_second for p in points])
    unit = float(np.mean(v))
    rows = np.stack([1 / w, np.ones_like(w), w / s, w, s], axis=1) * (v / unit)[:, None]
    theta = nnls(rows, np.ones_like(v))
    return OptimusSurface(tuple(float(t) / unit for t in theta))


@dataclass(frozen=True, slots=True)
class ThesisCurve:
    """Loss as 1 / (b0·x + b1) + b2."""

    b: tuple[float, float, float]

    def epochs_to(self, target: float) -> float | None:
        """The x at which the curve reaches `target`; None if it never does."""
        b0, b1, b2 = self.b
        if target <= b2 or b0 <= 0:
            return None
        return (1.0 / (target - b2) - b1) / b0


def fit_thesis_curve(points: Sequence[CurvePoint], segments: int = 1) -> ThesisCurve:
    """The thesis's curve: least squares from three ones, bounded to >= 0.

    `segments` > 1 is Optimus's weighting: of that many equal segments, residuals of each count 4 times as much as
    those of the one before.
    """
    x = np.array([p.x for p in points])
    y = np.array([p.value for p in points])
    weight = 4.0 ** (np.arange(len(x)) * segments // max(len(x), 1))

    def error(b: FloatArray) -> FloatArray:
        return np.asarray((1.0 / (b[0] * x + b[1] + 1e-12) + b[2] - y) * weight)

    found = least_squares(error, np.ones(3), bounds=(0, np.inf))
    b0, b1, b2 = (float(b) for b in found.x)
    return ThesisCurve((b0, b1, b2))
