"""A job on spot nodes with a deadline, through the reducer: spot while it is there, on-demand ones in time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from coach.core.cluster import Allocation, CapacityType, Instance, Node, Resources
from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.reasons import Reason
from coach.core.money import NANO, to_amount
from coach.core.spec.job import TrainingJob
from coach.report.history import history
from coach_research.platforms.kube_scheduler import Default
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, spec, usd

HAS = Resources(4.0, 64.0)
SPOT = Node("spot", HAS, Instance(1.2, 4.0, 64.0), spot=True)
OTHER = Node("other", HAS, Instance(3.6, 4.0, 64.0))
#: An epoch takes 100 s with a worker; each more adds 0.8 of one.
STEADY = FaultyDynamics(speed=lambda w, s: 0.01 * (1 + 0.8 * (w - 1)), loss=lambda x: 1.0)
EPOCHS = 20


#: Coach names the nodes, or a cluster's scheduler places the pods, which learns of the nodes' kind alone.
PLACED = [None, Default()]


@pytest.fixture(params=PLACED, ids=["gang", "default"], autouse=True)
def placed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test here is of both."""
    monkeypatch.setitem(world.__kwdefaults__, "default", request.param)


def world(
    deadline: float,
    *,
    workers: int = 1,
    budget: Any = None,
    cluster: tuple[Node, ...] = (SPOT, OTHER),
    default: Default | None = None,
) -> World:
    one = World.of(cluster, shadow=True, default=default)
    fields = {"workers": {"min": 1, "max": workers}, "servers": {"min": 1, "max": 1}, "target": {"loss": 0.01}}
    more = {"maxEpochs": EPOCHS, "stopEarly": False, "budget": budget or usd(100)}
    one.submit(spec(prices="nodes", spot={"deadline": deadline}, **fields, **more), STEADY)
    return one


def nodes_of(one: World) -> list[str]:
    """The node of each epoch, in order."""
    return [order.nodes[0][0] for order in one.orders()]


def test_it_trains_on_spot_nodes_while_they_are_there_at_their_price() -> None:
    one = world(10_000)
    one.run()
    assert set(nodes_of(one)) == {"spot"}
    held = one.taken(act.Settle)[-1].until - one.orders()[0].at
    assert one.job().money.ledger.spent == pytest.approx(held * (1.6 / 4) * 1.2 / 3600 * NANO, rel=1e-4)


def test_it_waits_for_spot_and_takes_on_demand_nodes_in_time_for_its_deadline() -> None:
    one = world(10_000)
    one.run(until=lambda: one.job().full_epoch_count == 5)
    one.lose_nodes("spot", back=None)
    one.run(until=lambda: one.job().reason is Reason.WAITING_SPOT)
    assert not one.pods or all(standing.leaving for standing in one.pods.values())
    waits_since = one.now
    one.run(until=lambda: one.job().decision.on is CapacityType.ON_DEMAND)
    # 15 epochs of some 102 s are left: the rest of its time it waited, and paid nothing.
    assert 6_000 < one.now - waits_since < 8_500
    paid = one.job().money.ledger.spent
    one.run()
    job = one.job()
    assert job.full_epoch_count == EPOCHS and job.progress.ended_at is not None
    assert job.progress.ended_at - job.progress.submitted_at <= 10_000
    assert job.money.ledger.spent > paid
    said = [line.text for line in history(one.history)]
    assert any(text.startswith("waits for spot nodes: takes on-demand nodes") for text in said), said
    assert any(text.startswith("takes on-demand nodes, 1x1: ") for text in said), said


def test_spot_that_comes_back_is_taken_again_and_the_epoch_that_was_lost_is_no_failure_of_the_job() -> None:
    one = world(10_000)
    one.run(until=lambda: one.job().full_epoch_count == 5)
    for _ in range(4):
        one.run(until=lambda: one.job().attempts.running is not None)
        one.lose_nodes("spot", back=50.0)
    assert one.job().full_epoch_count == 5
    one.run()
    assert one.job().full_epoch_count == EPOCHS
    assert set(nodes_of(one)) == {"spot"}


