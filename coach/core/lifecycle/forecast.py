"""The epochs, seconds and money that a job still needs, and the terms on which its next epoch starts.

Plain functions of a `Job`; none changes it. `probing` decides what to measure, `stopping_rules` when to stop;
`coach.core.lifecycle.reducer` calls all three in the order of the thesis's loop (section 4.3, figure 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from coach.core.cluster import NOTHING, Allocation, Pod, Resources, by_node
from coach.core.estimation.calibration import calibrated, calibrated_all
from coach.core.estimation.convergence import GAPS, spacing
from coach.core.estimation.cost import epoch_cost, epoch_seconds, expected_seconds, second_cost
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import CURVE_EPOCHS, Interval, conservative_value
from coach.core.jobs.epoch import EpochKind, JobForecast
from coach.core.jobs.fitted_models import FittedCurve
from coach.core.jobs.job import LEASE_SECONDS, Job, Phase
from coach.core.lifecycle import spending
from coach.core.money import Money, PriceBook, to_amount, to_money
from coach.core.spec.resources import RolesResources

#: Epochs that a job is assumed to need before its curve predicts anything ...
PRIOR_EPOCHS = 20.0
#: ... and at most this many times as many.
PRIOR_SPREAD = 3.0
#: Where earlier jobs took a known number of epochs, at most this many times as many.
KNOWN_SPREAD = 1.5
#: An epoch counts as hanging after this many times its predicted upper bound ...
HANG_FACTOR = 3.0
#: ... plus this many seconds, for what no prediction covers (a slow disk, a busy machine).
HANG_SECONDS = 10.0
#: Seconds that a job's first epoch may take in addition to its training: it also fetches the data and loads the model.
FIRST_SECONDS = 300.0
#: Seconds that a whole epoch may take while its speed is unknown.
LONGEST_EPOCH_SECONDS = 7200.0
#: An epoch starts only when the money covers its predicted upper bound, with a new group this many seconds more.
START_SECONDS = 1.0
#: Calls that a pod may need: a few to start and stop, and two polls a second. The driver stays below that.
CALLS_TO_START = 16
CALLS_PER_SECOND = 2.0
#: Nano-units reserved in addition to the computed cost: each settlement rounds up to a whole one.
ROUNDING: Money = 1_000
#: Seconds that the money must cover in addition, for the rounding of instants.
MARGIN_SECONDS = 1e-3
#: Bounds of the seconds that a program runs before its reservation is extended ...
SHORTEST_SLICE_SECONDS, LONGEST_SLICE_SECONDS = 60.0, 600.0
#: ... and this long before its end, for a handler that is busy.
EXTEND_SECONDS = 10.0
#: Failed attempts in a row after which a job fails.
MAX_FAILURES = 3
#: Costs of epochs that differ by no more than this factor, the error of a measurement, count as equal.
SAME_COST = 1.05
#: Of `math.exp`, so that its result is finite.
LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class EpochTerms:
    """The terms on which an epoch starts: `deadline` in seconds; `reservation` covers all of it."""

    deadline: float
    reservation: Money
    budget_bound: bool
    predicted: Interval | None


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a job still needs until it is done, the running epoch included: decisions, people and accounts read this.

    80 % intervals: `epochs` to train, never fewer than `fewest`; `seconds` with functions held, and `cost` in currency
    units, both None while no speed is known. `provided`: epochs that its money must last for. `last`: the epoch by
    which its target will have held long enough. `epoch_seconds`: what its next epoch is expected to take.

    `known`: its curve, earlier jobs or its bounds say so. Else it is assumed, which is enough to decide by, and `last`
    is None. A program without a target ends when it wants to. Of a job without a chance `coach why` says so.
    """

    epochs: Interval
    fewest: float
    provided: float
    known: bool
    last: Interval | None
    seconds: Interval | None = None
    cost: Interval | None = None
    epoch_seconds: float = 0.0

    @property
    def bounded(self) -> tuple[Interval, Interval] | None:
        """`seconds` and `cost`, where both are known and have bounds: a job that may never end has none."""
        if not self.known or self.seconds is None or self.cost is None:
            return None
        return (self.seconds, self.cost) if math.isfinite(self.seconds.high + self.cost.high) else None


