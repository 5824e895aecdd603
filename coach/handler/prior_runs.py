"""Measurements of earlier jobs, reused for similar jobs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from coach.core.cluster import Allocation, Node
from coach.core.errors import UserError
from coach.core.estimation.convergence import CurvePoint, likeliest_curve
from coach.core.estimation.observations import KnownCurve, KnownSpeed
from coach.core.jobs import events as ev
from coach.core.jobs import fold
from coach.core.jobs.epoch import Epoch, EpochKind, measuring
from coach.core.jobs.fitted_models import FittedSpeed, fit_models
from coach.core.jobs.job import Job
from coach.core.lifecycle.enough_money import enough
from coach.core.spec.job import TrainingJob
from coach.handler.state.state_directory import StoredJob, unknown_job

#: Values that a curve of an earlier run must have, and how many such runs are used: the latest.
LEAST_VALUES, MOST_CURVES = 10, 10


def known_points(past: Iterable[StoredJob], spec: TrainingJob, nodes: tuple[Node, ...]) -> tuple[KnownSpeed, ...]:
    """The median speeds that earlier jobs like `spec` measured on the same nodes, and the minimum part of computing.

    Similar jobs have the same model (by hash), data, batch size, mode and resources: these set an epoch's work.
    """
    epochs: dict[Allocation, list[Epoch]] = {}
    for stored in alike(past, spec, nodes):
        for epoch in measuring(stored.job.epochs):
            epochs.setdefault(epoch.allocation, []).append(epoch)
    return tuple(
        KnownSpeed(
            *allocation,
            statistics.median(epoch.epochs_per_second / epoch.pace for epoch in measured),
            min((epoch.computing_part for epoch in measured if epoch.computing_part > 0.0), default=0.0),
        )
        for allocation, measured in sorted(epochs.items())
    )


def new_job(spec: TrainingJob, past: Mapping[str, StoredJob], nodes: tuple[Node, ...]) -> Job:
    """The job as it would begin on the empty cluster `nodes`, with what earlier jobs measured."""
    points = known_points(past.values(), spec, nodes)
    epochs_trained = known_epochs(past.values(), spec)
    job = fold.submitted(ev.JobSubmitted(0.0, spec.name, spec.to_json(), "", points, epochs_trained))
    if points:
        surface, _ = fit_models(job.speed_points(), (), job.spec.curve, job.spec.chooses_servers)
        job.models.surface = None if surface is None else FittedSpeed(surface)
    if job.spec.speed_by_kind:
        job.see_nodes(nodes)
    return job


def initial_weights(past: Mapping[str, StoredJob], spec: TrainingJob) -> str | None:
    """URI of the checkpoint that the job begins with, by `spec.init`; None without. Raises UserError."""
    init = spec.spec.init
    if init is None or init.job is None:
        return None if init is None else init.checkpoint
    if init.job not in past:
        raise UserError(f"{spec.name}: spec.init.job: {unknown_job(init.job, past)}")
    job = past[init.job].job
    framework = job.spec.framework
    if framework is not spec.spec.framework or not job.epochs:
        has = f"is of {framework.value}" if job.epochs else "has trained no epoch yet"
        right = f"a job of {spec.spec.framework.value} that has trained"
        raise UserError(f"{spec.name}: spec.init.job: {init.job} {has}; {right}")
    return (job.best or job.epochs[-1]).report.weights


def budget_warning(spec: TrainingJob, past: Mapping[str, StoredJob], nodes: tuple[Node, ...]) -> str:
    """Why a new job's budget cannot reach its target, by earlier runs like it; empty where it may."""
    if spec.spec.target is None or spec.spec.budget.amount is None or known_epochs(past.values(), spec) is None:
        return ""
    found = enough(new_job(spec, past, nodes))
    return f"{spec.name}: {found.words}" if found is not None and found.too_small else ""


def alike(past: Iterable[StoredJob], spec: TrainingJob, nodes: tuple[Node, ...]) -> Iterator[StoredJob]:
    """Earlier jobs like `spec` that ran epochs on the same nodes only.

    Nodes of other kinds, as far as these are known, are others, unless the job says how fast each kind is.
    """
    for one in past:
        same = one.nodes == {nodes} and (
            bool(spec.spec.speed_by_kind) or all(_same_kinds(each, nodes) for each in one.nodes)
        )
        if one.job.epochs and same and spec.spec.sha256 and _work(one.job.job_file) == _work(spec):
            yield one


