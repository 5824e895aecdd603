"""The rules of one job's life: what to measure, how much, when to stop, and what an epoch may cost.

Plain functions of a `Job`; none changes it. `coach.core.reducer` asks them in the order of the thesis's loop
(section 4.3, figure 1).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from coach.core.budget import Money, to_amount
from coach.core.cluster import NOTHING, Allocation
from coach.core.estimation.cost import epoch_cost, epoch_seconds
from coach.core.estimation.interval import Interval
from coach.core.estimation.speed import SpeedModel
from coach.core.jobs.actions import EpochKind
from coach.core.jobs.job import KEPT_CURVES, LEASE_SECONDS, Job
from coach.core.jobs.reasons import Reason

#: Epochs that a job is taken to need before its curve says anything.
PRIOR_EPOCHS = 20.0
#: All probes together may train at most this share of the job's predicted epochs, and take this share of its seconds.
PROBE_SHARE = 0.10
#: A mini-epoch below this share of the data says more about noise than about speed.
SMALLEST_PROBE = 0.05
#: So many points are kept in mind for the next probe, should there be no room for the best of them now.
PROBES_AT_ONCE = 3
#: How often a gang is started for a probe before the point is left out.
PROBE_TRIES = 2
#: An epoch is taken to hang after this many times its predicted upper bound ...
HANG_FACTOR = 3.0
#: ... plus this many seconds, for what no prediction covers (a slow disk, a busy machine).
HANG_SECONDS = 10.0
#: Seconds given to the first epoch of all beyond its training: it also fetches the data and loads the model.
FIRST_SECONDS = 300.0
#: Seconds that a whole epoch may take while nothing is known of its speed.
LONGEST_EPOCH_SECONDS = 7200.0
#: An epoch is not started with less time paid for than its predicted upper bound plus this many seconds.
START_SECONDS = 1.0
#: Calls a pod may need: a few to start and stop, and two polls a second. The driver keeps to it.
CALLS_TO_START = 16
CALLS_PER_SECOND = 2.0
#: Nano-units held beside the computed reservation: each settlement rounds up to a whole one.
ROUNDING: Money = 1_000
#: Failed attempts in a row before a job is given up.
MAX_FAILURES = 3
#: Fits in a row without a way to the target, and real epochs at least, before it is called unreachable.
HOPELESS_FITS = KEPT_CURVES
HOPELESS_EPOCHS = 8
#: A job whose metric got worse than at first, by this part of it, has twice as many epochs: it has not levelled off.
WORSE = 0.02
#: Real epochs from which on the curve says when the job ends: its first values say little of its end.
CURVE_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms an epoch starts. `deadline` in seconds; `reservation` pays for all of it."""

    deadline: float
    reservation: Money
    budget_bound: bool
    predicted: Interval | None


# -- probing (thesis section 4.1: mini-epochs of 20-40 s; here only where they pay, and bounded) ------------


def probes_left(job: Job, fits: Callable[[Allocation], bool]) -> list[Allocation]:
    """Points still to measure, the best first: the smallest allocation, then what is worth it (`worth_measuring`).

    The smallest is left out when it was measured and no fit came of it, when the empty cluster could not hold it, or
    when its gang did not come PROBE_TRIES times.
    """
    if job.speed is not None:
        return worth_measuring(job, fits)[:PROBES_AT_ONCE]
    first = job.minimum
    measured = any(epoch.allocation == first for epoch in job.epochs)
    return [first] if not measured and job.missed.count(first) < PROBE_TRIES and fits(first) else []


def _inside(job: Job, point: Allocation) -> bool:
    least, most = job.minimum, job.maximum
    return least.workers <= point.workers <= most.workers and least.servers <= point.servers <= most.servers


