"""Job dynamics measured by real runs: a job's speed, its curve and its overheads, read from a journal.

Speed of an allocation: all data trained with it, divided by all its seconds. A whole epoch thus weighs more than a
probe. For allocations that never ran it comes from the model fitted to all of them.
Cores: those that each allocation's workers used. Evaluation and core-seconds of a worker: the mean for each number of
workers.
Curve: the mean of the runs at each number of epochs trained, linear between them, and the fitted curve after the last.
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
from coach.core.jobs.epoch import Epoch, measuring
from coach.core.jobs.job import Job
from coach.simulation.dynamics.job_dynamics import JobDynamics

#: Losses and accuracies are averaged over runs where the epochs trained differ by less than this.
SAME_PASSES = 1e-6
#: The median of the absolute value of a standard normal number.
NORMAL_MEDIAN = 0.6745


@dataclass
class MeasuredSpeeds:
    """Epochs/s by allocation: measured where the allocation ran, else fitted."""

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
    """Cores in use by one worker, by allocation: measured, else the maximum (a single worker uses most)."""

    measured: dict[Allocation, float]

    def __call__(self, workers: int, servers: int) -> float:
        """Cores."""
        return self.measured.get(Allocation(workers, servers)) or max(self.measured.values())


@dataclass
class MeasuredShare:
    """Seconds by the number of workers, which share the data: of an evaluation, or the first worker's core-seconds.

    A number that was not measured is scaled from the nearest that was. The number of servers does not matter.
    """

    measured: dict[int, float]

    def __call__(self, workers: int, servers: int) -> float:
        """Seconds; 0 if no report measured any."""
        if not self.measured:
            return 0.0
        nearest = min(self.measured, key=lambda known: (abs(known - workers), known))
        return self.measured[nearest] * nearest / workers


@dataclass
class MeasuredCurve:
    """A metric by epochs trained."""

    epochs_trained: tuple[float, ...]
    values: tuple[float, ...]
    model: dict[str, Any]
    _fitted: ConvergenceModel | None = field(default=None, repr=False, compare=False)

    def __call__(self, x: float) -> float:
        """The metric after `x` epochs."""
        if x <= self.epochs_trained[-1]:
            return float(np.interp(x, self.epochs_trained, self.values))
        if self._fitted is None:
            self._fitted = ConvergenceModel.from_dict(self.model)
        # The fitted curve, shifted so that it continues from the last measured value.
        return self.values[-1] + self._fitted.predict(x) - self._fitted.predict(self.epochs_trained[-1])


@dataclass(frozen=True, slots=True)
class Run:
    """One job of a journal, with durations that only the journal's records give (the folded job drops them)."""

    job: Job
    pod_seconds: tuple[float, ...]
    release_seconds: tuple[float, ...]
    fit_seconds: tuple[float, ...]


def runs_of(records: Iterable[Any]) -> dict[str, Run]:
    """Fold a journal's records into its jobs, by name."""
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
    """The dynamics of a job, from runs with the same model, data and batch size. Raises ValueError without an epoch."""
    epochs = measuring(epoch for run in runs for epoch in run.job.epochs)
    if not epochs:
        raise ValueError("no epoch was measured")
    at: dict[Allocation, list[Epoch]] = {}
    for epoch in epochs:
        at.setdefault(epoch.allocation, []).append(epoch)
    fitted = fit_speed([SpeedPoint(*e.allocation, e.epochs_per_second / e.pace) for e in epochs])
    measured = {
        allocation: sum(epoch.fraction for epoch in some)
        / sum(epoch.fraction * epoch.pace / epoch.epochs_per_second for epoch in some)
        for allocation, some in at.items()
    }
    same_group, new_group = _overheads(runs)
    evaluated = [epoch for run in runs for epoch in run.job.evaluated_epochs]
    if not evaluated:
        raise ValueError("no epoch was evaluated")
    evaluations: dict[int, list[float]] = {}
    for epoch in evaluated:
        evaluations.setdefault(epoch.allocation.workers, []).append(epoch.report.evaluate_seconds)
    spec = runs[-1].job.spec
    own = spec.program is not None
    with_accuracy = not spec.has_own_metric and all(epoch.report.accuracy is not None for epoch in evaluated)
    return JobDynamics(
        MeasuredSpeeds(measured, fitted.to_dict()),
        _curve(runs, spec.metric, spec.curve) if spec.has_own_metric else _curve(runs, "loss", "loss"),
        _curve(runs, "accuracy", "accuracy") if with_accuracy else None,
        data_size=epochs[-1].report.data_size,
        batch_size=1 if own else spec.batch_size,
        new_group_seconds=_mean(new_group, _mean(same_group, 0.5)),
        same_group_seconds=_mean(same_group, 0.05),
        regroups=any(run.job.epochs[-1].report.regroups for run in runs if run.job.epochs),
        evaluate_seconds=MeasuredShare({workers: statistics.fmean(some) for workers, some in evaluations.items()}),
        pod_seconds=_mean([s for run in runs for s in run.pod_seconds], 0.3),
        release_seconds=_mean([s for run in runs for s in run.release_seconds], 0.02),
        fit_seconds=_mean([s for run in runs for s in run.fit_seconds], 0.05),
        speed_noise=_noise(runs),
        worker_cores=MeasuredCores({allocation: _cores(some) for allocation, some in at.items()}),
        computing_seconds=MeasuredShare(_computing(epochs)),
    )


