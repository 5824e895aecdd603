"""One job from its submission to its end: probes, allocations, money, and every way to end."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from coach.core.cluster import Instance, Node, Resources, Role
from coach.core.estimation.observations import KnownCurve, KnownSpeed
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import LEASE_SECONDS, Job, Phase
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.forecast import CALLS_PER_SECOND, CALLS_TO_START, affordable
from coach.core.lifecycle.probing import SMALLEST_PROBE
from coach.core.money import Charge, to_amount, to_money
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec, usd

ROOMY = nodes(4, 4.0)


def ended_world(dynamics: FaultyDynamics | None = None, cluster: Any = ROOMY, **changes: Any) -> World:
    """A job's whole life."""
    world = World.of(cluster)
    world.submit(spec(**changes), dynamics)
    world.run()
    world.check_fold()
    return world


def allocations(job: Job, kind: EpochKind) -> list[str]:
    return [str(epoch.allocation) for epoch in job.epochs if epoch.kind is kind]


def slower(workers: int, servers: int) -> float:
    return 0.05 / workers


# -- probing ----------------------------------------------------------------------------------------------


def test_a_job_measures_its_speed_first_and_its_probes_train_the_model() -> None:
    dynamics = FaultyDynamics(
        speed=lambda w, s: 0.02 * w / (1 + 0.1 * w / s), loss=lambda x: 0.1 + 1 / (0.02 * x + 0.5)
    )
    world = ended_world(dynamics, maxEpochs=21)
    job = world.job()
    probes = allocations(job, EpochKind.PROBE)
    assert probes[:2] == ["1x1", "3x3"], "the second is the one that may be fastest by most"
    assert 3 <= len(probes) <= 6
    assert [epoch.kind for epoch in job.epochs[:3]] == [EpochKind.PROBE] * 3
    # 20 to 40 s at 1x1, of the data that the full epochs go on with.
    assert job.epochs[0].report.train_seconds == pytest.approx(22.0)  # 0.4 of an epoch of 55 s
    assert [order.position for order in world.orders()][:6] == [
        sum(epoch.report.samples for epoch in job.epochs[:n]) for n in range(6)
    ]
    assert all(after.weights_in == before.weights_out for before, after in pairwise(world.orders()))


@pytest.mark.parametrize("epoch_seconds", [5.0, 60.0, 600.0, 86_400.0])
def test_every_probe_at_the_smallest_allocation_takes_20_to_40_seconds_or_its_share_of_an_epoch(
    epoch_seconds: float,
) -> None:
    world = World.of(ROOMY)
    world.submit(spec(maxEpochs=21), FaultyDynamics(speed=lambda w, s: 1 / epoch_seconds, data_size=10**7))
    world.run(until=lambda: len(world.job().epochs) == 5)
    minis = [epoch for epoch in world.job().epochs if epoch.kind is EpochKind.PROBE]
    for epoch in minis:
        assert epoch.report.train_seconds <= 40.0
        assert epoch.report.train_seconds >= 20.0 or epoch.fraction > SMALLEST_PROBE
    assert sum(epoch.fraction for epoch in minis) <= 0.1 * 20 * 1.001
    assert len(minis) >= 2


def test_points_known_from_earlier_jobs_are_used_from_the_first_epoch_on_instead_of_probes() -> None:
    dynamics = FaultyDynamics()
    world = World.of(ROOMY)
    points = tuple(KnownSpeed(w, s, dynamics.speed(w, s)) for w, s in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 3)))
    world.submit(spec(), dynamics, known_points=points, known_epochs=15.0)
    assert isinstance(world.history[-1], act.FitModels)
    world.run()
    job = world.job()
    assert not {f"{known.workers}x{known.servers}" for known in points} & set(allocations(job, EpochKind.PROBE)), (
        "these are known"
    )
    assert set(allocations(job, EpochKind.FULL)) == {"3x3"}


def test_curves_of_earlier_runs_are_in_every_fit_of_a_job() -> None:
    known = (KnownCurve(0.0, 0.2, 10.0, 1.5),)
    world = World.of(ROOMY)
    world.submit(spec(), FaultyDynamics(), known_curves=known)
    world.run()
    job = world.job()
    assert job.models.convergence is not None and job.models.convergence.known == known
    fits = [one.convergence for one in world.history if isinstance(one, ev.ModelsFitted) and one.convergence]
    assert fits and all(fit["known"] == [list(known[0])] for fit in fits)


