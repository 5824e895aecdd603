"""Speeds that no estimator was made for: errors on synthetic laws and on parts of measured grids (`speed_laws`).

    python -m benchmarks.estimation.unseen_speeds      # three minutes; results/estimators/unseen.md

One protocol: the smallest configuration first, at most 8 points of the method's own choice, one measurement each, then
all other cells predicted. The thesis's surface and Optimus's are fitted to Coach's points. Tables of fewer than 10
cells are left out.

- error: median over the cells not measured of |predicted / measured - 1|; over all tables its mean, median and the mean
  of the worst tenth. lost: speed lost by the cell predicted fastest; by an oracle: by the fastest of the cells probed,
  so what the probes missed. inside: share of cells in the 80 % interval.
- interval score (Gneiting and Raftery 2007, equation 43) of ln speed: the width, and ten times what lies outside.
- wasted: probes slower than the best before them. epochs: the time of all probes, in epochs at the best speed.
- ms: one fit and the intervals of all cells, median, on this machine and in this run.
- The second table multiplies both half-widths (of ln speed) so that on all other kinds of tables 10 % lie outside on
  either side, as what is shown of a curve's end is calibrated (`young_curves`). The product does not do that.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.estimation import speed_laws
from benchmarks.estimation.young_curves import quantile
from coach.core.estimation import numerics
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.speed import SpeedPoint, fit_speed
from coach_research.estimators.evaluation import Configuration, Speeds, chosen_points, judge_speed
from coach_research.estimators.measurements import read_measurements

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "estimators"
SPEEDS = ROOT / "tests" / "data" / "ps-speed" / "ps_speed.csv"
MIN_CELLS = 10
#: Laws drawn again, so many of each kind by each seed: how much of the table is the draw's.
SEEDS, EACH = (1, 2, 3, 4), 10
Predicted = tuple[FloatArray, FloatArray, FloatArray]  #: ln speed in every cell: expected, and the 80 % interval


class Cells(NamedTuple):
    """Of one table the cells not measured: in half-widths, how far the truth is below and above; and these."""

    kind: str
    below: FloatArray
    above: FloatArray
    low: FloatArray
    high: FloatArray

    def inside(self, low: float = 1.0, high: float = 1.0) -> tuple[float, float]:
        """The share inside, and the score, with half-widths multiplied by these."""
        outside = np.maximum(self.below - low, 0.0) * self.low + np.maximum(self.above - high, 0.0) * self.high
        return float((outside == 0.0).mean()), float((low * self.low + high * self.high + 10.0 * outside).mean())


def data() -> dict[str, list[speed_laws.Table]]:
    """The tables, by the name of their set."""
    models = read_measurements(SPEEDS).speeds
    return {
        "measured": list(speed_laws.parts(models)),
        "laws": list(speed_laws.laws()),
        "measured, spoiled": list(speed_laws.spoiled(speed_laws.parts(models))),
        "laws, spoiled": list(speed_laws.spoiled(speed_laws.laws())),
        "laws, other seeds": [table for seed in SEEDS for table in speed_laws.laws(seed, EACH)],
    }


def _coach(speeds: Speeds) -> tuple[dict[Configuration, float], Callable[[], Predicted]]:
    measured = chosen_points(speeds, speeds.__getitem__)
    points, cells = [SpeedPoint(*at, speed) for at, speed in measured.items()], list(speeds)

    def predicted() -> Predicted:
        model = fit_speed(points)
        found = model.intervals(cells)
        low, high = (np.log([getattr(each, end) for each in found]) for end in ("low", "high"))
        return np.log(model.predict_all(cells)), low, high

    return measured, predicted


def judged(tables: list[speed_laws.Table]) -> Iterator[dict[str, Any]]:
    """A row a method over all `tables`, and one a kind of law or model for those with intervals."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ("thesis", "optimus", "coach")}
    for table in tables:
        speeds = table.speeds
        if len(speeds) < MIN_CELLS:
            continue
        truth, fastest = np.log(list(speeds.values())), max(speeds.values())
        measured, predicted = _coach(speeds)
        best, wasted = 0.0, 0
        for speed in measured.values():
            wasted += speed < best
            best = max(best, speed)
        began = time.perf_counter()
        mean, low, high = predicted()
        ms = 1000 * (time.perf_counter() - began)
        rest = np.array([at not in measured for at in speeds])
        outside = np.maximum(low - truth, 0.0) + np.maximum(truth - high, 0.0)
        row = {
            "error": float(np.median(np.abs(np.exp(mean - truth) - 1.0)[rest])),
            "lost": 1.0 - float(np.exp(truth[int(np.argmax(mean))] - truth.max())),
            "probed": 1.0 - max(speeds[at] for at in measured) / fastest,
            "inside": float((outside == 0.0)[rest].mean()),
            "score": float((high - low + 10.0 * outside)[rest].mean()),
            "wasted": float(wasted),
            "epochs": sum(fastest / speed for speed in measured.values()),
            "ms": ms,
        }
        found["coach"].append(row)
        found.setdefault(f"coach: {table.kind}", []).append(row)
        for other in ("thesis", "optimus"):
            verdict = judge_speed(speeds, measured, other)
            found[other].append({"error": verdict.error, "lost": verdict.lost})
    for method, rows in found.items():
        errors, lost = (sorted(row[name] for row in rows) for name in ("error", "lost"))
        tenth = max(1, len(rows) // 10)
        mean = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
        yield {
            "method": method,
            "tables": len(rows),
            "error, %": round(100 * mean["error"], 2),
            "median": round(100 * statistics.median(errors), 2),
            "worst tenth": round(100 * statistics.fmean(errors[-tenth:]), 2),
            "lost, %": round(100 * mean["lost"], 2),
            "its worst tenth": round(100 * statistics.fmean(lost[-tenth:]), 2),
            "by an oracle": round(100 * mean["probed"], 2) if "probed" in mean else "",
            "inside, %": round(100 * mean["inside"], 1) if "inside" in mean else "",
            "score": round(mean["score"], 3) if "score" in mean else "",
            "wasted": round(mean["wasted"], 2) if "wasted" in mean else "",
            "epochs": round(mean["epochs"], 1) if "epochs" in mean else "",
            "ms": round(statistics.median(row["ms"] for row in rows), 2) if "ms" in mean else "",
        }


def cells(tables: list[speed_laws.Table]) -> Iterator[Cells]:
    """Of each table what `Cells` says."""
    for table in tables:
        if len(table.speeds) >= MIN_CELLS:
            truth, (measured, predicted) = np.log(list(table.speeds.values())), _coach(table.speeds)
            rest = np.array([at not in measured for at in table.speeds])
            mean, low, high = (one[rest] for one in predicted())
            below, above = np.maximum(mean - low, 1e-9), np.maximum(high - mean, 1e-9)
            off = truth[rest] - mean
            yield Cells(table.kind, -off / below, off / above, below, above)


def factors(known: list[Cells]) -> tuple[float, float]:
    """What multiplies the half-widths so that a tenth lies outside on either side; all tables count alike."""
    weight = np.concatenate([np.full(len(one.below), 1.0 / len(one.below)) for one in known])
    below, above = (np.concatenate([getattr(one, side) for one in known]) for side in ("below", "above"))
    return quantile(below, weight, 0.9), quantile(above, weight, 0.9)


def calibrated(name: str, found: list[Cells]) -> dict[str, Any]:
    """A row of the second table: the share inside and the score, as they are and with other kinds' factors."""
    kinds = dict.fromkeys(one.kind for one in found)
    by = {kind: factors([one for one in found if one.kind != kind]) for kind in kinds}
    inside, score = np.array([one.inside() for one in found]).mean(axis=0)
    inside_then, score_then = np.array([one.inside(*by[one.kind]) for one in found]).mean(axis=0)
    low, high = zip(*by.values(), strict=True)
    return {
        "data": name,
        "inside, %": f"{100 * inside:.1f}",
        "left out: inside, %": f"{100 * inside_then:.1f}",
        "score": f"{score:.3f}",
        "left out: score": f"{score_then:.3f}",
        "lower half-width times": f"{min(low):.2f} to {max(low):.2f}",
        "upper": f"{min(high):.2f} to {max(high):.2f}",
    }


def markdown(rows: list[dict[str, Any]], words: int) -> list[str]:
    """A table whose first `words` columns are no numbers."""
    lines = [f"| {' | '.join(rows[0])} |", "|" + " --- |" * words + " ---: |" * (len(rows[0]) - words)]
    return lines + [f"| {' | '.join(str(cell) for cell in row.values())} |" for row in rows]


def main() -> None:
    """Write the tables."""
    numerics.load()
    rows = [{"data": name, **row} for name, tables in data().items() for row in judged(tables)]
    with (FOLDER / "unseen.csv").open("w", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
    head = "Written by `python -m benchmarks.estimation.unseen_speeds`, whose text says what is measured."
    page = ["# Speeds that no estimator was made for", "", head, "", *markdown(rows, 2)]
    page += ["", "## Calibrated on other kinds", ""]
    page += markdown([calibrated(name, list(cells(tables))) for name, tables in data().items()], 1)
    (FOLDER / "unseen.md").write_text("\n".join(page) + "\n")
    print("\n".join(page))


if __name__ == "__main__":
    main()