def _noise(runs: Sequence[Run]) -> float:
    """Standard deviation of an epoch's ln speed, from one whole epoch to the next with the same allocation.

    From the median step. A slow minute of the machine slows all epochs in it; it does not make two allocations hard
    to tell apart, as noise from epoch to epoch does. Its cost is in the mean speeds.
    """
    steps = [
        abs(float(np.log(epoch.epochs_per_second / before.epochs_per_second)))
        for run in runs
        for before, epoch in itertools.pairwise(run.job.full_epochs)
        if (before.allocation, before.pace) == (epoch.allocation, epoch.pace)
    ]
    return statistics.median(steps) / (NORMAL_MEDIAN * 2**0.5) if steps else 0.0


def _cores(epochs: Sequence[Epoch]) -> float:
    """Mean cores that a worker used over the seconds that its report covers. A report is of one worker.

    The start of a new group counts too; it is a large part of a probe.
    """
    reports = [epoch.report for epoch in epochs]
    seconds = sum(
        report.load_seconds
        + report.form_seconds
        + report.train_seconds
        + report.evaluate_seconds
        + report.checkpoint_seconds
        for report in reports
    )
    return sum(report.cpu_seconds for report in reports) / max(seconds, 1e-6) or 1.0


def _computing(epochs: Iterable[Epoch]) -> dict[int, float]:
    """Seconds of the first worker's busiest thread for a whole data set, by the number of workers, where measured."""
    known: dict[int, list[Epoch]] = {}
    for epoch in epochs:
        if epoch.computing_seconds > 0.0:
            known.setdefault(epoch.allocation.workers, []).append(epoch)
    return {
        workers: sum(epoch.computing_seconds * epoch.fraction for epoch in some) / sum(epoch.fraction for epoch in some)
        for workers, some in known.items()
    }


def _overheads(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Seconds of epochs outside training and evaluation: of epochs in the same group as before, and in a new one."""
    same_group: list[float] = []
    new_group: list[float] = []
    for run in runs:
        if run.job.spec.program is not None:
            same_group.append(0.0)
            new_group += [run.job.times.fresh.expected] if run.job.times.fresh is not None else []
            continue
        before: Epoch | None = None
        for epoch in run.job.epochs:
            seconds = max(0.0, epoch.other_seconds - epoch.report.evaluate_seconds)
            same = before is not None and epoch.continues(before)
            (same_group if same else new_group).append(seconds)
            before = epoch
    return same_group, new_group


def _curve(runs: Sequence[Run], name: str, metric: Metric) -> MeasuredCurve:
    """The metric `name`, which runs as `metric` does."""
    points = sorted(
        (epoch.epochs_trained, value)
        for run in runs
        for epoch in run.job.evaluated_epochs
        if (value := epoch.report.value(name)) is not None
    )
    means = [
        (x, statistics.fmean(value for _, value in group))
        for x, group in itertools.groupby(points, key=lambda point: round(point[0] / SAME_PASSES) * SAME_PASSES)
    ]
    model = fit_convergence([CurvePoint(x, value) for x, value in means], metric)
    return MeasuredCurve(tuple(x for x, _ in means), tuple(value for _, value in means), model.to_dict())


def _mean(values: Sequence[float], otherwise: float) -> float:
    return statistics.fmean(values) if values else otherwise
