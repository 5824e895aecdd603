"""True speeds from a measured table: the one that comes with Coach, of a real parameter-server cluster, or yours.

Columns as in `data/ps_speed.csv` (`data/README.md` gives its origin), read by `coach.core.estimation.speed_table`.
A linear radial basis interpolates between the measured points, as in the simulator that DL²'s authors published.
Outside of them the nearest measured counts apply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from scipy.interpolate import RBFInterpolator

from coach.core.errors import UserError
from coach.core.estimation.speed_table import SPEED_COLUMNS, lines_of, measured_models


@dataclass
class MeasuredSpeed:
    """Speed of one model relative to one worker and one server: `speed(1, 1)` is 1."""

    model: str
    points: tuple[tuple[int, int, float], ...]
    _known: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        places = np.array([(w, s) for w, s, _ in self.points], float)
        self._most = places.max(axis=0).astype(int).tolist()
        speeds = np.array([v for _, _, v in self.points])
        self._lowest = float(speeds.min())
        self._fit = RBFInterpolator(places, speeds, kernel="linear", degree=-1 if len(places) < 3 else 0)
        self._unit = float(self._fit(np.array([[1.0, 1.0]]))[0])

    def __call__(self, workers: int, servers: int) -> float:
        """Speed with these counts, 1 at (1, 1); at least the slowest measured speed.

        Without servers as with one for each worker: the parts of the parameters then move as in a ring all-reduce.
        """
        at = min(workers, self._most[0]), min(servers or workers, self._most[1])
        if at not in self._known:
            self._known[at] = max(self._lowest, float(self._fit(np.array([at], float))[0])) / self._unit
        return self._known[at]


def read_speeds(text: str, origin: str) -> dict[str, MeasuredSpeed]:
    """The models of a table, by name. Raises UserError."""
    lines = list(lines_of(text, origin))
    if not lines or not lines[0].cells.keys() >= SPEED_COLUMNS:
        raise UserError(
            f"{origin} is no table of speeds; it needs the columns model, servers, workers, worker_speed, the last "
            "with a number for each worker, `;` between"
        )
    return {
        name: MeasuredSpeed(name, tuple((w, s, v) for (w, s), v in sorted(model.speeds.items())))
        for name, model in measured_models(lines).items()
        if model.speeds
    }


@cache
def shipped() -> dict[str, MeasuredSpeed]:
    """The models of the table that comes with Coach, by name."""
    text = (resources.files("coach.simulation") / "data" / "ps_speed.csv").read_text()
    return read_speeds(text, "ps_speed.csv")


def find_speed(name: str) -> MeasuredSpeed:
    """`MODEL` of the shipped table, or `FILE.csv:MODEL`. Raises UserError."""
    file, _, model = name.rpartition(":")
    if file:
        path = Path(file)
        if not path.is_file():
            raise UserError(f"there is no file {file}, which --speeds {name} names")
        models = read_speeds(path.read_text(), file)
    else:
        models = shipped()
    if model not in models:
        raise UserError(f"no speeds of {model!r} are known; name one of {', '.join(models)}")
    return models[model]