# -- predictions ------------------------------------------------------------------------------------------


def epochs_within_bounds(job: Job) -> float:
    """Full epochs that a job may still train, with the allocation that allows most of them.

    Its money, its time limit and `maxEpochs` bound them. At least 1. Without a bound: as many again as it has trained,
    and at first PRIOR_EPOCHS.
    """
    if _unbounded(job):
        return max(1.0, PRIOR_EPOCHS - job.epochs_trained, job.epochs_trained)
    if job.speed is None:
        limit = float("inf") if job.spec.max_epochs is None else job.spec.max_epochs - job.full_epoch_count
        return max(1.0, min(limit, PRIOR_EPOCHS - job.epochs_trained))
    spec, (seconds, costs, _) = job.spec, _of_all(job)
    money = math.inf if job.money.ledger.budget is None else to_amount(job.money.ledger.budget - job.money.ledger.spent)
    time = math.inf if spec.time_limit is None else spec.time_limit - job.progress.run_seconds
    limit = math.inf if spec.max_epochs is None else spec.max_epochs - job.full_epoch_count
    return max(1.0, float(epochs_paid(seconds, costs, time, money, limit).max()))


def epochs_paid(
    seconds: FloatArray, costs: FloatArray, time: float, money: float | FloatArray, limit: float
) -> FloatArray:
    """Epochs [m], at most `limit`, for which `time` and `money` last where each takes `seconds` and `costs` [m]."""
    by_time, by_money = max(0.0, time) / np.maximum(seconds, 1e-9), np.maximum(money, 0.0) / np.maximum(costs, 1e-12)
    return np.minimum(limit, np.minimum(by_time, by_money))


def _unbounded(job: Job) -> bool:
    """Whether neither money nor time nor a number of epochs ends the job."""
    return job.money.ledger.budget is None and job.spec.time_limit is None and job.spec.max_epochs is None


def bound_by_money(job: Job) -> bool:
    """Whether nothing but its money bounds a job without a target: then cheap epochs are more epochs."""
    if job.spec.target is not None or job.money.ledger.budget is None:
        return False
    cheapest, _ = _cheapest(job)
    left = to_amount(job.money.ledger.budget - job.money.ledger.spent)
    return left <= epochs_within_bounds(job) * cheapest * SAME_COST


def _predicted_last_epoch(job: Job) -> Interval | None:
    """The epoch by which the target will have held long enough, calibrated.

    None while the curve is too short to predict it, or where it never reaches the target.
    """
    seen, now = job.full_epoch_count, job.epochs_trained
    last = job.last_x() if seen >= CURVE_EPOCHS else None
    return None if last is None else calibrated(last + -now, seen, len(job.models.known_curves)) + now


def _prior(job: Job) -> tuple[float, float]:
    """Epochs that a job is assumed to need before its curve predicts any, and at most how many times that."""
    return (PRIOR_EPOCHS, PRIOR_SPREAD) if job.models.known_epochs is None else (job.models.known_epochs, KNOWN_SPREAD)


def like_earlier(epochs: float) -> Interval:
    """Epochs of a job like earlier ones that took `epochs` in the median."""
    return Interval(epochs / KNOWN_SPREAD, epochs, epochs * KNOWN_SPREAD)


def fit_says_unreachable(job: Job) -> bool:
    """Whether there is a target, and the curve is long enough to predict, and never reaches it."""
    if job.spec.target is None:
        return False
    return job.models.curve is not None and job.full_epoch_count >= CURVE_EPOCHS and job.last_x() is None


