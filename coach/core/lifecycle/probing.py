"""What a job measures of its own speed: which mini-epochs, how long, and when it is enough.

Thesis section 4.1 has mini-epochs of 20-40 s at four points; here they are run only where they pay, and bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from coach.core.cluster import Allocation
from coach.core.estimation.cost import second_cost
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import conservative_value
from coach.core.estimation.speed import MIN_EFFICIENCY, SpeedModel
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.lifecycle.forecast import (
    PRIOR_EPOCHS,
    allocations,
    epoch_budget,
    lowest_cost,
    predicted_cost,
    predicted_seconds,
    remaining_epochs,
    total_epochs,
)
from coach.core.money import to_amount
from coach.core.spec.job import JobObjective

#: All probes together may train at most this share of the job's predicted epochs, and take this share of its seconds.
PROBE_SHARE = 0.10
#: A mini-epoch below this share of the data says more about noise than about speed.
SMALLEST_PROBE = 0.05
#: A new group trains so many steps at least, if the data has them: one says nothing of its speed.
MIN_STEPS = 2
#: So many points are kept in mind for the next probe, should there be no room for the best of them now.
PROBES_AT_ONCE = 3
#: How often a gang is started for the first probe, of the smallest allocation, before the job goes on without. Any
#: other point is left out after its first miss.
PROBE_TRIES = 2
#: A measurement may cost this share of the money to spare: with a fifth more than the job needs, others follow it.
SPARE_SHARE = 0.33
#: Seconds of an epoch below which none is thought of.
TINY_SECONDS = 1e-9


class Probe(NamedTuple):
    """An allocation to measure: what that is expected to save in the rest of the job, and what it takes, in `unit`."""

    at: Allocation
    saves: float = 0.0
    takes: float = 0.0
    unit: str = ""

    def __str__(self) -> str:
        """`probe 2x1: expected to save 12 s, takes 1.3 s`."""
        if not self.unit:
            return f"probe {self.at}: no speed is known yet"
        saves, takes = (f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in (self.saves, self.takes))
        return f"probe {self.at}: expected to save {saves} {self.unit}, takes {takes} {self.unit}"


def probes_left(
    job: Job, fits: Callable[[Allocation], bool], points: Iterable[Probe] | None = None
) -> list[Probe]:
    """What to measure next, the best first: of `points`, the job's `to_measure`, those that the cluster could hold."""
    wanted = to_measure(job) if points is None else points
    return list(islice((probe for probe in wanted if fits(probe.at)), PROBES_AT_ONCE))


def to_measure(job: Job) -> Iterator[Probe]:
    """The smallest allocation, then what is worth it (`worth_measuring`), the best first: wherever it would fit.

    The smallest is left out when it was measured and no fit came of it, or its gang did not come PROBE_TRIES times.
    """
    if job.speed is not None:
        yield from worth_measuring(job)
        return
    first = job.minimum
    measured = any(epoch.allocation == first for epoch in job.epochs)
    if not measured and job.missed.count(first) < PROBE_TRIES:
        yield Probe(first)


def _inside(least: Allocation, at: tuple[int, int], most: Allocation) -> bool:
    return least.workers <= at[0] <= most.workers and least.servers <= at[1] <= most.servers


