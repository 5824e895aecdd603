"""Pods kept as they come and go give the snapshot that counting all of them would give."""

from __future__ import annotations

import random

from coach.core.cluster import Node, Pod, PodId, Resources, Role
from coach.core.gang.snapshot import Occupancy, Snapshot

NODES = [Node(f"node-{n}", Resources(8.0, 16.0, 2.0)) for n in range(4)]
SHAPES = [Resources(0.1, 0.3), Resources(1.7, 2.0, 1.0), Resources(0.7, 1.1)]


def pods(dice: random.Random, job: str) -> list[Pod]:
    return [
        # One of five is on a node that is gone.
        Pod(PodId(job, Role.WORKER, n), f"node-{dice.randrange(5)}", dice.choice(SHAPES))
        for n in range(dice.randrange(5))
    ]


def test_a_snapshot_is_that_of_all_pods_after_any_changes() -> None:
    dice = random.Random(1)
    occupancy, held = Occupancy(NODES), dict[str, list[Pod]]()
    for _ in range(500):
        job = f"job-{dice.randrange(6)}"
        before = held.get(job, [])
        held[job] = dice.choice([pods(dice, job), before, before[1:], []])
        occupancy.hold(job, held[job])
        ours = occupancy.snapshot()
        counted = Snapshot(NODES, [pod for pods_ in held.values() for pod in pods_])
        assert ours.jobs == counted.jobs
        for name, free in counted.free.items():
            assert abs(ours.free[name].cpu - free.cpu) < 1e-12
            assert abs(ours.free[name].memory - free.memory) < 1e-12
        for each in held:
            assert list(ours.of(each)) == list(counted.of(each))
            assert ours.holds(each) == counted.holds(each)


def test_pods_that_are_not_kept_are_freed() -> None:
    dice = random.Random(2)
    for _ in range(200):
        mine, others = pods(dice, "mine"), pods(dice, "other")
        kept = [pod for pod in mine if dice.random() < 0.5]
        left = Snapshot(NODES, [*mine, *others])
        left.keep_only("mine", kept)
        counted = Snapshot(NODES, [*kept, *others])
        assert left.jobs == counted.jobs
        assert list(left.of("mine")) == kept
        assert left.holds("mine") == counted.holds("mine")
        for name, free in counted.free.items():
            assert abs(left.free[name].cpu - free.cpu) < 1e-12


def test_a_snapshot_does_not_change_with_its_occupancy() -> None:
    occupancy = Occupancy(NODES)
    pod = Pod(PodId("a", Role.SERVER, 0), "node-0", SHAPES[1])
    before = occupancy.snapshot()
    occupancy.hold("a", [pod])
    assert before.free["node-0"] == NODES[0].capacity
    after = occupancy.snapshot()
    after.release("a")
    assert occupancy.snapshot().holds("a")
