"""Measurements made elsewhere, read from files: `coach estimators` evaluates the estimators on them.

A CSV of measured speeds (columns model, servers, workers, worker_speed), a CSV of learning curves (columns metric,
values), or run logs of the thesis's handler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coach.core.errors import UserError
from coach.core.estimation.convergence import Metric
from coach.core.estimation.speed_table import SPEED_COLUMNS, CsvRow, lines_of, measured_models
from coach.report import formatting
from coach_research.estimators import evaluation as estimator_evaluation
from coach_research.estimators.evaluation import CurveTask, Speeds

CURVE_COLUMNS = {"metric", "values"}
#: A metric of such a name is an accuracy, any other a loss.
ACCURACY = re.compile(r"acc|top.?\d", re.IGNORECASE)
#: Minimum of configurations: fewer leave nothing to predict.
MIN_CONFIGURATIONS = estimator_evaluation.PROBES // 2 + 1
#: Minimum of full epochs of a run.
MIN_EPOCHS = 4


@dataclass(frozen=True, slots=True)
class RunEpoch:
    """One epoch of a run: its recorded number, what took part, its slowest worker's seconds, each worker's loss."""

    number: float
    workers: int
    servers: int
    seconds: float
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A job that the thesis's handler trained: its mini-epochs and its real ones."""

    group: str
    mini: tuple[RunEpoch, ...]
    real: tuple[RunEpoch, ...]


@dataclass(frozen=True, slots=True)
class Measurements:
    """The measurements: speeds by model, runs cut from learning curves by metric, runs of the thesis's handler."""

    speeds: dict[str, Speeds]
    curves: dict[str, list[CurveTask]]
    runs: tuple[Run, ...]
    #: What was left out, and why: a sentence each.
    left_out: tuple[str, ...]

    @property
    def tasks(self) -> dict[str, list[CurveTask]]:
        """All runs whose last epoch can be predicted, by group."""
        return self.curves | run_tasks(self.runs)


def read_measurements(path: Path | str) -> Measurements:
    """The measurements in a file or folder. Raises UserError where nothing in it can be read as speeds or curves."""
    source = Path(path)
    files = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
    speed_lines: list[CsvRow] = []
    curve_lines: list[CsvRow] = []
    runs: list[Run] = []
    left_out: list[str] = []
    for file in files:
        if file.suffix == ".csv":
            lines = list(lines_of(_text(file), str(file)))
            columns = set(lines[0].cells) if lines else set()
            if columns >= SPEED_COLUMNS:
                speed_lines += lines
            elif columns >= CURVE_COLUMNS:
                curve_lines += lines
        elif file.suffix in (".txt", ".json") or file == source:
            runs += _runs(file, left_out)
    found = Measurements(_speeds(speed_lines, left_out), _curves(curve_lines, left_out), tuple(runs), tuple(left_out))
    if not found.speeds and not found.tasks:
        raise UserError(
            f"nothing to judge estimators by in {source}: wanted a CSV with the columns model, servers, workers, "
            "worker_speed, or metric, values; or a run log with epochs and losses"
            + "".join(f"\n  {sentence}" for sentence in left_out)
        )
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig", errors="replace")
    except FileNotFoundError:
        raise UserError(f"cannot read {file}: no such file") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None


# -- speeds -----------------------------------------------------------------------------------------------


def _speeds(lines: Sequence[CsvRow], left_out: list[str]) -> dict[str, Speeds]:
    """The speeds of the models with enough configurations."""
    found: dict[str, Speeds] = {}
    for name, model in measured_models(lines).items():
        if model.holes:
            left_out.append(f"{name}: no speed at {_some(f'{w}x{s}' for w, s in model.holes)}")
        if len(model.speeds) >= MIN_CONFIGURATIONS:
            found[name] = model.speeds
        else:
            count = formatting.count(len(model.speeds), "configuration")
            left_out.append(f"{name}: {count}, wanted at least {MIN_CONFIGURATIONS}")
    return found


def _some(things: Iterable[str], most: int = 5) -> str:
    every = list(things)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


# -- learning curves --------------------------------------------------------------------------------------


def _curves(lines: Sequence[CsvRow], left_out: list[str]) -> dict[str, list[CurveTask]]:
    """Runs cut from each curve, by metric. A curve ends before its first value that is not a number."""
    tasks: dict[str, list[CurveTask]] = {}
    for line in lines:
        name = line.cells["metric"]
        metric: Metric = "accuracy" if ACCURACY.search(name) else "loss"
        values: list[float] = []
        for cell in line.cells["values"].split(";"):
            value = line.number("values", cell) if cell.strip() else math.nan
            if not math.isfinite(value):
                break
            values.append(value)
        found = estimator_evaluation.tasks_within(values, metric)
        if found:
            tasks.setdefault(name, []).extend(found)
        else:
            left_out.append(f"{line.place}: no run to predict in {len(values)} values of {name}, taken as {metric}")
    return tasks


