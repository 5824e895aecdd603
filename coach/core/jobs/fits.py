"""What fits gave, as the journal has it. A journal has many: a model is made where somebody looks at it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coach.core.estimation.convergence import ConvergenceModel
from coach.core.estimation.interval import Interval
from coach.core.estimation.speed import SpeedModel
from coach.core.jobs.spec import Target


@dataclass(slots=True)
class Surface:
    """A fitted speed model."""

    data: dict[str, Any]
    _model: SpeedModel | None = field(default=None, compare=False, repr=False)

    @property
    def model(self) -> SpeedModel:
        """The model itself."""
        if self._model is None:
            self._model = SpeedModel.from_dict(self.data)
        return self._model


@dataclass(slots=True)
class Curve:
    """A fitted learning curve; `passes` over the data were done then."""

    data: dict[str, Any]
    passes: float
    _model: ConvergenceModel | None = field(default=None, compare=False, repr=False)
    _asked: tuple[float, Interval | None] | None = field(default=None, compare=False, repr=False)

    @property
    def model(self) -> ConvergenceModel:
        """The model itself."""
        if self._model is None:
            self._model = ConvergenceModel.from_dict(self.data)
        return self._model

    def last_x(self, target: Target, passes: float) -> Interval | None:
        """Passes at which `target` will have held, seen from `passes`; remembered, as every decision asks for it."""
        if self._asked is None or self._asked[0] != passes:
            goal = target.loss if target.loss is not None else target.accuracy or 0.0
            self._asked = passes, self.model.epochs_to(float(goal), target.epochs_in_a_row, passes)
        return self._asked[1]
