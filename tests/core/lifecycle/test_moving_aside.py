"""A job that runs moves at an epoch's end where a job that waits finds room only then."""

from __future__ import annotations

from typing import Any

import pytest

from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec

pytestmark = pytest.mark.quick

ONE = {"workers": {"min": 1, "max": 1}, "servers": {"min": 1, "max": 1}}
#: Its loss is at 1.0 after 61 epochs.
LONG = FaultyDynamics(speed=lambda w, s: 0.05 * w, loss=lambda x: 1 / (0.01 * x + 0.5) + 0.1)
SHORT = FaultyDynamics(speed=lambda w, s: 0.05 * w, loss=lambda x: 1 / (0.1 * x + 0.5) + 0.1)


def requests(worker: str, others: str) -> dict[str, Any]:
    cores = {"scheduler": others, "server": others, "worker": worker}
    return {role: {"cpu": cpu, "memory": "16Mi"} for role, cpu in cores.items()}


def by_node(job: Job) -> dict[str, int]:
    """How many of its pods each node has."""
    places = [held.pod.node for held in job.gang.pods.values()]
    return {node: places.count(node) for node in sorted(set(places))}


def spread(large: str, count: int = 1) -> World:
    """Two nodes of two cores. Of job `runs`, 1.55 cores in all, one worker is on node-0, as node-1 was in use.

    Then that room is free, and `waits` asks for so many workers of `large`.
    """
    world = World.of(nodes(2, 2.0), shadow=True)
    for name, worker in (("first", "1250m"), ("other", "500m")):
        world.submit(spec(name, maxEpochs=6, target={"loss": 0.01}, resources=requests(worker, "100m"), **ONE), SHORT)
    while not world.job("other").gang.pods:
        world.step()
    workers = {"workers": {"min": 3, "max": 3}, "servers": ONE["servers"]}
    world.submit(spec("runs", target={"loss": 1.0}, resources=requests("450m", "100m"), **workers), LONG)
    while not world.job("runs").epochs:
        world.step()
    assert by_node(world.job("runs")) == {"node-0": 1, "node-1": 4}
    waits = {"workers": {"min": count, "max": count}, "servers": ONE["servers"], "resources": requests(large, "50m")}
    world.submit(spec("waits", target={"loss": 0.05}, maxEpochs=3, **waits), SHORT)
    while not (world.job("first").ended and world.job("other").ended):
        world.step()
    return world


def test_one_worker_moves_and_the_job_that_waits_starts() -> None:
    world = spread("1850m")
    assert not world.job("waits").gang.pods, "1.55 and 1.3 cores are free, its worker needs 1.85"
    before = len(world.job("runs").epochs)
    while not world.job("waits").gang.pods:
        world.step()
    assert len(world.job("runs").epochs) <= before + 2
    assert by_node(world.job("waits")) == {"node-0": 3}
    while len(world.job("runs").epochs) < before + 6:
        world.step()
    assert by_node(world.job("runs")) == {"node-1": 5}, "it moved once, and trains on"


def test_nothing_moves_for_a_job_that_waits_for_something_else() -> None:
    world = spread("1850m")
    runs, waits = world.job("runs"), world.job("waits")
    assert runs.decision.desired is not None and waits.reason is Reason.WAITING_CAPACITY
    assert world.reducer._cluster.aside(runs, runs.decision.desired) is not None
    waits.reason = Reason.ACCOUNT_SPENT
    assert world.reducer._cluster.aside(runs, runs.decision.desired) is None


def test_nothing_moves_where_that_makes_no_room() -> None:
    world = spread(
        "1175m", 2
    )  # asks for 2.45 cores, and 2.45 are free: with a worker on each, a third of `runs` finds no room
    places = by_node(world.job("runs"))
    for _ in range(120):
        world.step()
        if not world.job("runs").ended:
            assert by_node(world.job("runs")) == places
