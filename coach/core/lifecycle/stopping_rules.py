"""When a job ends, and why: it reached its target, reached a limit, or cannot reach its target."""

from __future__ import annotations

import statistics

from coach.core.jobs.job import KEPT_CURVES, Job
from coach.core.jobs.reasons import Reason

#: A target counts as unreachable after this many fits in a row that never reach it, and this many full epochs.
HOPELESS_FITS = KEPT_CURVES
HOPELESS_EPOCHS = 8
#: A job whose metric got worse by this part of its first value has not levelled off: it gets twice as many epochs.
WORSE = 0.02


def on_its_way(job: Job) -> bool:
    """Whether the recent linear trend, continued for as many epochs again, would reach the target.

    Curves bend, so a fit that never reaches the target is not believed while the metric still improves that fast.
    """
    values = [float(getattr(epoch.report, job.metric)) for epoch in job.full_epochs]
    recent = values[-max(4, len(values) // 3) :]
    slope = statistics.linear_regression(range(len(recent)), recent).slope if len(recent) > 1 else 0.0
    reached = statistics.fmean(recent) + slope * (len(values) + len(recent) / 2)
    return job.spec.target.reached(loss=reached, accuracy=reached)


def got_worse(job: Job) -> bool:
    """Whether the last epochs are worse than the first by WORSE.

    This happens to models with batch normalisation: their running means lag behind for some epochs, then they improve.
    """
    values = [float(getattr(epoch.report, job.metric)) for epoch in job.full_epochs]
    if not values:
        return False
    change = statistics.fmean(values[-3:]) - values[0]
    return (change if job.metric == "loss" else -change) > WORSE * abs(values[0])


def standstill(job: Job) -> tuple[Reason, str]:
    """Why a stopped job does nothing more, and the command that resumes it."""
    done = f"after {len(job.epochs)} epochs; go on with:"
    if job.stopped_by_user:
        return Reason.SUSPENDED, f"{done} coach resume {job.name}"
    return Reason.HANDLER_STOPPED, f"{done} coach serve, or coach resume {job.name}"


def stop_decision(job: Job) -> tuple[Reason, str] | None:
    """Why the job ends now, with the numbers; None while it goes on."""
    spec = job.spec
    target = spec.target
    epochs = job.full_epoch_count
    if job.consecutive_hits >= target.epochs_in_a_row:
        last = job.full_epochs[-target.epochs_in_a_row :]
        values = ", ".join(f"{getattr(e.report, job.metric):.4g}" for e in last)
        repeated = "" if target.epochs_in_a_row == 1 else f" {target.epochs_in_a_row} times in a row"
        return Reason.TARGET_REACHED, f"{job.metric} {values} meets {job.target:g}{repeated}"
    if spec.time_limit is not None and job.run_seconds >= spec.time_limit:
        return Reason.TIME_LIMIT, f"ran {job.run_seconds:.0f} s of at most {spec.time_limit:.0f} s"
    if spec.max_epochs is not None and epochs >= spec.max_epochs:
        best = (min if job.metric == "loss" else max)(getattr(e.report, job.metric) for e in job.full_epochs)
        return (
            Reason.EPOCH_LIMIT,
            f"{epochs} of at most {spec.max_epochs} epochs done, best {job.metric} {best:.4g}, "
            f"target {job.target:g}",
        )
    # The checks that read all epochs come last: few jobs get there.
    hopeless = epochs >= HOPELESS_EPOCHS and job.hopeless >= HOPELESS_FITS
    hopeless = hopeless and (epochs >= 2 * HOPELESS_EPOCHS or not got_worse(job)) and not on_its_way(job)
    if hopeless and job.convergence is not None:
        level = job.convergence.asymptote
        return (
            Reason.TARGET_BELOW_ASYMPTOTE,
            f"{job.metric} levels off at {level.expected:.4g} ({level.low:.4g} to {level.high:.4g}), "
            f"target {job.target:g}, after {epochs} epochs",
        )
    return None
