"""Probing a job's speed: which mini-epochs to run, how long each takes, and when to stop.

The thesis (section 4.1) runs mini-epochs of 20-40 s at four points. Here a probe is run only where its expected gain
exceeds its cost, and all probes together are bounded.
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
from coach.core.jobs.decision import DecisionStep, StepKind
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.lifecycle.forecast import (
    PRIOR_EPOCHS,
    Remaining,
    allocations,
    bound_by_money,
    epoch_budget,
    lowest_cost,
    predicted_cost,
    predicted_seconds,
    remaining,
    spending_plan,
)
from coach.core.money import to_amount
from coach.core.spec.resources import JobObjective

#: All probes together may train at most this share of the job's predicted epochs, and take this share of its seconds.
PROBE_SHARE = 0.10
#: A mini-epoch on less than this share of the data measures noise rather than speed.
SMALLEST_PROBE = 0.05
#: A new group trains at least this many steps, if the data has them: the first step says nothing about its speed.
MIN_STEPS = 2
#: Candidates for the next probe, in case the best of them does not fit now.
PROBES_AT_ONCE = 3
#: Gangs started for the first probe, of the smallest allocation, before the job goes on without it. Any other
#: allocation is left out after its first failure to start.
PROBE_TRIES = 2
#: A measurement may cost at most this share of the money to spare: a job with a fifth more money than it needs can
#: then pay for several.
SPARE_SHARE = 0.33
#: The shortest epoch that is computed with, seconds.
TINY_SECONDS = 1e-9


class Probe(NamedTuple):
    """An allocation to measure: what that is expected to save in the rest of the job, and what it costs, in `unit`."""

    at: Allocation
    saves: float = 0.0
    takes: float = 0.0
    unit: str = ""
    reason: str = ""

    def recorded(self, fraction: float | None) -> DecisionStep:
        """The probe on at most `fraction` of the data, as the journal keeps it; None: not on a part of it."""
        gain, cost = (self.saves, self.takes) if self.unit else (None, None)
        return DecisionStep(StepKind.PROBE, None, self.at, self.reason, gain, self.unit, cost, fraction=fraction)


def probes_left(job: Job, fits: Callable[[Allocation], bool], points: Iterable[Probe] | None = None) -> list[Probe]:
    """The candidates for the next probe, the best first: those of `points` (default: `to_measure`) that fit."""
    candidates = to_measure(job, remaining(job)) if points is None else points
    return list(islice((probe for probe in candidates if fits(probe.at)), PROBES_AT_ONCE))


def fixed_probes(job: Job, points: Iterable[Allocation], fits: Callable[[Allocation], bool]) -> list[Probe]:
    """Those of `points`, in their order, that the job's limits and the cluster allow and that were not tried yet."""
    tried = {*(epoch.allocation for epoch in job.epochs), *job.decision.missed}
    return [
        Probe(at, reason="one of the policy's mini-epochs")
        for at in points
        if at not in tried and at.within(job.minimum, job.maximum) and fits(at)
    ]


def fixed_probe_size(job: Job) -> tuple[float, float | None]:
    """(fraction of the data, seconds or None) of a fixed mini-epoch: the middle of its bounds, whatever it may save."""
    if job.speed is not None:
        return _probe_fraction(job, job.speed), None
    bounds = job.spec.mini_epoch
    middle = (bounds.min_seconds + bounds.max_seconds) / 2
    return bounds.max_fraction, middle if job.minimum.workers == 1 else None


def to_measure(job: Job, left: Remaining) -> Iterator[Probe]:
    """The smallest allocation, then those worth measuring (`worth_measuring`), the best first, on any cluster.

    The smallest is left out when it was measured and no fit resulted, or when its gang failed to start PROBE_TRIES
    times.
    """
    if job.speed is not None:
        yield from worth_measuring(job, left)
        return
    first = job.minimum
    measured = any(epoch.allocation == first for epoch in job.epochs)
    if not measured and job.decision.missed.count(first) < PROBE_TRIES:
        yield Probe(first)


def worth_measuring(job: Job, left: Remaining) -> Iterator[Probe]:
    """The allocations whose measurement is expected to save more than it costs, the largest gain first.

    Gain: the time saved in the rest of the job by the expected improvement over the fastest measured allocation, up to
    what the workers' computation allows (`SpeedModel.upper_bound`). It is money, compared with the cheapest measured
    allocation, where even that one costs more than the epoch budget, or where the job's objective is the lowest cost
    and it will end in time.

    Cost: two restarts, the overhead of an epoch whose group stays formed, and training at the probe's speed meanwhile.

    Candidates are allocations never measured, and those measured once, since that minute may have been a slow one. An
    epoch with a candidate may cost at most the epoch budget, or the cheapest measured epoch where that is more. One
    measurement may cost at most SPARE_SHARE of the money that the cheapest measured allocation would leave at the end.
    Where it would leave none, the job needs a cheaper allocation to reach its end, and the share is of all its money.
    """
    share, model = probe_share(job, left), job.speed
    if model is None or share < _smallest(job, model):
        return
    fraction = min(share, _probe_fraction(job, model))
    yield from worthwhile(job, left, model, fraction, 2 * job.times.restart + job.times.without_evaluation().expected)


