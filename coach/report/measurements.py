"""Measurements made elsewhere, read from files: what `coach estimators` judges the estimators by.

A CSV of measured speeds (columns model, servers, workers, worker_speed), a CSV of learning curves (columns metric,
values), or run logs of the thesis's handler.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coach.core.errors import UserError
from coach.core.estimation import judging
from coach.core.estimation.convergence import Metric
from coach.core.estimation.judging import Configuration, CurveTask, Speeds
from coach.core.estimation.merging import middle
from coach.report import words

SPEED_COLUMNS = {"model", "servers", "workers", "worker_speed"}
#: How a model may have been measured: where a file has several values of one, each is a model of its own.
WAYS = ("sync_mode", "batch_size")
CURVE_COLUMNS = {"metric", "values"}
#: A metric of such a name is an accuracy, any other a loss.
ACCURACY = re.compile(r"acc|top.?\d", re.IGNORECASE)
#: A total speed below this share of the model's median is a hole in the measurement.
HOLE = 0.01
#: Fewer configurations leave nothing to predict.
LEAST_CONFIGURATIONS = judging.PROBES // 2 + 1
#: Real epochs of a run, at least.
LEAST_EPOCHS = 4
#: Characters of a cell: a curve of a million values.
LONGEST_CELL = 1 << 24


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
    """What was read: speeds by model, runs cut from learning curves by metric, runs of the thesis's handler."""

    speeds: dict[str, Speeds]
    curves: dict[str, list[CurveTask]]
    runs: tuple[Run, ...]
    #: What was not taken, and why: a sentence each.
    left_out: tuple[str, ...]

    @property
    def tasks(self) -> dict[str, list[CurveTask]]:
        """All runs whose last epoch can be predicted, by what they are."""
        return self.curves | run_tasks(self.runs)


class Line(NamedTuple):
    """A row of a CSV, and where it stands."""

    place: str
    cells: dict[str, str]

    def number(self, column: str, cell: str) -> float:
        """`cell`, a part of the row's `column`, as a number."""
        try:
            return float(cell)
        except ValueError:
            raise UserError(f"{self.place}: {column} is {cell.strip()!r}, wanted a number") from None

    def count(self, column: str) -> int:
        """The row's `column` as a whole number from 1 on."""
        number = self.number(column, self.cells[column])
        if not number >= 1 or not number.is_integer():
            raise UserError(
                f"{self.place}: {column} is {self.cells[column]!r}, wanted a whole number from 1 on"
            )
        return int(number)


def read_measurements(path: Path | str) -> Measurements:
    """What is in one file or folder. Raises UserError where nothing in it can be read as speeds or curves."""
    source = Path(path)
    files = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
    speed_lines: list[Line] = []
    curve_lines: list[Line] = []
    runs: list[Run] = []
    left_out: list[str] = []
    for file in files:
        if file.suffix == ".csv":
            lines = list(_lines(file))
            columns = set(lines[0].cells) if lines else set()
            if columns >= SPEED_COLUMNS:
                speed_lines += lines
            elif columns >= CURVE_COLUMNS:
                curve_lines += lines
        elif file.suffix in (".txt", ".json") or file == source:
            runs += _runs(file, left_out)
    found = Measurements(
        _speeds(speed_lines, left_out), _curves(curve_lines, left_out), tuple(runs), tuple(left_out)
    )
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


def _lines(file: Path) -> Iterator[Line]:
    csv.field_size_limit(LONGEST_CELL)
    rows = csv.DictReader(StringIO(_text(file), newline=""))
    try:
        for row in rows:
            # A short row has None where it ends; what a long one has more is kept under None.
            cells = {name: cell or "" for name, cell in row.items() if isinstance(name, str)}
            yield Line(f"{file}:{rows.line_num}", cells)
    except csv.Error as error:
        raise UserError(f"cannot read {file}: line {rows.line_num}: {error}") from None


# -- speeds -----------------------------------------------------------------------------------------------


def _speeds(lines: Sequence[Line], left_out: list[str]) -> dict[str, Speeds]:
    """The job's speed by model and configuration, the sum of its workers', in the file's unit; holes left out.

    Several measurements of one configuration count as they do in a job.
    """
    by_model: dict[str, list[Line]] = {}
    for line in lines:
        by_model.setdefault(line.cells["model"], []).append(line)
    measured: dict[str, dict[Configuration, list[float]]] = {}
    for model, mine in by_model.items():
        ways = [way for way in WAYS if len({line.cells.get(way) for line in mine}) > 1]
        for line in mine:
            name = ", ".join([model, *filter(None, map(line.cells.get, ways))])
            at = line.count("workers"), line.count("servers")
            measured.setdefault(name, {}).setdefault(at, []).append(_total(line))
    found: dict[str, Speeds] = {}
    for name, points in measured.items():
        positive = [v for of in points.values() for v in of if math.isfinite(v) and v > 0]
        least = HOLE * float(np.median(positive)) if positive else 0.0
        usable = {at: [v for v in of if math.isfinite(v) and v > least] for at, of in points.items()}
        holes = [at for at, of in usable.items() if not of]
        if holes:
            left_out.append(f"{name}: no speed at {_some(f'{w}x{s}' for w, s in holes)}")
        # One measurement is taken to the bit: the thesis's solver answers otherwise to the last digit's change.
        speeds = {at: of[0] if len(of) == 1 else middle(of) for at, of in usable.items() if of}
        if len(speeds) >= LEAST_CONFIGURATIONS:
            found[name] = speeds
        else:
            count = words.count(len(speeds), "configuration")
            left_out.append(f"{name}: {count}, wanted at least {LEAST_CONFIGURATIONS}")
    return found


def _total(line: Line) -> float:
    return sum(line.number("worker_speed", v) for v in line.cells["worker_speed"].split(";") if v.strip())


def _some(things: Iterable[str], most: int = 5) -> str:
    every = list(things)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


# -- learning curves --------------------------------------------------------------------------------------


def _curves(lines: Sequence[Line], left_out: list[str]) -> dict[str, list[CurveTask]]:
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
        found = judging.tasks_within(values, metric)
        if found:
            tasks.setdefault(name, []).extend(found)
        else:
            left_out.append(
                f"{line.place}: no run to predict in {len(values)} values of {name}, taken as {metric}"
            )
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
            *before, real = (
                _epochs({name: of[i] for name, of in arrays.items()}) for i in range(parts.pop())
            )
            if len(real) < LEAST_EPOCHS:
                raise ValueError(f"{len(real)} real epochs, wanted at least {LEAST_EPOCHS}")
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
            stop = judging.first_stop(values, target, 3) or len(values)
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
    return max(candidates, key=lambda loss: sum(judging.first_stop(c, loss, 3) == len(c) for c in curves))


def _shape(run: Run) -> tuple[tuple[float, ...], ...]:
    """What makes two runs the same: the same losses, whatever worker's came first."""
    return tuple(tuple(sorted(epoch.losses)) for epoch in run.real)