def test_a_tight_deadline_leaves_no_time_for_spot() -> None:
    one = world(2_080)
    one.run()
    assert nodes_of(one)[-1] == "other"
    job = one.job()
    assert job.progress.ended_at is not None and job.progress.ended_at - job.progress.submitted_at <= 2_080


def test_more_workers_catch_up_after_a_longer_wait() -> None:
    one = world(3_000, workers=2)
    one.run(until=lambda: one.job().full_epoch_count == 2)
    one.lose_nodes("spot", back=None)
    one.run()
    job = one.job()
    assert job.full_epoch_count == EPOCHS and job.progress.ended_at is not None
    assert job.progress.ended_at - job.progress.submitted_at <= 3_000
    assert Allocation(2, 1) in {order.allocation for order in one.orders() if order.nodes[0][0] == "other"}


def test_where_money_and_deadline_cannot_both_be_kept_the_budget_is() -> None:
    # 20 epochs cost 0.82 USD on demand, and 0.27 on spot.
    one = world(10_000, budget=usd(0.4))
    one.run(until=lambda: one.job().full_epoch_count == 5)
    one.lose_nodes("spot", back=30_000.0)
    one.run(until=lambda: one.job().reason is Reason.WAITING_SPOT)
    assert one.job().message == "its money does not end it on on-demand nodes"
    one.run()
    job = one.job()
    assert job.full_epoch_count == EPOCHS and to_amount(job.money.ledger.spent) <= 0.4
    assert "other" not in nodes_of(one)


def test_a_job_that_waits_for_spot_keeps_no_room_from_others() -> None:
    one = world(100_000)
    one.run(until=lambda: one.job().full_epoch_count == 3)
    one.lose_nodes("spot", back=5_000.0)
    one.run(until=lambda: one.job().reason is Reason.WAITING_SPOT)
    one.submit(spec("second", maxEpochs=3, target={"loss": 0.01}, budget=usd(100)), STEADY)
    one.run(until=lambda: one.job("second").ended)
    assert one.job("second").full_epoch_count == 3
    one.run()
    assert one.job().full_epoch_count == EPOCHS


def test_on_nodes_of_one_kind_there_is_nothing_to_choose() -> None:
    for only in (SPOT, OTHER):
        one = world(3_000, cluster=(only,))
        one.run()
        assert one.job().full_epoch_count == EPOCHS and set(nodes_of(one)) == {only.name}


def test_with_too_little_money_and_no_spot_node_it_waits_to_its_deadline_and_then_spends_what_it_has() -> None:
    one = world(3_000, budget=usd(0.3), cluster=(OTHER,))
    one.run()
    job = one.job()
    assert job.ended and job.reason is Reason.BUDGET_SPENT and 0.2 < to_amount(job.money.ledger.spent) <= 0.3


@pytest.mark.parametrize("seed", range(4))
def test_no_deadline_is_missed_and_no_budget_overspent_however_spot_comes_and_goes(seed: int) -> None:
    dice = random.Random(f"spot {seed}")
    deadline, workers = dice.randint(2_600, 9_000), dice.choice([1, 1, 2, 3])
    one = world(deadline, workers=workers, budget=usd(dice.uniform(1.2, 3.0)))

    def go() -> ev.Event | None:
        if not one.job().ended:
            one.lose_nodes("spot", back=dice.expovariate(1 / 400))
            one.at(one.now + 1_000 + dice.expovariate(1 / 500), go)
        return None

    one.at(one.now + dice.expovariate(1 / 500), go)
    one.run()
    job = one.job()
    assert job.full_epoch_count == EPOCHS, f"{job.reason}: {job.message}"
    assert job.progress.ended_at is not None and job.progress.ended_at - job.progress.submitted_at <= deadline
    assert job.money.ledger.budget is not None and job.money.ledger.spent <= job.money.ledger.budget


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prices": "flat"}, "prices: nodes"),
        ({"prices": "nodes", "program": {"command": ["x"]}}, "program.resumes: true"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], words: str) -> None:
    content = spec(spot={"deadline": "52h"}, **changes)
    if "program" in changes:
        for key in ("model", "data", "servers", "resources"):
            del content["spec"][key]
    with pytest.raises((UserError, ValueError), match=words):
        TrainingJob.from_json(content)
