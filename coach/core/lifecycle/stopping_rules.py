"""When a job ends, and why: it reached its target or a limit, cannot reach its target, or expects no better model."""

from __future__ import annotations

import math
import statistics

from coach.core.jobs.job import KEPT_CURVES, Job
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle import enough_money, forecast
from coach.core.spec.program import Goal

#: A target may count as unreachable after this many full epochs, and as many fits in a row that give it no chance.
HOPELESS_EPOCHS, HOPELESS_FITS = 8, KEPT_CURVES
#: A job without a target may end when a better model within its bounds has less than this chance, and after so many
#: full epochs that are no better than the best one.
GAIN_CHANCE, PATIENCE = 0.05, 8
#: A curve that has covered less than this part of the way from its first value to the target rests at its start: such
#: curves often drop later, after any number of epochs, which no fit can know.
PART_OF_THE_WAY = 0.5
#: Without a target: a curve rests at its start that has not improved on its first value by this part of it.
PART_OF_THE_FIRST = 0.1
#: A job is not ended before it has spent this part of its budget: ending it wrongly throws all of that away, and going
#: on costs little. Half of it while the curve rests.
PART_SPENT, PART_SPENT_RESTING = 0.05, 0.5
#: Without a budget there is no price: then a curve that rests is given so many full epochs.
EPOCHS_RESTING = 60
#: The trend is that of so many of the latest full epochs, or of this part of all; its slope is so many times its
#: standard error, or it is noise.
TREND_EPOCHS, TREND_PART, TREND_ERRORS = 4, 1 / 3, 2.0


def rests(job: Job) -> bool:
    """Whether the curve has not left the level that it began at: chance level, for most models.

    The best three epochs in a row count, as single ones may be lucky.
    """
    sign = 1.0 if job.spec.goal is Goal.MINIMIZE else -1.0
    values = [sign * job.value(epoch) for epoch in job.full_epochs]
    if len(values) < 3:
        return True
    best = min(statistics.fmean(values[at : at + 3]) for at in range(len(values) - 2))
    # The first mini-epoch, which is evaluated, is nearer to the beginning than the first full epoch.
    first = max(sign * job.value(job.evaluated_epochs[0]), statistics.fmean(values[:3]))
    if job.target is not None:
        return first - best < PART_OF_THE_WAY * (first - sign * job.target)
    ends = 0.0 if sign > 0 else -1.0 if job.spec.curve == "accuracy" else first
    return first - best < PART_OF_THE_FIRST * abs(first - ends)


def worth_going_on(job: Job) -> bool:
    """Whether a job that looks hopeless goes on all the same: it has spent little of its budget so far."""
    resting = rests(job)
    if job.money.ledger.budget is None:
        return resting and job.full_epoch_count < EPOCHS_RESTING
    return job.money.ledger.spent < (PART_SPENT_RESTING if resting else PART_SPENT) * job.money.ledger.budget


def on_its_way(job: Job) -> bool:
    """Whether the straight line through the latest values, continued to the end of the job's bounds, arrives."""
    assert job.target is not None
    count = max(TREND_EPOCHS, math.floor(TREND_PART * job.full_epoch_count))
    recent = job.full_epochs[-count:]
    at, values = [epoch.epochs_trained for epoch in recent], [job.value(epoch) for epoch in recent]
    if not all(map(math.isfinite, values)):
        return False
    line = statistics.linear_regression(at, values)
    off = sum((value - line.intercept - line.slope * x) ** 2 for x, value in zip(at, values, strict=True))
    error = math.sqrt(off / (count - 2) / (count * statistics.pvariance(at)))
    if abs(line.slope) <= TREND_ERRORS * error:
        return False
    last = line.intercept + line.slope * (job.epochs_trained + forecast.epochs_within_bounds(job))
    return last <= job.target if job.spec.goal is Goal.MINIMIZE else last >= job.target


def out_of_reach(job: Job) -> str | None:
    """Why the target counts as out of reach, with the numbers; None while it may be reached, and without a target."""
    epochs = job.full_epoch_count
    if job.target is None or epochs < HOPELESS_EPOCHS or job.hopeless < HOPELESS_FITS:
        return None
    # The checks that read all epochs come last: few jobs get there.
    if worth_going_on(job) or on_its_way(job):
        return None
    assert job.models.convergence is not None
    level = job.models.convergence.asymptote
    return (
        f"{job.metric} levels off at {level.expected:.4g} ({level.low:.4g} to {level.high:.4g}), "
        f"target {job.target:g}, after {epochs} epochs"
    )


