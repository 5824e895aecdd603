"""The rules of one job's life, one table a rule: what to measure, how much, on what terms, and when to stop."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coach.core.cluster import Allocation
from coach.core.estimation.calibration import calibrated
from coach.core.estimation.convergence import TAIL, CurvePoint, fit_convergence
from coach.core.estimation.interval import Interval
from coach.core.estimation.observations import KnownSpeed
from coach.core.estimation.speed import SpeedPoint, fit_speed
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import Epoch, EpochKind, EpochReport
from coach.core.jobs.fitted_models import FittedCurve, FittedSpeed
from coach.core.jobs.fold import submitted
from coach.core.jobs.job import LEASE_SECONDS, Job, Phase, weight_of
from coach.core.jobs.overheads import PRIOR_FIXED_SECONDS
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle import forecast, probing, stopping_rules
from coach.core.lifecycle.start_forecast import _length
from coach.core.money import to_amount, to_money
from coach.report.models import curve_words
from tests.core.lifecycle.faulty_cluster import spec, usd

#: One job's prices that are easy to reckon with: a core-second costs 1, a gang of 1x1 holds 1.6 cores.
PRICES = {"name": "simple", "currency": "USD", "vcpuSecond": 1.0, "gibSecond": 0.0, "invocation": 0.0}


def job_of(more: dict[str, Any] | None = None, **changes: Any) -> Job:
    return submitted(ev.JobSubmitted(0.0, "job", spec(**changes), "file:///c", **(more or {})))


def add(
    job: Job,
    loss: float = 1.0,
    at: tuple[int, int] = (1, 1),
    kind: EpochKind = EpochKind.FULL,
    fraction: float = 1.0,
    seconds: float = 10.0,
    outside: float = 0.0,
    group: str = "g",
    accuracy: float | None = None,
    computing: float = 0.0,
) -> Job:
    number = len(job.epochs) + 1
    report = EpochReport(
        samples=round(fraction * 10_000),
        data_size=10_000,
        loss=loss,
        accuracy=accuracy,
        weights=f"w{number}",
        train_seconds=seconds - outside,
        evaluate_seconds=0.0,
        thread_seconds=computing,
    )
    ordinal = job.ordinal(number, kind)
    job.epochs_changed()
    job.epochs.append(
        Epoch(
            number=number,
            kind=kind,
            allocation=Allocation(*at),
            attempt=1,
            token=f"job.{number}",
            started_at=100.0 * number,
            ended_at=100.0 * number + seconds,
            epochs_trained=job.epochs_trained + fraction,
            group=group,
            report=report,
            ordinal=ordinal,
        )
    )
    return job


def know(job: Job, speed: float, *, noise: float = 0.0) -> Job:
    """With a speed model of `speed` epochs/s at the smallest allocation."""
    at = job.minimum
    return measured(job, SpeedPoint(*at, speed * math.exp(noise)), SpeedPoint(*at, speed))


def measured(job: Job, *points: SpeedPoint) -> Job:
    job.models.surface = FittedSpeed(fit_speed(points).to_dict())
    return job


def curved(job: Job, values: Sequence[float], times: int) -> Job:
    """With a curve through `values`, fitted so many times in a row after full epochs."""
    points = [CurvePoint(e.epochs_trained, value) for e, value in zip(job.epochs, values, strict=True)]
    job.models.curve = FittedCurve(fit_convergence(points, "loss").to_dict(), job.epochs_trained)
    job.models.full_epoch_curves = (job.models.curve,) * times
    return job


def points_left(job: Job, fits: Callable[[Allocation], bool]) -> list[Allocation]:
    return [probe.at for probe in probing.probes_left(job, fits)]


def probe_size(job: Job) -> tuple[float, float | None] | None:
    return probing.probe_size(job, forecast.remaining(job))


def epoch_budget(job: Job, allocation: Allocation | None = None) -> float | None:
    return forecast.epoch_budget(job, forecast.remaining(job), forecast.spending_plan(job), allocation)


def mini(job: Job, at: tuple[int, int], fraction: float = 0.4) -> Job:
    return add(job, at=at, kind=EpochKind.PROBE, fraction=fraction)


# -- which points to measure ------------------------------------------------------------------------------


@pytest.mark.parametrize(("least", "first"), [((1, 1), (1, 1)), ((2, 3), (2, 3))])
def test_the_first_probe_is_the_smallest_allocation(least: tuple[int, int], first: tuple[int, int]) -> None:
    workers, servers = ({"min": count, "max": 4} for count in least)
    assert points_left(job_of(workers=workers, servers=servers), lambda _: True) == [first]


def test_what_no_cluster_state_could_hold_or_never_came_is_not_measured() -> None:
    job = job_of()
    assert points_left(job, lambda at: False) == []
    job.decision.missed = (Allocation(1, 1),)
    assert points_left(job, lambda _: True) == [(1, 1)]
    job.decision.missed = (Allocation(1, 1),) * probing.PROBE_TRIES
    assert points_left(job, lambda _: True) == []


def test_a_speed_weighs_by_the_seconds_it_was_measured_for_without_the_warm_up() -> None:
    job = add(job_of(), fraction=0.5, seconds=6.0)
    short = replace(job.epochs[0].report, warm_up_samples=2_500, warm_up_seconds=5.0)
    job.epochs[0] = replace(job.epochs[0], report=short)
    (point,) = job.speed_points()
    assert (point.epochs_per_second, point.weight) == pytest.approx((0.25, weight_of(1.0)))
    job.epochs[0] = replace(job.epochs[0], report=replace(short, warm_up_samples=5_000, warm_up_seconds=6.0))
    (point,) = job.speed_points()
    assert (point.epochs_per_second, point.weight) == pytest.approx((0.5 / 6, weight_of(6.0))), "all is warm-up"


def test_how_much_of_their_time_earlier_jobs_computed_says_what_more_servers_can_bring() -> None:
    def with_two_servers(computing_part: float) -> float:
        known = tuple(KnownSpeed(*at, computing_part) for at in ((1, 1, 0.24), (2, 2, 0.6)))
        return fit_speed(job_of({"known_points": known}).speed_points()).predict(1, 2)

    assert with_two_servers(0.95) <= 0.24 / 0.95 < with_two_servers(0.0)


def test_what_earlier_jobs_measured_is_not_measured_again() -> None:
    known = ((1, 1, 0.05), (2, 2, 0.09), (2, 1, 0.089), (9, 9, 1.0))
    job = job_of({"known_points": tuple(KnownSpeed(*point) for point in known)}, **SMALL)
    found = points_left(measured(job, *job.speed_points()), lambda _: True)
    assert not {(1, 1), (2, 2)} & set(found)


#: (w,s) and epochs/s of the first probes; that of 2x1 fell into a slow minute.
PROBES = (((1, 1), 0.05), ((1, 2), 0.05), ((2, 1), 0.02), ((2, 2), 0.09))
SMALL = {"workers": {"min": 1, "max": 2}, "servers": {"min": 1, "max": 2}}


def trained_job(*epochs: tuple[tuple[int, int], float], probes: Any = PROBES, more: Any = None, **changes: Any) -> Job:
    """A job of limits 2x2 after its four first probes and whole `epochs`, with the speeds fitted to them."""
    job = job_of(more, **{**SMALL, **changes})
    for at, speed in probes:
        seconds, group = 0.2 / speed + 0.3, f"probe-{at}"
        add(job, at=at, kind=EpochKind.PROBE, fraction=0.2, seconds=seconds, outside=0.3, group=group)
    for at, speed in epochs:
        add(job, at=at, seconds=1.0 / speed)
    return measured(job, *job.speed_points())


def test_a_point_that_one_slow_minute_made_look_bad_is_measured_again() -> None:
    assert points_left(trained_job(), lambda _: True)[0] == (2, 1)


def _with_all_probing_done() -> Job:
    return add(trained_job(), kind=EpochKind.PROBE, fraction=1.2, seconds=1.2 / 0.08)


def _never_came() -> Job:
    job = trained_job()
    job.decision.missed = (Allocation(2, 1),)
    return job


@pytest.mark.parametrize(
    ("job", "fits"),
    [
        pytest.param(trained_job(((2, 1), 0.02)), (2, 1), id="it was measured twice"),
        pytest.param(trained_job(probes=[*PROBES[:2], ((2, 1), 0.085), PROBES[3]]), (2, 1), id="it looks as it should"),
        pytest.param(trained_job(), (9, 9), id="the cluster cannot hold it"),
        pytest.param(_with_all_probing_done(), (2, 1), id="probes trained their tenth"),
        pytest.param(trained_job(maxEpochs=1), (2, 1), id="too few epochs are left to gain from it"),
        pytest.param(_never_came(), (2, 1), id="its gang never came"),
        pytest.param(
            trained_job(more={"known_points": (KnownSpeed(9, 9, 0.02),)}),
            (9, 9),
            id="beyond the job's limits",
        ),
        pytest.param(trained_job(budget=usd(25 * 20.0), prices=PRICES), (2, 1), id="beyond the epoch budget"),
    ],
)
def test_what_cannot_pay_for_itself_is_not_measured_again(job: Job, fits: tuple[int, int]) -> None:
    assert points_left(job, lambda at: at == fits) == []


def test_probes_have_no_share_in_epochs_that_only_a_curve_promises() -> None:
    job = add(job_of(**SMALL), loss=2.0, kind=EpochKind.PROBE, fraction=1.5, seconds=30.0)
    for epoch in range(22):
        add(job, loss=2.0 * 0.995**epoch, seconds=20.0)
    job = curved(measured(job, *job.speed_points()), [epoch.report.loss or 0.0 for epoch in job.epochs], 3)
    job.progress.run_seconds = 20.0 * job.epochs_trained
    assert forecast.remaining(job).epochs.expected > 500.0
    assert probing.probe_share(job, forecast.remaining(job)) == pytest.approx(0.1 * 23.5 - 1.5)


def test_of_a_wider_grid_what_may_well_be_fastest_is_measured_after_the_corners() -> None:
    job = job_of(workers={"min": 1, "max": 4}, servers={"min": 1, "max": 4})
    speed = {(1, 1): 0.05, (1, 2): 0.052, (2, 1): 0.09, (2, 2): 0.1, (4, 4): 0.16}
    for at, v in speed.items():
        add(job, at=at, kind=EpochKind.PROBE, fraction=0.1, seconds=0.1 / v)
    found = points_left(measured(job, *job.speed_points()), lambda _: True)
    assert 1 <= len(found) <= probing.PROBES_AT_ONCE
    for more in found:
        assert more not in speed
        assert more.workers >= 3, "few workers were slow"


def test_after_the_first_probe_only_what_may_pay_for_itself_is_measured() -> None:
    one = [((1, 1), 0.05)]
    assert points_left(trained_job(probes=one), lambda _: True)[0] == (2, 2), "it may be fastest by most"
    assert points_left(trained_job(probes=one, maxEpochs=1), lambda _: True) == []
    helps = [*one, ((2, 2), 0.09), ((2, 1), 0.089)]
    assert points_left(trained_job(probes=helps), lambda _: True) == [], "1x2 has one worker too few"


def computing_job(computing: float, *probes: tuple[tuple[int, int], float]) -> Job:
    """A job whose first worker computed such a part of each of its probes, with the speeds fitted to them."""
    job = job_of(**SMALL)
    for at, speed in probes:
        seconds = 0.2 / speed
        add(job, at=at, kind=EpochKind.PROBE, fraction=0.2, seconds=seconds, computing=computing * seconds)
    return measured(job, *job.speed_points())


@pytest.mark.parametrize(
    ("computing", "measured_next"),
    [
        pytest.param(0.0, [(2, 1), (1, 2)], id="not known"),
        pytest.param(0.2, [(2, 1), (1, 2)], id="it waits most of the time"),
        pytest.param(0.5, [(2, 1)], id="it waits half of the time: another server cannot bring what two of each do"),
        pytest.param(1.0, [], id="it never waits: another server cannot help, nor can one less"),
    ],
)
def test_what_a_worker_computes_no_server_takes_from_it(computing: float, measured_next: list[tuple[int, int]]) -> None:
    found = points_left(computing_job(computing, ((1, 1), 0.05), ((2, 2), 0.08)), lambda _: True)
    assert sorted(found) == sorted(measured_next)


def test_for_a_worker_that_computes_all_the_time_only_more_workers_are_measured() -> None:
    wait, compute = (points_left(computing_job(of, ((1, 1), 0.05)), lambda _: True) for of in (0.5, 1.0))
    assert sorted(wait) == [(1, 2), (2, 1), (2, 2)]
    assert sorted(compute) == [(2, 1), (2, 2)]


def test_what_cannot_be_worth_its_pods_is_not_measured() -> None:
    # Its second server can bring 2.0 %, or 5.3 %; 2.5 % it has to bring.
    little, more = (points_left(computing_job(of, ((1, 1), 0.05)), lambda _: True) for of in (0.96, 0.9))
    assert (1, 2) not in little
    assert (1, 2) in more


def test_a_server_that_was_slow_once_is_not_asked_again_for_more_than_it_can_bring() -> None:
    def again(computing: float) -> list[tuple[int, int]]:
        return points_left(computing_job(computing, ((1, 1), 0.05), ((1, 2), 0.02), ((2, 2), 0.06)), lambda _: True)

    assert (1, 2) in again(0.0)
    assert (1, 2) not in again(0.9)


def test_with_little_money_what_may_be_cheaper_is_measured() -> None:
    tight = {"budget": usd(20 * 32.0 * 1.5), "prices": PRICES}  # an epoch at 1x1 costs 32
    assert points_left(trained_job(probes=[((1, 1), 0.05)], **tight), lambda _: True)
    dear = [((1, 1), 0.05), ((1, 2), 0.0501), ((2, 2), 0.07)]
    assert points_left(trained_job(probes=dear, **tight), lambda _: True) == [(2, 1)], "as fast, and cheaper"
    tight["budget"] = usd(20 * 32.0 * 1.02)
    assert epoch_budget(trained_job(probes=[((1, 1), 0.05)], **tight)) is not None
    assert points_left(trained_job(probes=[((1, 1), 0.05)], **tight), lambda _: True) == [], "too dear"
    tight["budget"] = usd(20 * 32.0 * 0.9)
    assert points_left(trained_job(probes=[((1, 1), 0.05)], **tight), lambda _: True), (
        "only something cheaper can come to the end"
    )


def test_a_job_that_is_to_be_cheap_measures_what_may_cost_less() -> None:
    soonest, cheapest = (
        probing.probes_left(trained_job(probes=[((1, 1), 0.05)], objective=objective, prices=PRICES), lambda _: True)
        for objective in ("soonest", "cheapest")
    )
    assert soonest and {probe.unit for probe in soonest} == {"s"}
    assert {probe.unit for probe in cheapest} <= {"USD"}
    assert all(probe.saves > probe.takes for probe in [*soonest, *cheapest])
    step = probing.Probe(Allocation(2, 1), 1234.5, 1.2345, "s").recorded(0.05)
    assert step.text("a") == "probe 2x1: expected to save 1,234 s, takes 1.23 s; at most 5.0% of the data"
    late = trained_job(probes=[((1, 1), 0.05)], objective="cheapest", prices=PRICES, timeLimit=120)
    assert {probe.unit for probe in probing.probes_left(late, lambda _: True)} == {"s"}, "it has to hurry"


# -- how large a mini-epoch is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, (0.4, 30.0)),  # 20 to 40 s, at most 40 % of an epoch
        ({"minSeconds": 2, "maxSeconds": 4}, (0.4, 3.0)),
        ({"maxFraction": 0.1}, (0.1, 30.0)),
        ({"maxFraction": 1.0}, (1.0, 30.0)),
    ],
)
def test_the_first_probe_is_timed_within_the_specs_bounds(
    bounds: dict[str, float], expected: tuple[float, float]
) -> None:
    assert probe_size(job_of(miniEpoch=bounds)) == pytest.approx(expected)


def test_where_a_gang_has_several_workers_from_the_start_the_first_probe_is_the_smallest_part() -> None:
    job = job_of(workers={"min": 2, "max": 4})
    assert probe_size(job) == (probing.SMALLEST_PROBE, None)
    know(job, 0.001)
    assert probe_size(job) == (pytest.approx(0.03), None)


@given(
    epoch_seconds=st.floats(10.0, 1e6),
    low=st.floats(0.1, 100),
    width=st.floats(1.01, 10),
    most=st.floats(0.01, 1.0),
)
def test_later_probes_take_the_bounds_middle_at_the_smallest_allocation_and_no_more_than_allowed(
    epoch_seconds: float, low: float, width: float, most: float
) -> None:
    bounds = {"minSeconds": low, "maxSeconds": low * width, "maxFraction": most}
    job = know(job_of(miniEpoch=bounds), 1 / epoch_seconds)
    size = probe_size(job)
    assert size is not None, "at the start there is room for every probe"
    fraction, timed = size
    assert timed is None and 0 < fraction <= most
    assert fraction * epoch_seconds <= low * width * 1.000001
    if fraction < most * 0.999999:
        assert fraction * epoch_seconds >= low * 0.999999


@pytest.mark.parametrize(
    ("known_epochs", "max_epochs", "done", "expected"),
    [
        (None, None, [], 0.4),  # 20 epochs are the guess: 2.0 in all
        (None, None, [0.4, 0.4, 0.4, 0.4], 0.4),
        (None, None, [0.5, 0.5, 0.5, 0.4], 0.1),
        (None, None, [0.5, 0.5, 0.5, 0.5], None),  # all is used up
        (10.0, None, [], 0.4),
        (100.0, None, [], 0.4),
        (None, 10, [0.2, 0.2, 0.2, 0.2], 0.2),
        (None, 1, [], 0.1),
        (3.0, None, [0.3], None),
    ],
)
def test_all_probes_together_train_at_most_a_tenth_of_the_predicted_job(
    known_epochs: float | None, max_epochs: int | None, done: list[float], expected: float | None
) -> None:
    changes = {} if max_epochs is None else {"maxEpochs": max_epochs}
    job = job_of({"known_epochs": known_epochs}, **changes)
    for fraction in done:
        mini(job, (1, 1), fraction)
    know(job, 0.001)
    size = probe_size(job)
    # At 1000 s an epoch 0.03 of it takes 30 s.
    assert size == (None if expected is None else (pytest.approx(min(expected, 0.03)), None))
    job.models.surface = None
    size = probe_size(job)
    assert size == (pytest.approx(max(expected or 0.0, probing.SMALLEST_PROBE)), 30.0), "the first there must be"


def test_a_probe_of_a_huge_data_set_may_be_a_small_part_of_it() -> None:
    """20 to 40 s of an epoch of a day: less than 2 % of the data, and yet enough to measure a speed."""
    job = know(job_of(), 1 / 86_400)
    assert probe_size(job) == (pytest.approx(30 / 86_400), None)


@pytest.mark.parametrize(("trained", "expected"), [(1.55, 0.4), (1.65, None)])
def test_a_probe_is_no_less_than_two_steps_and_has_room_for_them_or_is_left_out(
    trained: float, expected: float | None
) -> None:
    """Of 10,000 samples in batches of 2,000 two steps are 0.4: they do not fit into 0.35 of an epoch."""
    job = know(mini(job_of(batchSize=2000), (1, 1), trained), 0.001)
    size = probe_size(job)
    assert size == (None if expected is None else (pytest.approx(expected), None))
    assert bool(points_left(job, lambda _: True)) is (expected is not None)


# -- on what terms an epoch starts ------------------------------------------------------------------------


def test_an_epoch_of_known_speed_may_take_thrice_its_upper_bound_and_ten_seconds() -> None:
    job = add(know(job_of(), 0.1))
    terms = forecast.terms(job, job.minimum, 1.0, None)
    assert terms is not None and terms.predicted is not None
    assert terms.deadline == pytest.approx(3 * terms.predicted.high + 10)
    assert not terms.budget_bound


def test_an_attempt_after_a_failure_has_twice_as_long() -> None:
    job = measured(mini(job_of(), (1, 1)), SpeedPoint(1, 1, 0.05))
    usual = forecast.terms(job, Allocation(1, 1), 1.0, None)
    job.attempts.failures = 2
    later = forecast.terms(job, Allocation(1, 1), 1.0, None)
    assert usual is not None and later is not None and later.deadline == pytest.approx(4 * usual.deadline)


def test_the_first_epoch_of_all_may_also_fetch_data_and_load_the_model() -> None:
    job = know(job_of(), 0.1)
    first, later = (forecast.terms(j, j.minimum, 1.0, None) for j in (job, add(know(job_of(), 0.1))))
    assert first is not None and later is not None
    assert first.deadline - later.deadline > forecast.FIRST_SECONDS * 0.9


@given(
    budget=st.floats(1e-3, 1e9),
    spent=st.floats(0.0, 1.0),
    rate=st.floats(0.0, 100.0),
    call=st.floats(0.0, 1.0),
    seconds=st.floats(0.1, 1e5),
    workers=st.integers(1, 3),
    timed=st.sampled_from([None, 5.0]),
    known=st.booleans(),
)
@example(budget=1.0, spent=1.0, rate=0.0, call=0.0, seconds=1.0, workers=1, timed=None, known=False)
def test_what_is_reserved_pays_for_all_that_may_happen_until_the_lease_ends(
    budget: float,
    spent: float,
    rate: float,
    call: float,
    seconds: float,
    workers: int,
    timed: float | None,
    known: bool,
) -> None:
    prices = {"name": "p", "currency": "USD", "vcpuSecond": rate, "gibSecond": rate, "invocation": call}
    job = job_of(budget=usd(budget), prices=prices)
    job.money.ledger.spent = round(to_money(budget) * spent)
    if known:
        know(job, 1 / seconds)
    at = Allocation(workers, 1)
    terms = forecast.terms(job, at, 1.0, timed if workers == 1 else None)
    if terms is None:
        return
    assert job.money.ledger.budget is not None
    assert job.money.ledger.spent + terms.reservation <= job.money.ledger.budget, "no overshoot, by construction"
    assert terms.deadline > 0
    pods = workers + 2
    calls = int(pods * (forecast.CALLS_TO_START + forecast.CALLS_PER_SECOND * terms.deadline))
    held = job.spec.resources.total(at)
    most = job.spec.price_book.cost(held, terms.deadline + LEASE_SECONDS, calls)
    assert most <= terms.reservation
    if terms.predicted is not None:
        assert terms.deadline >= terms.predicted.high, "it is not started to be killed"
    job.money.ledger.reserve(terms.reservation)


@pytest.mark.parametrize(
    ("seconds_paid", "covered", "bound"),
    [
        # 10 s are predicted, 10.3 s at most with the interval: with START_SECONDS and the lease's end some 12 s.
        (5.0, False, False),
        (11.0, False, False),
        (14.0, True, True),
        (35.0, True, True),
        (1000.0, True, False),
    ],
)
def test_an_epoch_is_covered_where_its_upper_bound_is_paid_and_bound_where_its_whole_deadline_is_not(
    seconds_paid: float, covered: bool, bound: bool
) -> None:
    job = add(know(job_of(budget=usd(1.6 * seconds_paid), prices=PRICES), 0.1))
    terms = forecast.terms(job, job.minimum, 1.0, None)
    assert (terms is not None) == covered == forecast.affordable(job, job.minimum)
    if terms is not None:
        assert terms.budget_bound == bound
        if bound:
            assert terms.deadline == pytest.approx(seconds_paid - LEASE_SECONDS, abs=0.01)


def test_without_prices_no_budget_binds() -> None:
    free = {**PRICES, "vcpuSecond": 0.0}
    terms = forecast.terms(job_of(budget=usd(1.0), prices=free), Allocation(1, 1), 1.0, None)
    assert terms is not None and not terms.budget_bound and terms.deadline > 100


@pytest.mark.parametrize("formed", [False, True])
def test_what_is_said_to_be_needed_is_what_an_epoch_is_refused_below(formed: bool) -> None:
    job = add(know(job_of(budget=usd(10_000.0), prices=PRICES), 0.1))
    job.gang.group = "g" if formed else ""
    _, cost = forecast.minimum_reservation(job, job.minimum)
    assert job.money.ledger.budget is not None
    job.money.ledger.spent = job.money.ledger.budget - cost - to_money(0.01)
    assert forecast.terms(job, job.minimum, 1.0, None) is not None
    job.money.ledger.spent = job.money.ledger.budget - cost + to_money(0.01)
    assert forecast.terms(job, job.minimum, 1.0, None) is None


@pytest.mark.parametrize(("failures", "deadline"), [(0, 21_900.0), (1, 86_700.0), (2, 345_900.0)])
def test_a_whole_epoch_of_unknown_speed_may_take_long_and_longer_each_time(failures: int, deadline: float) -> None:
    job = job_of()
    job.attempts.failures = failures
    terms = forecast.terms(job, Allocation(2, 2), 1.0, None)
    assert terms is not None and terms.deadline == deadline and terms.predicted is None
    part = forecast.terms(job, Allocation(2, 2), 0.05, None)
    assert part is not None and part.deadline == pytest.approx(300 + (deadline - 300) * 0.05)


def test_a_timed_probe_may_take_thrice_its_time_and_what_the_first_epoch_fetches() -> None:
    terms = forecast.terms(job_of(), Allocation(1, 1), 0.4, 30.0)
    assert terms is not None and terms.deadline == 390.0


def test_a_time_limit_shortens_the_deadline_but_not_below_what_is_predicted() -> None:
    job = add(know(job_of(timeLimit="100s"), 0.1))
    job.progress.run_seconds = 80.0
    terms = forecast.terms(job, job.minimum, 1.0, None)
    assert terms is not None and terms.deadline == pytest.approx(20.0)
    job.progress.run_seconds = 99.0
    terms = forecast.terms(job, job.minimum, 1.0, None)
    assert terms is not None and terms.predicted is not None
    assert terms.deadline == pytest.approx(terms.predicted.high + forecast.START_SECONDS)


def test_other_allocations_than_the_smallest_can_be_cheaper_and_wide_limits_are_looked_at_in_part() -> None:
    job = add(job_of(budget=usd(1.0), prices=PRICES))
    # Twice the workers are three times as fast: the smallest may need 36 for an epoch, two workers 24.
    measured(job, *[SpeedPoint(1, 1, 0.05)] * 3, *[SpeedPoint(2, 1, 0.15)] * 3)
    job.money.ledger.budget = to_money(25.0)
    assert not forecast.affordable(job, job.minimum)
    assert Allocation(2, 1) in forecast.others_affordable(job)
    wide = job_of(workers={"min": 1, "max": 1024}, servers={"min": 1, "max": 1024}, batchSize=4096)
    others = forecast.others_affordable(know(add(wide), 0.1))
    assert Allocation(1024, 1024) in others and Allocation(2, 1) in others and len(others) < 1500


# -- predictions ------------------------------------------------------------------------------------------


def test_a_new_job_is_taken_to_need_twenty_epochs_or_as_many_as_its_like() -> None:
    assert forecast.remaining(job_of()).epochs.expected == 20
    assert forecast.remaining(job_of({"known_epochs": 12.5})).epochs.expected == 12.5
    assert forecast.remaining(job_of({"known_epochs": 12.5}, maxEpochs=8)).epochs.expected == 8


@pytest.mark.parametrize(
    ("streak", "limit", "done", "low"),
    [(0, None, 0, 3), (1, None, 1, 2), (2, None, 4, 1), (0, 2, 0, 2), (0, 5, 4, 1)],
)
def test_what_remains_is_at_least_what_the_stop_rule_still_asks_and_at_most_the_epoch_limit(
    streak: int, limit: int | None, done: int, low: float
) -> None:
    job = job_of(**({} if limit is None else {"maxEpochs": limit}))
    for number in range(done):
        add(job, loss=0.1 if number >= done - streak else 2.0)
    remaining = forecast.remaining(job).epochs
    assert remaining.low == low
    assert remaining.high <= (limit or math.inf)


def test_the_epoch_budget_is_an_even_share_of_what_is_left() -> None:
    job = job_of(budget=usd(10.0), maxEpochs=10)
    job.money.ledger.spent = to_money(4.0)
    assert epoch_budget(job) == pytest.approx(0.6)
    assert epoch_budget(job_of()) is None


@pytest.mark.parametrize("times", [0.9, 1.5, 2.5, 3.5, 5.0])
def test_the_epoch_budget_leaves_enough_for_the_epochs_that_may_remain(times: float) -> None:
    budget = {"budget": usd(20 * 32.0 * times), "prices": PRICES}  # an epoch at 1x1 costs 32
    job = trained_job(probes=[((1, 1), 0.05), ((1, 2), 0.0501), ((2, 2), 0.07)], **budget)
    left, plan = to_amount(job.money.ledger.left or 0), forecast.spending_plan(job)
    cheapest = min(forecast.predicted_cost(job, point) for point in forecast.allocations(job))
    allowed = epoch_budget(job)
    assert allowed is not None and plan is not None
    assert (allowed < cheapest) == (plan.spare <= 0.0) == (times < 2.0), "for the cheapest alone, or enough to choose"
    if plan.spare > 0.0:
        assert left - allowed >= (plan.provided - 1) * cheapest


@pytest.mark.parametrize(("times", "speed", "within"), [(1.2, 0.08, True), (1.2, 0.076, False), (0.9, 0.08, False)])
def test_what_costs_as_much_as_the_cheapest_may_be_taken_while_the_expected_epochs_are_paid(
    times: float, speed: float, within: bool
) -> None:
    budget = {"budget": usd(20 * 32.0 * times), "prices": PRICES}
    job = trained_job(probes=[((1, 1), 0.05), ((2, 1), speed)], **budget)
    cost, each = forecast.predicted_cost(job, Allocation(2, 1)), forecast.cheapest_epoch(job)
    allowed, strictly = epoch_budget(job, Allocation(2, 1)), epoch_budget(job)
    assert allowed is not None and strictly is not None
    assert strictly < each
    assert (cost <= allowed) == within, (cost / each, allowed / each)


def test_a_young_curve_is_not_believed_when_money_is_kept_for_the_rest() -> None:
    def after(epochs: int) -> tuple[float, float]:
        job = job_of()
        losses = [1 / (0.12 * x + 0.5) + 0.05 for x in range(1, epochs + 1)]
        for loss in losses:
            add(job, loss=loss)
        remaining = forecast.remaining(curved(job, losses, 1))
        return remaining.provided, math.sqrt(remaining.epochs.expected * remaining.epochs.high)

    young, of_curve = after(4)
    assert young == pytest.approx(3 * (20 - 4)) and young > of_curve
    old, of_curve = after(18)
    assert old == pytest.approx(of_curve) and old > 3 * (20 - 18)


@pytest.mark.parametrize(("limit", "provided"), [(None, 4), (19, 1)])
def test_the_last_epoch_of_a_row_may_miss_and_the_row_begin_anew(limit: int | None, provided: float) -> None:
    known = {} if limit is None else {"maxEpochs": limit}
    job = job_of({"known_epochs": 18.0}, **known)
    for number in range(18):
        add(job, loss=0.1 if number >= 16 else 2.0)
    assert (job.consecutive_hits, forecast.remaining(job).epochs.low) == (2, 1)
    assert forecast.remaining(job).provided == provided


def test_known_epochs_are_provided_for_with_half_as_many_again_and_not_three_times() -> None:
    known, unknown = job_of({"known_epochs": 18.0}), job_of()
    assert forecast.remaining(known).epochs == Interval(12.0, 18.0, 27.0)
    assert forecast.remaining(known).provided == 27.0
    assert forecast.remaining(unknown).provided == 60.0


def test_who_knows_the_epochs_keeps_less_money_for_them_while_the_curve_is_young() -> None:
    budget = {"budget": usd(20 * 32.0 * 2.5), "prices": PRICES}
    plans = []
    for known in (None, 20.0):
        job = trained_job(probes=[((1, 1), 0.05), ((2, 1), 0.08)], **budget)
        job.models.known_epochs = known
        losses = [1 / (0.05 * x + 0.5) + 0.05 for x in range(1, 7)]
        for loss in losses[2:]:  # after two probes
            add(job, loss=loss)
        curved(job, losses, 1)
        plans.append(forecast.spending_plan(job))
    guessed, known_plan = plans
    assert guessed is not None and known_plan is not None
    assert known_plan.provided < guessed.provided and known_plan.spare > guessed.spare


def falling_job(**changes: Any) -> Job:
    """A job after six epochs of a curve that falls towards 0.05."""
    job = know(job_of(**changes), 0.1)
    losses = [1 / (0.5 * x + 0.5) + 0.05 for x in range(1, 7)]
    for loss in losses:
        add(job, loss=loss)
    return curved(job, losses, 1)


def test_the_whole_job_is_predicted_to_take_what_is_over_and_what_is_left() -> None:
    job = falling_job(budget=usd(1e6), prices=PRICES, target={"loss": 0.2})
    job.progress.run_seconds, job.money.ledger.spent = 1000.0, to_money(500.0)
    left, whole = forecast.remaining(job), forecast.whole_job(job)
    epochs, seconds = forecast.remaining(job).epochs, forecast.predicted_seconds(job, job.minimum, 1.0)
    assert left.seconds is not None and left.cost is not None and whole is not None and seconds is not None
    each = forecast.predicted_cost(job, job.minimum)
    assert left.seconds.expected == pytest.approx(epochs.expected * seconds.expected)
    assert left.cost.expected == pytest.approx(epochs.expected * each)
    assert left.seconds.high > epochs.high * seconds.expected, "both doubts count"
    assert whole.seconds == tuple(1000.0 + x for x in (left.seconds.low, left.seconds.expected, left.seconds.high))
    assert whole.cost == tuple(500.0 + x for x in (left.cost.low, left.cost.expected, left.cost.high))


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.PAUSED])
@pytest.mark.parametrize("known", [None, 12.0])
def test_a_start_a_plan_and_an_account_read_the_same_rest(phase: Phase, known: float | None) -> None:
    job = know(job_of({"known_epochs": known}, budget=usd(1e6), prices=PRICES, target={"loss": 0.2}), 0.1)
    job.phase = phase
    left, planned = forecast.remaining(job), forecast.remaining(job, job.minimum)
    assert left == planned and left.known == (known is not None)
    assert _length(job, 0.0) == left.seconds is not None, "it is assumed where nothing is known"
    assert left.bounded == ((left.seconds, left.cost) if known else None), "and then nothing is told or added up"


def test_the_money_rule_reads_the_calibrated_numbers_that_people_are_told() -> None:
    job = falling_job(budget=usd(1e6), prices=PRICES, target={"loss": 0.2})
    last = job.last_x()
    assert last is not None
    own, shown = last + -6.0, forecast.remaining(job).epochs
    assert shown.high > own.high
    assert list(shown) == pytest.approx(list(calibrated(own, 6)))
    assert forecast.remaining(job).last == shown + 6.0
    remain = forecast.chances_to_remain(job, job.models.curve)
    assert remain[math.floor(shown.high)] == pytest.approx(TAIL, abs=0.03), "the same bound in the plan of its money"


def test_a_job_that_takes_the_fewest_epochs_possible_is_inside_whatever_its_seconds_do_within_their_bounds() -> None:
    """Of a job that is nearly done, a third take the fewest; of these half took less than the lower bound."""
    job = falling_job(budget=usd(1e6), prices=PRICES, target={"loss": 0.3, "epochsInARow": 3})
    left, epochs, seconds = (
        forecast.remaining(job),
        forecast.remaining(job).epochs,
        forecast.predicted_seconds(job, job.minimum, 1.0),
    )
    assert left.seconds is not None and seconds is not None
    assert epochs.low == 3.0 < epochs.expected
    assert left.seconds.low == pytest.approx(3.0 * seconds.low)


@pytest.mark.parametrize(("epochs", "shown"), [(1, False), (2, False), (3, True)])
def test_before_the_third_epoch_it_is_too_early_to_tell(epochs: int, shown: bool) -> None:
    job = know(job_of(target={"loss": 0.2}), 0.1)
    losses = [1 / (0.5 * x + 0.5) + 0.05 for x in range(1, epochs + 1)]
    for loss in losses:
        add(job, loss=loss)
    job = curved(job, losses, 1)
    assert (forecast.whole_job(job) is not None) == (forecast.time_left(job, 0.0) is not None) == shown
    assert forecast.whole_job(replace(job, models=replace(job.models, known_epochs=12.0))) is not None, (
        "earlier jobs tell it"
    )


def test_a_target_without_a_chance_has_no_time_either() -> None:
    """Else one line would say that it is out of reach, and the next one when it is reached."""
    job = know(flat(20, 3, target={"loss": 0.7, "epochsInARow": 1}), 0.1)
    assert job.hopeless == 3 and job.last_x() is not None
    assert not forecast.remaining(job).known and "sees no way" in curve_words(job)


def test_a_program_without_a_target_is_not_taken_to_use_up_its_budget() -> None:
    document = spec(target=None, budget=usd(1.0))
    document["spec"] = {"program": {"command": ["train"]}, "budget": usd(1.0)}
    job = submitted(ev.JobSubmitted(0.0, "job", document, "file:///c"))
    for number in range(1, 6):
        add(job, loss=1.0 / number)
    know(job, 0.1)
    assert (
        not forecast.remaining(job).known and forecast.time_left(job, 1.0) is None and forecast.whole_job(job) is None
    )


def test_nothing_is_predicted_of_the_whole_job_without_its_curve_or_its_speed() -> None:
    job = falling_job(target={"loss": 0.2})
    assert forecast.whole_job(replace(job, models=replace(job.models, surface=None))) is None
    assert forecast.whole_job(replace(job, models=replace(job.models, curve=None))) is None
    assert forecast.whole_job(falling_job(target={"loss": 1e-9})) is None, "it levels off above its target"


def test_a_job_without_a_target_is_predicted_to_spend_no_more_than_its_budget() -> None:
    document = spec(budget=usd(2000.0), prices=PRICES, objective="best-loss")
    del document["spec"]["target"]
    job = know(submitted(ev.JobSubmitted(0.0, "job", document, "file:///c")), 0.1)
    job.money.ledger.spent = to_money(500.0)
    job.decision.desired = job.maximum
    whole = forecast.whole_job(job)
    assert whole is not None
    assert 500.0 < whole.cost[0] < whole.cost[1] <= whole.cost[2] <= 2000.0


def test_what_costs_nothing_is_predicted_to_cost_nothing_however_long_it_takes() -> None:
    whole = forecast.whole_job(falling_job(target={"loss": 0.2}, prices={**PRICES, "vcpuSecond": 0.0}))
    assert whole is not None and whole.seconds[1] > 0.0
    assert whole.cost == (0.0, 0.0, 0.0)


def test_fixed_and_restart_seconds_are_as_epochs_with_and_without_a_new_group_showed() -> None:
    job = job_of()
    assert job.times.fixed(1) == PRIOR_FIXED_SECONDS
    assert job.times.restart == 0.5
    for group, outside in (("a", 3.0), ("a", 1.0), ("a", 1.2), ("b", 2.0), ("b", 1.0), ("c", 4.0)):
        add(job, group=group, outside=outside)
    kept, fresh = job.times.fixed(1), job.times.fixed(1, formed=False)
    assert (kept.low, kept.expected, kept.high) == pytest.approx((1.0, 1.0, 1.2))
    assert (fresh.low, fresh.expected, fresh.high) == pytest.approx((2.0, 3.0, 4.0))
    assert job.times.restart == pytest.approx(3.0 - 1.0)


def test_what_a_change_costs_is_known_from_the_first_start() -> None:
    job = add(job_of(), outside=1.5)
    job.epochs[0].report = replace(job.epochs[0].report, evaluate_seconds=0.4, checkpoint_seconds=0.3)
    job.epochs_changed()
    assert job.times.restart == pytest.approx(1.5 - 0.4 - 0.3)


@pytest.mark.parametrize(("outside", "checkpoint", "evaluated"), [(0.5, 0.3, 1.0), (1.1, 0.9, 1.1)])
def test_an_epoch_that_was_not_evaluated_waited_for_the_checkpoint_that_an_evaluation_hides(
    outside: float, checkpoint: float, evaluated: float
) -> None:
    def report(job: Job, **changes: Any) -> None:
        job.epochs[-1].report = replace(job.epochs[-1].report, **changes)
        job.epochs_changed()

    job = job_of()
    report(add(job, outside=1.0), evaluate_seconds=0.8)
    report(add(job, outside=outside), loss=None, checkpoint_seconds=checkpoint)
    assert job.times.fixed(1).expected == pytest.approx(evaluated)


@pytest.mark.parametrize(("mode", "twice", "both"), [("sync", 0.8, 0.75), ("async", 1.6, 0.75)])
def test_workers_share_an_evaluation_unless_they_go_each_for_itself(mode: str, twice: float, both: float) -> None:
    def evaluated(at: tuple[int, int], seconds: float) -> None:
        add(job, at=at, outside=0.2 + seconds)
        job.epochs[-1].report = replace(job.epochs[-1].report, evaluate_seconds=seconds)
        job.epochs_changed()

    job = job_of(mode=mode)
    for seconds in (1.5, 1.6, 1.9):
        evaluated((1, 1), seconds)
    assert job.times.fixed(1).expected == pytest.approx(0.2 + 1.6)
    assert job.times.fixed(2).expected == pytest.approx(0.2 + twice)
    bounds = job.times.evaluation(2)
    assert (bounds.low, bounds.high) == pytest.approx((1.5 * twice / 1.6, 1.9)), "at worst nothing was gained"
    evaluated((2, 1), both)
    assert job.times.fixed(2).expected == pytest.approx(0.2 + both), "measured"
    assert job.times.fixed(1).expected == pytest.approx(0.2 + 1.6)


# -- when it ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("consecutive_hits", "losses", "reached"),
    [
        (3, [0.2, 0.2], False),
        (3, [0.2, 0.2, 0.3], True),  # the target itself holds it
        (3, [0.2, 0.2, 0.31, 0.2, 0.2], False),
        (3, [0.2, 0.2, 0.31, 0.2, 0.2, 0.1], True),
        (1, [0.3], True),
        (2, [0.2, 0.5, 0.2], False),
    ],
)
def test_the_target_must_hold_so_many_full_epochs_in_a_row(
    consecutive_hits: int, losses: list[float], reached: bool
) -> None:
    job = job_of(target={"loss": 0.3, "epochsInARow": consecutive_hits})
    for loss in losses:
        add(job, loss=loss)
    found = stopping_rules.stop_decision(job)
    assert (found is not None and found[0] is Reason.TARGET_REACHED) == reached


def test_mini_epochs_neither_count_for_the_stop_rule_nor_break_a_row() -> None:
    job = job_of()
    for _ in range(3):
        add(job, loss=0.1, kind=EpochKind.PROBE, fraction=0.1)
    assert stopping_rules.stop_decision(job) is None
    add(job, loss=0.1)
    add(job, loss=0.1)
    add(job, loss=9.0, kind=EpochKind.PROBE, fraction=0.1)
    assert stopping_rules.stop_decision(job) is None
    add(job, loss=0.1)
    found = stopping_rules.stop_decision(job)
    assert found == (Reason.TARGET_REACHED, "loss 0.1, 0.1, 0.1 meets 0.3, 3 times in a row")


def test_a_share_that_is_above_one_is_perhaps_in_percent() -> None:
    job = job_of(target={"accuracy": 0.9, "epochsInARow": 1})
    found = stopping_rules.stop_decision(add(job, accuracy=40.0))
    assert found == (Reason.TARGET_REACHED, "accuracy 40 meets 0.9; if it is in percent, the target is 90")


def test_an_accuracy_is_reached_from_below() -> None:
    job = job_of(target={"accuracy": 0.9, "epochsInARow": 1})
    assert stopping_rules.stop_decision(add(job, accuracy=0.89)) is None
    found = stopping_rules.stop_decision(add(job, accuracy=0.9))
    assert found is not None and found[0] is Reason.TARGET_REACHED


@pytest.mark.parametrize(("ran", "over"), [(99.9, False), (100.0, True), (250.0, True)])
def test_the_time_limit_counts_the_time_that_a_gang_was_held(ran: float, over: bool) -> None:
    job = job_of(timeLimit="100s")
    job.progress.run_seconds = ran
    found = stopping_rules.stop_decision(job)
    assert (found is not None and found[0] is Reason.TIME_LIMIT) == over


def test_the_epoch_limit_counts_full_epochs_and_names_the_best() -> None:
    job = job_of(maxEpochs=2)
    add(mini(job, (1, 1)), loss=0.5)
    assert stopping_rules.stop_decision(job) is None
    found = stopping_rules.stop_decision(add(job, loss=0.7))
    assert found == (Reason.EPOCH_LIMIT, "2 of at most 2 epochs done, best loss 0.5 in epoch 1, target 0.3")


def test_a_target_held_at_the_last_moment_is_reached() -> None:
    job = job_of(maxEpochs=3, timeLimit="10s")
    job.progress.run_seconds = 11.0
    for _ in range(3):
        add(job, loss=0.1)
    found = stopping_rules.stop_decision(job)
    assert found is not None and found[0] is Reason.TARGET_REACHED


UNLIMITED = {"unlimited": True}


def flat(epochs: int, fits: int, first: float = 2.0, spent: float = 0.0, **spec: Any) -> Job:
    """A job whose loss began at `first` and is at 0.9 since, with so many fits; its target is 0.3."""
    job = job_of(**({"budget": UNLIMITED} | spec))
    job.money.ledger.spent = to_money(spent)
    for number in range(epochs):
        add(job, loss=0.9 + 0.001 * (number % 2) if number else first)
    return curved(job, [e.report.loss for e in job.epochs], fits)


@pytest.mark.parametrize(
    ("epochs", "fits", "ends"),
    [(7, 3, False), (8, 2, False), (8, 3, True), (20, 3, True), (20, 0, False)],
)
def test_a_target_is_called_unreachable_only_after_enough_epochs_and_hopeless_fits(
    epochs: int, fits: int, ends: bool
) -> None:
    job = flat(epochs, fits)
    assert job.hopeless == fits
    found = stopping_rules.stop_decision(job)
    assert (found is not None) == ends
    if found:
        assert found[0] is Reason.TARGET_BELOW_ASYMPTOTE
        assert re.match(r"loss levels off at 0\.(89|90)", found[1])


@pytest.mark.parametrize(
    ("first", "spent", "epochs", "ends"),
    [
        (2.0, 0.049, 20, False),  # going on costs next to nothing of what is left
        (2.0, 0.050, 20, True),
        (1.4, 0.050, 20, False),  # less than half of the way to 0.3: it rests at its start
        (1.4, 0.499, 20, False),
        (1.4, 0.500, 20, True),
    ],
)
def test_a_job_is_not_thrown_away_while_going_on_costs_little_of_its_budget(
    first: float, spent: float, epochs: int, ends: bool
) -> None:
    job = flat(epochs, 3, first, spent, budget=usd(1.0))
    assert (stopping_rules.stop_decision(job) is not None) == ends


@pytest.mark.parametrize(("epochs", "ends"), [(8, False), (59, False), (60, True)])
def test_without_a_budget_a_curve_that_rests_at_its_start_is_given_sixty_epochs(epochs: int, ends: bool) -> None:
    assert (stopping_rules.stop_decision(flat(epochs, 3, first=1.0)) is not None) == ends


def test_a_curve_that_first_gets_worse_rests() -> None:
    """ResNet-18 with a small step: 2.30, 2.32, ... 2.67 in its first eight epochs."""
    job = job_of(budget=UNLIMITED)
    for number in range(16):
        add(job, loss=2.3 + 0.05 * number)
    curved(job, [0.9] * 16, 3)
    assert stopping_rules.rests(job) and stopping_rules.stop_decision(job) is None


@pytest.mark.parametrize(
    ("values", "rests"),
    [
        ((0.5, 0.5, 0.51, 0.49, 0.5), True),  # parity: two classes
        ((0.1, 0.6, 0.6, 0.61), False),
        ((0.7, 0.71, 0.72, 0.71), True),  # 0.25 to go, 0.01 gone
        ((0.1, 0.9), True),  # too few to say
    ],
)
def test_an_accuracy_rests_alike(values: tuple[float, ...], rests: bool) -> None:
    job = job_of(target={"accuracy": 0.95})
    for value in values:
        add(job, accuracy=value)
    assert stopping_rules.rests(job) is rests


def test_who_says_so_is_not_ended_early_with_a_target_either() -> None:
    assert stopping_rules.stop_decision(flat(100, 3, stopEarly=False)) is None


def test_money_left_is_said_as_it_is() -> None:
    job = job_of(budget=usd(2.0))
    assert job.money.ledger.left is not None and to_amount(job.money.ledger.left) == 2.0


def test_a_job_whose_curve_sees_no_way_is_not_taken_to_be_at_its_end() -> None:
    """It goes on because it may get there in as many epochs again: that is what is left of it, not three epochs."""
    flat = [2.0 - 0.5 * (1 - 0.5**i) for i in range(1, 26)]
    job = job_of(target={"loss": 0.3})
    for value in flat:
        add(job, loss=value)
    curved(job, flat, 1)
    assert job.last_x() is None
    assert forecast.fit_says_unreachable(job)
    left = forecast.remaining(job).epochs
    assert left.expected == 25
    assert left.high > left.expected
