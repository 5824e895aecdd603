"""A job with `spec.spot` whose pods a scheduler places: it learns the kind of nodes, and may have no room on them."""

from __future__ import annotations

import itertools

import pytest

from coach.core.cluster import CapacityType
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Phase
from coach.core.jobs.reasons import Reason
from coach_research.platforms.kube_scheduler import Default
from tests.core.lifecycle.faulty_cluster import World
from tests.core.lifecycle.nodes.test_spot_nodes import EPOCHS, nodes_of, world


@pytest.fixture
def alone() -> World:
    """A job of 20 epochs of 100 s whose pods a cluster's scheduler places, with 10,000 s."""
    return world(10_000, default=Default())


def pending(one: World, reason: Reason, said: str) -> None:
    """What the scheduler says of each pod that has no node."""
    for pod in list(one.pods):
        one.send(ev.PodPending(one.now, pod.job, pod, reason, said))


def test_the_scheduler_learns_of_which_kind_the_nodes_of_each_pod_are(alone: World) -> None:
    alone.run(until=lambda: alone.job().full_epoch_count == 3)
    alone.lose_nodes("spot", back=None)
    alone.run()
    deployed = [(pod.node, pod.capacity) for order in alone.taken(act.DeployPods) for pod in order.pods]
    assert {node for node, _ in deployed} == {""}
    assert [kind for kind, _ in itertools.groupby(kind for _, kind in deployed)] == [
        CapacityType.SPOT,
        CapacityType.ON_DEMAND,
    ]


def test_pods_that_wait_for_spot_nodes_cost_nothing_say_so_and_are_given_up_in_time(alone: World) -> None:
    """Coach sees room on the spot node, the scheduler none: by what others hold, a quota, a taint."""
    alone.run(until=lambda: alone.job().full_epoch_count == 5)
    alone.lose_nodes("spot", back=100.0)
    alone._scheduler._spot[:] = False
    alone.run(until=lambda: alone.job().phase is Phase.DEPLOYING)
    waits_since, paid = alone.now, alone.job().money.ledger.spent
    pending(alone, Reason.WAITING_CAPACITY, "0/2 nodes are available")
    assert alone.job().reason is Reason.WAITING_CAPACITY
    assert alone.job().message == "0/2 nodes are available; spec.spot: on spot nodes alone"
    alone.run(until=lambda: alone.job().decision.on is CapacityType.ON_DEMAND)
    assert 6_000 < alone.now - waits_since < 8_500
    assert alone.job().money.ledger.spent == paid and not alone.job().money.ledger.reserved
    alone.run()
    job = alone.job()
    assert job.full_epoch_count == EPOCHS and job.progress.ended_at is not None
    assert job.progress.ended_at - job.progress.submitted_at <= 10_000


def test_pods_that_wait_for_on_demand_nodes_are_given_up_for_spot_ones_that_come_back() -> None:
    one = world(3_000, default=Default())
    one.run(until=lambda: one.job().full_epoch_count == 5)
    one._scheduler._free[1] = 0.0
    one.lose_nodes("spot", back=None)
    one.run(until=lambda: one.job().decision.on is CapacityType.ON_DEMAND)
    one.run(until=lambda: one.now > one.job().progress.submitted_at + 3_500)
    assert one.job().phase is Phase.DEPLOYING and one.job().full_epoch_count == 5
    one.send(ev.NodesChanged(one.now, ()))
    one.run()
    assert one.job().full_epoch_count == EPOCHS and nodes_of(one)[-1] == "spot"


def test_a_node_that_is_no_longer_of_the_kind_when_the_pods_are_there_is_paid_at_its_own_price(alone: World) -> None:
    alone._scheduler._spot[:] = False, True
    alone.run(until=lambda: alone.job().full_epoch_count == 2)
    assert "other" in nodes_of(alone)
    alone._scheduler._spot[:] = True, False
    alone.run()  # `check_rest`: what was paid is what was held
    assert nodes_of(alone)[-1] == "spot"


def test_before_its_speed_is_known_pods_wait_for_spot_nodes_for_a_minute(alone: World) -> None:
    alone._scheduler._spot[:] = False
    alone.run(until=lambda: alone.job().decision.on is CapacityType.ON_DEMAND)
    assert alone.now - alone.job().progress.submitted_at == pytest.approx(60.0)
    alone.run(until=lambda: alone.job().full_epoch_count == 2)


def test_a_scheduler_that_sees_no_node_of_the_kind_at_all_ends_no_job(alone: World) -> None:
    alone._scheduler._spot[:] = False
    pending(alone, Reason.NEVER_FITS, "needs 1 worker, best partial fit 0")
    assert alone.job().reason is Reason.WAITING_CAPACITY and not alone.job().ended
