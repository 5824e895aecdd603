"""When a job ends, and why: it reached its target or a limit, cannot reach its target, or expects no better model."""

from __future__ import annotations

import statistics

from coach.core.jobs.job import KEPT_CURVES, Job
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle import forecast
from coach.core.spec.program import Goal

#: A target counts as unreachable after this many fits in a row that never reach it, and this many full epochs.
HOPELESS_FITS = KEPT_CURVES
HOPELESS_EPOCHS = 8
#: A job whose metric got worse by this part of its first value has not levelled off: it gets twice as many epochs.
WORSE = 0.02
#: A job without a target ends when a better model within its bounds has less than this chance.
GAIN_CHANCE = 0.05
#: ... and after so many whole epochs that are no better than the best one; more where they `got_worse` than the first.
PATIENCE, PATIENCE_WHEN_WORSE = 8, 24


def on_its_way(job: Job) -> bool:
    """Whether the recent linear trend, continued for as many epochs again, would reach the target.

    Curves bend, so a fit that never reaches the target is not believed while the metric still improves that fast.
    """
    values = [job.value(epoch) for epoch in job.full_epochs]
    recent = values[-max(4, len(values) // 3) :]
    slope = statistics.linear_regression(range(len(recent)), recent).slope if len(recent) > 1 else 0.0
    reached = statistics.fmean(recent) + slope * (len(values) + len(recent) / 2)
    return job.spec.target is not None and job.spec.target.reached(reached)


def got_worse(job: Job) -> bool:
    """Whether the last epochs are worse than the first by WORSE.

    This happens to models with batch normalisation: their running means lag behind for some epochs, then they improve.
    """
    values = [job.value(epoch) for epoch in job.full_epochs]
    if not values:
        return False
    change = statistics.fmean(values[-3:]) - values[0]
    return (change if job.spec.goal is Goal.MINIMIZE else -change) > WORSE * abs(values[0])


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
    if target is None:
        return _end_of_best(job)
    epochs = job.full_epoch_count
    if job.consecutive_hits >= target.epochs_in_a_row:
        last = job.full_epochs[-target.epochs_in_a_row :]
        values = ", ".join(f"{job.value(e):.4g}" for e in last)
        repeated = "" if target.epochs_in_a_row == 1 else f", {target.epochs_in_a_row} times in a row"
        return Reason.TARGET_REACHED, f"{job.metric} {values} meets {job.target:g}{repeated}"
    if spec.time_limit is not None and job.run_seconds >= spec.time_limit:
        return Reason.TIME_LIMIT, f"ran {job.run_seconds:.0f} s of at most {spec.time_limit:.0f} s"
    if spec.max_epochs is not None and epochs >= spec.max_epochs:
        return (
            Reason.EPOCH_LIMIT,
            f"{epochs} of at most {spec.max_epochs} epochs done, {best_so_far(job)}, target {job.target:g}",
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


def _end_of_best(job: Job) -> tuple[Reason, str] | None:
    """The same of a job without a target, apart from its money: `out_of_money` has that."""
    spec, epochs = job.spec, job.full_epoch_count
    if spec.time_limit is not None and job.run_seconds >= spec.time_limit:
        time = f"ran {job.run_seconds:.0f} s of at most {spec.time_limit:.0f} s"
        return (Reason.LIMIT_REACHED if epochs else Reason.TIME_LIMIT), f"{time}, {best_so_far(job)}"
    if spec.max_epochs is not None and epochs >= spec.max_epochs:
        return Reason.LIMIT_REACHED, f"{epochs} of at most {spec.max_epochs} epochs done, {best_so_far(job)}"
    best = job.best
    if not spec.stop_early or best is None or len(job.full_epoch_curves) < KEPT_CURVES:
        return None
    patience = PATIENCE_WHEN_WORSE if got_worse(job) else PATIENCE
    if best in job.full_epochs[-patience:]:
        return None
    value = job.value(best)
    left = forecast.epochs_within_bounds(job)
    end = job.epochs_trained + left
    chance = max(curve.model.chance_by(value, end) for curve in job.full_epoch_curves)
    if chance >= GAIN_CHANCE:
        return None
    return (
        Reason.NO_GAIN_EXPECTED,
        f"{best_so_far(job)}; better than that within {left:.0f} more epochs has a chance of {100 * chance:.0f} % "
        "(stopEarly: false goes on)",
    )


def out_of_money(job: Job) -> Reason:
    """Why a job ends whose money covers no other epoch."""
    best = job.spec.target is None and job.spec.program is None
    return Reason.BUDGET_USED if best and job.full_epoch_count else Reason.BUDGET_SPENT


def program_ended(job: Job, message: str) -> tuple[Reason, str]:
    """How a job ends whose program has ended by itself."""
    best = f"; {best_so_far(job)}" if job.best is not None else ""
    if job.spec.target is None:
        return Reason.PROGRAM_ENDED, f"{message}{best}"
    if job.best is None:
        return (
            Reason.TARGET_MISSED,
            f"{message}, without a report of {job.metric}; what it printed: coach logs {job.name}",
        )
    last = job.value(job.full_epochs[-1])
    return Reason.TARGET_MISSED, f"{message}, at {job.metric} {last:.4g}{best}; target {job.target:g}"


def best_so_far(job: Job) -> str:
    """`best loss 0.1234 in epoch 12`."""
    if job.best is None:
        return "no full epoch ended"
    return f"best {job.metric} {job.value(job.best):.4g} in epoch {job.best.number}"
