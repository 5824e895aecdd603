"""A job that is faster on one kind of nodes: what it measures, predicts and costs there."""

from __future__ import annotations

from typing import Any

import pytest

from coach.core.cluster import Allocation, Node, Resources
from coach.core.jobs import actions as act
from coach.core.lifecycle import forecast
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, spec

KINDS = {"fast": 4.0, "slow": 0.5}
#: 100 s an epoch on a node of pace 1.
STEADY = FaultyDynamics(speed=lambda w, s: 0.01 * w)


def world(*kinds: str, **changes: Any) -> World:
    """A job of one worker on nodes of these kinds, of which the first has room."""
    cluster = tuple(
        Node(f"node-{at}", Resources(4.0 if at == 0 else 0.1, 64.0), kind=kind) for at, kind in enumerate(kinds)
    )
    one = World.of(cluster, shadow=True)
    fixed = {"name": "static", "workers": 1, "servers": 1}
    one.submit(spec(speedByKind=KINDS, policy=fixed, **{"maxEpochs": 4, "target": {"loss": 0.01}} | changes), STEADY)
    return one


@pytest.mark.parametrize(("kind", "pace"), [("fast", 4.0), ("slow", 0.5), ("other", 1.0)])
def test_its_epochs_take_what_its_nodes_take_and_its_surface_is_that_of_pace_one(kind: str, pace: float) -> None:
    one = world(kind)
    one.run()
    job = one.job()
    assert {order.pace for order in one.orders()} == {pace}
    assert [epoch.report.train_seconds for epoch in job.epochs] == pytest.approx([100.0 / pace] * 4)
    assert [point.epochs_per_second for point in job.speed_points()] == pytest.approx([0.01] * 4)
    assert job.models.surface is not None
    assert job.models.surface.model.predict(1, 1) == pytest.approx(0.01)
    assert job.speed is not None
    assert job.speed.predict(1, 1) == pytest.approx(0.01 * pace)


def test_the_next_epoch_is_predicted_for_the_kind_it_runs_on() -> None:
    one = world("slow")
    one.run()
    predicted = one.orders()[-1].predicted_seconds
    assert predicted is not None
    assert predicted[1] == pytest.approx(one.job().epochs[-1].report.train_seconds, rel=0.05)


def test_before_it_has_nodes_the_slowest_count() -> None:
    one = world("fast", "slow")
    one.run(until=lambda: bool(one.taken(act.RunEpoch)))
    job = one.job()
    assert job.pace == 4.0
    held, job.gang.pods = job.gang.pods, {}
    assert job.pace == 0.5
    job.gang.pods = held


def test_a_policy_sees_the_speed_on_each_kind_and_the_kinds_of_nodes() -> None:
    one = world("fast", "slow")
    one.run(until=lambda: len(one.job().epochs) == 2 and one.job().attempts.running is not None)
    view = one.reducer._view(one.job())
    at = Allocation(1, 1)
    here = forecast.predicted_seconds(one.job(), at, 1.0)
    assert here is not None
    assert 1.0 / view.speed(at) == pytest.approx(here.expected)
    assert view.speed(at, "fast") == view.speed(at)
    # The evaluation and the like take the same.
    assert 1.0 / view.speed(at, "slow") - here.expected == pytest.approx(200.0 - 25.0, rel=0.02)
    assert [node.kind for node in one.reducer.nodes.all] == ["fast", "slow"]
