"""One refit of a job: the content of `ModelsFitted`, in every driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coach.core.estimation.convergence import CurvePoint, Metric, fit_convergence
from coach.core.estimation.observations import KnownCurve
from coach.core.estimation.speed import SpeedPoint, fit_speed


def fit_models(
    speeds: Sequence[SpeedPoint],
    curve: Sequence[CurvePoint],
    metric: Metric,
    either: bool = False,
    known: Sequence[KnownCurve] = (),
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The speed and convergence models of these points as `to_dict` gives them; None without points.

    `either`: see `fit_speed`; `known`: see `fit_convergence`.
    """
    return (
        fit_speed(speeds, either).to_dict() if speeds else None,
        fit_convergence(curve, metric, known).to_dict() if curve else None,
    )