def remaining(job: Job, at: Allocation | None = None, epoch: Interval | None = None) -> Remaining:
    """What `job` still needs with the allocation `at`, whose epochs take `epoch` seconds; by default its present one.

    A job without a target is done when it has trained all the epochs that its bounds allow; it may end earlier, and it
    spends no more than is left.

    Remaining epochs times predicted seconds and cost of an epoch. The two are assumed to be independent: their relative
    spreads add in quadrature, except where the fewest epochs that are possible are the lower bound. These are a likely
    end, not a tail: half of the jobs that take them take less than expected.
    """
    left = _remaining_epochs(job)
    where = at or job.decision.desired or job.minimum
    if at is None and job.decision.kind is EpochKind.PROBE and job.epochs:
        where = max(job.epochs, key=lambda e: e.epochs_per_second).allocation
    seconds = epoch or predicted_seconds(job, where, 1.0)
    if seconds is None or seconds.expected <= 0:
        return left
    lower, upper = zip(left.epochs.spreads, seconds.spreads, strict=True)
    up = math.hypot(*upper)
    down = sum(lower) if round(left.epochs.low - left.fewest, 6) <= 0.0 else math.hypot(*lower)
    least, most = math.exp(-down), math.exp(up) if up < LARGEST_EXPONENT else math.inf
    money = math.inf
    if at is None and job.spec.target is None and job.money.ledger.budget is not None:
        money = to_amount(job.money.ledger.budget - job.money.ledger.spent)
    time = left.epochs.expected * seconds.expected
    cost = min(left.epochs.expected * _cost(job, where, seconds.expected), money)
    return replace(
        left,
        seconds=Interval(time * least, time, time * most),
        cost=Interval(cost * least, cost, min(cost * most, money) if cost > 0.0 else 0.0),
        epoch_seconds=seconds.expected,
    )


def _remaining_epochs(job: Job) -> Remaining:
    """The epochs of `remaining`: by the curve, else by earlier jobs, else the prior; or as many as the bounds allow."""
    if (target := job.spec.target) is None:
        most = epochs_within_bounds(job)
        return Remaining(Interval(most, most, most), 0.0, most, job.spec.program is None, None)
    trained, assumed, spread = job.epochs_trained, *_prior(job)
    limit = max(1.0, job.spec.max_epochs - job.full_epoch_count) if job.spec.max_epochs else math.inf
    fewest = max(1, target.epochs_in_a_row - job.consecutive_hits) * (
        1.0 if job.spec.program is None else spacing([one.epochs_trained for one in job.epochs[-GAPS:]])
    )
    unreachable = fit_says_unreachable(job)
    # A job whose target looks unreachable goes on for as long as `stopping_rules` let it: about as many epochs again.
    guess = max(fewest, min(job.spec.max_epochs or math.inf, assumed) - trained, trained if unreachable else 0.0)
    around, known = Interval(fewest, guess, PRIOR_SPREAD * guess), False
    if (last := _predicted_last_epoch(job)) is not None:
        around, known = last + -trained, not job.hopeless
    elif job.models.known_epochs is not None and not unreachable:
        around, known = like_earlier(guess), True
    epochs = Interval(*(min(limit, max(fewest, one)) for one in around))
    # A short curve predicts too few epochs: the floor is the prior's upper bound. The next epoch may miss the target,
    # which must then hold in a row from the start: the floor is the epochs that this takes.
    floor = max(spread * (assumed - trained), 1.0 + target.epochs_in_a_row)
    floor = min((job.spec.max_epochs or math.inf) - job.full_epoch_count, floor)
    provided = max(conservative_value(epochs.expected, epochs.high), floor)
    return Remaining(epochs, min(limit, fewest), provided, known, epochs + trained if known else None)


def predicted_seconds(job: Job, allocation: Allocation, fraction: float, formed: bool = True) -> Interval | None:
    """Seconds that `fraction` of an epoch takes with `allocation`; None while no speed is known.

    `formed`: the group of the previous epoch is reused.
    """
    if job.speed is None:
        return None
    return epoch_seconds(job.speed, *allocation, job.times.fixed(allocation.workers, formed), fraction)