def test_a_job_with_a_static_allocation_measures_nothing_else() -> None:
    world = ended_world(policy={"name": "static", "workers": 2, "servers": 1})
    assert {str(epoch.allocation) for epoch in world.job().epochs} == {"2x1"}
    assert allocations(world.job(), EpochKind.PROBE) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"name": "static", "workers": 2, "servers": 1}},
        {"workers": {"min": 2, "max": 3}},
        {},
        {"miniEpoch": {"minSeconds": 0.5, "maxSeconds": 1.0}},
    ],
    ids=["static", "two workers at least", "free", "tiny probes"],
)
@pytest.mark.parametrize("epoch_seconds", [1.0, 700.0, 50_000.0])
@pytest.mark.parametrize("most", [1, 3])
def test_no_epoch_is_taken_to_hang_only_because_nothing_is_known_of_its_length(
    changes: dict[str, Any], epoch_seconds: float, most: int
) -> None:
    world = ended_world(FaultyDynamics(speed=lambda w, s: w**0.8 / epoch_seconds), maxEpochs=most, **changes)
    assert world.job().reason is Reason.EPOCH_LIMIT
    assert len(world.taken(ev.EpochFailed)) <= (epoch_seconds == 50_000.0), "a day's epoch may need a second attempt"


def test_only_points_that_the_cluster_can_hold_are_measured() -> None:
    world = ended_world(cluster=nodes(1, 2.7))
    probes = set(allocations(world.job(), EpochKind.PROBE))
    assert len(probes) >= 2
    assert not probes & {"2x2", "2x3", "3x2", "3x3"}


def test_a_probe_is_measured_though_its_room_is_free_only_when_the_last_one_is_gone() -> None:
    """2x1 and 1x2: the second worker takes the place of the second server, or the other way round."""
    world = World.of(nodes(1, 2.6))
    world.submit(spec(servers={"min": 1, "max": 2}, workers={"min": 1, "max": 2}))
    world.run(until=lambda: len(world.job().epochs) == 4)
    first, *others = allocations(world.job(), EpochKind.PROBE)
    assert first == "1x1" and {"1x2", "2x1"} <= set(others)


def test_where_more_workers_are_slower_the_job_trains_with_few() -> None:
    job = ended_world(FaultyDynamics(speed=slower)).job()
    assert {epoch.allocation.workers for epoch in job.full_epochs} == {1}


def test_one_slow_minute_does_not_lock_a_job_into_a_slower_allocation() -> None:
    """The machine is busy with something else during the first whole epoch; the job comes back to what is fastest."""
    world = World.of(nodes(1, 8.0))
    fast = {(1, 1): 0.08, (1, 2): 0.095, (2, 1): 0.11, (2, 2): 0.125}

    def speed(workers: int, servers: int) -> float:
        first = world.job().full_epochs == [] and world.job().decision.kind is EpochKind.FULL
        return fast[workers, servers] * (0.45 if first else 1.0)

    limits = {"workers": {"min": 1, "max": 2}, "servers": {"min": 1, "max": 2}}
    bounds = {"minSeconds": 1, "maxSeconds": 3}
    world.submit(spec(miniEpoch=bounds, **limits), FaultyDynamics(speed, loss=lambda x: 0.1 + 1 / (0.3 * x + 0.5)))
    world.run()
    job = world.job()
    first, *rest = (epoch.allocation for epoch in job.full_epochs)
    assert first == (2, 2), "what the probes said"
    assert job.reason is Reason.TARGET_REACHED
    assert rest[-5:] == [(2, 2)] * 5
    assert sum(at != (2, 2) for at in rest) <= 3
    assert sum(epoch.fraction for epoch in job.epochs if epoch.kind is EpochKind.PROBE) <= 0.1 * job.epochs_trained


# -- money ------------------------------------------------------------------------------------------------

BUDGETS = [0.00001, 0.0001, 0.0003, 0.0007, 0.0015, 0.003, 0.005, 0.009, 1.0]


@pytest.mark.parametrize("speed", [FaultyDynamics().speed, slower], ids=["faster", "slower"])
@pytest.mark.parametrize("amount", BUDGETS)
def test_whatever_the_budget_it_is_never_overspent_and_the_job_ends(amount: float, speed: Any) -> None:
    job = ended_world(FaultyDynamics(speed=speed), budget=usd(amount)).job()
    assert job.state in (State.SUCCEEDED, State.BUDGET_EXHAUSTED)
    assert job.money.ledger.spent <= to_money(amount)
    if job.state is State.BUDGET_EXHAUSTED:
        assert not affordable(job, job.minimum)
    if amount >= 1.0:
        assert job.state is State.SUCCEEDED


