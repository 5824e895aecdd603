"""Speed of a job as a function of its workers and servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import nnls

from coach.core.estimation.interval import Interval, log_normal

Form = Literal["quadratic", "parameter-server", "constant"]


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """One measured speed: `epochs_per_second` of the whole job with `workers` and `servers`."""

    workers: int
    servers: int
    epochs_per_second: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """A fitted surface. JSON round trip through `to_dict` and `from_dict`."""

    form: Form
    coefficients: tuple[float, ...]
    spread: float

    def predict(self, workers: int, servers: int) -> float:
        """Epochs/s with `workers` and `servers`; always positive and finite."""
        a, b, c, d, e = self.coefficients
        return 1.0 / (a / workers + b + c * workers / servers + d * workers + e * servers)

    def interval(self, workers: int, servers: int) -> Interval:
        """The 80 % interval of the speed, epochs/s."""
        return log_normal(self.predict(workers, servers), self.spread)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {"form": self.form, "coefficients": list(self.coefficients), "spread": self.spread}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SpeedModel:
        """The model `to_dict` described."""
        return cls(data["form"], tuple(data["coefficients"]), data["spread"])


def fit_speed(points: Sequence[SpeedPoint]) -> SpeedModel:
    """The parameter-server form 1/v = a/w + b + c·w/s + d·w + e·s by NNLS on the relative error.

    Works from one point upward. Raises ValueError without a point of positive speed.
    """
    known = [
        p for p in points if p.epochs_per_second > 0 and math.isfinite(p.epochs_per_second) and p.weight > 0
    ]
    if not known:
        raise ValueError("fit_speed needs at least one point with a positive speed")
    w = np.array([p.workers for p in known], dtype=float)
    s = np.array([p.servers for p in known], dtype=float)
    v = np.array([p.epochs_per_second for p in known])
    scale = math.exp(float(np.mean(np.log(v))))
    rows = np.stack([1 / w, np.ones_like(w), w / s, w, s], axis=1) * (v / scale)[:, None]
    # A faint pull towards half of the time dividing among workers: it decides what the points leave open.
    prior = 0.05 * np.eye(5)
    target = 0.05 * np.array([0.5, 0.5, 0.0, 0.0, 0.0])
    coefficients, _ = nnls(np.vstack([rows, prior]), np.concatenate([np.ones_like(v), target]))
    residual = rows @ coefficients - 1.0
    spread = math.sqrt((float(residual @ residual) + 0.25) / len(known))
    return SpeedModel("parameter-server", tuple(float(c) for c in coefficients / scale), spread)


def next_probe(
    points: Sequence[SpeedPoint],
    max_workers: int,
    max_servers: int,
    candidates: Sequence[tuple[int, int]] | None = None,
) -> tuple[int, int] | None:
    """The (workers, servers) to measure next: the unmeasured one whose optimistic speed is highest.

    None when every candidate was measured.
    """
    if candidates is None:
        candidates = [(w, s) for w in range(1, max_workers + 1) for s in range(1, max_servers + 1)]
    measured = {(p.workers, p.servers) for p in points}
    left = [c for c in candidates if c not in measured]
    if not left:
        return None
    model = fit_speed(points) if points else None
    if model is None:
        return left[0]
    distance = {c: min(abs(math.log(c[0] / w)) + abs(math.log(c[1] / s)) for w, s in measured) for c in left}
    return max(left, key=lambda c: model.predict(*c) * math.exp(model.spread * distance[c]))