def worth_measuring(job: Job, fits: Callable[[Allocation], bool]) -> list[Allocation]:
    """The allocations whose measurement is expected to save more time than it takes, those that save most first.

    What it saves: the expected improvement over the fastest allocation that was measured, for the rest of the job.
    Asked of those never measured, and of those measured once, for that may have been in a slow minute. What it takes:
    two restarts, what a group that stays formed takes too, and training at its speed meanwhile. Only what may cost no
    more than the epoch budget counts, or, where that is less than anything measured costs, than the cheapest of those.
    """
    share, model = probe_share(job), job.speed
    if model is None or share < SMALLEST_PROBE:
        return []
    measured = (Allocation(p.workers, p.servers) for p in job.speed_points())
    times = Counter(point for point in measured if _inside(job, point))
    budget = epoch_budget(job)
    if budget is not None:
        budget = max(budget, min((predicted_cost(job, point) for point in times), default=0.0))

    def payable(point: Allocation) -> bool:
        return budget is None or least_cost(job, point) <= budget

    seen = {point: model.predict(*point) for point in times if payable(point)}
    if not seen:
        return []
    best = max(seen, key=lambda point: seen[point])
    fastest = seen[best]
    gains: dict[Allocation, float] = {}
    if new := [point for point in allocations(job) if not times[point]]:
        gains |= zip(new, model.improvement(new, fastest).tolist(), strict=True)
    once = [point for point, count in times.items() if count == 1 and point != best]
    gains |= zip(once, model.improvement_again(once, fastest).tolist(), strict=True)
    rest = remaining_epochs(job).expected / fastest
    price = 2 * job.times.restart + job.times.fixed().expected - job.times.evaluate
    fraction = min(share, _probe_fraction(job, model))
    worth = []
    for point, gain in gains.items():
        if gain * rest > price and point not in job.missed:
            slower = max(0.0, fraction / model.predict(*point) - fraction / fastest)
            worth.append((gain * rest - price - slower, point))
    worth.sort(reverse=True)
    return [point for net, point in worth if net > 0 and payable(point) and fits(point)]


def probe_share(job: Job) -> float:
    """Epochs that probes may still train: of the epochs predicted, and of the seconds at the smallest allocation."""
    probes = [epoch for epoch in job.epochs if epoch.kind is EpochKind.MINI]
    epochs = PROBE_SHARE * total_epochs(job) - sum(epoch.fraction for epoch in probes)
    if job.speed is None:
        return epochs
    fixed, slowest = job.times.fixed().expected, job.speed.predict(*job.minimum)
    fastest = max([slowest, *(job.speed.predict(p.workers, p.servers) for p in job.speed_points())])
    whole = job.run_seconds + remaining_epochs(job).expected * (fixed + 1.0 / fastest)
    beside = job.times.restart + fixed - job.times.evaluate
    seconds = PROBE_SHARE * whole - sum(epoch.seconds for epoch in probes)
    return min(epochs, (seconds - beside) * slowest)


def _probe_fraction(job: Job, model: SpeedModel) -> float:
    """The part of the data that the smallest allocation trains in the middle of the mini-epoch's bounds."""
    bounds = job.spec.spec.mini_epoch
    middle = (bounds.min_seconds + bounds.max_seconds) / 2
    return min(bounds.max_fraction, middle * model.predict(*job.minimum))


def total_epochs(job: Job) -> float:
    """Epochs the whole job is predicted to take: by its curve, else by earlier jobs, else the prior."""
    limit = job.spec.spec.max_epochs or float("inf")
    last = _curve_says(job)
    predicted = last.expected if last is not None else job.known_epochs or PRIOR_EPOCHS
    return min(limit, max(predicted, 1.0))


def _curve_says(job: Job) -> Interval | None:
    """Passes at which the target will have held long enough; None while the curve says nothing of it, or no way."""
    return job.last_x() if len(job.real_epochs) >= CURVE_EPOCHS else None


def probe_size(job: Job) -> tuple[float, float | None] | None:
    """(fraction of the data, seconds or None) of the next mini-epoch.

    The first is timed: it trains until the middle of the mini-epoch's bounds has passed, at most `fraction`; without
    it nothing could be said of how long an epoch may take, so it has its place in the shortest job too.
    The others train what the speed at the smallest allocation makes of those bounds. None: the probes' share of
    the job is used up.
    """
    bounds = job.spec.spec.mini_epoch
    fraction = min(bounds.max_fraction, probe_share(job))
    least = min(SMALLEST_PROBE, bounds.max_fraction)
    if job.speed is None:
        middle = (bounds.min_seconds + bounds.max_seconds) / 2
        # Several workers cannot each stop by a clock of their own: the smallest part says how fast they are.
        return (max(fraction, least), middle) if job.minimum.workers == 1 else (least, None)
    wanted = _probe_fraction(job, job.speed)
    return (min(fraction, wanted), None) if fraction >= min(least, wanted) else None


# -- predictions ------------------------------------------------------------------------------------------


def remaining_epochs(job: Job) -> Interval:
    """Epochs still to train until the target has held long enough."""
    need = float(max(1, job.spec.spec.target.epochs_in_a_row - job.in_a_row))
    limit = float("inf")
    if job.spec.spec.max_epochs:
        limit = max(1.0, job.spec.spec.max_epochs - len(job.real_epochs))
    last = _curve_says(job)
    if last is None:
        guess = max(need, total_epochs(job) - job.passes)
        return Interval(min(limit, need), min(limit, guess), min(limit, 3 * guess))
    values = (min(limit, max(need, x - job.passes)) for x in (last.low, last.expected, last.high))
    return Interval(*values)


