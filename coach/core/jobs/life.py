"""The rules of one job's life: what to measure, how much, when to stop, and what an epoch may cost.

Plain functions of a `Job`; none changes it. `coach.core.reducer` asks them in the order of the thesis's loop
(section 4.3, figure 1).
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from coach.core.budget import Money, to_amount
from coach.core.cluster import NOTHING, Allocation
from coach.core.estimation.cost import epoch_cost, epoch_seconds
from coach.core.estimation.interval import Interval
from coach.core.jobs.actions import EpochKind
from coach.core.jobs.job import KEPT_CURVES, LEASE_SECONDS, Job
from coach.core.jobs.reasons import Reason

#: Epochs that a job is taken to need before its curve says anything.
PRIOR_EPOCHS = 20.0
#: All probes together may train at most this share of the job's predicted epochs.
PROBE_SHARE = 0.10
#: A mini-epoch below this share of the data says more about noise than about speed.
SMALLEST_PROBE = 0.05
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
#: Seconds outside training taken for an epoch before one has been measured.
PRIOR_FIXED_SECONDS = Interval(2.0, 2.0, 2.0)
#: So many epochs say what the next one takes outside training: one in six is above the most of five.
RECENT_EPOCHS = 5
#: Seconds of training lost by changing an allocation, until the job's own epochs have shown it.
PRIOR_RESTART_SECONDS = 0.5
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


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms an epoch starts. `deadline` in seconds; `reservation` pays for all of it."""

    deadline: float
    reservation: Money
    budget_bound: bool
    predicted: Interval | None


# -- probing (thesis section 4.1: mini-epochs of 20-40 s; here with a far corner, and bounded) -------------


def corner(job: Job, fits: Callable[[Allocation], bool]) -> Allocation:
    """The largest allocation, along the diagonal from the maximum, whose gang `fits` the empty cluster."""
    low, at = job.minimum, job.maximum
    diagonal = [at]
    while at != low:
        shrink_worker = (at.workers - low.workers) >= (at.servers - low.servers)
        at = (
            Allocation(at.workers - 1, at.servers)
            if shrink_worker
            else Allocation(at.workers, at.servers - 1)
        )
        diagonal.append(at)
    return diagonal[min(bisect_left(diagonal, True, key=fits), len(diagonal) - 1)]


def probes_left(job: Job, fits: Callable[[Allocation], bool]) -> list[Allocation]:
    """Points still to measure: (1,1) (1,2) (2,1) (2,2) from the minimum on, and the far corner; then what is doubtful.

    One of the first is left out when it was measured, is known from earlier jobs, no cluster state could hold it, or
    its gang did not come PROBE_TRIES times. For what follows them see `worth_measuring`.
    """
    w, s = job.minimum
    points = [Allocation(w, s), Allocation(w, s + 1), Allocation(w + 1, s), Allocation(w + 1, s + 1)]
    points.append(corner(job, fits))
    measured = {epoch.allocation for epoch in job.epochs}
    measured |= {Allocation(workers, servers) for workers, servers, _ in job.known_points}
    measured |= {point for point in job.missed if job.missed.count(point) >= PROBE_TRIES}
    left = []
    for point in dict.fromkeys(points):
        if _inside(job, point) and point not in measured and fits(point):
            left.append(point)
    if not left and (doubtful := worth_measuring(job, fits)):
        left.append(doubtful)
    return left


def _inside(job: Job, point: Allocation) -> bool:
    least, most = job.minimum, job.maximum
    return least.workers <= point.workers <= most.workers and least.servers <= point.servers <= most.servers


def worth_measuring(job: Job, fits: Callable[[Allocation], bool]) -> Allocation | None:
    """The allocation whose measurement is expected to save most time, more than it takes; None: there is none.

    What it saves: the expected improvement over the fastest allocation that was measured, for the rest of the job.
    Asked of those never measured, and of those measured once, for that may have been in a slow minute. What it takes:
    two restarts, an evaluation, and training at its speed meanwhile.
    """
    share, model = probe_share(job), job.speed
    if model is None or share < SMALLEST_PROBE:
        return None
    budget = epoch_budget(job)

    def payable(point: Allocation) -> bool:
        return budget is None or least_cost(job, point) <= budget

    measured = (Allocation(p.workers, p.servers) for p in job.speed_points())
    times = Counter(point for point in measured if _inside(job, point))
    seen = {point: model.predict(*point) for point in times if payable(point)}
    if not seen:
        return None
    best = max(seen, key=lambda point: seen[point])
    fastest = seen[best]
    gains: dict[Allocation, float] = {}
    if new := [point for point in allocations(job) if not times[point]]:
        gains |= zip(new, model.improvement(new, fastest).tolist(), strict=True)
    once = [point for point, count in times.items() if count == 1 and point != best]
    gains |= zip(once, model.improvement_again(once, fastest).tolist(), strict=True)
    rest = remaining_epochs(job).expected / fastest
    price = 2 * restart_seconds(job) + fixed_seconds(job).expected
    fraction = min(share, job.spec.spec.mini_epoch.max_fraction)
    worth = []
    for point, gain in gains.items():
        if gain * rest > price and point not in job.missed:
            slower = max(0.0, fraction / model.predict(*point) - fraction / fastest)
            worth.append((gain * rest - price - slower, point))
    worth.sort(reverse=True)
    return next((point for net, point in worth if net > 0 and payable(point) and fits(point)), None)


