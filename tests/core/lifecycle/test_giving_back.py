"""Elastic groups give workers and servers to jobs that wait, before their epochs end, where that costs less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle import giving_back
from coach.plugins import policy
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec, usd

pytestmark = pytest.mark.standard

#: A whole epoch takes 67 s with three workers.
SLOW = FaultyDynamics(lambda w, s: 0.005 * w)


def two_jobs(
    chosen: str = "coach",
    rescale: float | None = 0.09,
    server: str = "elastic",
    cores: float = 4.5,
    before: Callable[[World], object] = lambda world: None,
    names: tuple[str, ...] = ("late",),
    **more: Any,
) -> World:
    """A job with all of the cluster is 20 s into a whole epoch when others come, and then runs on for 10 s.

    `before`: what happens just before they come.
    """
    world = World.of(nodes(1, cores), policy(chosen), shadow=True)
    common = {"parameterServer": server, "servers": {"min": 1, "max": 1}, "budget": usd(5.0)}
    dynamics = replace(SLOW, rescale_seconds=rescale, stop_seconds=20.0)
    own = common | {"workers": {"min": 1, "max": 3}, "target": {"loss": 0.12}} | more
    world.submit(spec("long", **own), dynamics)
    world.run(until=lambda: len(world.job("long").full_epochs) == 2 and world.job("long").attempts.running is not None)
    assert world.job("long").attempts.running.allocation == Allocation(3, 1)
    _wait(world, 20.0)
    before(world)
    for name in names:
        world.submit(spec(name, workers={"min": 1, "max": 1}, **common), replace(dynamics, speed=lambda w, s: 0.1))
    _wait(world, 10.0)
    return world


def _wait(world: World, seconds: float) -> None:
    until = world.now + seconds
    world.at(until, lambda: ev.NodesChanged(world.now, ()))
    world.run(until=lambda: world.now >= until)


@pytest.mark.parametrize("chosen", ["coach", "dl2"])
def test_a_job_that_waits_gets_a_worker_in_the_middle_of_an_epoch(chosen: str) -> None:
    world = two_jobs(chosen)
    (given,) = world.taken(act.ReleasePods, "long")
    order, long = world.orders("long")[-1], world.job("long")
    assert [pod.name for pod in given.pods] == ["long-worker-2"]
    assert long.attempts.running is not None and long.attempts.running.token == order.token, "its epoch goes on"
    assert (long.attempts.running.allocation, long.gang.held) == (Allocation(2, 1), Allocation(2, 1))
    assert (long.reason, long.message.partition(":")[0]) == (Reason.TRAINING_EPOCH, "with 2x1, for late")
    assert world.orders("late")[0].at - given.at < 2.0
    settled = [one for one in world.taken(act.Settle, "long") if one.token == order.token]
    assert len(settled) == 1, "from then on the pod costs nothing"
    world.run(until=lambda: long.attempts.running is None or long.attempts.running.token != order.token)
    epoch = next(one for one in long.epochs if one.token == order.token)
    assert (epoch.fraction, epoch.report.workers_lost, epoch.allocation) == (1.0, 1, Allocation(2, 1))
    world.cancel("long")
    world.run()
    world.check_fold()


@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("a change costs more than the rest of the epoch", {"rescale": 60.0}),
        ("ps-lite cannot change its group", {"server": "ps-lite"}),
        ("its smallest gang is what it holds", {"workers": {"min": 3, "max": 3}}),
        ("first come, first served", {"chosen": "fifo"}),
    ],
)
def test_it_waits_for_the_end_of_the_epoch_where(why: str, changes: dict[str, Any]) -> None:
    world = two_jobs(**changes)
    assert not world.taken(act.ReleasePods, "long") and not world.orders("late"), why


def test_two_that_wait_get_a_worker_each() -> None:
    world = two_jobs(cores=4.9, names=("late", "later"))
    assert [[pod.name for pod in one.pods] for one in world.taken(act.ReleasePods, "long")] == [
        ["long-worker-2"],
        ["long-worker-1"],
    ]
    assert world.orders("late") and world.orders("later")
    assert world.job("long").gang.held == Allocation(1, 1)


@pytest.mark.parametrize(
    "stop",
    [
        lambda world: world.cancel("long"),
        lambda world: world.suspend("long", now=True),
        lambda world: world.suspend("long", now=False),
    ],
    ids=["cancelled", "suspended now", "suspended at its end"],
)
def test_an_epoch_that_is_being_stopped_gives_nothing(stop: Callable[[World], object]) -> None:
    world = two_jobs(before=stop)
    assert world.job("long").attempts.running is not None
    assert not world.taken(act.ReleasePods, "long") and not world.orders("late")


def test_the_rest_of_the_epoch_has_to_end_before_its_deadline() -> None:
    world = two_jobs(rescale=60.0)
    job, now, less = world.job("long"), world.now, Allocation(1, 1)
    assert job.attempts.running is not None and job.attempts.running.kind is EpochKind.FULL
    assert giving_back.may_shrink(job, less, now)
    assert not any(giving_back.may_shrink(job, other, now) for other in (None, job.gang.held, Allocation(4, 1)))
    # With one worker the rest takes up to 200 s.
    job.attempts.running = replace(job.attempts.running, deadline=now - job.attempts.running.at + 150.0)
    assert not giving_back.may_shrink(job, less, now) and giving_back.may_shrink(job, Allocation(2, 1), now)