def evaluated(job: Job, kind: EpochKind) -> bool:
    """Whether the next epoch ends with an evaluation.

    Of a mini-epoch only the speed is wanted. The first of all is evaluated, to see how long that takes.
    """
    return kind is EpochKind.REAL or job.last_evaluated is None


def predicted_seconds(
    job: Job, allocation: Allocation, fraction: float, formed: bool = True
) -> Interval | None:
    """Seconds that `fraction` of an epoch takes with `allocation`; None while no speed is known.

    `formed`: the group stays as it is from the epoch before.
    """
    if job.speed is None:
        return None
    return epoch_seconds(job.speed, *allocation, job.times.fixed(formed), fraction)


def _cost(job: Job, allocation: Allocation, fraction: float = 1.0) -> Interval:
    seconds = predicted_seconds(job, allocation, fraction)
    if seconds is None:
        return Interval(0.0, 0.0, 0.0)
    held = job.spec.spec.resources.total(allocation)
    return epoch_cost(seconds, held, job.spec.spec.price_book, allocation.pods)


def predicted_cost(job: Job, allocation: Allocation, fraction: float = 1.0) -> float:
    """Expected currency units of an epoch with `allocation`; 0 while no speed is known."""
    return _cost(job, allocation, fraction).expected


def least_cost(job: Job, allocation: Allocation) -> float:
    """Currency units of an epoch with `allocation` if it is as fast as it may be; 0 while no speed is known."""
    return _cost(job, allocation).low


def epoch_budget(job: Job) -> float | None:
    """Currency units for each epoch that remains: the remaining budget over the upper bound of the remaining epochs.

    (The thesis has the expected epochs. That is too few half of the time, and what was spent on speed is missing then.)
    """
    left = job.ledger.budget
    if left is None:
        return None
    return to_amount(left - job.ledger.spent) / remaining_epochs(job).high


def terms(job: Job, allocation: Allocation, fraction: float, seconds: float | None) -> Terms | None:
    """The terms of the next epoch, or None where the money left does not cover it.

    The deadline is when the epoch is taken to hang, or when the money is used up, whichever comes first: the
    functions stop themselves then, so what is reserved is the most that can be spent.
    """
    book = job.spec.spec.price_book
    held = job.spec.spec.resources.total(allocation)
    formed = job.group != "" and job.epochs != [] and job.epochs[-1].allocation == allocation
    predicted = None if seconds is not None else predicted_seconds(job, allocation, fraction, formed)
    if predicted is None:
        needed = 2 * START_SECONDS
        # Too short a guess would end every attempt alike, so each may take four times as long as the one before.
        guess = LONGEST_EPOCH_SECONDS * fraction * 4**job.failures if seconds is None else seconds
        deadline = FIRST_SECONDS + HANG_FACTOR * guess
    else:
        needed = predicted.high + (0.0 if formed else START_SECONDS)
        # A function that was replaced is cold, on a machine that may be busy: each attempt has twice as long.
        deadline = (HANG_FACTOR * predicted.high + HANG_SECONDS) * 2**job.failures
        if not job.epochs:
            deadline += FIRST_SECONDS
    if job.spec.spec.time_limit is not None:
        deadline = min(deadline, max(needed, job.spec.spec.time_limit - job.run_seconds))
    budget_bound = False
    if job.ledger.budget is not None:
        money = job.ledger.budget - job.ledger.spent - 2 * ROUNDING
        # The price of a second and its calls; what is paid for starting comes off first.
        start = book.cost(NOTHING, 0.0, allocation.pods * CALLS_TO_START)
        second = book.rate(held) + book.invocation * allocation.pods * CALLS_PER_SECOND
        paid = float("inf") if second == 0.0 else to_amount(money - start) / second - LEASE_SECONDS - 1e-3
        if paid < needed:
            return None
        budget_bound = paid < deadline
        deadline = min(deadline, paid)
    calls = int(allocation.pods * (CALLS_TO_START + CALLS_PER_SECOND * deadline))
    reservation = book.cost(held, deadline + LEASE_SECONDS, calls) + ROUNDING
    if job.ledger.budget is not None and job.ledger.spent + reservation > job.ledger.budget:
        return None  # not even what is free of charge, whose rounding is held too, once all is spent
    return Terms(deadline, reservation, budget_bound, predicted)


