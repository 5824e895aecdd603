"""What one job has before it: epochs, seconds and money, and on what terms its next epoch starts.

Plain functions of a `Job`; none changes it. Beside them stand `probing` (what to measure) and `ending` (when to stop);
`coach.core.lifecycle.reducer` asks them in the order of the thesis's loop (section 4.3, figure 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coach.core.cluster import NOTHING, Allocation
from coach.core.estimation.cost import epoch_cost, epoch_seconds, expected_seconds, second_cost
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval, conservative_value
from coach.core.jobs.job import LEASE_SECONDS, Job
from coach.core.money import Money, PriceBook, to_amount
from coach.core.spec.resources import RolesResources

#: Epochs that a job is taken to need before its curve says anything.
PRIOR_EPOCHS = 20.0
#: ... and at most this many times as many.
PRIOR_SPREAD = 3.0
#: An epoch is taken to hang after this many times its predicted upper bound ...
HANG_FACTOR = 3.0
#: ... plus this many seconds, for what no prediction covers (a slow disk, a busy machine).
HANG_SECONDS = 10.0
#: Seconds given to the first epoch of all beyond its training: it also fetches the data and loads the model.
FIRST_SECONDS = 300.0
#: Seconds that a whole epoch may take while nothing is known of its speed.
LONGEST_EPOCH_SECONDS = 7200.0
#: An epoch is not started with less time paid for than its predicted upper bound, with a new group this much more.
START_SECONDS = 1.0
#: Calls a pod may need: a few to start and stop, and two polls a second. The driver keeps to it.
CALLS_TO_START = 16
CALLS_PER_SECOND = 2.0
#: Nano-units held beside the computed reservation: each settlement rounds up to a whole one.
ROUNDING: Money = 1_000
#: Failed attempts in a row before a job is given up.
MAX_FAILURES = 3
#: Costs of epochs that differ by no more than a measurement may be off are taken for the same.
SAME_COST = 1.05
#: Full epochs from which on the curve says when the job ends: its first values say little of its end.
CURVE_EPOCHS = 3


@dataclass(frozen=True, slots=True)
class EpochTerms:
    """On what terms an epoch starts. `deadline` in seconds; `reservation` pays for all of it."""

    deadline: float
    reservation: Money
    budget_bound: bool
    predicted: Interval | None


# -- predictions ------------------------------------------------------------------------------------------


def total_epochs(job: Job) -> float:
    """Epochs the whole job is predicted to take: by its curve, else by earlier jobs, else the prior."""
    limit = job.spec.max_epochs or float("inf")
    last = _predicted_last_epoch(job)
    predicted = last.expected if last is not None else job.known_epochs or PRIOR_EPOCHS
    return min(limit, max(predicted, 1.0))


def _predicted_last_epoch(job: Job) -> Interval | None:
    """Passes at which the target will have held long enough; None while the curve says nothing of it, or no way."""
    return job.last_x() if job.full_epoch_count >= CURVE_EPOCHS else None


def fit_says_unreachable(job: Job) -> bool:
    """Whether the curve has something to say, and that is that it never reaches the target."""
    return job.curve is not None and job.full_epoch_count >= CURVE_EPOCHS and job.last_x() is None


def remaining_epochs(job: Job) -> Interval:
    """Epochs still to train until the target has held long enough."""
    need = float(max(1, job.spec.target.epochs_in_a_row - job.consecutive_hits))
    limit = float("inf")
    if job.spec.max_epochs:
        limit = max(1.0, job.spec.max_epochs - job.full_epoch_count)
    last = _predicted_last_epoch(job)
    if last is None:
        guess = max(need, total_epochs(job) - job.epochs_trained)
        if fit_says_unreachable(job):
            # It goes on all the same, as long as it may still get there in as many epochs again (`ending`).
            guess = max(guess, job.epochs_trained)
        return Interval(min(limit, need), min(limit, guess), min(limit, PRIOR_SPREAD * guess))
    values = (min(limit, max(need, x - job.epochs_trained)) for x in (last.low, last.expected, last.high))
    return Interval(*values)


def predicted_seconds(
    job: Job, allocation: Allocation, fraction: float, formed: bool = True
) -> Interval | None:
    """Seconds that `fraction` of an epoch takes with `allocation`; None while no speed is known.

    `formed`: the group stays as it is from the epoch before.
    """
    if job.speed is None:
        return None
    return epoch_seconds(job.speed, *allocation, job.times.fixed(allocation.workers, formed), fraction)


def _cost(job: Job, allocation: Allocation, seconds: float) -> float:
    spec = job.spec
    return epoch_cost(seconds, spec.resources.total(allocation), spec.price_book, allocation.pods)


def predicted_cost(job: Job, allocation: Allocation, fraction: float = 1.0) -> float:
    """Expected currency units of an epoch with `allocation`; 0 while no speed is known."""
    if job.speed is None:
        return 0.0
    fixed = job.times.fixed(allocation.workers)
    return _cost(job, allocation, expected_seconds(job.speed, *allocation, fixed, fraction))


def lowest_cost(job: Job, allocation: Allocation) -> float:
    """Currency units of an epoch with `allocation` if it is as fast as it may be; 0 while no speed is known."""
    seconds = predicted_seconds(job, allocation, 1.0)
    return _cost(job, allocation, seconds.low) if seconds else 0.0


def cheapest_epoch(job: Job) -> float:
    """Expected currency units of an epoch with the allocation that costs least; 0 while no speed is known."""
    return _cheapest(job)[0]


def _cheapest(job: Job) -> tuple[float, Allocation]:
    """What an epoch is expected to cost with the allocation that costs least, and that; 0 while no speed is known."""
    if job.speed is None:
        return 0.0, job.minimum
    points, spec = _between(job.minimum, job.maximum), job.spec
    second, once = _prices(spec.resources, spec.price_book, points)
    # `predicted_cost` of all at once.
    fixed = {workers: job.times.fixed(workers).expected for workers in {point.workers for point in points}}
    outside = np.array([fixed[point.workers] for point in points])
    costs = (outside + 1.0 / job.speed.expected(points)) * second + once
    least = int(costs.argmin())
    return float(costs[least]), points[least]


@lru_cache(maxsize=1 << 10)
def _prices(
    resources: RolesResources, book: PriceBook, points: tuple[Allocation, ...]
) -> tuple[FloatArray, FloatArray]:
    """Currency units of a second of training and of what an epoch costs beside it, for each of `points` [m]."""
    second = [second_cost(resources.total(point), book, point.pods) for point in points]
    return np.array(second), np.array([epoch_cost(0.0, NOTHING, book, point.pods) for point in points])


def epochs_to_provide_for(job: Job) -> float:
    """Epochs that the money is made to last for: those `conservative_value`.

    A young curve promises too much, so there is no less than the prior has as its upper bound; and the next epoch may
    miss the target, so that it has to hold in a row from the start: there is no less than that takes. Each epoch asks
    anew, and what was kept for epochs that need not be trained is spent later.
    """
    epochs, spec = remaining_epochs(job), job.spec
    prior = PRIOR_SPREAD * ((job.known_epochs or PRIOR_EPOCHS) - job.epochs_trained)
    once_more = 1.0 + spec.target.epochs_in_a_row
    least = min((spec.max_epochs or math.inf) - job.full_epoch_count, max(prior, once_more))
    return max(conservative_value(epochs.expected, epochs.high), least)


def epoch_budget(job: Job, allocation: Allocation | None = None) -> float | None:
    """Currency units that the next epoch may cost; less than the cheapest does where that one alone is left.

    The remaining budget over the expected remaining epochs (thesis section 4.2), as long as what the epoch leaves
    covers the rest of the provided ones with the cheapest allocation. (The thesis has the first half alone: where more
    epochs than expected are needed, what was spent on speed is missing then.)

    With `allocation`: of an epoch with it, which has to leave what changing to it and back costs, too. But what costs
    as much as the cheapest, as far as predictions tell (SAME_COST), is not refused for what may remain: it may be far
    faster.
    """
    if job.ledger.budget is None:
        return None
    left = to_amount(job.ledger.budget - job.ledger.spent)
    each, cheapest = _cheapest(job)
    spare = left - (epochs_to_provide_for(job) - 1.0) * each
    if allocation is not None:
        spare = max(spare - _change_cost(job, allocation, cheapest), SAME_COST * each)
    return min(left / remaining_epochs(job).expected, spare)


def _change_cost(job: Job, allocation: Allocation, cheapest: Allocation) -> float:
    """Currency units of a new group with `allocation`, unless its group stays, and of one with the cheapest later."""
    spec = job.spec
    to_come = [] if _stays_formed(job, allocation) else [allocation]
    if allocation != cheapest:
        to_come.append(cheapest)
    seconds = (second_cost(spec.resources.total(at), spec.price_book, at.pods) for at in to_come)
    return job.times.restart * sum(seconds)


def terms(job: Job, allocation: Allocation, fraction: float, seconds: float | None) -> EpochTerms | None:
    """The terms of the next epoch, or None where the money left does not cover it.

    The deadline is when the epoch is taken to hang, or when the money is used up, whichever comes first: the
    functions stop themselves then, so what is reserved is the most that can be spent.
    """
    book = job.spec.price_book
    held = job.spec.resources.total(allocation)
    formed = _stays_formed(job, allocation)
    predicted = None if seconds is not None else predicted_seconds(job, allocation, fraction, formed)
    needed = _least_seconds(predicted, formed)
    if predicted is None:
        # Too short a guess would end every attempt alike, so each may take four times as long as the one before.
        guess = LONGEST_EPOCH_SECONDS * fraction * 4**job.failures if seconds is None else seconds
        deadline = FIRST_SECONDS + HANG_FACTOR * guess
    else:
        # A function that was replaced is cold, on a machine that may be busy: each attempt has twice as long.
        deadline = (HANG_FACTOR * predicted.high + HANG_SECONDS) * 2**job.failures
        if not job.epochs:
            deadline += FIRST_SECONDS
    if job.spec.time_limit is not None:
        deadline = min(deadline, max(needed, job.spec.time_limit - job.run_seconds))
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
    return EpochTerms(deadline, reservation, budget_bound, predicted)


def _stays_formed(job: Job, allocation: Allocation) -> bool:
    """Whether the group of the last epoch stays as it is for one with `allocation`."""
    return job.group != "" and job.epochs != [] and job.epochs[-1].allocation == allocation


def _least_seconds(predicted: Interval | None, formed: bool) -> float:
    """Seconds that must be paid for before an epoch starts that is `predicted` to take so long."""
    if predicted is None:
        return 2 * START_SECONDS
    return predicted.high + (0.0 if formed else START_SECONDS)


def minimum_reservation(job: Job, allocation: Allocation) -> tuple[float, Money]:
    """Seconds, and what they cost with all calls, below which `terms` refuses a whole epoch with `allocation`."""
    formed = _stays_formed(job, allocation)
    seconds = _least_seconds(predicted_seconds(job, allocation, 1.0, formed), formed)
    calls = int(allocation.pods * (CALLS_TO_START + CALLS_PER_SECOND * seconds))
    held = job.spec.resources.total(allocation)
    return seconds, job.spec.price_book.cost(held, seconds + LEASE_SECONDS, calls) + 2 * ROUNDING


def affordable(job: Job, allocation: Allocation) -> bool:
    """Whether the money left covers a whole epoch with `allocation`."""
    return terms(job, allocation, 1.0, None) is not None


def others_affordable(job: Job) -> list[Allocation]:
    """Allocations above the smallest that the money left covers: a faster one can cost less."""
    return [point for point in allocations(job) if point != job.minimum and affordable(job, point)]


def allocations(job: Job) -> list[Allocation]:
    """All allocations within the job's limits; of wide limits a part."""
    return list(_between(job.minimum, job.maximum))


@lru_cache(maxsize=1 << 10)
def _between(least: Allocation, most: Allocation) -> tuple[Allocation, ...]:
    return tuple(
        Allocation(workers, servers)
        for workers in _counts(least.workers, most.workers)
        for servers in _counts(least.servers, most.servers)
    )


def _counts(low: int, high: int) -> list[int]:
    """All from `low` to `high` where they are few; else ever wider steps."""
    counts = [low]
    while counts[-1] < high:
        counts.append(min(high, max(counts[-1] + 1, counts[-1] * 5 // 4)))
    return counts
