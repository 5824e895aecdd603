"""Fitted models as the journal stores them. A journal has many, so a model is made only when it is used."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from coach.core.estimation.convergence import ConvergenceModel, CurvePoint, Metric, fit_convergence, last_of
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval
from coach.core.estimation.observations import KnownCurve
from coach.core.estimation.speed import SpeedModel, SpeedPoint, fit_speed
from coach.core.spec.training import Target


@dataclass(slots=True)
class FittedSpeed:
    """A fitted speed model."""

    data: dict[str, Any]
    _model: SpeedModel | None = field(default=None, compare=False, repr=False)
    _at: tuple[float, SpeedModel] | None = field(default=None, compare=False, repr=False)

    @property
    def model(self) -> SpeedModel:
        """The model itself."""
        if self._model is None:
            self._model = SpeedModel.from_dict(self.data)
        return self._model

    def at(self, pace: float) -> SpeedModel:
        """The model on nodes that are `pace` times as fast."""
        if pace == 1.0:
            return self.model
        if self._at is None or self._at[0] != pace:
            self._at = pace, self.model.times(pace)
        return self._at[1]


@dataclass(slots=True, eq=False)
class FittedCurve:
    """A fitted learning curve; `epochs_trained` is how far the job was trained when it was fitted.

    `data` may include the predicted epoch of the target (`asked`): without it, a handler that reads a journal would
    make every model to predict that again. `given` may be the data as JSON, in which a point takes a tenth of the
    memory.
    """

    given: dict[str, Any] | str
    epochs_trained: float
    _model: ConvergenceModel | None = field(default=None, compare=False, repr=False)
    _asked: tuple[float, Interval | None] | None = field(default=None, compare=False, repr=False)
    _chance: float | None = field(default=None, compare=False, repr=False)
    _endings: tuple[FloatArray, FloatArray] | None = field(default=None, compare=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FittedCurve) and (self.epochs_trained, self.data) == (
            other.epochs_trained,
            other.data,
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def data(self) -> dict[str, Any]:
        """The result of `ConvergenceModel.to_dict`, and the predicted epoch of the target if it is known."""
        data: dict[str, Any] = json.loads(self.given) if isinstance(self.given, str) else self.given
        return data

    @property
    def text(self) -> str:
        """The same as JSON."""
        return self.given if isinstance(self.given, str) else to_json(self.given).decode()

    def shrink(self) -> None:
        """Keep only the text, until the model is needed."""
        self.given = self.text

    @property
    def model(self) -> ConvergenceModel:
        """The model itself."""
        if self._model is None:
            self._model = ConvergenceModel.from_dict(self.data)
        return self._model

    def last_x(self, target: Target, epochs_trained: float) -> Interval | None:
        """Epochs trained when `target` will have held long enough; cached, because every decision needs it."""
        if self._asked is None and (asked := self.data.get("asked")):
            self._asked = asked[0], asked[1] and Interval(*asked[1])
        if self._asked is None or self._asked[0] != epochs_trained:
            at_fit = epochs_trained == self.epochs_trained
            asked = target.number, target.epochs_in_a_row, epochs_trained
            self._asked = epochs_trained, last_of(self.endings(target) if at_fit else self.model.endings(*asked))
        return self._asked[1]

    def chance(self, target: Target) -> float:
        """Probability that the curve ever reaches `target`."""
        if self._chance is None:
            self._chance = self.model.chance(target.number)
        return self._chance

    def endings(self, target: Target) -> tuple[FloatArray, FloatArray] | None:
        """Epochs trained when `target` may have held long enough, and their probabilities; at the time of the fit."""
        if self._endings is None:
            self._endings = self.model.endings(target.number, target.epochs_in_a_row, self.epochs_trained)
        return self._endings

    def asked(self, target: Target | None) -> dict[str, Any]:
        """Its data with the epoch at which `target` is predicted to hold, predicted at the time of the fit."""
        if target is None:
            return self.data
        last = self.last_x(target, self.epochs_trained)
        if last is not None and not math.isfinite(last.high):
            return self.data  # JSON has no infinity
        return self.data | {"asked": [self.epochs_trained, last and [last.low, last.expected, last.high]]}


def fit_models(
    speeds: Sequence[SpeedPoint],
    curve: Sequence[CurvePoint],
    metric: Metric,
    either: bool = False,
    known: Sequence[KnownCurve] = (),
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """One refit of a job: what `ModelsFitted` has.

    The speed and convergence models of these points as `to_dict` gives them; None without points.
    `either`: see `fit_speed`; `known`: see `fit_convergence`.
    """
    return (
        fit_speed(speeds, either).to_dict() if speeds else None,
        fit_convergence(curve, metric, known).to_dict() if curve else None,
    )