# -- run logs ---------------------------------------------------------------------------------------------


def _runs(file: Path, left_out: list[str]) -> Iterator[Run]:
    """The jobs of one log of the thesis's handler. Not JSON: ` | ` separates mini-epochs from real ones."""
    group = file.resolve().parent.name
    for number, job in enumerate(re.findall(r"\{[^{}]*\}", _text(file)), start=1):
        bodies = dict(re.findall(r'"(epochs|loss|workers|servers|time)"\s*:\s*\[([^\]]*)\]', job))
        if len(bodies) < 5:
            continue
        try:
            arrays = {
                name: [[float(v) for v in part.replace(",", " ").split()] for part in body.split("|")]
                for name, body in bodies.items()
            }
            parts = {len(of) for of in arrays.values()}
            if len(parts) != 1 or not parts <= {1, 2}:
                raise ValueError("wanted mini-epochs and real ones, with one | between")
            *before, real = (_epochs({name: of[i] for name, of in arrays.items()}) for i in range(parts.pop()))
            if len(real) < MIN_EPOCHS:
                raise ValueError(f"{len(real)} full epochs, wanted at least {MIN_EPOCHS}")
        except ValueError as error:
            left_out.append(f"{file}: job {number}: {error}")
        else:
            yield Run(group, before[0] if before else (), real)


def _epochs(arrays: dict[str, list[float]]) -> tuple[RunEpoch, ...]:
    """One entry an epoch out of one an epoch and worker. Raises ValueError where the arrays are none of that."""
    if len({len(values) for values in arrays.values()}) > 1:
        raise ValueError(f"its lists have {_some(f'{len(v)} {name}' for name, v in arrays.items())}")
    if not np.isfinite(list(arrays.values())).all():
        raise ValueError("a value that is not a number")
    numbers, epochs, i = arrays["epochs"], [], 0
    while i < len(numbers):
        count = max(1, int(arrays["workers"][i]))
        while count > 1 and (i + count > len(numbers) or numbers[i + count - 1] != numbers[i]):
            count -= 1  # an epoch that a worker left
        of_workers = slice(i, i + count)
        epochs.append(
            RunEpoch(
                numbers[i],
                int(arrays["workers"][i]),
                int(arrays["servers"][i]),
                max(arrays["time"][of_workers]),
                tuple(arrays["loss"][of_workers]),
            )
        )
        i += count
    return tuple(epochs)


def run_tasks(runs: Sequence[Run]) -> dict[str, list[CurveTask]]:
    """Each distinct run of each group as three tasks, named as `coach estimators` explains them."""
    tasks: dict[str, list[CurveTask]] = {}
    for group in dict.fromkeys(run.group for run in runs):
        distinct = {_shape(run): run for run in runs if run.group == group}.values()
        worst = [[max(epoch.losses) for epoch in run.real] for run in distinct]
        target = _target(worst)
        rule, probed, crossing = [], [], []
        for run, values in zip(distinct, worst, strict=True):
            stop = estimator_evaluation.first_stop(values, target, 3) or len(values)
            x = tuple(float(i) for i in range(1, stop + 1))
            rule.append(CurveTask(x, tuple(values[:stop]), "loss", target, 3, float(stop)))
            every = run.mini + run.real[:stop]
            numbers = tuple(epoch.number for epoch in every)
            highest = tuple(max(epoch.losses) for epoch in every)
            probed.append(CurveTask(numbers, highest, "loss", target, 3, numbers[-1]))
            numbers = tuple(epoch.number for epoch in run.mini + run.real)
            means = tuple(float(np.mean(epoch.losses)) for epoch in run.mini + run.real)
            crossing.append(CurveTask(numbers, means, "loss", float(np.mean(means[-3:])), 1, numbers[-1]))
        tasks |= {
            f"{group}, by the rule": rule,
            f"{group}, with probes": probed,
            f"{group}, crossing": crossing,
        }
    return tasks


def _target(curves: Sequence[Sequence[float]]) -> float:
    """The loss, held three epochs in a row, that explains where most of the `curves` end."""
    candidates = sorted({max(values[-3:]) for values in curves})
    return max(
        candidates,
        key=lambda loss: sum(estimator_evaluation.first_stop(c, loss, 3) == len(c) for c in curves),
    )


def _shape(run: Run) -> tuple[tuple[float, ...], ...]:
    """A key that is equal for equal runs: the same losses, in any order of the workers."""
    return tuple(tuple(sorted(epoch.losses)) for epoch in run.real)