def probe_share(job: Job) -> float:
    """Epochs that probes may still train."""
    trained = sum(epoch.fraction for epoch in job.epochs if epoch.kind is EpochKind.MINI)
    return PROBE_SHARE * total_epochs(job) - trained


def total_epochs(job: Job) -> float:
    """Epochs the whole job is predicted to take: by its curve, else by earlier jobs, else the prior.

    A few mini-epochs at the start of a curve say little of its end: the curve counts from the third real epoch on.
    """
    limit = job.spec.spec.max_epochs or float("inf")
    last = job.last_x() if len(job.real_epochs) >= HOPELESS_FITS else None
    predicted = last.expected if last is not None else job.known_epochs or PRIOR_EPOCHS
    return min(limit, max(predicted, 1.0))


def probe_size(job: Job, left: int) -> tuple[float, float | None] | None:
    """(fraction of the data, seconds or None) of the next mini-epoch, with `left` still to measure.

    The first is timed: it trains until the middle of the mini-epoch's bounds has passed, at most `fraction`; without
    it nothing could be said of how long an epoch may take, so it has its place in the shortest job too.
    The others train what the speed at the smallest allocation makes of those bounds. None: the probes' share of
    the job is used up.
    """
    bounds = job.spec.spec.mini_epoch
    fraction = min(bounds.max_fraction, probe_share(job) / left)
    least = min(SMALLEST_PROBE, bounds.max_fraction)
    middle = (bounds.min_seconds + bounds.max_seconds) / 2
    if job.speed is None:
        # Several workers cannot each stop by a clock of their own: the smallest part says how fast they are.
        return (max(fraction, least), middle) if job.minimum.workers == 1 else (least, None)
    wanted = middle * job.speed.predict(*job.minimum)
    return (min(fraction, wanted), None) if fraction >= min(least, wanted) else None


# -- predictions ------------------------------------------------------------------------------------------


def remaining_epochs(job: Job) -> Interval:
    """Epochs still to train until the target has held long enough."""
    need = float(max(1, job.spec.spec.target.epochs_in_a_row - job.in_a_row))
    limit = float("inf")
    if job.spec.spec.max_epochs:
        limit = max(1.0, job.spec.spec.max_epochs - len(job.real_epochs))
    last = job.last_x()
    if last is None:
        guess = max(need, total_epochs(job) - job.passes)
        return Interval(min(limit, need), min(limit, guess), min(limit, 3 * guess))
    values = (min(limit, max(need, x - job.passes)) for x in (last.low, last.expected, last.high))
    return Interval(*values)


def fixed_seconds(job: Job, formed: bool = True) -> Interval:
    """Seconds of an epoch outside training (start, evaluation, checkpoint): median and range of the last like it.

    `formed`: the group stays as it is from the epoch before. Epochs of the other kind count while there is none.
    """
    recent = _other_seconds(job, formed, RECENT_EPOCHS) or _other_seconds(job, not formed, RECENT_EPOCHS)
    if not recent:
        return PRIOR_FIXED_SECONDS
    return Interval(min(recent), statistics.median(recent), max(recent))


def _other_seconds(job: Job, formed: bool, most: int) -> list[float]:
    """Seconds outside training of the last epochs, `most` of them, whose group stayed formed, or was a new one."""
    found: list[float] = []
    number = len(job.epochs)
    while number and len(found) < most:
        number -= 1
        epoch = job.epochs[number]
        if formed is (number > 0 and job.epochs[number - 1].group == epoch.group):
            found.append(epoch.other_seconds)
    return found


def restart_seconds(job: Job) -> float:
    """Seconds that a new group costs over one that stays formed, as the job's epochs show it; else the prior."""
    kept, fresh = (_other_seconds(job, formed, len(job.epochs)) for formed in (True, False))
    if len(fresh) < 2 or not kept:
        return PRIOR_RESTART_SECONDS
    return max(0.0, statistics.median(fresh) - statistics.median(kept))


def predicted_seconds(
    job: Job, allocation: Allocation, fraction: float, formed: bool = True
) -> Interval | None:
    """Seconds that `fraction` of an epoch takes with `allocation`; None while no speed is known.

    `formed`: the group stays as it is from the epoch before.
    """
    if job.speed is None:
        return None
    return epoch_seconds(job.speed, *allocation, fixed_seconds(job, formed), fraction)


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
    """Currency units for each epoch that remains (design: remaining budget / remaining epochs)."""
    left = job.ledger.budget
    if left is None:
        return None
    return to_amount(left - job.ledger.spent) / remaining_epochs(job).expected


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
        needed = predicted.high + START_SECONDS
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
    hopeless = len(real) >= HOPELESS_EPOCHS and job.hopeless >= HOPELESS_FITS and not on_its_way(job)
    if hopeless and job.convergence is not None:
        level = job.convergence.asymptote
        return (
            Reason.TARGET_BELOW_ASYMPTOTE,
            f"{job.metric} levels off at {level.expected:.4g} ({level.low:.4g} to {level.high:.4g}), "
            f"target {job.target:g}, after {len(real)} epochs",
        )
    return None
