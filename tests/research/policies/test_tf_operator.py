"""tf-operator: pods one by one, deadlocks, and what ends them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coach.core.cluster import Allocation
from coach.simulation.faults import Faults
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.policies.tf_operator import TFOperator
from coach_research.workload import Work


def tfjob(arrival: float, work: float, workers: int, cpu: float = 1.0, **more: object) -> Work:
    one = np.array([cpu, 1.0, 0.0])
    return Work(
        arrival, work, one, np.array([1.0, 1.0, 0.0]),
        minimum=Allocation(1, 1), maximum=Allocation(workers, 1), **more,
    )  # type: ignore[arg-type]  # fmt: skip


def simulated(
    works: list[Work], *cores: float, seed: int = 0, timeout: float | None = None, **more: object
) -> tuple[Engine, list[str]]:
    lines: list[str] = []
    policy = TFOperator(np.random.default_rng(seed), timeout, more.pop("random_retry", True) is True)
    capacity = np.array([[count, 64.0, 0.0] for count in cores])
    engine = Engine(Cluster(capacity), works, policy, log=lines.append, **more)  # type: ignore[arg-type]
    engine.run()
    return engine, lines


def test_a_job_trains_with_its_largest_number_of_workers() -> None:
    engine, lines = simulated([tfjob(0.0, 100.0, 4)], 10.0)
    assert lines[1] == "0.0 > Start(job=0, plan=((0, 4, 1),))\n"
    assert engine.record.column("finished")[0] == pytest.approx(25.0)


def test_pods_go_to_random_nodes_each_by_itself() -> None:
    seen = set()
    for seed in range(20):
        _, lines = simulated([tfjob(0.0, 100.0, 3)], 10.0, 10.0, 10.0, seed=seed)
        nodes = re.findall(r"\((\d), \d, \d\)", lines[1])
        seen.add(tuple(sorted(nodes)))
    assert len(seen) > 3


def test_a_job_holds_room_while_its_other_pods_wait() -> None:
    engine, lines = simulated([tfjob(0.0, 100.0, 4), tfjob(1.0, 100.0, 4)], 8.0)
    assert "1.0 > Reserve(job=1, plan=((0, 2, 1),))\n" in lines
    assert engine.record.column("started")[1] == pytest.approx(25.0)
    assert engine.record.column("finished")[1] == pytest.approx(50.0)


def test_two_jobs_that_hold_what_the_other_waits_for_never_end() -> None:
    # The first job's end frees two cores; in most random orders both others get one.
    works = [tfjob(at, 100.0, 1) for at in range(3)]
    stuck = []
    for seed in range(20):
        engine, _ = simulated(works, 2.0, seed=seed)
        stuck.append(int(np.isnan(engine.record.column("finished")).sum()))
    assert {0, 2} == set(stuck)


def test_first_come_first_served_retries_avoid_this_deadlock() -> None:
    works = [tfjob(at, 100.0, 1) for at in range(3)]
    for seed in range(20):
        engine, _ = simulated(works, 2.0, seed=seed, random_retry=False)
        assert np.isfinite(engine.record.column("finished")).all()


def test_the_timeout_ends_a_deadlock_and_the_room_goes_to_the_others() -> None:
    works = [tfjob(at, 100.0, 1) for at in range(3)]
    killed = []
    for seed in range(20):
        engine, lines = simulated(works, 2.0, seed=seed, timeout=600.0)
        killed.append(int(engine.record.column("killed").sum()))
        assert np.isfinite(engine.record.column("finished")).sum() == 3 - killed[-1]
        if killed[-1]:
            # Both came at the first one's end, so both are given up together.
            assert next(line for line in lines if "> Kill" in line).startswith("700.0 ")
    assert {0, 2} == set(killed)


def test_a_job_without_placed_pods_is_not_killed() -> None:
    engine, _ = simulated([tfjob(0.0, 4000.0, 4), tfjob(1.0, 100.0, 4)], 5.0, timeout=60.0)
    assert engine.record.column("killed").sum() == 0
    assert engine.record.column("finished")[1] == pytest.approx(1025.0)


def test_a_job_that_became_whole_in_time_is_not_given_up() -> None:
    engine, _ = simulated([tfjob(0.0, 100.0, 4), tfjob(1.0, 1000.0, 4)], 8.0, timeout=100.0)
    assert engine.record.column("killed").sum() == 0


def test_the_scheduler_of_a_job_is_on_the_node_of_its_first_pod() -> None:
    one = np.array([1.0, 1.0, 0.0])
    work = Work(0.0, 100.0, one, one, one, minimum=Allocation(1, 1), maximum=Allocation(3, 1))
    for seed in range(10):
        engine, _ = simulated([work], 2.0, 2.0, 2.0, seed=seed)
        assert np.isfinite(engine.record.column("finished")).all()


def test_the_same_seed_gives_the_same_log() -> None:
    works = [tfjob(30.0 * at, 300.0, 2 + at % 4) for at in range(10)]
    first, again = (simulated(works, 6.0, 6.0, seed=5, timeout=600.0)[1] for _ in range(2))
    assert first == again
    assert first != simulated(works, 6.0, 6.0, seed=6, timeout=600.0)[1]


def test_jobs_outlive_lost_nodes() -> None:
    works = [tfjob(60.0 * at, 200.0, 3, checkpoint=10.0) for at in range(10)]
    engine, _ = simulated(works, 10.0, 10.0, 10.0, timeout=3600.0, faults=Faults(1, node_lost=400.0, node_back=60.0))
    assert engine.record.nodes_lost > 2
    assert np.isfinite(engine.record.column("finished")).all()


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.floats(0.0, 60.0), st.floats(10.0, 300.0), st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0])),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_with_a_timeout_every_job_ends_or_is_given_up(jobs: list[tuple[float, float, int, float]], seed: int) -> None:
    arrival, works = 0.0, []
    for gap, work, workers, cpu in jobs:
        arrival += gap
        works.append(tfjob(arrival, work, workers, cpu))
    engine, _ = simulated(works, 7.0, 7.0, seed=seed, timeout=500.0)
    assert not engine.jobs
    done = np.isfinite(engine.record.column("finished")) | (engine.record.column("killed") > 0)
    assert done.all()
