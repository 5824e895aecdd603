"""The table of `coach estimators FILE`: the errors of each method's predictions on measured data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from coach_research.estimators import evaluation as estimator_evaluation
from coach_research.estimators.evaluation import CurveTask, Speeds, SpeedVerdict
from coach_research.estimators.measurements import Measurements

#: How the table is computed; printed below it.
ORIGIN = f"""\
Speed: predicted from at most {estimator_evaluation.PROBES} measured configurations of each model and compared with all
the others
  (median error), and with the fastest of all (speed lost by taking the configuration predicted fastest). "chosen"
  points are Coach's own choice, given to all three methods; "random" is the mean of 20 draws; "4 mini-epochs" are
  the thesis's. thesis: its least squares, in the file's unit (from four points its answer depends on the unit).
  optimus: NNLS on relative errors.
Last epoch: predicted from the first 30 / 50 / 70 / 90 % of a run; median error over the distinct runs, where "no
  solution" counts as 100 %. thesis, optimus: where their curve meets the target, and as many epochs more as it has to
  hold; after the last one seen at least. "by the rule": full epochs, each with its worst worker's loss, until the
  target has held three times; the target is the one that the runs' last epochs show. "with probes": the same with the
  mini-epochs before, by recorded epoch numbers. "crossing": recorded numbers too, to the mean of the last three losses.
inside: share of measured values inside Coach's 80 % interval; the other methods give none.
"""
DRAWS = 20
#: Coach's own goal for the error half-way, by a part of the group's name.
HALF_WAY = {"Cifar": "<= 40 %", "LeNet": "<= 20 %"}


@dataclass(frozen=True, slots=True)
class EstimatorRow:
    """One line: a measure on one subject for each method, shares (0.1 = 10 %); None where a method has no answer.

    `target` is Coach's own goal for the mean over models or runs, if any.
    """

    section: str
    subject: str
    measure: str
    thesis: float | None
    optimus: float | None
    coach: float | None
    target: str = ""


def estimator_table(
    measured: Measurements, progress: Callable[[float], object] = lambda done: None
) -> list[EstimatorRow]:
    """The rows for all that was read; `progress` is called with the number of models and groups of runs done."""
    ended = count(1)

    def each() -> None:
        progress(next(ended))

    return [*_speed_rows(measured.speeds, each), *_curve_rows(measured.tasks, each)]


def _speed_rows(models: Mapping[str, Speeds], each: Callable[[], None]) -> Iterator[EstimatorRow]:
    """Errors of speed by model, and their means."""
    columns: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, speeds in models.items():
        draws = [estimator_evaluation.random_points(speeds, np.random.default_rng(i)) for i in range(DRAWS)]
        mini_epochs = estimator_evaluation.mini_epoch_points(speeds)
        ways = {
            "4 mini-epochs": [mini_epochs] if mini_epochs else [],
            f"{estimator_evaluation.PROBES} random": draws,
            f"{estimator_evaluation.PROBES} chosen": [estimator_evaluation.chosen_points(speeds, speeds.__getitem__)],
        }
        for way, drawn in ways.items():
            for method in estimator_evaluation.METHODS:
                verdicts = [estimator_evaluation.judge_speed(speeds, measured, method) for measured in drawn]
                for measure, value in _summary(verdicts).items():
                    columns.setdefault(f"{measure}, {way}", {}).setdefault(name, {})[method] = value
        each()
    targets = {
        f"speed error, {estimator_evaluation.PROBES} chosen": "<= 10 %",
        f"speed lost, {estimator_evaluation.PROBES} chosen": "<= 5 %",
    }
    targets |= {
        f"inside, {estimator_evaluation.PROBES} chosen": "70-90 %",
        f"inside, {estimator_evaluation.PROBES} random": "70-90 %",
    }
    for measure, by_model in columns.items():
        means = [_mean([of[method] for of in by_model.values()]) for method in estimator_evaluation.METHODS]
        yield _row("speed", "mean", measure, means, targets.get(measure, ""))
        for name, of in by_model.items():
            yield _row("speed", name, measure, [of[method] for method in estimator_evaluation.METHODS])


def _summary(verdicts: Sequence[SpeedVerdict]) -> dict[str, float | None]:
    return {
        "speed error": _mean([v.error for v in verdicts]),
        "speed lost": _mean([v.lost for v in verdicts]),
        "inside": _mean([v.inside for v in verdicts]),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _curve_rows(tasks: Mapping[str, Sequence[CurveTask]], each: Callable[[], None]) -> Iterator[EstimatorRow]:
    """Errors of the last epoch by group and moment; over all, how often there was no solution, and values inside."""
    for group, found in tasks.items():
        verdicts = {
            (method, share): [estimator_evaluation.judge_curve(task, share, method) for task in found]
            for method in estimator_evaluation.METHODS
            for share in estimator_evaluation.MOMENTS
        }
        each()
        for share in estimator_evaluation.MOMENTS:
            errors = [float(np.median([v.error for v in verdicts[m, share]])) for m in estimator_evaluation.METHODS]
            target = next((t for name, t in HALF_WAY.items() if share == 0.5 and name in group), "")
            yield _row("last epoch", group, f"error at {share:.0%}", errors, target)
        every = [
            [v for share in estimator_evaluation.MOMENTS for v in verdicts[m, share]]
            for m in estimator_evaluation.METHODS
        ]
        yield _row("last epoch", group, "no solution", [_mean([float(v.no_solution) for v in of]) for of in every])
        inside = _mean([None if v.inside is None else float(v.inside) for v in every[-1]])
        yield _row("last epoch", group, "inside", [None, None, inside], "70-90 %")


def _row(section: str, subject: str, measure: str, values: Sequence[float | None], target: str = "") -> EstimatorRow:
    thesis, optimus, coach = values
    return EstimatorRow(section, subject, measure, thesis, optimus, coach, target)
