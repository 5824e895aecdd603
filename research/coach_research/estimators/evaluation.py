"""Evaluation of the estimators on data with known outcomes: the thesis's method, Optimus's and Coach's.

Pure: measured speeds and recorded curves in, errors out. `coach estimators` and benchmarks/estimation/estimators.py
print them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coach.core.estimation.convergence import CurvePoint, Metric, fit_convergence
from coach.core.estimation.speed import SpeedPoint, fit_speed
from coach_research.estimators.next_probe import next_probe
from coach_research.estimators.published import fit_optimus_speed, fit_thesis_curve, fit_thesis_quadratic

Configuration = tuple[int, int]  #: (workers, servers)
Speeds = Mapping[Configuration, float]  #: every measured configuration of a model, epochs/s
METHODS = ("thesis", "optimus", "coach")
#: Configurations that may be measured before a decision.
PROBES = 8
#: Shares of a run after which its last epoch is predicted.
MOMENTS = (0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, slots=True)
class SpeedVerdict:
    """The errors of one method on one model, from some measured configurations. Shares, 0.1 = 10 %."""

    error: float  #: median over the configurations not measured of |predicted / measured - 1|
    lost: float  #: speed lost by taking the configuration predicted fastest, against the fastest measured of all
    inside: float | None  #: share of those configurations inside the 80 % interval; None: no interval


@dataclass(frozen=True, slots=True)
class CurveTask:
    """A run to predict: `values` at the epochs `x`, stopped at epoch `last`, when `target` had held `consecutive_hits`.

    Accuracies are shares of 1.
    """

    x: tuple[float, ...]
    values: tuple[float, ...]
    metric: Metric
    target: float
    consecutive_hits: int
    last: float


@dataclass(frozen=True, slots=True)
class CurveVerdict:
    """The error of one method on one run at one time. `error` is 1 for "no solution"."""

    error: float
    no_solution: bool
    inside: bool | None


def judge_speed(speeds: Speeds, measured: Mapping[Configuration, float], method: str) -> SpeedVerdict:
    """Fit `method` to the `measured` configurations (which may have noise) and compare it with all `speeds`."""
    points = [SpeedPoint(*at, v) for at, v in measured.items()]
    everywhere = list(speeds)
    actual = np.array([speeds[at] for at in everywhere])
    rest = np.array([at not in measured for at in everywhere])
    inside = None
    if method == "coach":
        model = fit_speed(points)
        predicted = model.predict_all(everywhere)
        held = np.array([i.holds(v) for i, v in zip(model.intervals(everywhere), actual, strict=True)])
        inside = float(held[rest].mean())
    else:
        fitted = fit_thesis_quadratic(points) if method == "thesis" else fit_optimus_speed(points)
        predicted = np.array([fitted.predict(*at) for at in everywhere])
    error = float(np.median(np.abs(predicted[rest] / actual[rest] - 1.0)))
    return SpeedVerdict(error, 1.0 - float(actual[int(np.argmax(predicted))] / actual.max()), inside)


def chosen_points(
    speeds: Speeds, measure: Callable[[Configuration], float], probes: int = PROBES
) -> dict[Configuration, float]:
    """Up to `probes` configurations in the order of `next_probe`, each with the speed that `measure` returns."""
    measured: dict[Configuration, float] = {}
    most_workers, most_servers = (max(at[i] for at in speeds) for i in (0, 1))
    while len(measured) < min(probes, len(speeds) - 1):
        points = [SpeedPoint(*at, v) for at, v in measured.items()]
        probe = next_probe(points, most_workers, most_servers, list(speeds))
        if probe is None:
            break
        measured[probe] = measure(probe)
    return measured


def random_points(speeds: Speeds, random: np.random.Generator, probes: int = PROBES) -> dict[Configuration, float]:
    """`probes` configurations drawn at random."""
    everywhere = list(speeds)
    drawn = random.choice(len(everywhere), size=min(probes, len(everywhere) - 1), replace=False)
    return {everywhere[i]: speeds[everywhere[i]] for i in drawn}


def mini_epoch_points(speeds: Speeds) -> dict[Configuration, float]:
    """The thesis's four mini-epochs: (1,1), (1,2), (2,1), (2,2), or the next larger numbers that were measured.

    Fewer, possibly none, if only one number of workers or servers was measured or the grid has gaps.
    """
    workers, servers = (sorted({at[i] for at in speeds})[:2] for i in (0, 1))
    return {(w, s): speeds[w, s] for w in workers for s in servers if (w, s) in speeds}


def judge_curve(task: CurveTask, share: float, method: str) -> CurveVerdict:
    """Predict the last epoch of `task` from the first `share` of its values (at least one)."""
    count = min(max(1, round(share * len(task.x))), len(task.x) - 1)
    points = [CurvePoint(x, v) for x, v in zip(task.x[:count], task.values[:count], strict=True)]
    if method == "coach":
        answer = fit_convergence(points, task.metric).epochs_to(task.target, task.consecutive_hits, points[-1].x)
        if answer is None:
            return CurveVerdict(1.0, True, False)
        return CurveVerdict(abs(answer.expected / task.last - 1.0), False, answer.holds(task.last))
    falling = points if task.metric == "loss" else [CurvePoint(p.x, 1.0 - p.value) for p in points]
    target = task.target if task.metric == "loss" else 1.0 - task.target
    crossing = fit_thesis_curve(falling, segments=3 if method == "optimus" else 1).epochs_to(target)
    if crossing is None or not math.isfinite(crossing):
        return CurveVerdict(1.0, True, None)
    # These methods predict when the target is met. The question is when it has held, in a run that still goes on.
    last = max(math.ceil(crossing) + task.consecutive_hits - 1, points[-1].x + 1)
    return CurveVerdict(abs(last / task.last - 1.0), False, None)


def first_stop(values: Sequence[float], target: float, consecutive_hits: int, metric: Metric = "loss") -> int | None:
    """The number of epochs until `target` has held `consecutive_hits` times; None if it never does."""
    streak = 0
    for epoch, value in enumerate(values, start=1):
        streak = streak + 1 if (value <= target if metric == "loss" else value >= target) else 0
        if streak == consecutive_hits:
            return epoch
    return None


def tasks_within(values: Sequence[float], metric: Metric, ends: Sequence[int] = (8, 12, 20, 35, 60)) -> list[CurveTask]:
    """Runs cut from a long curve: each target is the curve's level around one of `ends`, held for three epochs.

    Targets already met in the first quarter of the run are left out, and so are runs of fewer than six epochs. An
    accuracy is in per cent if any value is above 1.
    """
    if metric == "accuracy" and max(values, default=0.0) > 1.0:
        values = [value / 100.0 for value in values]
    falling = np.array(values) if metric == "loss" else -np.array(values)
    tasks = []
    for end in ends:
        if end >= len(falling):
            continue
        level = float(falling[end - 1 : end + 2].mean())
        stop = first_stop(falling.tolist(), level, 3)
        if level > falling[: max(2, end // 4)].min() or stop is None or stop < 6:
            continue
        x = tuple(float(i) for i in range(1, stop + 1))
        target = level if metric == "loss" else -level
        tasks.append(CurveTask(x, tuple(values[:stop]), metric, target, 3, float(stop)))
    return tasks