def _same_kinds(before: tuple[Node, ...], now: tuple[Node, ...]) -> bool:
    return all(not (a.kind and b.kind) or a.kind == b.kind for a, b in zip(before, now, strict=True))


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier job that learns like another one.

    `reached`: its epoch by which the other's target had held; None where it never had.
    """

    job: Job
    reached: Epoch | None


def earlier_runs(past: Iterable[StoredJob], spec: TrainingJob) -> list[EarlierRun]:
    """The earlier jobs that learn like `spec`, whatever their own targets; in order of their starts.

    Learning depends on the optimizer too, but neither on resources nor on nodes.
    """
    jobs = [
        one.job
        for one in past
        if spec.spec.sha256
        and _learning(one.job.job_file) == _learning(spec)
        and any(epoch.kind is EpochKind.FULL for epoch in one.job.epochs)
    ]
    return [EarlierRun(job, _held(job, spec)) for job in sorted(jobs, key=lambda job: job.progress.started_at or 0.0)]


def _held(job: Job, spec: TrainingJob) -> Epoch | None:
    """The first epoch of `job` by which the target of `spec` had held long enough; None without either."""
    target, streak = spec.spec.target, 0
    if target is None:
        return None
    for epoch in job.full_epochs:
        streak = streak + 1 if target.reached(epoch.report.value(target.name)) else 0
        if streak >= target.epochs_in_a_row:
            return epoch
    return None


def known_epochs(past: Iterable[StoredJob], spec: TrainingJob) -> float | None:
    """Median passes over the data after which the target had held in earlier jobs like `spec`; None if in none."""
    passes = [run.reached.epochs_trained for run in earlier_runs(past, spec) if run.reached is not None]
    return statistics.median(passes) if passes else None


def known_curve(past: Iterable[StoredJob], spec: TrainingJob) -> tuple[CurvePoint, ...]:
    """The longest learning curve that an earlier job like `spec` measured, whatever its target; empty without one."""
    same = [one.job for one in past if spec.spec.sha256 and _learning(one.job.job_file) == _learning(spec)]
    return max((_curve(job, spec) for job in same), key=len, default=())


def known_curves(past: Iterable[StoredJob], spec: TrainingJob) -> tuple[KnownCurve, ...]:
    """The shapes of the latest curves, newest first, of earlier jobs with the program of `spec` and any arguments."""
    same = [one.job for one in past if spec.spec.sha256 and _program(one.job.job_file) == _program(spec)]
    curves = (_curve(job, spec) for job in sorted(same, key=lambda job: job.progress.started_at or 0.0, reverse=True))
    latest = islice((curve for curve in curves if len(curve) >= LEAST_VALUES), MOST_CURVES)
    return tuple(likeliest_curve(curve, spec.spec.curve) for curve in latest)


def _curve(job: Job, spec: TrainingJob) -> tuple[CurvePoint, ...]:
    values = [(epoch.epochs_trained, epoch.report.value(spec.spec.metric)) for epoch in job.evaluated_epochs]
    return tuple(CurvePoint(x, value) for x, value in values if value is not None)


def _work(spec: TrainingJob) -> tuple[Any, ...]:
    fields = spec.spec
    ways = fields.batch_size, fields.micro_batch, fields.mode, fields.resources
    return _model(spec), fields.data, _epoch(spec), *ways


def _learning(spec: TrainingJob) -> tuple[Any, ...]:
    fields = spec.spec
    data = fields.data and fields.data.model_copy(update={"readers": 0})
    return _model(spec), data, _epoch(spec), fields.batch_size, fields.mode, fields.optimizer, fields.clip, fields.init


def _program(spec: TrainingJob) -> tuple[Any, ...]:
    """What two runs have in common that differ in arguments: those of the model or program, optimizer, batch size."""
    fields = spec.spec
    return _file(spec), fields.data, _epoch(spec), fields.init


def _epoch(spec: TrainingJob) -> object:
    """What an epoch is: where each job measures it anew, it equals no other's."""
    epoch = spec.spec.epoch
    return object() if epoch is not None and epoch.time is not None else epoch


def _model(spec: TrainingJob) -> tuple[Any, ...]:
    """What is trained: one script may have several arguments."""
    model, program = spec.spec.model, spec.spec.program
    return _file(spec), model and model.args, program and (program.command, program.env)


def _file(spec: TrainingJob) -> tuple[Any, ...]:
    """The code: one file may have several networks."""
    model = spec.spec.model
    net = model and (sorted((model.files or {}).items()), model.net)
    return spec.spec.framework, spec.spec.sha256, net