def worthwhile(job: Job, left: Remaining, model: SpeedModel, fraction: float, overhead: float) -> Iterator[Probe]:
    """The candidates of `worth_measuring`: each trains `fraction` of the data and takes `overhead` seconds more."""
    model.precompute(allocations(job))
    counts = Counter(Allocation(point.workers, point.servers) for point in job.speed_points())
    measured = {at: count for at, count in counts.items() if at.within(job.minimum, job.maximum)}
    if not measured:
        return
    limits = _cost_limits(job, left, measured)
    payable = [at for at in measured if lowest_cost(job, at) <= limits.epoch]
    if not payable:
        return
    scale = _Scale(job, model, in_money=limits.short or _to_be_cheap(job, left, measured))
    best = min(payable, key=scale.epoch)
    worth = []
    for at, gain in _gains(job, model, measured, best, scale).items():
        # A gain is in ln speed, so it is a part of the time in training alone.
        saved, price = gain * left.epochs.expected * scale.rate(at) / scale.tie(at, best), overhead * scale.rate(at)
        if saved > price and at not in job.decision.missed:
            slower = fraction * max(0.0, scale.training(at) - scale.training(best))
            worth.append(Probe(at, saved, price + slower, scale.unit))
    worth.sort(key=lambda probe: (probe.saves - probe.takes, probe.at), reverse=True)
    for probe in worth:
        affordable = predicted_cost(job, probe.at, fraction) <= SPARE_SHARE * limits.spare
        if probe.saves > probe.takes and affordable and lowest_cost(job, probe.at) <= limits.epoch:
            yield probe


def _to_be_cheap(job: Job, left: Remaining, measured: Iterable[Allocation]) -> bool:
    """Whether the job's objective is the lowest cost, and the cheapest measured allocation ends in time.

    Or it trains the best model, and has no more money than for epochs.
    """
    spec = job.spec
    if spec.target is None:
        return bound_by_money(job)
    if spec.objective is not JobObjective.CHEAPEST:
        return False
    cheapest = min(measured, key=lambda at: predicted_cost(job, at))
    seconds = predicted_seconds(job, cheapest, 1.0)
    if spec.time_limit is None or seconds is None:
        return True
    epochs = conservative_value(left.epochs.expected, left.epochs.high)
    return epochs * seconds.expected <= spec.time_limit - job.progress.run_seconds


class _CostLimits(NamedTuple):
    """Currency units: of an epoch with a candidate, and to spare for all measurements; whether money is `short`."""

    epoch: float
    spare: float
    short: bool


def _cost_limits(job: Job, left: Remaining, measured: Iterable[Allocation]) -> _CostLimits:
    allowed = epoch_budget(job, left, spending_plan(job))
    if allowed is None:
        return _CostLimits(float("inf"), float("inf"), short=False)
    cheapest = min(predicted_cost(job, at) for at in measured)
    money = to_amount((job.money.available or 0) - job.money.ledger.reserved)
    # All the money of a job without a target is for epochs; what a measurement costs is compared with what it saves.
    spare = 0.0 if job.spec.target is None else money - left.epochs.expected * cheapest
    return _CostLimits(max(allowed, cheapest), spare if spare > 0 else money, short=allowed < cheapest)


