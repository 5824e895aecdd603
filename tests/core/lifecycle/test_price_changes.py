"""A price that changes while jobs run: what is reserved keeps its price, the next reservation has the new one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coach.core.cluster import Instance, Node, Resources
from coach.core.jobs import actions as act
from coach.core.jobs.job import LEASE_SECONDS, Phase
from coach.core.money import NANO, Charge, to_amount
from coach.core.spec.job import TrainingJob
from coach.report.figures.job import Story
from coach.report.history import history
from coach.report.plan import plan
from coach.report.why import why
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec, usd
from tests.core.lifecycle.random_histories import machine

SLOW = FaultyDynamics(speed=lambda w, s: 1 / 1000.0)


def started(prices: Any, cluster: tuple[Node, ...] | None = None, **changes: Any) -> World:
    """A job in its first epoch."""
    fixed = {"name": "static", "workers": 1, "servers": 1}
    one = World.of(cluster or nodes(1, 4.0), shadow=True)
    changes = {"budget": usd(100), "maxEpochs": 4, "target": {"loss": 0.01}, "policy": fixed} | changes
    one.submit(spec(prices=prices, **changes), SLOW)
    one.run(until=lambda: one.job().attempts.running is not None)
    return one


def paid(one: World) -> list[tuple[Charge, float, float]]:
    """What was paid, and for how many seconds."""
    found, since = [], one.orders()[0].at
    for each in one.taken(act.Settle):
        found.append((each.charge, each.until - since, to_amount(each.amount)))
        since = each.until
    return found


def test_a_running_epoch_is_paid_as_it_was_reserved_and_the_next_one_by_the_new_price() -> None:
    one = started(machine(3.6, cpu=16.0))
    part = 1.6 / 16.0  # of the machine's cores, the largest share
    before = one.orders()[0].reservation
    one.reprice("job", machine(7.2, cpu=16.0))
    assert one.job().money.ledger.reserved == before
    one.run(until=lambda: len(one.orders()) == 2 and one.job().attempts.running is not None)
    for _, seconds, amount in paid(one):
        assert amount == pytest.approx(seconds * part * 0.001, abs=1e-8), "also the time until the next begins"
    second = one.orders()[1]
    whole = (second.deadline + LEASE_SECONDS) * part * 0.002
    assert to_amount(second.reservation) == pytest.approx(whole, abs=2e-6)
    one.run(until=lambda: len(one.job().epochs) == 2)
    charge, seconds, amount = paid(one)[-1]
    assert charge is Charge.EPOCH and amount == pytest.approx(seconds * part * 0.002, abs=1e-8)


def test_it_is_a_record_that_people_read() -> None:
    one = started(machine(3.6))
    one.reprice("job", machine(7.2))
    said = why(one.job(), one.reducer.jobs, one.reducer.nodes.all, one.now).lines[-1]
    assert "USD an hour for what it holds" in said
    assert "; from its next reservation on 2.88 an hour, as the price has changed" in said, said
    (line,) = [each.text for each in history(one.history) if "prices" in each.text]
    assert len(Story.of(one.job(), one.history, one.now).repriced) == 1
    assert line == "prices parts from its next reservation on, what is reserved stays at the old ones: tested"


def test_hours_of_gpus_of_a_node_with_a_factor_are_reserved_and_paid_by_it() -> None:
    has = Resources(4.0, 16.0, 2.0)
    part = {"worker": {"cpu": 1, "memory": "1Gi", "gpu": 2}, "server": {"cpu": 1, "memory": "1Gi"}}
    cost: dict[float, list[float]] = {}
    for factor in (1.0, 2.5):
        one = started("gpu-hours", (Node("a", has, gpu_factor=factor),), budget={"amount": 900, "currency": "gpuh"},
                      resources=part, maxEpochs=2)  # fmt: skip
        one.run()
        assert all(amount == pytest.approx(factor * 2 * seconds / 3600, abs=1e-8) for _, seconds, amount in paid(one))
        cost[factor] = [to_amount(order.reservation) for order in one.orders()]
    assert cost[2.5] == pytest.approx([2.5 * each for each in cost[1.0]])


def test_a_job_that_cannot_pay_the_new_price_ends_within_its_budget() -> None:
    one = started(machine(3.6), budget=usd(2))
    one.reprice("job", machine(36_000.0))
    one.run()
    assert one.job().ended and one.job().money.ledger.spent <= 2 * NANO
    assert len(one.orders()) == 1


def test_a_program_under_way_pays_until_now_and_reserves_the_rest_by_the_new_price() -> None:
    program = {"command": ["train"], "resumes": True}
    content = spec(prices=machine(3.6, cpu=1.0), program=program, budget=usd(100), maxEpochs=2)
    for key in ("model", "data", "servers"):
        del content["spec"][key]
    content["spec"]["resources"] = {"worker": {"cpu": "1", "memory": "500Mi"}}
    content["spec"]["workers"] = {"min": 1, "max": 1}
    one = World.of(nodes(1, 4.0), shadow=True)
    one.submit(content, SLOW)
    one.run(until=lambda: one.job().attempts.running is not None)
    one.reprice("job", machine(36.0, cpu=1.0))
    one.run(until=lambda: bool(one.taken(act.ExtendEpoch)))
    (settled,), (extended, *_) = one.taken(act.Settle), one.taken(act.ExtendEpoch)
    assert settled.amount == pytest.approx((settled.until - one.orders()[0].at) * 0.001 * NANO, abs=2)
    left = one.orders()[0].at + extended.deadline + LEASE_SECONDS - settled.until
    assert extended.reservation == pytest.approx(left * 0.01 * NANO, abs=2000)
    one.run()
    assert one.job().money.ledger.spent > 0


def test_an_hour_begun_is_reserved_and_paid_whole_and_only_once() -> None:
    one = started(machine(3.0, "hour"), budget=usd(100))
    assert one.orders()[0].reservation // NANO % 3 == 0, "whole hours"
    one.run()
    job = one.job()
    held = one.taken(act.Settle)[-1].until - one.orders()[0].at
    hours = -(-held // 3600)
    assert job.money.ledger.spent == hours * 3 * NANO, f"{held} s on one machine"
    assert sum(each.amount > 0 for each in one.taken(act.Settle)) <= hours


def test_money_for_an_hour_and_a_half_pays_one_hour() -> None:
    one = started(machine(4.0, "hour"), budget=usd(6))
    order = one.orders()[0]
    assert order.budget_bound and order.deadline < 3600 - LEASE_SECONDS
    one.run()
    assert one.job().ended and one.job().money.ledger.spent == 4 * NANO


def priced(*hours: float | None) -> tuple[Node, ...]:
    has = Resources(4.0, 64.0)
    return tuple(
        Node(f"node-{at}", has, None if hour is None else Instance(hour, 4.0, 64.0)) for at, hour in enumerate(hours)
    )


def test_a_job_is_billed_by_the_nodes_that_it_is_on() -> None:
    one = started("nodes", priced(36.0))
    assert one.orders()[0].nodes == (("node-0", Instance(36.0, 4.0, 64.0)),)
    one.run(until=lambda: bool(one.taken(act.Settle)))
    first = one.taken(act.Settle)[0]
    assert first.amount == pytest.approx((first.until - one.orders()[0].at) * 0.01 * 0.4 * NANO, rel=1e-6)


def test_a_node_that_costs_more_now_does_so_from_the_next_reservation_on() -> None:
    one = started("nodes", priced(36.0))
    one.reprice_nodes(2.0)
    one.run(until=lambda: len(one.orders()) == 2)
    rates = [order.nodes[0][1].hour for order in one.orders()]
    assert rates == [36.0, 72.0]
    assert all(amount == pytest.approx(seconds * 0.004, abs=1e-8) for _, seconds, amount in paid(one))


def test_the_prices_of_nodes_survive_a_killed_handler() -> None:
    one = started("nodes", priced(36.0))
    one.restart(down=100.0)
    one.run(until=lambda: bool(one.taken(act.Settle)))
    settled = one.taken(act.Settle)[0]
    assert settled.amount == pytest.approx((settled.until - one.orders()[0].at) * 0.004 * NANO, rel=1e-6)
    one.run()
    assert one.job().phase is Phase.ENDED


def test_nodes_are_the_same_whatever_they_cost() -> None:
    """Speeds that were measured on them stay known."""
    (node,) = priced(36.0)
    assert node == replace(node, price=None)


def test_a_plan_is_by_the_dearest_node_and_says_how_it_is_paid() -> None:
    file = TrainingJob.from_json(spec(prices="nodes", budget=usd(5)))
    assert plan(file, {}, priced(7.2, 36.0, None)).prices == (
        "nodes: at most, by the node, 36 USD an hour for 4 cores, 64 GiB; paid is the part of it that the gang takes"
    )
    hourly = TrainingJob.from_json(spec(prices=machine(3.0, "hour"), budget=usd(5)))
    assert plan(hourly, {}, priced(None)).prices.endswith("paid is whole machines, each hour begun")