def seconds_left(job: Job, left: Remaining, now: float) -> Interval | None:
    """Seconds from `now` until the job is done: those of `left`, minus the running epoch's elapsed part."""
    if left.seconds is None:
        return None
    done = min(now - job.attempts.running.at, left.epoch_seconds) if job.attempts.running else 0.0
    return Interval(*(max(0.0, seconds - done) for seconds in left.seconds))


def time_left(job: Job, now: float) -> Interval | None:
    """`seconds_left`, as it is shown: None of what is not known, and of a job that does not go on by itself."""
    if job.ended or job.phase in (Phase.PAUSED, Phase.ENDING):
        return None
    left = remaining(job)
    return seconds_left(job, left, now) if left.known else None


def whole_job(job: Job) -> JobForecast | None:
    """What the whole job is predicted to take, before its next epoch; None where that is not known or not finite."""
    if (left := remaining(job).bounded) is None:
        return None
    seconds, cost = left[0] + job.progress.run_seconds, left[1] + to_amount(job.money.ledger.spent)
    return JobForecast((seconds.low, seconds.expected, seconds.high), (cost.low, cost.expected, cost.high))


def _cost(job: Job, allocation: Allocation, seconds: float) -> float:
    spec = job.spec
    return epoch_cost(seconds, spec.resources.total(allocation), job.price_book, allocation.pods)


def predicted_cost(job: Job, allocation: Allocation, fraction: float = 1.0) -> float:
    """Expected currency units of an epoch with `allocation`; 0 while no speed is known."""
    if job.speed is None:
        return 0.0
    fixed = job.times.fixed(allocation.workers)
    return _cost(job, allocation, expected_seconds(job.speed, *allocation, fixed, fraction))


def lowest_cost(job: Job, allocation: Allocation) -> float:
    """Currency units of an epoch with `allocation` at the lower bound of its seconds; 0 while no speed is known."""
    seconds = predicted_seconds(job, allocation, 1.0)
    return _cost(job, allocation, seconds.low) if seconds else 0.0


def cost_of_steps(job: Job, allocation: Allocation) -> float:
    """Currency units of an epoch's steps alone, at the upper bound of its speed; 0 while none is known."""
    return _cost(job, allocation, 1.0 / job.speed.interval(*allocation).high) if job.speed else 0.0


def cheapest_epoch(job: Job) -> float:
    """Expected currency units of an epoch with the cheapest allocation; 0 while no speed is known."""
    return _cheapest(job)[0]


def _cheapest(job: Job) -> tuple[float, Allocation]:
    """Expected cost of an epoch with the cheapest allocation, and that allocation; 0 while no speed is known."""
    if job.speed is None:
        return 0.0, job.minimum
    _, costs, points = _of_all(job)
    index = int(costs.argmin())
    return float(costs[index]), points[index]


def _of_all(job: Job) -> tuple[FloatArray, FloatArray, tuple[Allocation, ...]]:
    """Expected seconds [m] and currency units [m] of an epoch with each allocation, whose speed is known; and these."""
    assert job.speed is not None
    points, spec = _between(job.minimum, job.maximum), job.spec
    second, once = _prices(spec.resources, job.price_book, points)
    # `predicted_cost` of all at once.
    fixed = {workers: job.times.fixed(workers).expected for workers in {point.workers for point in points}}
    outside = np.array([fixed[point.workers] for point in points])
    seconds = outside + 1.0 / job.speed.expected(points)
    return seconds, seconds * second + once, points


@lru_cache(maxsize=1 << 10)
def _prices(
    resources: RolesResources, book: PriceBook, points: tuple[Allocation, ...]
) -> tuple[FloatArray, FloatArray]:
    """Currency units of a second of training, and of an epoch apart from its seconds, for each of `points` [m]."""
    second = [second_cost(resources.total(point), book, point.pods) for point in points]
    return np.array(second), np.array([epoch_cost(0.0, NOTHING, book, point.pods) for point in points])


