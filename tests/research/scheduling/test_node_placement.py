"""Allocation policies in the engine: what they decide is placed, whole gangs or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.cluster import Allocation
from coach.core.policies import CoachPolicy, Policy
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView
from coach.plugins import policy
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.engine.job import SimJob
from coach_research.engine.record import EngineRecord
from coach_research.policies.dl2.policy import Dl2Policy
from coach_research.scheduling.api import demand
from coach_research.scheduling.incremental import grow, most, shrink
from coach_research.scheduling.node_placement import EngineJobView, price_of
from coach_research.workload import Work, by_counts, totals
from tests.research.engine.policies import Fifo
from tests.research.engine.test_event_engine import Watch

WORKER, SERVER, SCHEDULER = np.array([2.0, 2.0, 0.0]), np.array([1.0, 1.0, 0.0]), np.array([0.5, 0.5, 0.0])


def work(arrival: float = 0.0, epochs: float = 4.0) -> Work:
    speed = by_counts(lambda w, s: w * s / (w + s))
    return Work(
        arrival, epochs, WORKER, SERVER, SCHEDULER, minimum=Allocation(1, 1), maximum=Allocation(4, 4), speed=speed,
        rescale_seconds=0.1, checkpoint=1.0,
    )  # fmt: skip


@given(
    st.lists(st.tuples(*[st.floats(-2, 12)] * 3), min_size=1, max_size=6),
    st.tuples(*[st.sampled_from([0.0, 0.3, 1.0, 2.5])] * 3),
)
def test_how_often_a_pod_fits_on_each_node_is_counted_as_one_by_one(
    rooms: list[tuple[float, ...]], need: tuple[float, ...]
) -> None:
    counts = most(np.array(rooms), np.array(need))
    for room, count in zip(rooms, counts.tolist(), strict=True):
        each = [math.floor(have / one) for have, one in zip(room, need, strict=True) if one > 0]
        assert count == max(0, min(each, default=1_000_000))


def job() -> SimJob:
    return SimJob(0, work(), Engine(Cluster.uniform(1, 1), (), Fifo()))


def test_a_gpu_costs_its_part_of_a_node_in_a_trace_and_its_price_where_there_is_one() -> None:
    gang = Work(0.0, 10.0, np.array([1.0, 2.0, 4.0]), speed=by_counts(lambda w, _: w / 60), maximum=Allocation(2, 0))
    cluster = Cluster.uniform(3, 64, 512, 8)
    unpriced = Engine(cluster, (), Fifo())
    priced = Engine(cluster, (), Fifo(), record=EngineRecord(cluster, prices=(0.5, 0.25, 3.0)))
    # Two workers have all GPUs of a node for half a minute.
    for engine, cost in ((unpriced, 30.0), (priced, 30 * 2 * (0.5 + 2 * 0.25 + 4 * 3.0))):
        view = EngineJobView(SimJob(0, gang, engine), price_of(engine))
        assert view.epoch_cost(Allocation(2, 0)) == pytest.approx(cost)


@given(
    st.lists(st.tuples(st.floats(0, 12), st.floats(0, 12)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_grown_plan_has_room_on_every_node(
    rooms: list[tuple[float, float]], workers: int, servers: int, whole: bool
) -> None:
    room = np.array([(cpu, memory, 0.0) for cpu, memory in rooms])
    plan = grow(room, job(), (), Allocation(workers, servers), whole=whole)
    for node, need in demand(job(), plan).items():
        assert (room[node] - need >= -1e-6).all()
    got = totals(plan)
    assert got <= (workers, servers) and (not whole or got in {(0, 0), (workers, servers)})
    alone = np.array([[1e3, 1e3, 0.0]])
    assert totals(grow(alone, job(), (), Allocation(workers, servers), whole=True)) == (workers, servers)


def test_pods_that_stay_keep_their_nodes() -> None:
    plan = ((3, 2, 1), (1, 1, 1), (5, 1, 0))
    less = shrink(plan, Allocation(2, 1))
    assert totals(less) == (2, 1)
    assert less[0][0] == 3
    assert shrink(plan, Allocation(4, 2)) == plan
    room = np.array([[10.0, 10.0, 0.0]] * 6)
    more = grow(room, job(), less, Allocation(4, 2), whole=False)
    assert totals(more) == (4, 2)
    assert dict((n, (w, s)) for n, w, s in more)[3] >= (2, 1)


@pytest.mark.parametrize("name", ["coach", "static:2x2", "drf", "srtf", "optimus", "tetris"])
def test_every_allocation_policy_finishes_all_jobs_and_never_over_commits(name: str) -> None:
    works = [work(3.0 * number, 3.0 + number % 3) for number in range(8)]
    record = Engine(Cluster.uniform(3, 8, 16), works, Watch(policy(name))).run()
    assert not np.isnan(record.column("finished")).any()


@dataclass
class Slotted(Policy):
    """Two workers and two servers for every job, every ten seconds; notes when it was called."""

    name: str = "slotted"
    cadence: float | None = 10.0
    asked: list[int] = field(default_factory=list)

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        self.asked.append(len(jobs))
        return AllocationDecision({one.id: Allocation(2, 2) for one in jobs})


def test_a_policy_with_a_cadence_is_asked_at_its_slots_alone() -> None:
    policy = Slotted()
    record = Engine(Cluster.uniform(2, 8, 16), [work(0.0, 4.0), work(12.0, 1.0)], policy).run()
    # One epoch a second at 2x2: the first runs from 0 to 4 s, the second waits for the slot at 20 s.
    assert record.column("started").tolist() == [0.0, 20.0]
    assert record.column("finished").tolist() == [4.0, 21.0]
    assert policy.asked == [1, 1]


def test_where_all_jobs_fit_a_separable_policy_sees_the_moving_jobs_alone() -> None:
    works = [work(0.7 * number, 3.0 + number % 3) for number in range(8)]

    def times(nodes: int, separable: bool) -> tuple[list[float], int]:
        asked = []

        class Counting(CoachPolicy):
            def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
                asked.append(len(jobs))
                return super().allocate(jobs, cluster)

        Counting.separable = separable
        record = Engine(Cluster.uniform(nodes, 40, 80), works, Watch(Counting())).run()
        return record.column("finished").tolist(), sum(asked)

    wide, asked_wide = times(8, True)
    every, asked_every = times(8, False)
    assert wide == every
    assert asked_wide < asked_every
    narrow = [times(1, separable)[0] for separable in (True, False)]
    assert narrow[0] == narrow[1]


def tasks(count: int, gap: float, seed: int = 1) -> list[Work]:
    """Tasks of 1 to 4 workers for some 20 s each, one every `gap` seconds on average."""
    dice = np.random.default_rng(seed)
    workers, seconds = dice.integers(1, 5, count).tolist(), dice.exponential(20.0, count).tolist()
    arrivals = np.cumsum(dice.exponential(gap, count)).tolist()
    return [
        Work(at, time * n, WORKER, minimum=Allocation(n, 0), maximum=Allocation(n, 0))
        for at, time, n in zip(arrivals, seconds, workers, strict=True)
    ]


def test_dl2_sees_the_moving_jobs_alone_while_all_are_rigid_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    allocate = Dl2Policy.allocate

    def counted(self: Dl2Policy, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        asked.append(len(jobs))
        return allocate(self, jobs, cluster)

    monkeypatch.setattr(Dl2Policy, "allocate", counted)
    works = tasks(20, 5.0)
    rigid = Engine(Cluster.uniform(40, 40, 80), works, policy("dl2")).run().column("finished")
    assert max(asked) == 1
    monkeypatch.setattr(Dl2Policy, "separable_if_rigid", False)
    asked.clear()
    assert Engine(Cluster.uniform(40, 40, 80), works, policy("dl2")).run().column("finished").tolist() == rigid.tolist()
    assert max(asked) > 1
    # An elastic job shares out with all others.
    monkeypatch.undo()
    monkeypatch.setattr(Dl2Policy, "allocate", counted)
    asked.clear()
    Engine(Cluster.uniform(40, 40, 80), [work(0.0, 100.0), *works], policy("dl2")).run()
    assert max(asked) > 1


@dataclass
class Asked(Policy):
    """A policy that counts its calls."""

    policy: Policy
    name: str = "asked"
    cadence: float | None = None
    calls: int = 0

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        self.calls += 1
        return self.policy.allocate(jobs, cluster)


@pytest.mark.parametrize("name", ["coach", "drf", "optimus", "srtf", "tetris"])
def test_tasks_without_epochs_end_as_if_they_had_one_a_second_but_are_asked_about_at_events_alone(
    name: str,
) -> None:
    def run(epochs: bool) -> tuple[list[float], int, int]:
        works = tasks(60, 8.0)
        if epochs:
            for one in works:
                one.speed = by_counts(lambda workers, servers: float(workers))
        asked = Asked(policy(name))
        engine = Engine(Cluster.uniform(4, 8, 16), works, asked)
        return engine.run().column("finished").tolist(), asked.calls, engine.events

    (finished, calls, events), (each_second, many, _) = run(epochs=False), run(epochs=True)
    assert finished == pytest.approx(each_second, abs=1e-9, rel=0)
    assert calls < events < many / 5


@pytest.mark.parametrize("name", ["coach", "drf", "optimus", "srtf", "tetris"])
def test_tasks_on_a_full_cluster_all_end(name: str) -> None:
    """Preempted tasks without a grace period do not push each other out again and again in one instant."""
    engine = Engine(Cluster.uniform(4, 8, 16), tasks(100, 2.0), Watch(policy(name)))
    finished = engine.run().column("finished")
    assert len(finished) == 100
    assert not np.isnan(finished).any()
    assert engine.events < 5 * 100


def test_a_shorter_task_preempts_a_longer_one_when_it_arrives() -> None:
    long, short = (
        Work(at, work, WORKER, minimum=Allocation(4, 0), maximum=Allocation(4, 0))
        for at, work in ((0.0, 400.0), (10.3, 40.0))
    )
    record = Engine(Cluster.uniform(1, 8, 16), [long, short], policy("srtf")).run()
    assert record.column("finished")[np.argsort(record.column("job"))] == pytest.approx([110.0, 20.3])


def test_elastic_tasks_grow_when_others_end() -> None:
    """Also under a policy that is asked about moving jobs alone where all jobs fit."""
    works = [Work(0.0, work, WORKER, minimum=Allocation(1, 0), maximum=Allocation(4, 0)) for work in (20.0, 100.0)]
    for name in ("coach", "drf"):
        record = Engine(Cluster.uniform(1, 8, 16), list(works), policy(name)).run()
        # All four workers are at work until the end.
        assert max(record.column("finished")) == pytest.approx(30.0)
