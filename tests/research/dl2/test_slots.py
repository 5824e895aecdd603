"""The slots that the network learns from are the simulator's: every decision of every slot, and every job's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from coach.core.policies import AllocationDecision, ClusterView, JobView, Policy
from coach.plugins import policy
from coach_research.dl2.learner import masked
from coach_research.dl2.slots import Case, Slots
from coach_research.dl2.workload import NODE, SLOT, workload
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.policies.dl2.network import STEPS, Inference, Network, fresh
from coach_research.scenario import load

pytestmark = pytest.mark.standard


def parameters(**changes: Any) -> dict[str, Any]:
    return {**load("dl2-baselines").parameters, "jobs": 40, **changes}


@dataclass(frozen=True)
class Watched(Policy):
    policy: Policy
    cadence: float | None = SLOT
    seen: list[dict[int, tuple[int, int]]] = field(default_factory=list)
    name = "watched"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        decision = self.policy.allocate(jobs, cluster)
        self.seen.append({int(job): tuple(at) for job, at in decision.allocations.items() if at})
        return decision


def in_slots(case: Case, network: Network, seed: int) -> tuple[list[dict[int, tuple[int, int]]], np.ndarray]:
    trace = case.trace(np.random.default_rng([seed, 0]))
    world = Slots(case, 1, iter([trace, trace]))
    inference = Inference(network.weights, 1, case.window)
    seen = []
    while not world.means:
        inference.start(0, world.features[0], world.there[0])
        while True:
            action = masked(*inference.scores(), world.possible()).argmax(axis=1)
            if not world.act(action)[0]:
                break
            job = action // len(STEPS)
            inference.change(np.array([0]), job, world.features[0, job])
        there = world.there[0]
        seen.append(
            dict(zip(world.number[0, there].tolist(), map(tuple, world.counts[0, there].tolist()), strict=True))
        )
        done = world.completion[0].copy()
        left = world.left[0].copy()
        now = world.now[0]
        rate = case.progress[world.all_kinds[0, world.number[0, there]], *world.counts[0, there].T]
        ends = now + left[world.number[0, there]] / rate - world.arrival[0, world.number[0, there]]
        last = rate >= left[world.number[0, there]] - 1e-12
        done[world.number[0, there][last]] = ends[last]
        world.end(0)
    return seen, done


@pytest.mark.parametrize(("nodes", "trained"), [(500, True), (24, True), (500, False), (24, False)])
def test_each_slot_is_decided_as_in_the_simulator_and_each_job_ends_when_it_does(nodes: int, trained: bool) -> None:
    given = parameters(nodes=nodes)
    case = Case.of(given)
    network = policy("dl2").network  # type: ignore[attr-defined]
    if not trained:
        network = replace(network, weights=fresh(len(case.kinds), 8, len(STEPS), np.random.default_rng(3)))
    watched = Watched(replace(policy("dl2"), network=network))  # type: ignore[type-var]
    cluster = Cluster.uniform(nodes, *NODE)
    record = Engine(cluster, workload(given, np.random.default_rng([5, 0])), watched).run()
    seen, done = in_slots(case, network, 5)
    assert watched.seen == seen
    times = (record.column("finished") - record.column("arrived")) / SLOT
    assert np.sort(times) == pytest.approx(np.sort(done), abs=1e-6)


def test_the_minimum_goes_to_the_oldest_as_far_as_it_fits() -> None:
    case = Case.of(parameters(nodes=2, arrivals=[10, 10]))
    world = Slots(case, 1, iter([case.trace(np.random.default_rng([1, 0]))]))
    there = world.there[0]
    assert 2 <= there.sum() <= 4
    assert there[: there.sum()].all()
    assert (world.used[0] <= case.capacity).all()
    assert not (world.possible()[0] & ~there[:, None]).any()