def epoch_budget(
    job: Job, left: Remaining, found: spending.Spending | None, allocation: Allocation | None = None
) -> float | None:
    """Currency units that the next epoch may cost; below the cheapest epoch's cost where only that one is left.

    What `found`, the job's `spending_plan`, gives the next epoch. Where that has nothing to spare for speed, and
    without a target: the remaining budget divided by the expected epochs that are `left` (thesis section 4.2), but no
    more than leaves enough for the other epochs that it is provided for with the cheapest allocation. (The thesis has
    only the first half: a job that needs more epochs than expected then lacks the money that it spent on speed.) Money
    kept for epochs that turn out unnecessary is spent later, as all of it is computed again before each epoch.

    With `allocation`: for an epoch with it. The money must then also cover the change to it and back. An allocation
    that costs as much as the cheapest within the predictions' error (SAME_COST) is always within the budget: it may be
    far faster.
    """
    if job.money.available is None:
        return None
    money = to_amount(job.money.available)
    each, cheapest = _cheapest(job)
    even = money / left.epochs.expected
    if found is not None and found.spare > 0.0:
        if allocation is None and even < found.cheapest:
            return even
        return max(found.epoch, SAME_COST * each) * (1.0 + 1e-9)
    # Money is short, or speeds are not known yet.
    spare = money - (left.provided - 1.0) * each
    if allocation is not None:
        spare = max(spare - _change_cost(job, allocation, cheapest), SAME_COST * each)
    return min(even, spare)


def spending_plan(job: Job) -> spending.Spending | None:
    """How the money of a job with a target and a budget is spent; None without them, or while no speed is known."""
    if job.money.available is None or job.speed is None or job.spec.target is None:
        return None
    seconds, costs, points = _of_all(job)
    fallback = int(costs.argmin())
    interval = predicted_seconds(job, points[fallback], 1.0)
    over = 0.0 if interval is None else interval.high / max(interval.expected, 1e-9) - 1.0
    dearest = points[int(costs.argmax())]
    reserve = over * float(costs[fallback]) + _change_cost(job, dearest, points[fallback])
    return spending.plan(
        to_amount(job.money.available),
        seconds,
        costs,
        chances_to_remain(job, job.models.curve),
        reserve,
        job.spec.budget.chance,
    )


def chances_to_remain(job: Job, curve: FittedCurve | None) -> FloatArray:
    """The probability that 1, 2, ... HORIZON epochs or more remain of a job with a target, by one fit of its curve."""
    endings = None
    if curve is not None and job.spec.target is not None and job.full_epoch_count >= CURVE_EPOCHS:
        endings = curve.endings(job.spec.target)
    if endings is None:
        remain = spending.at_least(_remaining_epochs(job).epochs)
    else:
        (times, chance), now = endings, job.epochs_trained
        times = now + calibrated_all(times - now, chance, job.full_epoch_count, len(job.models.known_curves))
        if job.models.known_epochs is not None:
            chance = spending.as_before(times, chance, job.models.known_epochs, KNOWN_SPREAD)
        remain = spending.at_least_of(times, chance, now)
    if job.spec.max_epochs is not None:
        remain[max(1, job.spec.max_epochs - job.full_epoch_count) :] = 0.0
    return remain


def _change_cost(job: Job, allocation: Allocation, cheapest: Allocation) -> float:
    """Currency units of forming a group with `allocation`, unless it is formed, and later one with the cheapest."""
    spec = job.spec
    to_form = [] if _stays_formed(job, allocation) else [allocation]
    if allocation != cheapest:
        to_form.append(cheapest)
    seconds = (second_cost(spec.resources.total(at), job.price_book, at.pods) for at in to_form)
    return job.times.restart * sum(seconds)


