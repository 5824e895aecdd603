"""Truths from reality: what a journal of real runs says of a job's speed, its curve, and all that lies between epochs.

Speeds: all data trained with an allocation over all its seconds, so that a whole epoch says more than a probe; the
model fitted to all of them for allocations that never ran. Cores: what each allocation's workers used meanwhile.
Evaluation, and the core-seconds of a worker: their means for each number of workers.
The curve: the mean of the runs at each number of passes, straight lines between, and the fitted curve behind the last.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coach.core.cluster import Allocation
from coach.core.estimation.convergence import ConvergenceModel, CurvePoint, Metric, fit_convergence
from coach.core.estimation.speed import SpeedModel, SpeedPoint, fit_speed
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs import fold
from coach.core.jobs.epoch import Epoch
from coach.core.jobs.job import Job
from coach.simulation.dynamics.job_dynamics import JobDynamics

#: Passes over the data that are the same up to this are averaged.
SAME_PASSES = 1e-6
#: The median of the absolute value of a standard normal number.
NORMAL_MEDIAN = 0.6745


@dataclass
class MeasuredSpeeds:
    """Epochs/s by allocation: as measured, else as fitted."""

    measured: dict[Allocation, float]
    model: dict[str, Any]
    _fitted: SpeedModel | None = field(default=None, repr=False, compare=False)

    def __call__(self, workers: int, servers: int) -> float:
        """Epochs/s."""
        known = self.measured.get(Allocation(workers, servers))
        if known is not None:
            return known
        if self._fitted is None:
            self._fitted = SpeedModel.from_dict(self.model)
        return self._fitted.predict(workers, servers)


@dataclass
class MeasuredCores:
    """Cores in use by one worker, by allocation: as measured, else the most of all (a worker alone has most)."""

    measured: dict[Allocation, float]

    def __call__(self, workers: int, servers: int) -> float:
        """Cores."""
        return self.measured.get(Allocation(workers, servers)) or max(self.measured.values())


@dataclass
class MeasuredEvaluation:
    """Seconds of an evaluation by the number of workers, who share the test data.

    Those of another number follow from the nearest.
    """

    measured: dict[int, float]

    def __call__(self, workers: int, servers: int) -> float:
        """Seconds."""
        nearest = min(self.measured, key=lambda known: (abs(known - workers), known))
        return self.measured[nearest] * nearest / workers


@dataclass
class MeasuredComputing:
    """Core-seconds of the first worker for a whole data set, by the number of workers, who share the data.

    Those of another number follow from the nearest: servers take nothing of it.
    """

    measured: dict[int, float]

    def __call__(self, workers: int, servers: int) -> float:
        """Core-seconds; 0 where no report had any."""
        if not self.measured:
            return 0.0
        nearest = min(self.measured, key=lambda known: (abs(known - workers), known))
        return self.measured[nearest] * nearest / workers


@dataclass
class MeasuredCurve:
    """A metric by passes over the data."""

    epochs_trained: tuple[float, ...]
    values: tuple[float, ...]
    model: dict[str, Any]
    _fitted: ConvergenceModel | None = field(default=None, repr=False, compare=False)

    def __call__(self, x: float) -> float:
        """The metric after `x` passes."""
        if x <= self.epochs_trained[-1]:
            return float(np.interp(x, self.epochs_trained, self.values))
        if self._fitted is None:
            self._fitted = ConvergenceModel.from_dict(self.model)
        # From the last measured value on, as the fitted curve goes on.
        return self.values[-1] + self._fitted.predict(x) - self._fitted.predict(self.epochs_trained[-1])


@dataclass(frozen=True, slots=True)
class Run:
    """One job of a journal, with the seconds that its records alone know."""

    job: Job
    pod_seconds: tuple[float, ...]
    release_seconds: tuple[float, ...]
    fit_seconds: tuple[float, ...]


def runs_of(records: Iterable[Any]) -> dict[str, Run]:
    """The jobs of a journal, folded, by name."""
    folded: dict[str, Job] = {}
    opened: dict[tuple[str, Any], float] = {}
    waits: dict[tuple[str, str], list[float]] = {}

    def close(kind: str, job: str, key: Any, at: float) -> None:
        began = opened.pop((kind, key), None)
        if began is not None:
            waits.setdefault((kind, job), []).append(at - began)

    for record in records:
        if isinstance(record, ev.HandlerStarted):
            for job in folded.values():
                fold.apply(job, record)
            continue
        if isinstance(record, ev.JobSubmitted):
            folded.setdefault(record.job, fold.submitted(record))
        elif record.job in folded:
            fold.apply(folded[record.job], record)
        match record:
            case act.DeployPods():
                opened.update({("pod", pod.id): record.at for pod in record.pods})
            case ev.PodReady():
                close("pod", record.job, record.pod, record.at)
            case act.ReleasePods():
                opened["release", record.pods] = record.at
            case ev.PodsReleased():
                close("release", record.job, record.pods, record.at)
            case act.FitModels():
                opened["fit", record.token] = record.at
            case ev.ModelsFitted():
                close("fit", record.job, record.token, record.at)
    return {
        name: Run(job, *(tuple(waits.get((kind, name), ())) for kind in ("pod", "release", "fit")))
        for name, job in folded.items()
    }


def learn(runs: Sequence[Run]) -> JobDynamics:
    """The truth behind runs of one job (the same model, data and batch). Raises ValueError without an epoch."""
    epochs = [epoch for run in runs for epoch in run.job.epochs]
    if not epochs:
        raise ValueError("no epoch was measured")
    at: dict[Allocation, list[Epoch]] = {}
    for epoch in epochs:
        at.setdefault(epoch.allocation, []).append(epoch)
    fitted = fit_speed([SpeedPoint(*e.allocation, e.epochs_per_second) for e in epochs])
    middle = {
        allocation: sum(epoch.fraction for epoch in some)
        / sum(epoch.fraction / epoch.epochs_per_second for epoch in some)
        for allocation, some in at.items()
    }
    same, fresh = _beside(runs)
    evaluated = [epoch for run in runs for epoch in run.job.evaluated_epochs]
    if not evaluated:
        raise ValueError("no epoch was evaluated")
    evaluations: dict[int, list[float]] = {}
    for epoch in evaluated:
        evaluations.setdefault(epoch.allocation.workers, []).append(epoch.report.evaluate_seconds)
    with_accuracy = all(epoch.report.accuracy is not None for epoch in evaluated)
    return JobDynamics(
        MeasuredSpeeds(middle, fitted.to_dict()),
        _curve(runs, "loss"),
        _curve(runs, "accuracy") if with_accuracy else None,
        data_size=epochs[-1].report.data_size,
        batch_size=runs[-1].job.spec.batch_size,
        new_group_seconds=_mean(fresh, _mean(same, 0.5)),
        same_group_seconds=_mean(same, 0.05),
        evaluate_seconds=MeasuredEvaluation(
            {workers: statistics.fmean(some) for workers, some in evaluations.items()}
        ),
        pod_seconds=_mean([s for run in runs for s in run.pod_seconds], 0.3),
        release_seconds=_mean([s for run in runs for s in run.release_seconds], 0.02),
        fit_seconds=_mean([s for run in runs for s in run.fit_seconds], 0.05),
        speed_noise=_noise(runs),
        worker_cores=MeasuredCores({allocation: _cores(some) for allocation, some in at.items()}),
        computing_seconds=MeasuredComputing(_computing(epochs)),
    )


def _noise(runs: Sequence[Run]) -> float:
    """Standard deviation of an epoch's ln speed, from one whole epoch to the next with the same allocation.

    By the median step: a slow minute of the machine slows all epochs in it, and is no reason to mistake one allocation
    for another, as noise from epoch to epoch is. What it takes is in the mean speeds.
    """
    steps = [
        abs(float(np.log(epoch.epochs_per_second / before.epochs_per_second)))
        for run in runs
        for before, epoch in itertools.pairwise(run.job.full_epochs)
        if before.allocation == epoch.allocation
    ]
    return statistics.median(steps) / (NORMAL_MEDIAN * 2**0.5) if steps else 0.0


def _cores(epochs: Sequence[Epoch]) -> float:
    """Cores that a worker used on average over the seconds for which its report counts them: it is of one worker.

    A new group's start is counted too, and is a good part of a probe.
    """
    reports = [epoch.report for epoch in epochs]
    seconds = sum(
        one.load_seconds
        + one.form_seconds
        + one.train_seconds
        + one.evaluate_seconds
        + one.checkpoint_seconds
        for one in reports
    )
    return sum(one.cpu_seconds for one in reports) / max(seconds, 1e-6) or 1.0


def _computing(epochs: Iterable[Epoch]) -> dict[int, float]:
    """Seconds of the first worker's busiest thread for a whole data set, by the number of workers, where known."""
    known: dict[int, list[Epoch]] = {}
    for epoch in epochs:
        if epoch.computing_seconds > 0.0:
            known.setdefault(epoch.allocation.workers, []).append(epoch)
    return {
        workers: sum(epoch.computing_seconds * epoch.fraction for epoch in some)
        / sum(epoch.fraction for epoch in some)
        for workers, some in known.items()
    }


def _beside(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Seconds of epochs outside training and evaluation: of those whose group stayed formed, and of the others."""
    same: list[float] = []
    fresh: list[float] = []
    for run in runs:
        before: Epoch | None = None
        for epoch in run.job.epochs:
            seconds = max(0.0, epoch.other_seconds - epoch.report.evaluate_seconds)
            (same if before is not None and before.group == epoch.group else fresh).append(seconds)
            before = epoch
    return same, fresh


def _curve(runs: Sequence[Run], metric: Metric) -> MeasuredCurve:
    points = sorted(
        (epoch.epochs_trained, float(getattr(epoch.report, metric)))
        for run in runs
        for epoch in run.job.evaluated_epochs
    )
    means = [
        (x, statistics.fmean(value for _, value in group))
        for x, group in itertools.groupby(
            points, key=lambda point: round(point[0] / SAME_PASSES) * SAME_PASSES
        )
    ]
    model = fit_convergence([CurvePoint(x, value) for x, value in means], metric)
    return MeasuredCurve(tuple(x for x, _ in means), tuple(value for _, value in means), model.to_dict())


def _mean(values: Sequence[float], otherwise: float) -> float:
    return statistics.fmean(values) if values else otherwise
