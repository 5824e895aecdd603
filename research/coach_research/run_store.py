"""The runs of an experiment, stored in its folder as they come, so that a stopped experiment can be resumed.

`settings.json` identifies the runs in `measures.csv`: their parameters, and a digest of the code that decides and
simulates. Runs of other parameters or other code are not reused; the first new run replaces them.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import coach

#: The code that may change a run: decisions and simulation. A scenario's parameters are compared separately.
PACKAGES = ("core", "simulation", "studies")
SUFFIXES = (".py", ".csv", ".yaml")


class RunStore:
    """Runs of one experiment by seed; each a value for every measure (float, NaN if it has none)."""

    def __init__(self, place: Path, parameters: Mapping[str, Any], *, anew: bool = False) -> None:
        """Load the runs in the folder `place` if they are of these parameters and this code; none if `anew`."""
        self._table, self._about = place / "measures.csv", place / "settings.json"
        self._settings = {"parameters": json.loads(json.dumps(parameters)), "code": code()}
        self.runs: dict[int, dict[str, float]] = {}
        if not anew and self._ours():
            self.runs = _read(self._table)

    def _ours(self) -> bool:
        try:
            return bool(json.loads(self._about.read_text()) == self._settings) and self._table.is_file()
        except (OSError, ValueError):
            return False

    def add(self, seed: int, measures: Mapping[str, float]) -> None:
        """Store a run. Raises OSError."""
        if not self.runs:
            self._table.parent.mkdir(parents=True, exist_ok=True)
            self._table.unlink(
                missing_ok=True
            )  # replace older runs before `settings.json` declares them to be of this code
            self._about.write_text(json.dumps(self._settings, indent=1, sort_keys=True) + "\n")
        self.runs[seed] = dict(measures)
        write_runs(self._table, self.runs)


def stored_runs(place: Path, parameters: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """The runs in the folder `place`, of any version of the code; none if they are of other parameters.

    Results without a `settings.json` are assumed to be of these parameters. Raises OSError, ValueError.
    """
    about, table = place / "settings.json", place / "measures.csv"
    if not table.is_file():
        return {}
    if about.is_file() and json.loads(about.read_text())["parameters"] != json.loads(json.dumps(parameters)):
        return {}
    return _read(table)


def write_runs(path: Path, runs: Mapping[int, Mapping[str, float]]) -> None:
    """Write a line for each measure and seed. The file is replaced atomically. Raises OSError."""
    names = dict.fromkeys(name for seed in sorted(runs) for name in runs[seed])
    half = path.with_suffix(".part")
    with half.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["measure", "seed", "value"])
        for name in names:
            out.writerows([name, seed, repr(float(runs[seed][name]))] for seed in sorted(runs) if name in runs[seed])
    half.replace(path)


def _read(path: Path) -> dict[int, dict[str, float]]:
    runs: dict[int, dict[str, float]] = {}
    with path.open(newline="") as file:
        for name, seed, value in list(csv.reader(file))[1:]:
            runs.setdefault(int(seed), {})[name] = float(value)
    return runs


@cache
def code() -> str:
    """A digest of the code that may change a run."""
    product, own = Path(coach.__file__).parent, Path(__file__).parent
    digest = hashlib.sha256()
    for folder in (*(product / package for package in PACKAGES), own):
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES and "scenarios" not in path.parts:
                digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
