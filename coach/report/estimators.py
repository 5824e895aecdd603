"""The table behind `coach estimators FILE`: what each method's predictions are worth on measured data.

FILE may be a CSV of measured speeds (columns model, servers, workers, worker_speed), a CSV of learning curves
(columns metric, values), a run log of the thesis's handler, or a folder of such files.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coach.core.errors import UserError
from coach.core.estimation import judging
from coach.core.estimation.convergence import Metric
from coach.core.estimation.judging import CurveTask, Speeds, SpeedVerdict

#: How the table is made; printed below it.
ORIGIN = f"""\
Speed: predicted from at most {judging.PROBES} measured configurations of each model and compared with all the others
  (median error), and with the fastest of all (speed lost by taking the configuration predicted fastest). "chosen"
  points are Coach's own choice, given to all three methods; "random" is the mean of 20 draws; "4 mini-epochs" are
  the thesis's. thesis: its least squares, in the file's unit (from four points its answer depends on the unit).
  optimus: NNLS on relative errors.
Last epoch: predicted from the first 30 / 50 / 70 / 90 % of a run; median error over the distinct runs, where "no
  solution" counts as 100 %. "by the rule": real epochs, each with its worst worker's loss, until the target has held
  three times; the target is the one that the runs' last epochs show. "with probes": the same with the mini-epochs
  before, by recorded epoch numbers. "crossing": recorded numbers too, to the mean of the last three losses.