def test_money_is_reserved_before_every_epoch_for_all_that_may_happen_until_the_functions_stop_themselves() -> None:
    world = ended_world(budget=usd(0.006))
    job = world.job()
    book = job.spec.price_book
    orders = world.orders()
    assert len(orders) > 5 and any(order.budget_bound for order in orders)
    for order in orders:
        held = job.spec.resources.total(order.allocation)
        calls = len(order.pods) * (CALLS_TO_START + CALLS_PER_SECOND * order.deadline)
        worst = book.cost(held, order.deadline + LEASE_SECONDS, int(calls))
        assert worst <= order.reservation <= worst * 1.001 + 2000


def test_the_message_of_an_exhausted_budget_has_what_is_left_and_what_it_would_take() -> None:
    job = ended_world(budget=usd(0.003)).job()
    said = re.fullmatch(r"([\d.]+) USD left, the next epoch at 1x1 may take [\d.]+ s and cost ([\d.]+)", job.message)
    assert said is not None
    left = to_amount(to_money(0.003) - job.money.ledger.spent)
    assert left <= float(said[1]) < float(said[2]) and float(said[1]) - left < 1e-4, "but for the release"
    assert job.progress.weights is not None, "the checkpoint stays"


def test_a_budget_too_small_for_one_epoch_is_said_before_anything_is_started_or_spent() -> None:
    world = ended_world(budget=usd(0.00002))
    job = world.job()
    assert (job.state, job.money.ledger.spent, job.epochs) == (State.BUDGET_EXHAUSTED, 0, [])
    assert not world.taken(act.DeployPods)


def test_an_epoch_that_uses_up_the_budget_is_stopped_there() -> None:
    """The eleventh epoch takes ten times as long as every one before it."""
    speed = FaultyDynamics().speed

    def slow(w: int, s: int) -> float:
        epochs = len(world.job().epochs) if "job" in world.reducer.jobs else 0
        return speed(w, s) / (1 if epochs < 10 else 10)

    world = World.of(ROOMY)
    world.submit(spec(budget=usd(0.0061), policy={"name": "static", "workers": 1, "servers": 1}), FaultyDynamics(slow))
    world.run()
    job = world.job()
    last = world.orders()[-1]
    assert last.budget_bound and job.state is State.BUDGET_EXHAUSTED
    assert f"used up all {last.deadline:.1f} s" in job.message
    left = to_money(0.0061) - job.money.ledger.spent
    assert 0 <= left < 0.1 * to_money(0.0061)


def test_every_second_that_a_gang_is_held_is_charged_to_the_attempt_it_belongs_to() -> None:
    world = ended_world(FaultyDynamics(new_group_seconds=2.0, same_group_seconds=2.0, release_seconds=0.3), maxEpochs=4)
    job = world.job()
    settled = world.taken(act.Settle)
    assert {settle.charge for settle in settled} == {Charge.EPOCH, Charge.RELEASE}
    assert sum(settle.amount for settle in settled) == job.money.ledger.spent == sum(job.money.charges.values())
    assert sum(epoch.cost for epoch in job.epochs) == job.money.ledger.spent
    paid = to_amount(job.money.ledger.spent)
    book = job.spec.price_book
    held = world.cost["job"] + book.invocation * world.calls["job"]
    assert held <= paid <= held * 1.02, "pods that came before their gang was complete are paid too"


# -- ends -------------------------------------------------------------------------------------------------


def test_a_job_succeeds_when_its_target_held_three_real_epochs_in_a_row() -> None:
    job = ended_world().job()
    values = [epoch.report.loss <= 0.3 for epoch in job.full_epochs]
    assert values[-3:] == [True] * 3 and sum(values) == 3
    assert job.state is State.SUCCEEDED and "3 times in a row" in job.message


def test_mini_epochs_do_not_count_for_the_target() -> None:
    job = ended_world(FaultyDynamics(loss=lambda x: 0.1)).job()
    assert len(job.full_epochs) == 3 and len(job.epochs) > 3
    assert job.epochs[-1].kind is EpochKind.FULL


def test_a_target_below_the_curve_is_called_unreachable_after_the_fits_say_so_again_and_again() -> None:
    falls = FaultyDynamics(loss=lambda x: 0.5 + 1 / (2 * x + 1) ** 2)
    job = ended_world(falls, target={"loss": 0.3}, budget={"unlimited": True}).job()
    assert job.state is State.TARGET_UNREACHABLE
    assert 8 <= len(job.full_epochs) < 60
    assert "levels off at 0.5" in job.message


def test_a_target_above_the_curve_is_never_called_unreachable() -> None:
    job = ended_world(FaultyDynamics(loss=lambda x: 0.25 + 1 / (1 + 0.3 * x))).job()
    assert job.state is State.SUCCEEDED