def terms(
    job: Job,
    allocation: Allocation,
    fraction: float,
    seconds: float | None,
    *,
    since: float = 0.0,
    at: float | None = None,
    pods: Iterable[Pod] | None = None,
) -> EpochTerms | None:
    """The terms of the next epoch, or None where the remaining money does not cover it.

    The deadline is when the epoch counts as hanging or when the money is used up, whichever is first. The functions
    stop themselves then, so the epoch cannot cost more than its reservation.

    A program's epoch ends with its next report, which may come at any time; it is expected after as much of a pass as
    the last one. Its deadline is a slice of time that is extended while money is left; `since` is how many seconds of
    it have passed. `at` is now, and `pods` are those that it is for, where both are known.
    """
    placed = None if pods is None else by_node(pods)
    book = job.price_book if placed is None else job.book_on(job.price_book.on(placed))
    held = job.spec.resources.total(allocation)
    start = job.money.billed_until if at is None or since else at
    settled = start - job.attempts.running.at if since and job.attempts.running is not None else 0.0
    formed = _stays_formed(job, allocation)
    fraction = _fraction(job, fraction)
    predicted = None if seconds is not None else predicted_seconds(job, allocation, fraction, formed)
    needed = _min_seconds(job, allocation, predicted, formed)
    if job.spec.program is not None:
        deadline = since + max(needed, program_slice(job) + job.spec.grace_period)
    elif predicted is None:
        # Too short a guess would end every attempt alike, so each may take four times as long as the previous one.
        guess = LONGEST_EPOCH_SECONDS * fraction * 4**job.attempts.failures if seconds is None else seconds
        deadline = FIRST_SECONDS + HANG_FACTOR * guess
    else:
        # A replaced function starts cold, and its machine may be busy: each attempt may take twice as long.
        deadline = (HANG_FACTOR * predicted.high + HANG_SECONDS) * 2**job.attempts.failures
        if not job.epochs:
            deadline += FIRST_SECONDS
    if job.spec.time_limit is not None:
        left = job.spec.time_limit - job.progress.run_seconds
        of_program = max(0.0, left) + job.spec.grace_period + LEASE_SECONDS
        deadline = min(deadline, max(needed, left) if job.spec.program is None else of_program)

    def cost(seconds: float) -> Money:
        calls = int(allocation.pods * (CALLS_TO_START + CALLS_PER_SECOND * seconds))
        whole, paid = seconds + LEASE_SECONDS - settled, job.money.machines_paid
        return book.cost(held, whole, calls, placed=placed, since=start, paid=paid)

    budget_bound = False
    if job.money.available is not None:
        paid = settled + _lasts(job, allocation, book, placed)
        if book.by_hour:
            paid = _lasts_by_hour(cost, job.money.available - 2 * ROUNDING, deadline)
        if paid < needed:
            return None
        budget_bound = paid < deadline
        deadline = min(deadline, paid)
    reservation = cost(deadline) + ROUNDING
    if job.money.available is not None and reservation > job.money.available:
        # Once all is spent, not even an epoch free of charge: its reservation includes the rounding.
        return None
    return EpochTerms(deadline, reservation, budget_bound, predicted)


def _lasts(job: Job, allocation: Allocation, book: PriceBook, placed: Mapping[str, Resources] | None) -> float:
    """Seconds that the money lasts with `allocation`, with its calls."""
    start, second = _prices_with_calls(job, allocation, book, placed)
    if second == 0.0 or job.money.available is None:
        return math.inf
    return to_amount(job.money.available - 2 * ROUNDING - start) / second - LEASE_SECONDS - MARGIN_SECONDS


def _lasts_by_hour(cost: Callable[[float], Money], money: Money, most: float) -> float:
    """The same where hours begun are paid, at most `most`: by bisection, as the cost of seconds has steps."""
    if cost(most + MARGIN_SECONDS) <= money:
        return math.inf
    low, high = 0.0, most + MARGIN_SECONDS
    while high - low > MARGIN_SECONDS / 16:
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= money else (low, middle)
    return low - MARGIN_SECONDS


def _prices_with_calls(
    job: Job,
    allocation: Allocation,
    book: PriceBook,
    placed: Mapping[str, Resources] | None = None,
) -> tuple[Money, float]:
    """The price of the calls that start the pods, and, in currency units, of a second of all of them with its calls."""
    pods = allocation.pods
    second = book.rate(job.spec.resources.total(allocation), placed)
    return book.cost(NOTHING, 0.0, pods * CALLS_TO_START), second + book.invocation * pods * CALLS_PER_SECOND


