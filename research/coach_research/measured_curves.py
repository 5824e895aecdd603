"""Learning curves of real trainings, which come with Coach: small models trained by scikit-learn, 80 epochs each.

`coach/simulation/data/README.md` says how they were made.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """The values measured after 1, 2, ... epochs, straight lines between them; the first before, the last after."""

    name: str
    metric: Literal["loss", "accuracy"]
    values: tuple[float, ...]

    def __call__(self, x: float) -> float:
        """The metric after `x` epochs."""
        return float(np.interp(x, np.arange(1.0, len(self.values) + 1.0), self.values))


@cache
def shipped_curves() -> tuple[MeasuredCurve, ...]:
    """All curves that come with Coach."""
    text = (resources.files("coach.simulation") / "data" / "learning_curves.csv").read_text()
    return tuple(
        MeasuredCurve(
            f"{row['data']}, {row['model']}, {row['metric']}",
            "accuracy" if "accuracy" in row["metric"] else "loss",
            tuple(float(value) for value in row["values"].split(";")),
        )
        for row in csv.DictReader(text.splitlines())
    )
