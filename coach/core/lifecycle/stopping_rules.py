"""When a job ends, and why: the target held, a limit, or a target that is out of reach."""

from __future__ import annotations

import statistics

from coach.core.jobs.job import KEPT_CURVES, Job
from coach.core.jobs.reasons import Reason

#: Fits in a row without a way to the target, and full epochs at least, before it is called unreachable.
HOPELESS_FITS = KEPT_CURVES
HOPELESS_EPOCHS = 8
#: A job whose metric got worse than at first, by this part of it, has twice as many epochs: it has not levelled off.
WORSE = 0.02


def on_its_way(job: Job) -> bool:
    """Whether the recent trend alone, kept up for as many epochs again, would reach the target.

    Curves bend, so no fit is believed that calls a job hopeless while it still climbs at such a rate.
    """
    values = [float(getattr(epoch.report, job.metric)) for epoch in job.full_epochs]
    recent = values[-max(4, len(values) // 3) :]
    slope = statistics.linear_regression(range(len(recent)), recent).slope if len(recent) > 1 else 0.0
    reached = statistics.fmean(recent) + slope * (len(values) + len(recent) / 2)
    return job.spec.target.reached(loss=reached, accuracy=reached)


def got_worse(job: Job) -> bool:
    """Whether the last epochs were worse than the first by WORSE, as those of a model with batch normalisation may be.

    Its running means lag behind for some epochs; then it gets better.
    """
    values = [float(getattr(epoch.report, job.metric)) for epoch in job.full_epochs]
    if not values:
        return False
    change = statistics.fmean(values[-3:]) - values[0]
    return (change if job.metric == "loss" else -change) > WORSE * abs(values[0])


def standstill(job: Job) -> tuple[Reason, str]:
    """Why a job that was told to stop does nothing more, and who goes on with it."""
    done = f"after {len(job.epochs)} epochs; go on with:"
    if job.stopped_by_user:
        return Reason.SUSPENDED, f"{done} coach resume {job.name}"
    return Reason.HANDLER_STOPPED, f"{done} coach serve, or coach resume {job.name}"


def stop_decision(job: Job) -> tuple[Reason, str] | None:
    """Why the job ends now, with the numbers; None: it goes on."""
    spec = job.spec
    target = spec.target
    real = job.full_epoch_count
    if job.consecutive_hits >= target.epochs_in_a_row:
        last = job.full_epochs[-target.epochs_in_a_row :]
        values = ", ".join(f"{getattr(e.report, job.metric):.4g}" for e in last)
        return (
            Reason.TARGET_REACHED,
            f"{job.metric} {values} meets {job.target:g} {target.epochs_in_a_row} times in a row",
        )
    if spec.time_limit is not None and job.run_seconds >= spec.time_limit:
        return Reason.TIME_LIMIT, f"ran {job.run_seconds:.0f} s of at most {spec.time_limit:.0f} s"
    if spec.max_epochs is not None and real >= spec.max_epochs:
        best = (min if job.metric == "loss" else max)(getattr(e.report, job.metric) for e in job.full_epochs)
        return (
            Reason.EPOCH_LIMIT,
            f"{real} of at most {spec.max_epochs} epochs done, best {job.metric} {best:.4g}, "
            f"target {job.target:g}",
        )
    # Most are not: what looks through all epochs comes last.
    hopeless = real >= HOPELESS_EPOCHS and job.hopeless >= HOPELESS_FITS
    hopeless = hopeless and (real >= 2 * HOPELESS_EPOCHS or not got_worse(job)) and not on_its_way(job)
    if hopeless and job.convergence is not None:
        level = job.convergence.asymptote
        return (
            Reason.TARGET_BELOW_ASYMPTOTE,
            f"{job.metric} levels off at {level.expected:.4g} ({level.low:.4g} to {level.high:.4g}), "
            f"target {job.target:g}, after {real} epochs",
        )
    return None