@dataclass(frozen=True, slots=True)
class _Scale:
    """The scale on which allocations are compared: the seconds of an epoch, or its cost."""

    job: Job
    model: SpeedModel
    in_money: bool

    @property
    def unit(self) -> str:
        """The unit of the scale."""
        return self.job.price_book.currency if self.in_money else "s"

    def rate(self, at: Allocation) -> float:
        """One second on this scale: 1, or its cost."""
        held, book = self.job.spec.resources.total(at), self.job.price_book
        return second_cost(held, book, at.pods) if self.in_money else 1.0

    def training(self, at: Allocation) -> float:
        """Training on the whole data set."""
        return self.rate(at) / self.model.predict(*at)

    def epoch(self, at: Allocation) -> float:
        """A whole epoch, training and overhead."""
        return self._fixed(at) * self.rate(at) + self.training(at)

    def worth_having(self, at: Allocation, best: Allocation) -> float:
        """The speed, epochs/s, from which on `at` replaces `best`: additional pods must gain enough."""
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
    """The expected improvement, in ln speed, of each candidate over the speed at which it would replace the best."""

    def capped(
        improvement: Callable[[list[Allocation], list[float]], FloatArray], points: list[Allocation]
    ) -> Iterator[tuple[Allocation, float]]:
        thresholds = [scale.worth_having(at, best) for at in points]
        bounds = model.upper_bound(points)
        caps = [max(low, bound.expected) for low, bound in zip(thresholds, bounds, strict=True)]
        expected = improvement(points, thresholds) - improvement(points, caps)
        return zip(points, expected.tolist(), strict=True)

    gains: dict[Allocation, float] = {}
    if new := [at for at in allocations(job) if at not in measured]:
        gains |= capped(model.improvement, new)
    once = [at for at, count in measured.items() if count == 1 and at != best]
    return gains | dict(capped(model.improvement_again, once))


def probe_share(job: Job, left: Remaining) -> float:
    """Epochs that probes may still train, at the smallest allocation's speed.

    PROBE_SHARE of the predicted epochs, and of the predicted seconds of the whole job, minus those of earlier probes.
    A curve that has hardly begun to fall can predict any number of epochs. Epochs beyond the prior are counted only
    once they were trained.
    """
    probes = [epoch for epoch in job.epochs if epoch.kind is EpochKind.PROBE]
    trained = job.epochs_trained
    total = min(trained + left.epochs.expected, max(job.models.known_epochs or PRIOR_EPOCHS, trained))
    epochs = PROBE_SHARE * total - sum(epoch.fraction for epoch in probes)
    if job.speed is None:
        return epochs
    times, slowest = job.times, job.speed.predict(*job.minimum)
    # The epochs to come are evaluated; the overhead of a new group is no measure for theirs.
    overhead = times.kept.expected if times.kept else 0.0
    measured = {(point.workers, point.servers) for point in job.speed_points()}
    shortest = min(times.evaluation(at[0]).expected + 1.0 / job.speed.predict(*at) for at in {job.minimum, *measured})
    to_come = min(left.epochs.expected, max(0.0, total - job.epochs_trained))
    whole = job.progress.run_seconds + to_come * (overhead + shortest)
    probe_overhead = times.restart + times.without_evaluation().expected
    seconds = PROBE_SHARE * whole - sum(epoch.seconds for epoch in probes)
    return min(epochs, (seconds - probe_overhead) * slowest)


def _probe_fraction(job: Job, model: SpeedModel) -> float:
    """The fraction of the data that the smallest allocation trains in the middle of the mini-epoch's bounds."""
    bounds = job.spec.mini_epoch
    middle = (bounds.min_seconds + bounds.max_seconds) / 2
    return max(_min_fraction(job), min(bounds.max_fraction, middle * model.predict(*job.minimum)))


def _smallest(job: Job, model: SpeedModel) -> float:
    """The fraction of the data that must remain of the probes' share."""
    return max(_min_fraction(job), min(SMALLEST_PROBE, _probe_fraction(job, model)))


def _min_fraction(job: Job) -> float:
    """The smallest fraction of the data of any mini-epoch; 0 while the size of the data is unknown."""
    if not job.epochs:
        return 0.0
    return min(1.0, MIN_STEPS * job.spec.batch_size / job.epochs[-1].report.data_size)


def probe_size(job: Job, left: Remaining) -> tuple[float, float | None] | None:
    """(fraction of the data, seconds or None) of the next mini-epoch.

    The first is timed: it trains until the middle of the mini-epoch's bounds has passed, at most `fraction`. Without it
    no epoch's duration could be predicted, so even the shortest job has it. The others train what the smallest
    allocation trains within those bounds, and no less than MIN_STEPS. None: the probes' share of the job is used up.
    """
    bounds, share, model = job.spec.mini_epoch, probe_share(job, left), job.speed
    if model is None:
        smallest = min(SMALLEST_PROBE, bounds.max_fraction)
        middle = (bounds.min_seconds + bounds.max_seconds) / 2
        # Several workers cannot each stop by their own clock, so they train the smallest fraction.
        timed = job.minimum.workers == 1
        return (max(smallest, min(bounds.max_fraction, share)), middle) if timed else (smallest, None)
    return (min(share, _probe_fraction(job, model)), None) if share >= _smallest(job, model) else None


def evaluated(job: Job, kind: EpochKind) -> bool:
    """Whether the next epoch ends with an evaluation.

    A mini-epoch measures speed only. The job's first one is evaluated, to measure how long that takes.
    """
    return kind is EpochKind.FULL or job.last_evaluated is None