def worth_measuring(job: Job) -> Iterator[Probe]:
    """The allocations whose measurement is expected to save more than it takes, those that save most first.

    What it saves is time: the expected improvement over the fastest allocation that was measured, for the rest of the
    job, as far as what a worker computes leaves room for it (`SpeedModel.fastest`). Where even the cheapest allocation
    costs more than the epoch budget, or the job is to be cheap and will be in time, it is money: that over the cheapest
    one.
    Asked of those never measured, and of those measured once, for that may have been in a slow minute. What it takes:
    two restarts, what a group that stays formed takes too, and training at its speed meanwhile. Only what may cost no
    more than the epoch budget counts, or, where that is less than anything measured costs, than the cheapest of those;
    and one measurement may cost no more than SPARE_SHARE of the money that the cheapest of those would leave. Where
    that is none, the job needs something cheaper to come to its end, and all that is left counts.
    """
    share, model = probe_share(job), job.speed
    if model is None or share < _smallest(job, model):
        return
    model.precompute(allocations(job))
    counts = Counter(Allocation(point.workers, point.servers) for point in job.speed_points())
    measured = {at: count for at, count in counts.items() if _inside(job.minimum, at, job.maximum)}
    if not measured:
        return
    means = _means(job, measured)
    payable = [at for at in measured if lowest_cost(job, at) <= means.epoch]
    if not payable:
        return
    scale = _Scale(job, model, in_money=means.short or _to_be_cheap(job, measured))
    best = min(payable, key=scale.epoch)
    remaining = remaining_epochs(job).expected
    fraction = min(share, _probe_fraction(job, model))
    beside = 2 * job.times.restart + job.times.without_evaluation().expected
    worth = []
    for at, gain in _gains(job, model, measured, best, scale).items():
        # A gain is one in ln speed: of the time in training alone.
        saved, price = gain * remaining * scale.rate(at) / scale.tie(at, best), beside * scale.rate(at)
        if saved > price and at not in job.missed:
            slower = fraction * max(0.0, scale.training(at) - scale.training(best))
            worth.append(Probe(at, saved, price + slower, scale.unit))
    worth.sort(key=lambda probe: (probe.saves - probe.takes, probe.at), reverse=True)
    for probe in worth:
        once = predicted_cost(job, probe.at, fraction) <= SPARE_SHARE * means.spare
        if probe.saves > probe.takes and once and lowest_cost(job, probe.at) <= means.epoch:
            yield probe


def _to_be_cheap(job: Job, measured: Iterable[Allocation]) -> bool:
    """Whether the job's file asks for the least money, and the cheapest allocation measured ends in time."""
    spec = job.spec
    if spec.objective is not JobObjective.CHEAPEST:
        return False
    cheapest = min(measured, key=lambda at: predicted_cost(job, at))
    seconds = predicted_seconds(job, cheapest, 1.0)
    if spec.time_limit is None or seconds is None:
        return True
    left = remaining_epochs(job)
    return (
        conservative_value(left.expected, left.high) * seconds.expected <= spec.time_limit - job.run_seconds
    )


class _Means(NamedTuple):
    """What measuring may cost: an epoch with what is measured, and all measurements; is money `short`?"""

    epoch: float
    spare: float
    short: bool


def _means(job: Job, measured: Iterable[Allocation]) -> _Means:
    allowed = epoch_budget(job)
    if allowed is None:
        return _Means(float("inf"), float("inf"), short=False)
    cheapest = min(predicted_cost(job, at) for at in measured)
    left = to_amount(job.ledger.left or 0)
    spare = left - remaining_epochs(job).expected * cheapest
    return _Means(max(allowed, cheapest), spare if spare > 0 else left, short=allowed < cheapest)


@dataclass(frozen=True, slots=True)
class _Scale:
    """What allocations are compared by: the seconds of an epoch, or its money."""

    job: Job
    model: SpeedModel
    in_money: bool

    @property
    def unit(self) -> str:
        """Of what is compared."""
        return self.job.spec.price_book.currency if self.in_money else "s"

    def rate(self, at: Allocation) -> float:
        """What a second is worth: itself, or its money."""
        spec = self.job.spec
        return second_cost(spec.resources.total(at), spec.price_book, at.pods) if self.in_money else 1.0

    def training(self, at: Allocation) -> float:
        """Of a whole data set."""
        return self.rate(at) / self.model.predict(*at)

    def epoch(self, at: Allocation) -> float:
        """Of an epoch, with what lies outside training."""
        return self._fixed(at) * self.rate(at) + self.training(at)

    def worth_having(self, at: Allocation, best: Allocation) -> float:
        """The speed, epochs/s, from which on `at` is taken for `best`: pods have to be worth their place."""
        more = at.workers + at.servers - best.workers - best.servers
        if self.in_money or more <= 0:
            return self.tie(at, best)
        return self.tie(at, best) * (1.0 + MIN_EFFICIENCY * more / (best.workers + best.servers))

    def tie(self, at: Allocation, best: Allocation) -> float:
        """The speed, epochs/s, from which on `at` is better than `best`."""
        return 1.0 / max(self.epoch(best) / self.rate(at) - self._fixed(at), TINY_SECONDS)

    def _fixed(self, at: Allocation) -> float:
        return self.job.times.fixed(at.workers).expected


