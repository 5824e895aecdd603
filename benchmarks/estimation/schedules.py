"""What a prediction gains by the learning rate's schedule: where steps of it, or its decay, are known.

    python -m benchmarks.estimation.schedules    # ten seconds of a core; results/curves/schedules.md

Curves whose schedule is published or ours: of Pollux's programs (`coach experiment pollux` says where the artifact
goes) ImageNet (a tenth after epochs 30 and 60), NCF (a fifth after 4 and 7) and CIFAR-10 (a decay to 1.33 % after 100
epochs), and *schedule* of `benchmarks.training.plateau_curves` (a tenth from epoch 30 on). Predicted is the last value
after parts of the run, with an 80 % interval. Errors are shares of the range of the task's values.

*Sum of rates*: x is the sum of the learning rates in place of epochs. *Step expected*: only the values since the latest
step count, and each step to come takes off a part of what the curve has fallen until then, of which the other tasks'
steps give median and spread (log-normal).
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.decisions.early_ends import PLATEAUS
from benchmarks.estimation.young_curves import values_of
from benchmarks.harness import RESULTS
from coach.core.estimation.convergence import CurvePoint, Metric, fit_convergence
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval, log_normal
from coach_research.experiments.clusters import pollux

RESULT = RESULTS / "curves/schedules.md"
#: Parts of a run after which its last value is predicted.
PARTS = (0.1, 0.3, 0.5, 0.7)
#: Values on either side of a step that say how far it went; and the least spread of them, in ln.
BESIDE, LEAST_SPREAD = 3, 0.2
#: Less than this part of what a curve has fallen is no step.
LEAST = 0.01


class Task(NamedTuple):
    """Curves with one schedule: `rates` of each epoch, and the epochs after which a step comes."""

    name: str
    metric: Metric
    curves: Sequence[Sequence[float]]
    rates: FloatArray
    steps: tuple[int, ...]


def stepped(epochs: int, steps: Sequence[int], factor: float) -> FloatArray:
    """Rates that are multiplied by `factor` after each of `steps`, [epochs]."""
    return np.array([factor ** sum(step < epoch for step in steps) for epoch in range(1, epochs + 1)])


def tasks() -> Iterator[Task]:
    """All of them."""
    for name, steps, factor in (("imagenet", (30, 60), 0.1), ("ncf", (4, 7), 0.2), ("cifar10", (), 1.0)):
        place = pollux.folder() / "simulator/traces" / name
        curves = [values_of(file) for file in sorted(place.glob("validation-*.csv"))]
        epochs = len(curves[0])
        decay = 0.0133 ** (np.arange(epochs) / epochs)
        yield Task(name, "accuracy", curves, stepped(epochs, steps, factor) if steps else decay, steps)
    with Path(PLATEAUS).open(encoding="utf-8") as lines:
        ours = [row["values"].split(";") for row in csv.DictReader(lines) if row["family"] == "schedule"]
    yield Task("schedule", "loss", [[float(x) for x in one] for one in ours], stepped(len(ours[0]), (29,), 0.1), (29,))


def falling(task: Task, values: Sequence[float]) -> FloatArray:
    """The loss, or what is missing to 1."""
    return np.array(values) if task.metric == "loss" else 1.0 - np.array(values)


def parts(task: Task) -> list[float]:
    """What each step of each curve took off, as a part of what the curve had fallen until then, in ln."""
    found = []
    for values in task.curves:
        z = falling(task, values)
        for step in task.steps:
            before, after = z[max(0, step - BESIDE) : step].mean(), z[step : step + BESIDE].mean()
            found.append(math.log(max((before - after) / max(z[0] - before, 1e-9), LEAST)))
    return found


def plain(task: Task, values: Sequence[float], seen: int) -> Interval:
    """As it is."""
    points = [CurvePoint(float(x), value) for x, value in enumerate(values[:seen], 1)]
    return fit_convergence(points, task.metric).interval(float(len(values)))


def summed(task: Task, values: Sequence[float], seen: int) -> Interval:
    """By the sum of the rates."""
    x = np.cumsum(task.rates) / task.rates[0]
    points = [CurvePoint(float(at), value) for at, value in zip(x, values[:seen], strict=False)]
    return fit_convergence(points, task.metric).interval(float(x[len(values) - 1]))


def expecting(task: Task, values: Sequence[float], seen: int, others: Sequence[float]) -> Interval:
    """With the steps that come, of which others' tell how far they go."""
    latest = max((step for step in task.steps if step < seen), default=0)
    points = [CurvePoint(float(x), value) for x, value in enumerate(values[latest:seen], latest + 1)]
    to_come = [step for step in task.steps if step >= seen]
    own = fit_convergence(points, task.metric).interval(float(to_come[0] if to_come else len(values)))
    if not to_come:
        return own
    spread = max(statistics.pstdev(others), LEAST_SPREAD)
    part = log_normal(math.exp(statistics.median(others)), spread)
    best, expected, worst = sorted(falling(task, list(own)))
    first = float(falling(task, values[:1])[0])
    z = [expected - max(first - expected, 0.0) * ((1.0 + one) ** len(to_come) - 1.0) for one in part]
    # The curve's own doubt and that of the steps, as if both were independent.
    low = z[1] - math.hypot(expected - best, z[1] - z[2])
    high = z[1] + math.hypot(worst - expected, z[0] - z[1])
    found = (low, z[1], high) if task.metric == "loss" else (1.0 - high, 1.0 - z[1], 1.0 - low)
    return Interval(*map(float, found))


def main() -> None:
    """Predict, and write the table."""
    every = list(tasks())
    steps_of = {task.name: parts(task) for task in every}
    lines = [
        "# What a prediction gains by the learning rate's schedule",
        "",
        "Written by `python -m benchmarks.estimation.schedules` on 2026-11-29; its text says what is compared. Of the "
        "last value: how often it is inside the 80 % interval, and the mean error, as a share of the task's range.",
        "",
        "| task | of the run | curves | inside | error "
        "| sum of rates: inside | error | step expected: inside | error |",
        "| --- |" + " ---: |" * 8,
    ]
    whole: dict[float, list[list[tuple[bool, float]]]] = {part: [[], [], []] for part in PARTS}
    for task in every:
        others = [part for other in every if other.name != task.name for part in steps_of[other.name]]
        span = max(max(one) for one in task.curves) - min(min(one) for one in task.curves)
        for part in PARTS:
            seen = max(1, round(part * len(task.curves[0])))
            found: list[list[tuple[bool, float]]] = [[], [], []]
            for values in task.curves:
                three = plain(task, values, seen), summed(task, values, seen), expecting(task, values, seen, others)
                for at, one in enumerate(three):
                    found[at].append((one.holds(values[-1]), abs(one.expected - values[-1]) / span))
            for at in range(3):
                whole[part][at] += found[at]
            lines.append(row(task.name, part, found))
    lines += [row("all", part, found) for part, found in whole.items()]
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def row(name: str, part: float, found: Sequence[Sequence[tuple[bool, float]]]) -> str:
    """A line of the table."""
    cells = [name, f"{part:.0%}", str(len(found[0]))]
    for one in found:
        cells += [f"{statistics.mean(held for held, _ in one):.0%}", f"{statistics.mean(off for _, off in one):.3f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