def test_the_epoch_limit_counts_full_epochs() -> None:
    job = ended_world(maxEpochs=4).job()
    assert (job.reason, len(job.full_epochs)) == (Reason.EPOCH_LIMIT, 4)


def test_without_a_target_the_money_buys_epochs_and_the_best_model() -> None:
    job = ended_world(target=None, budget=usd(0.02)).job()
    assert (job.state, job.reason) == (State.SUCCEEDED, Reason.BUDGET_USED)
    assert 0 < job.money.ledger.spent <= job.money.ledger.budget
    cheapest = min(epoch.cost for epoch in job.full_epochs)
    assert job.money.ledger.left < 2 * cheapest, "no other epoch was to be had"
    assert {epoch.allocation for epoch in job.full_epochs[3:]} == {job.minimum}, "speed buys nothing here"
    assert job.best is min(job.full_epochs, key=lambda epoch: epoch.report.loss)
    assert f"best loss {job.best.report.loss:.4g} in epoch {job.full_epochs.index(job.best) + 1}" in job.message


def test_without_a_target_money_that_no_epoch_needs_buys_speed() -> None:
    job = ended_world(target=None, budget=usd(1.0), maxEpochs=10).job()
    assert (job.reason, len(job.full_epochs)) == (Reason.LIMIT_REACHED, 10)
    assert max(epoch.allocation.workers for epoch in job.full_epochs) > 1


def test_without_a_target_a_time_limit_asks_for_as_many_epochs_as_it_allows() -> None:
    job = ended_world(target=None, budget={"unlimited": True}, timeLimit="200s").job()
    slow = ended_world(
        target=None,
        budget={"unlimited": True},
        timeLimit="200s",
        policy={"name": "static", "workers": 1, "servers": 1},
    ).job()
    assert job.reason is slow.reason is Reason.LIMIT_REACHED
    assert len(job.full_epochs) > len(slow.full_epochs)


def test_without_a_target_a_job_ends_when_no_better_model_is_to_be_expected() -> None:
    level = FaultyDynamics(loss=lambda x: 0.5 + max(0.0, 0.5 - 0.1 * x) + 0.02 * math.sin(7 * x))
    job = ended_world(level, target=None, budget=usd(0.1), maxEpochs=60).job()
    assert (job.state, job.reason) == (State.SUCCEEDED, Reason.NO_GAIN_EXPECTED)
    assert 8 <= len(job.full_epochs) < 60 and "coach resume job goes on" in job.message
    on = ended_world(level, target=None, budget=usd(1.0), maxEpochs=60, stopEarly=False).job()
    assert (on.reason, len(on.full_epochs)) == (Reason.LIMIT_REACHED, 60)


def test_without_a_target_a_loss_that_rises_first_is_waited_for() -> None:
    """ResNet-18's, with batch normalisation: 8 epochs up, then down to a tenth. It ended after 8 of 32 epochs once."""
    measured = (2.3065, 2.3387, 2.3982, 2.4964, 2.6392, 2.7588, 2.8394, 2.8711, 2.7876, 2.6435, 2.2935, 1.8516, 1.3953,
                0.9585, 0.6624, 0.5179, 0.4283, 0.3761)  # fmt: skip
    rising = FaultyDynamics(loss=lambda x: float(np.interp(x, range(len(measured)), measured)))
    job = ended_world(rising, target=None, budget=usd(1.0), maxEpochs=32).job()
    assert job.best.report.loss < 0.4
    worse = FaultyDynamics(loss=lambda x: 1.0 + 0.05 * x)
    job = ended_world(worse, target=None, budget=usd(0.04), maxEpochs=100).job()
    assert job.reason is Reason.NO_GAIN_EXPECTED and 30 < len(job.full_epochs) < 50


def test_without_a_target_a_budget_for_no_epoch_is_no_success() -> None:
    job = ended_world(target=None, budget=usd(0.000001)).job()
    assert (job.state, job.reason) == (State.BUDGET_EXHAUSTED, Reason.BUDGET_SPENT)


def test_the_time_limit_counts_the_time_a_gang_was_held_and_not_the_time_it_waited() -> None:
    world = World.of(nodes(1, 1.6))
    world.submit(spec("first", maxEpochs=5))
    world.submit(spec(timeLimit="60s"))
    world.run()
    first, job = world.job("first"), world.job()
    assert job.progress.ended_at is not None and first.progress.ended_at is not None
    assert first.progress.ended_at - first.progress.submitted_at > 60
    assert job.reason is Reason.TIME_LIMIT
    assert 60 <= job.progress.run_seconds <= 60 + 15, "the last epoch may end, as far as it was predicted"
    assert job.progress.run_seconds == pytest.approx(job.progress.ended_at - (job.progress.started_at or 0.0), abs=0.2)