def _fraction(job: Job, fraction: float) -> float:
    """How much of a pass the next epoch is expected to be."""
    program = job.spec.program is not None and job.epochs
    return min(fraction, job.epochs[-1].fraction) if program else fraction


def first_seconds(job: Job, allocation: Allocation) -> float | None:
    """After how many seconds a job's first epoch ends, where epochs are cut by time: later ones have its samples.

    None for several workers of a fixed group, which would end at different steps: they train a whole pass.
    """
    alone = allocation.workers == 1 or job.spec.elastic
    return job.spec.epoch.time if job.spec.epoch is not None and not job.epochs and alone else None


def program_slice(job: Job) -> float:
    """Seconds that a program runs before its reservation is extended: short at first, then a tenth of its time."""
    return min(LONGEST_SLICE_SECONDS, max(SHORTEST_SLICE_SECONDS, job.progress.run_seconds / 10))


def _stays_formed(job: Job, allocation: Allocation) -> bool:
    """Whether an epoch with `allocation` reuses the group of the last epoch."""
    return job.gang.group != "" and job.epochs != [] and job.epochs[-1].allocation == allocation


def _min_seconds(job: Job, allocation: Allocation, predicted: Interval | None, formed: bool) -> float:
    """Seconds that the money must cover before an epoch of `predicted` seconds starts."""
    needed = 2 * START_SECONDS
    if predicted is not None:
        needed = predicted.high + (0.0 if formed else START_SECONDS)
    elif job.money.accounts is not None:
        # What other jobs have reserved comes back: an epoch that would soon be cut waits for it.
        start, second = _prices_with_calls(job, allocation, job.price_book)
        ever = to_amount(job.money.accounts.ever - start)
        usual = FIRST_SECONDS if job.spec.program is None else program_slice(job)
        needed = max(needed, min(usual, ever / second / 2 if second else 0.0))
    return needed + (0.0 if job.spec.program is None else job.spec.grace_period)


def minimum_reservation(job: Job, allocation: Allocation) -> tuple[float, Money]:
    """Seconds, and their cost with all calls, below which `terms` refuses a whole epoch with `allocation`."""
    formed = _stays_formed(job, allocation)
    predicted = predicted_seconds(job, allocation, _fraction(job, 1.0), formed)
    seconds = _min_seconds(job, allocation, predicted, formed)
    book, whole = job.price_book, seconds + LEASE_SECONDS + MARGIN_SECONDS
    start, second = _prices_with_calls(job, allocation, book)
    cost = to_money(second * whole)
    if book.by_hour:
        paid = job.money.machines_paid
        cost = book.cost(job.spec.resources.total(allocation), whole, since=job.money.billed_until, paid=paid)
    return seconds, start + cost + 2 * ROUNDING


def affordable(job: Job, allocation: Allocation) -> bool:
    """Whether the remaining money covers a whole epoch with `allocation`."""
    return terms(job, allocation, 1.0, None) is not None


def others_affordable(job: Job) -> list[Allocation]:
    """Allocations above the smallest that the remaining money covers: a faster one can cost less."""
    return [point for point in allocations(job) if point != job.minimum and affordable(job, point)]


def allocations(job: Job) -> list[Allocation]:
    """All allocations within the job's limits; a sample of them where the limits are wide."""
    return list(_between(job.minimum, job.maximum))


@lru_cache(maxsize=1 << 10)
def _between(low: Allocation, high: Allocation) -> tuple[Allocation, ...]:
    return tuple(
        Allocation(workers, servers)
        for workers in _counts(low.workers, high.workers)
        for servers in _counts(low.servers, high.servers)
    )


def _counts(low: int, high: int) -> list[int]:
    """All numbers from `low` to `high` where there are few; else in growing steps."""
    counts = [low]
    while counts[-1] < high:
        counts.append(min(high, max(counts[-1] + 1, counts[-1] * 5 // 4)))
    return counts
