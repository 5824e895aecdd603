"""The rows of jobs and epochs in every table, JSON and CSV, with the same names everywhere."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

from coach.core.cluster import Allocation
from coach.core.jobs.epoch import DeviceUse, Epoch
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import RESUMABLE, Reason, State
from coach.core.lifecycle import forecast
from coach.core.money import to_amount
from coach.report.formatting import ORPHAN, count, iso, starting
from coach.report.row_types import EpochRow, ForecastRow, JobRow, bounds

#: Shares of a job's time at which its forecasts are compared with what it took.
SHARES = (0.1, 0.5, 0.9)
#: Epochs, of those in which a job's GPUs were looked at, over which their use is averaged.
USE_EPOCHS = 20


def job_row(job: Job, now: float, *, orphan: bool = False) -> JobRow:
    """The row of `job` at `now`. `orphan`: it has not ended, but no handler has its journal."""
    left_alone = orphan and not job.ended and job.reason not in RESUMABLE
    last = job.last_evaluated
    at = shown_allocation(job)
    until = None if left_alone else forecast.time_left(job, now)
    budget, running = job.money.ledger.budget, job.running_cost(now)
    return JobRow(
        name=job.name,
        state=(State.WAITING if left_alone else job.state).value,
        reason=(Reason.HANDLER_STOPPED if left_alone else job.reason).value,
        message=f"{ORPHAN}, after {count(job.full_epoch_count, 'epoch')}" if left_alone else starting(job.message),
        epoch=job.full_epoch_count,
        framework=job.spec.framework.value,
        metric=job.metric,
        value=_finite(last.report.value(job.metric)) if last else None,
        best=job.value(best) if (best := job.best) else None,
        loss=_finite(last.report.loss) if last else None,
        accuracy=_finite(last.report.accuracy) if last else None,
        target=job.target,
        consecutive_hits=job.consecutive_hits,
        epochs_in_a_row=job.spec.target.epochs_in_a_row if job.spec.target is not None else 0,
        best_loss=min((x for e in job.full_epochs if (x := e.report.loss) is not None), default=None),
        best_accuracy=max((a for e in job.full_epochs if (a := e.report.accuracy) is not None), default=None),
        workers=at.workers if at else None,
        servers=at.servers if at else None,
        spent=to_amount(job.money.ledger.spent + running),
        reserved=to_amount(job.money.ledger.reserved - running),
        budget=None if budget is None else to_amount(budget),
        account=job.spec.budget.account,
        currency=job.price_book.currency,
        **bounds("eta", until),
        seconds=job.progress.run_seconds if job.progress.started_at is not None else None,
        training_seconds=sum(e.report.train_seconds + e.report.evaluate_seconds for e in job.epochs),
        priority=job.spec.priority,
        submitted_at=iso(job.progress.submitted_at),
        started_at=iso(job.progress.started_at),
        ended_at=iso(job.progress.ended_at),
    )


def forecast_rows(job: Job) -> list[ForecastRow]:
    """What was predicted of a whole job that has ended, at each of SHARES of the time of its epochs; else no row.

    It is the forecast with which the epoch started that ran then.
    """
    if not job.ended or not job.epochs:
        return []
    begun = list(itertools.accumulate((epoch.seconds for epoch in job.epochs), initial=0.0))
    rows = []
    for share in SHARES:
        epoch = job.epochs[max(0, bisect.bisect_right(begun[:-1], share * begun[-1]) - 1)]
        found = epoch.job_forecast
        rows.append(
            ForecastRow(
                job=job.name,
                share=share,
                epoch=epoch.number,
                **bounds("seconds", found.seconds if found else None),
                **bounds("cost", found.cost if found else None),
                actual_seconds=job.progress.run_seconds,
                actual_cost=to_amount(job.money.ledger.spent),
            )
        )
    return rows


def epoch_rows(job: Job, pauses: Sequence[tuple[float, float]] = ()) -> list[EpochRow]:
    """The rows of the epochs of `job`. `pauses` (from, to) do not count as time outside training."""
    rows = []
    before: Epoch | None = None
    for epoch in job.epochs:
        report, use = epoch.report, epoch.report.device_use or DeviceUse(0)
        since = before.ended_at if before else epoch.started_at
        paused = sum(max(0.0, min(epoch.started_at, end) - max(since, start)) for start, end in pauses)
        gap = epoch.started_at - since - paused
        rows.append(
            EpochRow(
                job=job.name,
                epoch=epoch.ordinal,
                kind=epoch.kind.value,
                workers=epoch.allocation.workers,
                servers=epoch.allocation.servers,
                loss=report.loss,
                accuracy=report.accuracy,
                value=report.value(job.metric),
                seconds=epoch.seconds,
                cost=to_amount(epoch.cost),
                train_seconds=report.train_seconds,
                evaluate_seconds=report.evaluate_seconds,
                outside_seconds=gap + epoch.seconds - report.train_seconds - report.evaluate_seconds,
                **bounds("predicted_seconds", epoch.predicted_seconds),
                samples=None if job.spec.program is not None else report.samples,
                epochs_trained=epoch.epochs_trained,
                epochs_per_second=epoch.epochs_per_second,
                new_group=before is None or before.group != epoch.group,
                attempt=epoch.attempt,
                started_at=iso(epoch.started_at),
                ended_at=iso(epoch.ended_at),
                gpu_busy=use.busy,
                gpu_idle=use.idle,
                gpu_memory=use.memory,
                gpu_watts=use.watts,
            )
        )
        before = epoch
    return rows


def device_use(job: Job) -> DeviceUse | None:
    """What its GPUs did in the last epochs in which they were looked at; None: never looked at."""
    seen = [use for epoch in job.epochs if (use := epoch.report.device_use) is not None]
    return DeviceUse.of(seen[-USE_EPOCHS:])


def shown_allocation(job: Job) -> Allocation | None:
    """The running epoch's allocation, else the last one's."""
    if job.attempts.running:
        return job.attempts.running.allocation
    return job.epochs[-1].allocation if job.epochs else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