def _gains(
    job: Job, model: SpeedModel, measured: Mapping[Allocation, int], best: Allocation, scale: _Scale
) -> dict[Allocation, float]:
    """By how much a measurement is expected to exceed, in ln speed, what would be taken in place of the best."""

    def capped(
        improvement: Callable[[list[Allocation], list[float]], FloatArray], points: list[Allocation]
    ) -> Iterator[tuple[Allocation, float]]:
        least = [scale.worth_having(at, best) for at in points]
        most = [max(low, of.expected) for low, of in zip(least, model.upper_bound(points), strict=True)]
        found = improvement(points, least) - improvement(points, most)
        return zip(points, found.tolist(), strict=True)

    gains: dict[Allocation, float] = {}
    if new := [at for at in allocations(job) if at not in measured]:
        gains |= capped(model.improvement, new)
    once = [at for at, count in measured.items() if count == 1 and at != best]
    return gains | dict(capped(model.improvement_again, once))


def probe_share(job: Job) -> float:
    """Epochs that probes may still train: of the epochs predicted, and of the seconds at the smallest allocation.

    A curve that has hardly begun to fall predicts any number of epochs. More than a job has without one are counted
    only once they were trained.
    """
    probes = [epoch for epoch in job.epochs if epoch.kind is EpochKind.PROBE]
    total = min(total_epochs(job), max(job.known_epochs or PRIOR_EPOCHS, job.epochs_trained))
    epochs = PROBE_SHARE * total - sum(epoch.fraction for epoch in probes)
    if job.speed is None:
        return epochs
    times, slowest = job.times, job.speed.predict(*job.minimum)
    # Epochs to come are evaluated; a new group's other seconds are no measure for theirs.
    beside_each = times.kept.expected if times.kept else 0.0
    measured = {(point.workers, point.servers) for point in job.speed_points()}
    least = min(
        times.evaluation(at[0]).expected + 1.0 / job.speed.predict(*at) for at in {job.minimum, *measured}
    )
    to_come = min(remaining_epochs(job).expected, max(0.0, total - job.epochs_trained))
    whole = job.run_seconds + to_come * (beside_each + least)
    beside = times.restart + times.without_evaluation().expected
    seconds = PROBE_SHARE * whole - sum(epoch.seconds for epoch in probes)
    return min(epochs, (seconds - beside) * slowest)


def _probe_fraction(job: Job, model: SpeedModel) -> float:
    """The part of the data that the smallest allocation trains in the middle of the mini-epoch's bounds."""
    bounds = job.spec.mini_epoch
    middle = (bounds.min_seconds + bounds.max_seconds) / 2
    return max(_least_steps(job), min(bounds.max_fraction, middle * model.predict(*job.minimum)))


def _smallest(job: Job, model: SpeedModel) -> float:
    """The part of the data for which the probes' share must have room."""
    return max(_least_steps(job), min(SMALLEST_PROBE, _probe_fraction(job, model)))


def _least_steps(job: Job) -> float:
    """The part of the data that any mini-epoch trains at least; 0 while the size of the data is not known."""
    if not job.epochs:
        return 0.0
    return min(1.0, MIN_STEPS * job.spec.batch_size / job.epochs[-1].report.data_size)


def probe_size(job: Job) -> tuple[float, float | None] | None:
    """(fraction of the data, seconds or None) of the next mini-epoch.

    The first is timed: it trains until the middle of the mini-epoch's bounds has passed, at most `fraction`; without
    it nothing could be said of how long an epoch may take, so it has its place in the shortest job too.
    The others train what the speed at the smallest allocation makes of those bounds, and no less than MIN_STEPS.
    None: the probes' share of the job is used up.
    """
    bounds, share, model = job.spec.mini_epoch, probe_share(job), job.speed
    if model is None:
        least = min(SMALLEST_PROBE, bounds.max_fraction)
        middle = (bounds.min_seconds + bounds.max_seconds) / 2
        # Several workers cannot each stop by a clock of their own: the smallest part says how fast they are.
        timed = job.minimum.workers == 1
        return (max(least, min(bounds.max_fraction, share)), middle) if timed else (least, None)
    return (min(share, _probe_fraction(job, model)), None) if share >= _smallest(job, model) else None


def evaluated(job: Job, kind: EpochKind) -> bool:
    """Whether the next epoch ends with an evaluation.

    Of a mini-epoch only the speed is wanted. The first of all is evaluated, to see how long that takes.
    """
    return kind is EpochKind.FULL or job.last_evaluated is None
