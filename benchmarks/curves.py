"""What the last value of a learning curve is predicted to be after a part of it: errors, intervals, bias, by task.

    python -m benchmarks.curves [--curves 40] [FOLDER]     # two minutes; results/curves/taskset.md

The curves are those of six tasks of TaskSet (Metz et al. 2020, as published in releaunifreiburg/DPL; FOLDER, by default
../shared/data/taskset): validation losses of 51 epochs under random optimizers. Of each task every n-th curve, so that
at least 40 are left. Everything is a share of the task's range: its median first loss less its lowest loss.

*error*: mean distance of the prediction from the value of epoch 51. *inside*: how many of these values are in the 80 %
interval. *score*: the interval score of Gneiting and Raftery (2007, eq. 43) at 80 %: the width and ten times what lies
outside, mean. *bias*: mean of prediction less value. The other methods are the last value, the lowest value, and a
power law, `a + b · (x + 1)^-c` by least squares, as in DPL and LC-PFN.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from benchmarks.decisions.early_ends import FITTED, RANGES, TASKSET
from benchmarks.harness import RESULTS
from coach.core.estimation.convergence import CurvePoint, fit_convergence
from coach.core.estimation.forms import FloatArray

RESULT = RESULTS / "curves/taskset.md"
PREFIXES = (5, 10, 20, 40)


class Prediction(NamedTuple):
    """Of one curve's last value, with its interval where the method has one; shares of the task's range."""

    expected: float
    low: float
    high: float
    truth: float

    @property
    def score(self) -> float:
        """Eq. 43 with an interval of 80 %."""
        below, above = max(0.0, self.low - self.truth), max(0.0, self.truth - self.high)
        return self.high - self.low + 10.0 * (below + above)

    @property
    def inside(self) -> bool:
        """Whether the interval holds the value."""
        return self.low <= self.truth <= self.high


def coach(seen: Sequence[float], last: int) -> tuple[float, float, float]:
    """As a job of Coach predicts it: the curves' median, with the bounds of 80 %."""
    model = fit_convergence([CurvePoint(float(x), value) for x, value in enumerate(seen, 1)], "loss")
    interval = model.interval(float(last))
    return interval.expected, interval.low, interval.high


def power_law(seen: Sequence[float], last: int) -> tuple[float, float, float]:
    """`a + b · (x + 1)^-c`, b >= 0, 0 <= c <= 5, by least squares."""
    x, y = np.arange(1, len(seen) + 1), np.array(seen)
    start = (float(y[-1]), float(max(y[0] - y[-1], 1e-6)), 1.0)

    def misfit(of: FloatArray) -> FloatArray:
        return np.asarray(of[0] + of[1] * (x + 1.0) ** -of[2] - y)

    found = least_squares(misfit, start, bounds=((-10.0, 0.0, 0.0), (10.0, 100.0, 5.0))).x
    value = float(found[0] + found[1] * (last + 1.0) ** -found[2])
    return value, value, value


def last_value(seen: Sequence[float], last: int) -> tuple[float, float, float]:
    """It stays as it is."""
    return seen[-1], seen[-1], seen[-1]


def lowest_value(seen: Sequence[float], last: int) -> tuple[float, float, float]:
    """The best so far."""
    return min(seen), min(seen), min(seen)


METHODS: dict[str, Callable[[Sequence[float], int], tuple[float, float, float]]] = {
    "Coach": coach,
    "last value": last_value,
    "lowest value": lowest_value,
    "power law": power_law,
}


def read(folder: Path, curves: int) -> dict[str, list[list[float]]]:
    """Every n-th curve of each task, at least so many."""
    found = {}
    for task in RANGES:
        with (folder / f"{task}.csv").open(newline="") as file:
            values = [[float(one) for one in row["values"].split(";")] for row in csv.DictReader(file)]
        found[task] = values[:: max(1, len(values) // curves)]
    return found


def predictions(tasks: Mapping[str, Sequence[Sequence[float]]], method: str) -> dict[tuple[str, int], list[Prediction]]:
    """Of each task after each prefix."""
    found: dict[tuple[str, int], list[Prediction]] = {}
    for task, curves in tasks.items():
        for prefix in PREFIXES:
            rows = []
            for values in curves:
                guess = METHODS[method](values[:prefix], len(values))
                rows.append(Prediction(*(one / RANGES[task] for one in (*guess, values[-1]))))
            found[task, prefix] = rows
    return found


def table(tasks: Sequence[str], made: Mapping[str, Mapping[tuple[str, int], Sequence[Prediction]]]) -> list[str]:
    """A row for each method and prefix, over these tasks."""
    lines = [
        "| after | method | error | bias | inside | inside, worst task | score |",
        "| ---: | --- " + "| ---: " * 5 + "|",
    ]
    for prefix in PREFIXES:
        for method, found in made.items():
            rows = [one for task in tasks for one in found[task, prefix]]
            error = statistics.mean(abs(one.expected - one.truth) for one in rows)
            bias = statistics.mean(one.expected - one.truth for one in rows)
            cells = ["", "", ""]
            if method == "Coach":
                share = [statistics.mean(one.inside for one in found[task, prefix]) for task in tasks]
                whole = statistics.mean(one.inside for one in rows)
                score = statistics.mean(one.score for one in rows)
                cells = [f"{whole:.0%}".replace("%", " %"), f"{min(share):.0%}".replace("%", " %"), f"{score:.3f}"]
            lines.append(f"| {prefix} | {method} | {error:.3f} | {bias:+.3f} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--curves", type=int, default=40)
    parser.add_argument("folder", nargs="?", type=Path, default=TASKSET)
    options = parser.parse_args()
    tasks = read(options.folder, options.curves)
    begin = time.process_time()
    made = {"Coach": predictions(tasks, "Coach")}
    fits = sum(len(rows) for rows in made["Coach"].values())
    milliseconds = 1000.0 * (time.process_time() - begin) / fits
    made |= {method: predictions(tasks, method) for method in METHODS if method != "Coach"}
    others = [task for task in RANGES if task not in FITTED]
    lines = ["# The last value of TaskSet's curves, predicted from their beginnings", ""]
    lines += [f"Written by `python -m benchmarks.curves`: {sum(map(len, tasks.values()))} curves of 51 epochs.", ""]
    lines += [f"Tasks {', '.join(others)} (no constant was chosen on them):", "", *table(others, made), ""]
    lines += [f"Tasks {', '.join(FITTED)}:", "", *table(FITTED, made), ""]
    lines += [f"A fit with its prediction takes {milliseconds:.1f} ms of a core.", ""]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