def ends_early(job: Job) -> bool:
    """Whether it may be ended before its limits: not where its file or its user says that it goes on."""
    return job.spec.stop_early and not job.stop.overruled


def standstill(job: Job) -> tuple[Reason, str]:
    """Why a stopped job does nothing more, and the command that resumes it."""
    why = f"{job.stop.why}; " if job.stop.why else ""
    anew = "; its program begins anew, as nothing says that it --resumes" if job.begins_anew and job.epochs else ""
    done = f"{why}after {job.full_epoch_count} epochs{anew}; go on with:"
    if job.stop.by_user:
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
        percent = spec.curve == "accuracy" and min(job.value(epoch) for epoch in last) > 1.0
        doubt = f"; if it is in percent, the target is {100.0 * target.number:g}" if percent else ""
        return Reason.TARGET_REACHED, f"{job.metric} {values} meets {job.target:g}{repeated}{doubt}"
    if spec.time_limit is not None and job.progress.run_seconds >= spec.time_limit:
        return Reason.TIME_LIMIT, f"ran {job.progress.run_seconds:.0f} s of at most {spec.time_limit:.0f} s"
    if spec.max_epochs is not None and epochs >= spec.max_epochs:
        return (
            Reason.EPOCH_LIMIT,
            f"{epochs} of at most {spec.max_epochs} epochs done, {best_so_far(job)}, target {job.target:g}",
        )
    if spec.budget.must_suffice and (found := enough_money.enough(job)) and found.too_small:
        return Reason.BUDGET_TOO_SMALL, f"{found.words} (budget.mustSuffice: false goes on)"
    if ends_early(job) and (words := out_of_reach(job)):
        return Reason.TARGET_BELOW_ASYMPTOTE, f"{words} (coach resume {job.name} goes on all the same)"
    return None


def _end_of_best(job: Job) -> tuple[Reason, str] | None:
    """The same of a job without a target, apart from its money: `out_of_money` has that."""
    spec, epochs = job.spec, job.full_epoch_count
    if spec.time_limit is not None and job.progress.run_seconds >= spec.time_limit:
        time = f"ran {job.progress.run_seconds:.0f} s of at most {spec.time_limit:.0f} s"
        return (Reason.LIMIT_REACHED if epochs else Reason.TIME_LIMIT), f"{time}, {best_so_far(job)}"
    if spec.max_epochs is not None and epochs >= spec.max_epochs:
        return Reason.LIMIT_REACHED, f"{epochs} of at most {spec.max_epochs} epochs done, {best_so_far(job)}"
    best = job.best
    if not ends_early(job) or best is None or len(job.models.full_epoch_curves) < KEPT_CURVES:
        return None
    if best in job.full_epochs[-PATIENCE:]:
        return None
    value = job.value(best)
    left = forecast.epochs_within_bounds(job)
    end = job.epochs_trained + left
    chance = max(curve.model.chance_by(value, end) for curve in job.models.full_epoch_curves)
    if chance >= GAIN_CHANCE or worth_going_on(job):
        return None
    return (
        Reason.NO_GAIN_EXPECTED,
        f"{best_so_far(job)}; better than that within {left:.0f} more epochs has a chance of {100 * chance:.0f} % "
        f"(coach resume {job.name} goes on all the same)",
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
    last = job.full_epochs[-1]
    value = job.value(last)
    target = f"target {job.target:g}"
    if last.report.guessed and job.spec.target.reached(value):
        target += (
            " is met, but a metric that was found by guessing must be seen in two epochs: say where it is (metrics)"
        )
    return Reason.TARGET_MISSED, f"{message}, at {job.metric} {value:.4g}{best}; {target}"


def best_so_far(job: Job) -> str:
    """`best loss 0.1234 in epoch 12`."""
    if job.best is None:
        return "no full epoch ended"
    return f"best {job.metric} {job.value(job.best):.4g} in {job.best.name}"