inside: share of truths inside Coach's 80 % interval; the other methods give none.
"""
#: A total speed below this share of the model's median is a hole in the measurement.
HOLE = 0.01
DRAWS = 20
#: What Coach set itself for the error half-way, by what a group's name contains.
HALF_WAY = {"Cifar": "<= 40 %", "LeNet": "<= 20 %"}


@dataclass(frozen=True, slots=True)
class EstimatorRow:
    """One line: a measure on one subject for each method, shares (0.1 = 10 %); None where a method has no answer.

    `target` is what Coach set itself for the mean over models or runs, if anything.
    """

    section: str
    subject: str
    measure: str
    thesis: float | None
    optimus: float | None
    coach: float | None
    target: str = ""


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


def estimator_table(path: Path | str) -> list[EstimatorRow]:
    """The rows for one file or folder. Raises UserError where nothing in it can be read as speeds or curves."""
    source = Path(path)
    files = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
    speeds: dict[str, Speeds] = {}
    tasks: dict[str, list[CurveTask]] = {}
    runs: list[Run] = []
    for file in files:
        if not file.is_file():
            raise UserError(f"cannot read {file}: no such file")
        if file.suffix == ".csv":
            with file.open(newline="", encoding="utf-8") as opened:
                rows = list(csv.DictReader(opened))
            columns = set(rows[0]) if rows else set()
            if {"model", "servers", "workers", "worker_speed"} <= columns:
                speeds |= read_speeds(rows)
            elif {"metric", "values"} <= columns:
                for name, found in curve_tasks(rows).items():
                    tasks.setdefault(name, []).extend(found)
        elif file.suffix in (".txt", ".json"):
            runs += read_runs(file.read_text(encoding="utf-8", errors="replace"), file.parent.name)
    tasks |= run_tasks(runs)
    if not speeds and not tasks:
        raise UserError(
            f"nothing to judge estimators by in {source}: wanted a CSV with the columns model, servers, workers, "
            "worker_speed, or metric, values; or a run log with epochs and losses"
        )
    return [*speed_rows(speeds), *curve_rows(tasks)]


# -- reading ----------------------------------------------------------------------------------------------


def read_speeds(rows: Sequence[dict[str, str]]) -> dict[str, Speeds]:
    """The job's speed by model and configuration, the sum of its workers', in the file's unit; holes left out."""
    models: dict[str, dict[tuple[int, int], float]] = {}
    for row in rows:
        speed = sum(float(v) for v in row["worker_speed"].split(";"))
        models.setdefault(row["model"], {})[int(row["workers"]), int(row["servers"])] = speed
    for speeds in models.values():
        least = HOLE * float(np.median(list(speeds.values())))
        for at in [at for at, speed in speeds.items() if speed <= least]:
            del speeds[at]
    return {name: speeds for name, speeds in models.items() if len(speeds) > judging.PROBES // 2}


def read_runs(text: str, group: str) -> list[Run]:
    """The jobs of one log of the thesis's handler. Not JSON: ` | ` separates mini-epochs from real ones."""
    runs = []
    for job in re.findall(r"\{[^{}]*\}", text):
        arrays = {
            name: [[float(v) for v in part.replace(",", " ").split()] for part in body.split("|")]
            for name, body in re.findall(r'"(epochs|loss|workers|servers|time)"\s*:\s*\[([^\]]*)\]', job)
        }
        if len(arrays) < 5 or any(len(parts) != 2 for parts in arrays.values()) or len(arrays["loss"][1]) < 4:
            continue
        mini, real = (_epochs_once({name: parts[i] for name, parts in arrays.items()}) for i in (0, 1))
        runs.append(Run(group, mini, real))
    return runs


def _epochs_once(arrays: dict[str, list[float]]) -> tuple[RunEpoch, ...]:
    """One entry an epoch out of one an epoch and worker."""
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


def curve_tasks(rows: Sequence[dict[str, str]]) -> dict[str, list[CurveTask]]:
    """Runs cut from each curve of a CSV, by metric."""
    tasks: dict[str, list[CurveTask]] = {}
    for row in rows:
        metric: Metric = "accuracy" if "accuracy" in row["metric"] else "loss"
        values = [float(v) for v in row["values"].split(";")]
        tasks.setdefault(row["metric"], []).extend(judging.tasks_within(values, metric))
    return {name: found for name, found in tasks.items() if found}


def run_tasks(runs: Sequence[Run]) -> dict[str, list[CurveTask]]:
    """Each distinct run of each group as three tasks: by the rule, with probes, and crossing (see ORIGIN)."""
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


# -- judging ----------------------------------------------------------------------------------------------


def speed_rows(models: dict[str, Speeds]) -> Iterator[EstimatorRow]:
    """Errors of speed by model, and their means."""
    columns: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, speeds in models.items():
        draws = [judging.random_points(speeds, np.random.default_rng(i)) for i in range(DRAWS)]
        ways = {
            "4 mini-epochs": [judging.mini_epoch_points(speeds)],
            f"{judging.PROBES} random": draws,
            f"{judging.PROBES} chosen": [judging.chosen_points(speeds, speeds.__getitem__)],
        }
        for way, drawn in ways.items():
            for method in judging.METHODS:
                verdicts = [judging.judge_speed(speeds, measured, method) for measured in drawn]
                for measure, value in _summary(verdicts).items():
                    columns.setdefault(f"{measure}, {way}", {}).setdefault(name, {})[method] = value
    targets = {
        f"speed error, {judging.PROBES} chosen": "<= 10 %",
        f"speed lost, {judging.PROBES} chosen": "<= 5 %",
    }
    targets |= {f"inside, {judging.PROBES} chosen": "70-90 %", f"inside, {judging.PROBES} random": "70-90 %"}
    for measure, by_model in columns.items():
        means = [_mean([of[method] for of in by_model.values()]) for method in judging.METHODS]
        yield _row("speed", "mean", measure, means, targets.get(measure, ""))
        for name, of in by_model.items():
            yield _row("speed", name, measure, [of[method] for method in judging.METHODS])


def _summary(verdicts: Sequence[SpeedVerdict]) -> dict[str, float | None]:
    return {
        "speed error": _mean([v.error for v in verdicts]),
        "speed lost": _mean([v.lost for v in verdicts]),
        "inside": _mean([v.inside for v in verdicts]),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def curve_rows(tasks: dict[str, list[CurveTask]]) -> Iterator[EstimatorRow]:
    """Errors of the last epoch by group and moment; how often there was no solution, and truths inside, over all."""
    for group, found in tasks.items():
        verdicts = {
            (method, share): [judging.judge_curve(task, share, method) for task in found]
            for method in judging.METHODS
            for share in judging.MOMENTS
        }
        for share in judging.MOMENTS:
            errors = [float(np.median([v.error for v in verdicts[m, share]])) for m in judging.METHODS]
            target = next((t for name, t in HALF_WAY.items() if share == 0.5 and name in group), "")
            yield _row("last epoch", group, f"error at {share:.0%}", errors, target)
        every = [[v for share in judging.MOMENTS for v in verdicts[m, share]] for m in judging.METHODS]
        yield _row(
            "last epoch", group, "no solution", [_mean([float(v.no_solution) for v in of]) for of in every]
        )
        inside = _mean([None if v.inside is None else float(v.inside) for v in every[-1]])
        yield _row("last epoch", group, "inside", [None, None, inside], "70-90 %")


def _row(
    section: str, subject: str, measure: str, values: Sequence[float | None], target: str = ""
) -> EstimatorRow:
    thesis, optimus, coach = values
    return EstimatorRow(section, subject, measure, thesis, optimus, coach, target)