def least_needed(job: Job, allocation: Allocation) -> tuple[float, Money]:
    """Seconds, and what they cost with all calls, below which `terms` refuses a whole epoch with `allocation`."""
    predicted = predicted_seconds(job, allocation, 1.0)
    seconds = START_SECONDS + (predicted.high if predicted else START_SECONDS)
    calls = int(allocation.pods * (CALLS_TO_START + CALLS_PER_SECOND * seconds))
    held = job.spec.spec.resources.total(allocation)
    return seconds, job.spec.spec.price_book.cost(held, seconds + LEASE_SECONDS, calls) + 2 * ROUNDING


def affordable(job: Job, allocation: Allocation) -> bool:
    """Whether the money left covers a whole epoch with `allocation`."""
    return terms(job, allocation, 1.0, None) is not None


def others_affordable(job: Job) -> list[Allocation]:
    """Allocations above the smallest that the money left covers: a faster one can cost less."""
    return [point for point in allocations(job) if point != job.minimum and affordable(job, point)]


def allocations(job: Job) -> list[Allocation]:
    """All allocations within the job's limits; of wide limits a part."""
    least, most = job.minimum, job.maximum
    return [
        Allocation(workers, servers)
        for workers in _counts(least.workers, most.workers)
        for servers in _counts(least.servers, most.servers)
    ]


def _counts(low: int, high: int) -> list[int]:
    """All from `low` to `high` where they are few; else ever wider steps."""
    counts = [low]
    while counts[-1] < high:
        counts.append(min(high, max(counts[-1] + 1, counts[-1] * 5 // 4)))
    return counts


def on_its_way(job: Job) -> bool:
    """Whether the recent trend alone, kept up for as many epochs again, would reach the target.

    Curves bend, so no fit is believed that calls a job hopeless while it still climbs at such a rate.
    """
    values = [float(getattr(epoch.report, job.metric)) for epoch in job.real_epochs]
    recent = values[-max(4, len(values) // 3) :]
    slope = statistics.linear_regression(range(len(recent)), recent).slope if len(recent) > 1 else 0.0
    reached = statistics.fmean(recent) + slope * (len(values) + len(recent) / 2)
    return job.spec.spec.target.reached(loss=reached, accuracy=reached)


def got_worse(job: Job) -> bool:
    """Whether the last epochs were worse than the first by WORSE, as those of a model with batch normalisation may be.

    Its running means lag behind for some epochs; then it gets better.
    """
    values = [float(getattr(epoch.report, job.metric)) for epoch in job.real_epochs]
    if not values:
        return False
    change = statistics.fmean(values[-3:]) - values[0]
    return (change if job.metric == "loss" else -change) > WORSE * abs(values[0])


# -- the end ----------------------------------------------------------------------------------------------


def standstill(job: Job) -> tuple[Reason, str]:
    """Why a job that was told to stop does nothing more, and who goes on with it."""
    done = f"after {len(job.epochs)} epochs; go on with:"
    if job.stopped_by_user:
        return Reason.INTERRUPTED, f"{done} coach resume {job.name}"
    return Reason.HANDLER_STOPPED, f"{done} coach serve, or coach resume {job.name}"


def verdict(job: Job) -> tuple[Reason, str] | None:
    """Why the job ends now, with the numbers; None: it goes on."""
    spec = job.spec.spec
    target = spec.target
    real = job.real_epochs
    if job.in_a_row >= target.epochs_in_a_row:
        values = ", ".join(f"{getattr(e.report, job.metric):.4g}" for e in real[-target.epochs_in_a_row :])
        return (
            Reason.TARGET_REACHED,
            f"{job.metric} {values} meets {job.target:g} {target.epochs_in_a_row} times in a row",
        )
    if spec.time_limit is not None and job.run_seconds >= spec.time_limit:
        return Reason.TIME_LIMIT, f"ran {job.run_seconds:.0f} s of at most {spec.time_limit:.0f} s"
    if spec.max_epochs is not None and len(real) >= spec.max_epochs:
        best = (min if job.metric == "loss" else max)(getattr(e.report, job.metric) for e in real)
        return (
            Reason.EPOCH_LIMIT,
            f"{len(real)} of at most {spec.max_epochs} epochs done, best {job.metric} {best:.4g}, "
            f"target {job.target:g}",
        )
    least = HOPELESS_EPOCHS * (2 if got_worse(job) else 1)
    hopeless = len(real) >= least and job.hopeless >= HOPELESS_FITS and not on_its_way(job)
    if hopeless and job.convergence is not None:
        level = job.convergence.asymptote
        return (
            Reason.TARGET_BELOW_ASYMPTOTE,
            f"{job.metric} levels off at {level.expected:.4g} ({level.low:.4g} to {level.high:.4g}), "
            f"target {job.target:g}, after {len(real)} epochs",
        )
    return None