def test_a_hang_in_the_last_seconds_of_the_time_limit_is_ended_by_it() -> None:
    dynamics = FaultyDynamics(speed=lambda w, s: 0.1 if len(world.job().epochs) < 3 else 1e-6)
    world = World.of(ROOMY)
    world.submit(spec(timeLimit="60s", policy={"name": "static", "workers": 1, "servers": 1}), dynamics)
    world.run()
    assert world.job().reason is Reason.TIME_LIMIT and world.job().progress.run_seconds < 75


def test_a_job_no_node_can_ever_hold_is_refused_at_once_with_the_numbers() -> None:
    world = World.of(nodes(3, 0.9))
    world.submit(spec())
    assert (world.job().state, world.job().reason) == (State.FAILED, Reason.NEVER_FITS)
    assert "1 worker x 1 cpu" in world.job().message and "largest node has 0.9 cpu" in world.job().message
    assert not world.taken(act.DeployPods)


@pytest.mark.parametrize("more", [{}, {"spot": {"deadline": "1h"}, "prices": "nodes"}], ids=["any", "spot"])
def test_a_job_that_fits_no_node_is_refused_again_when_it_is_resumed_until_there_is_a_larger_node(
    more: dict[str, Any],
) -> None:
    price = Instance(hour=1.0, cpu=0.9, memory=64.0)
    small = replace(nodes(1, 0.9)[0], price=price)
    world = World.of((small,))
    world.submit(spec(maxEpochs=2, **more))
    world.resume("job")
    assert (world.job().state, world.job().reason) == (State.FAILED, Reason.NEVER_FITS)
    large = Node("large", Resources(4.0, 64.0), price=replace(price, cpu=4.0))
    world.send(ev.NodesChanged(world.now, (), nodes=(small, large)))
    world.resume("job")
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT


# -- the steps between ------------------------------------------------------------------------------------


def test_a_group_stays_formed_as_long_as_its_members_do() -> None:
    world = ended_world(maxEpochs=6)
    for before, after in pairwise(world.orders()):
        assert (before.group == after.group) == (before.pods == after.pods)
    assert len({order.group for order in world.orders()}) == world.job().gang.groups


def test_pods_are_started_and_ended_only_by_what_changes() -> None:
    world = ended_world(maxEpochs=6)
    held: set[str] = set()
    for record in world.history:
        if isinstance(record, act.ReleasePods):
            held -= {pod.name for pod in record.pods}
        elif isinstance(record, act.DeployPods):
            assert not held & {pod.id.name for pod in record.pods}, "it is there already"
            held |= {pod.id.name for pod in record.pods}
        elif isinstance(record, act.RunEpoch):
            assert held == {pod.name for pod in record.pods}
    assert not held
    orders = world.orders()
    for before, after in pairwise(orders):
        if before.allocation.workers <= after.allocation.workers:
            kept = {pod for pod in before.pods if pod.role is not Role.SERVER}
            assert kept <= set(after.pods), "who is still needed stays"


def test_models_are_fitted_after_every_epoch_and_the_next_step_waits_for_them() -> None:
    world = ended_world(maxEpochs=3)
    fits = world.taken(act.FitModels)
    assert [fit.token for fit in fits] == [f"job.fit{n + 1}" for n in range(len(world.job().epochs))]
    assert world.job().models.fitted == len(world.job().epochs)


def test_a_fit_that_knows_nothing_leaves_the_models_and_the_job_goes_on() -> None:
    world = World.of(ROOMY)
    world.submit(spec(maxEpochs=3))
    world.run(until=lambda: world.job().phase is Phase.FITTING)
    job = world.job()
    world.send(ev.ModelsFitted(world.now, "job", job.models.fit_token, None, None))
    assert job.speed is None and job.decision.kind is EpochKind.FULL, "it is not measured for ever"
    world.run()
    assert job.reason is Reason.EPOCH_LIMIT and job.speed is not None


def test_every_decision_is_in_the_journal_with_its_reason() -> None:
    world = ended_world(maxEpochs=8, budget=usd(0.02))
    decisions = world.taken(act.SetAllocation)
    assert len(decisions) >= len(world.orders())
    assert all(decision.why for decision in decisions if decision.kind is EpochKind.PROBE)
    assert any(step.reason == "speed" for decision in decisions for step in decision.why)
