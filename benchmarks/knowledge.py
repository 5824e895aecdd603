"""What a curve's prediction gains by what is known beyond its values: earlier runs, the schedule, the training loss.

    python -m benchmarks.knowledge [--curves 10] [FOLDER]     # half a minute of a core; results/curves/knowledge.md

The curves are all twelve tasks of TaskSet as published in releaunifreiburg/DPL (FOLDER, by default
~/.cache/coach/dpl/data/taskset: `git clone --depth 1 https://github.com/releaunifreiburg/DPL ~/.cache/coach/dpl`):
1,000 runs of a task, which differ in eight arguments, each with the losses on training and validation data after 51
epochs. Kept as in ../shared/data/taskset: finite, below 5, and fallen by more than a tenth of the task's range. Of each
task every n-th, so that at least `--curves` are left. Predicted is the validation loss of the last epoch; errors and
scores are those of `benchmarks.curves`, over the nine tasks on which no constant was chosen.

*Earlier runs*: k whole curves of the task under other arguments, drawn at random (by the curve's number).
*Schedule*: x is the sum of the learning rates up to an epoch, as a share of the first one, in place of epochs.
*Training loss*: the validation loss is known after every fifth epoch, and the training loss after each: plus the last
known difference of the two, it counts as a value.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.curves import PREFIXES, Prediction
from benchmarks.decisions.early_ends import FITTED
from benchmarks.harness import RESULTS
from coach.core.estimation.convergence import CurvePoint, fit_convergence, likeliest_curve
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.observations import KnownCurve

PUBLISHED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coach/dpl/data/taskset"
RESULT = RESULTS / "curves/knowledge.md"
EPOCHS = np.arange(1.0, 52.0)
#: Steps between two of a run's 51 values.
STEPS = 200
#: Evaluations are so many epochs apart, where the training loss is what is known of the others.
APART = 5


class Run(NamedTuple):
    """Losses after each epoch, [51], and the sum of the learning rates until then, as a share of the first."""

    valid: FloatArray
    train: FloatArray
    learned: FloatArray

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        """The whole curve."""
        return points(EPOCHS, self.valid)


class Task(NamedTuple):
    """The kept runs of a task, and its median first loss less its lowest."""

    runs: list[Run]
    range: float


#: A method's points and the x of the last epoch, and what it knows, of the run `at` of a task after a prefix.
Method = Callable[[Task, int, int], tuple[tuple[CurvePoint, ...], float, Sequence[KnownCurve]]]


def points(x: FloatArray, values: FloatArray) -> tuple[CurvePoint, ...]:
    """A curve."""
    return tuple(CurvePoint(*one) for one in zip(x.tolist(), values.tolist(), strict=True))


def read(path: Path) -> Task:
    """The runs of one task."""
    runs = []
    for one in json.loads(path.read_text(encoding="utf-8")):
        valid, train = (np.array(one[split]["loss"][: len(EPOCHS)], dtype=float) for split in ("valid", "train"))
        if len(valid) == len(EPOCHS) and np.isfinite(valid).all() and valid.max() < 5.0:
            runs.append(Run(valid, train, _learned(one["hp"]["linear_decay"], one["hp"]["exponential_decay"])))
    width = float(np.median([run.valid[0] for run in runs])) - min(float(run.valid.min()) for run in runs)
    return Task([run for run in runs if run.valid[0] - run.valid.min() > width / 10.0], width)


def _learned(linear: float, exponential: float) -> FloatArray:
    steps = np.arange(STEPS * len(EPOCHS))
    rates = np.maximum(0.0, 1.0 - linear * steps) * np.exp(-exponential * steps)
    return np.asarray(rates.reshape(len(EPOCHS), STEPS).mean(axis=1).cumsum())


def alone(task: Task, at: int, seen: int) -> tuple[tuple[CurvePoint, ...], float, Sequence[KnownCurve]]:
    """Its values."""
    return task.runs[at].curve[:seen], EPOCHS[-1], ()


def earlier(count: int) -> Method:
    """Its values, and so many other runs."""

    def method(task: Task, at: int, seen: int) -> tuple[tuple[CurvePoint, ...], float, Sequence[KnownCurve]]:
        others = [other for other in np.random.default_rng(at).permutation(len(task.runs)) if other != at]
        known = [likeliest_curve(task.runs[other].curve, "loss") for other in others[:count]]
        return task.runs[at].curve[:seen], EPOCHS[-1], known

    return method


def scheduled(task: Task, at: int, seen: int) -> tuple[tuple[CurvePoint, ...], float, Sequence[KnownCurve]]:
    """Its values by the sum of learning rates."""
    run = task.runs[at]
    return points(run.learned[:seen], run.valid[:seen]), float(run.learned[-1]), ()


def seldom(task: Task, at: int, seen: int) -> tuple[tuple[CurvePoint, ...], float, Sequence[KnownCurve]]:
    """Each fifth value."""
    return task.runs[at].curve[APART - 1 : seen : APART], EPOCHS[-1], ()


def trained(task: Task, at: int, seen: int) -> tuple[tuple[CurvePoint, ...], float, Sequence[KnownCurve]]:
    """Each fifth value, and the training loss."""
    run = task.runs[at]
    known = (np.arange(seen) + 1) // APART * APART - 1  # the last epoch evaluated before, or at, each
    known = np.where(known < 0, APART - 1, known)
    return points(EPOCHS[:seen], run.train[:seen] + (run.valid - run.train)[known]), EPOCHS[-1], ()


def predictions(tasks: Sequence[Task], method: Method, seen: int, curves: int) -> Iterator[Prediction]:
    """Of each task's curves."""
    for task in tasks:
        for at in range(0, len(task.runs), max(1, len(task.runs) // curves)):
            given, last, known = method(task, at, seen)
            found = fit_convergence(given, "loss", known).interval(last)
            truth = float(task.runs[at].valid[-1])
            yield Prediction(*(one / task.range for one in (found.expected, found.low, found.high, truth)))


def table(tasks: Sequence[Task], curves: int) -> list[str]:
    """A row for each method and prefix, with its gain over what it is compared with."""
    rows: list[tuple[str, Method, Method]] = [
        *((f"{count} earlier run{'s' * (count > 1)}", earlier(count), alone) for count in (1, 3, 10)),
        ("the schedule", scheduled, alone),
        ("each fifth value and the training loss", trained, seldom),
        ("each value, against each fifth", alone, seldom),
    ]

    @cache
    def made(method: Method, seen: int) -> list[Prediction]:
        return list(predictions(tasks, method, seen, curves))

    columns = ("error", "inside", "score")
    lines = [
        f"| known | after | {' | '.join(f'{name} | {name} without' for name in columns)} | error gain | score gain |",
        "| --- " + "| ---: " * 9 + "|",
    ]
    for name, method, plain in rows:
        for seen in PREFIXES:
            of = made(method, seen), made(plain, seen)
            error = [statistics.mean(abs(one.expected - one.truth) for one in each) for each in of]
            inside = [statistics.mean(one.inside for one in each) for each in of]
            score = [statistics.mean(one.score for one in each) for each in of]
            cells = [f"{one:.3f}" for one in error] + [f"{100 * one:.0f} %" for one in inside]
            cells += [f"{one:.3f}" for one in score] + [_gain(*error), _gain(*score)]
            lines.append(f"| {name} | {seen} | {' | '.join(cells)} |")
    return lines


def _gain(now: float, before: float) -> str:
    return f"{100 * (1 - now / before):+.0f} %"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--curves", type=int, default=10)
    parser.add_argument("folder", nargs="?", type=Path, default=PUBLISHED)
    options = parser.parse_args()
    found = {path.stem.partition("imdb_")[2].replace("_", "-").lower(): path for path in options.folder.glob("*.json")}
    tasks = [read(path) for name, path in sorted(found.items()) if name not in FITTED]
    lines = ["# What a prediction gains by what is known beyond the curve", ""]
    lines += [
        f"Written by `python -m benchmarks.knowledge --curves {options.curves}`: the last of 51 validation losses, of "
        f"{len(tasks)} tasks of TaskSet on which no constant was chosen. *Gain*: how much smaller the error is, or the "
        "score, with what is known than without.",
        "",
        *table(tasks, options.curves),
        "",
    ]
    RESULT.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
