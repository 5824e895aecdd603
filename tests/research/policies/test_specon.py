"""SpeCon: every branch of its three algorithms as a table, and whole runs of jobs in the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from coach.core.cluster import Allocation
from coach.simulation.faults import Faults
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.policies.specon import (
    Category,
    Container,
    RoundRobin,
    SpeCon,
    destination,
    monitor,
    rebalance,
    score,
)
from coach_research.scheduling.api import JobId, NodeId
from coach_research.workload import Work

PC, WC, CC = Category.PROGRESSING, Category.WATCHING, Category.CONVERGED
NAN = math.nan
ALPHA = 0.01

# -- Algorithm 1 -----------------------------------------------------------------------------------------------

#: (what, category, E(t_m-1), G(t_m-1), E(t_m), category after)
MONITOR = [
    ("line 7: a slowing PC becomes WC", PC, 0.5, 0.02, 0.495, WC),
    ("line 10: a slowing WC becomes CC", WC, 0.5, 0.008, 0.495, CC),
    ("line 14: a slowing CC remains CC", CC, 0.5, 0.008, 0.495, CC),
    ("line 5: a growing loss is a gain by its absolute value", PC, 0.5, 0.02, 0.505, WC),
    ("line 17: PC, less than alpha but more than before, stays", PC, 0.5, 0.004, 0.495, PC),
    ("line 17: WC, less than alpha but more than before, stays", WC, 0.5, 0.004, 0.495, WC),
    ("line 17: CC, less than alpha but more than before, stays", CC, 0.5, 0.004, 0.495, CC),
    ("line 17: as much as before is not less", WC, 0.5, 0.0078125, 0.5078125, WC),
    ("line 19: a fast WC is reset to PC", WC, 0.5, 0.02, 0.4, PC),
    ("line 19: a fast CC is reset to PC", CC, 0.5, 0.2, 0.4, PC),
    ("line 19: PC stays PC while it is fast, though slower than before", PC, 0.5, 0.2, 0.4, PC),
    ("choice 2: no sample before", PC, NAN, NAN, 0.5, PC),
    ("choice 2: no gain before", WC, 0.5, NAN, 0.499, WC),
]


@pytest.mark.parametrize(("what", "category", "before", "gain", "loss", "after"), MONITOR)
def test_algorithm_1_categories(
    what: str, category: Category, before: float, gain: float, loss: float, after: Category
) -> None:
    container = Container(0, 0, category, loss=before, gain=gain)
    monitor(container, loss, ALPHA, [container])
    assert container.category is after, what
    assert container.loss == loss
    assert container.gain == pytest.approx(abs(loss - before), nan_ok=True)


def test_a_gain_of_exactly_alpha_leaves_the_category_as_it_is() -> None:
    for category in Category:
        container = Container(0, 0, category, loss=0.5, gain=0.75)
        assert not monitor(container, 0.25, 0.25, [container])
        assert container.category is category


#: (what, categories of the other containers on the worker, whether reallocation is requested)
REQUEST = [
    ("alone", [], False),
    ("line 15: one that progresses is not more than one", [PC], False),
    ("line 15: one watched is not more than one", [WC, CC, CC], False),
    ("line 16: two that progress", [PC, PC], True),
    ("line 16: one of each", [PC, WC, CC], True),
    ("line 16: two watched", [WC, WC], True),
    ("line 15: converged ones do not count", [CC, CC, CC], False),
]


@pytest.mark.parametrize(("what", "others", "requested"), REQUEST)
def test_algorithm_1_requests_reallocation(what: str, others: list[Category], requested: bool) -> None:
    container = Container(0, 0, CC, loss=0.5, gain=0.008)
    neighbours = [container, *(Container(1 + at, 0, category) for at, category in enumerate(others))]
    assert monitor(container, 0.495, ALPHA, neighbours) is requested, what


def test_the_1_of_line_15_is_a_parameter() -> None:
    def requests(*others: Category) -> bool:
        converged = Container(0, 0, CC, loss=0.5, gain=0.008)
        neighbours = [converged, *(Container(1 + at, 0, category) for at, category in enumerate(others))]
        return monitor(converged, 0.495, ALPHA, neighbours, crowd=0)

    assert requests(PC)
    assert not requests(CC)


@pytest.mark.parametrize("category", [PC, WC])
def test_algorithm_1_only_converged_containers_request(category: Category) -> None:
    container = Container(0, 0, category, loss=0.5, gain=0.008)
    assert not monitor(container, 0.495, ALPHA, [container, Container(1, 0), Container(2, 0)])


# -- Algorithm 2 -----------------------------------------------------------------------------------------------


def crowd(categories: Mapping[NodeId, Sequence[Category]]) -> dict[NodeId, list[Container]]:
    return {node: [Container(0, node, category) for category in row] for node, row in categories.items()}


def test_algorithm_2_scores() -> None:
    assert score(crowd({0: [PC, PC, WC, CC]})[0]) == 2 + 2 + 1.5 + 1


#: (what, where c_j is, categories by worker, where it should be)
DESTINATION = [
    ("line 8: its own worker has the least score", 0, {0: [CC], 1: [PC]}, 0),
    ("line 8: its own worker is one of the least", 1, {0: [PC], 1: [CC, CC], 2: [PC]}, 1),
    ("line 13: one candidate", 0, {0: [PC, CC], 1: [PC], 2: [PC, PC]}, 1),
    ("line 13: the least score, not the fewest containers", 0, {0: [PC, PC, CC], 1: [CC, CC, CC], 2: [PC, PC]}, 1),
    ("line 17: the candidate with fewer containers", 0, {0: [PC, PC], 1: [WC, WC], 2: [CC, PC], 3: [CC, CC, CC]}, 1),
    ("line 18: fewer containers at the same score", 0, {0: [PC] * 4, 1: [CC, CC, PC], 2: [PC, PC], 3: [PC] * 3}, 2),
    ("choice 5: as many containers", 3, {0: [PC], 1: [WC], 2: [WC], 3: [CC, PC]}, 1),
    ("an idle worker has a score of 0", 0, {0: [CC, PC, PC], 1: [CC], 2: []}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("what", "at", "categories", "to"), DESTINATION)
def test_algorithm_2_destination(what: str, at: NodeId, categories: dict[NodeId, list[Category]], to: NodeId) -> None:
    assert destination(at, crowd(categories)) == to, what


def test_algorithm_2_moves_job_14_of_the_paper_to_worker_1() -> None:
    # Section VI.C: scores 63, 88, 92 and 72 for Worker-1 to -4, Job-14 on Worker-2. Converged containers count 1.
    assert destination(1, crowd({0: [CC] * 63, 1: [CC] * 88, 2: [CC] * 92, 3: [CC] * 72})) == 0


# -- Algorithm 3 -----------------------------------------------------------------------------------------------

#: A worker's containers, each by its t_c; None: not migrated. Jobs are numbered in the order given.
Marks = Mapping[NodeId, Sequence[float | None]]

#: (what, containers, moves as (job, to))
REBALANCE: list[tuple[str, Marks, list[tuple[JobId, NodeId]]]] = [
    ("lines 10-16: an idle worker gets the one marked last", {0: [10, 30], 1: [20, None], 2: []}, [(1, 2)]),
    ("line 13: d_c is smallest where t_c is largest, on any worker", {0: [10, 20], 1: [None, 90], 2: []}, [(3, 2)]),
    ("lines 11-16: each idle worker gets one", {0: [1, 2, 3, 4], 1: [5, 6], 2: [], 3: []}, [(5, 2), (3, 3)]),
    ("line 13: who is not migrated has no d_c", {0: [None, None], 1: [None], 2: []}, []),
    ("line 14: no job is taken twice", {0: [None, 9], 1: [None, None], 2: [], 3: []}, [(1, 2)]),
    ("choice 8: bf is 1 where there are fewer containers than workers", {0: [10, 20], 1: [], 2: []}, [(1, 1)]),
    ("choice 8: who is alone stays", {0: [10], 1: []}, []),
    ("an idle worker gets one at a time, however large bf is", {0: [1, 2, 3, 4, 5], 1: []}, [(4, 1)]),
    ("lines 19-22: bf - 1 leaves no worker", {0: [1, 2, 3], 1: [4, 5, 6], 2: [7, 8]}, []),
    ("lines 19-29: less than bf - 1", {0: [1, 2, 3, 4], 1: [5, 6, 7, 8], 2: [9]}, [(3, 2)]),
    ("line 27: T fills up", {0: [1, 2, 3, 4, 5], 1: [6, 7, 8, 9, 10], 2: [11, 12]}, [(4, 2)]),
    ("lines 23-27: each worker outside T in turn", {0: list(range(1, 8)), 1: list(range(8, 15)), 2: [20]},
     [(6, 2), (13, 2)]),
    ("line 25: outside T only; a worker without marked ones is passed", {0: [None] * 4, 1: [5, 6, 7, 8], 2: [99]},
     [(7, 2)]),
    ("a single worker", {0: [1, 2, 3]}, []),
    ("nothing runs", {0: [], 1: []}, []),
]  # fmt: skip


@pytest.mark.parametrize(("what", "marks", "moves"), REBALANCE)
def test_algorithm_3(what: str, marks: Marks, moves: list[tuple[JobId, NodeId]]) -> None:
    workers: dict[NodeId, list[Container]] = {}
    job = 0
    for node, row in marks.items():
        workers[node] = []
        for mark in row:
            workers[node].append(Container(job, node, migrated=mark is not None, marked=NAN if mark is None else mark))
            job += 1
    assert [(container.job, node) for container, node in rebalance(workers)] == moves, what


def test_algorithm_3_moves_no_job_twice() -> None:
    once = Container(1, 0, migrated=True, marked=9.0, rebalanced=True)
    workers = {0: [Container(0, 0, migrated=True, marked=5.0), once, Container(2, 0)], 1: []}
    assert [(c.job, node) for c, node in rebalance(workers)] == [(0, 1)]


# -- in the engine ---------------------------------------------------------------------------------------------

SHARED = Cluster.uniform(3, cpu=16, contention=0.0)


def falls_until(epochs: float):
    """A loss that falls straight from 1 to 0.1 and then ever less."""
    return lambda done: 1.0 - 0.9 * done / epochs if done < epochs else 0.1 / (1.0 + done - epochs)


def container(arrival: float, work: float, growing: float, **more: object) -> Work:
    return Work(arrival, work, np.zeros(3), loss=falls_until(growing), **more)  # type: ignore[arg-type]


def simulated(policy: object, works: list[Work], cluster: Cluster = SHARED, **more: object) -> tuple[Engine, str]:
    lines: list[str] = []
    engine = Engine(cluster, works, policy, log=lines.append, **more)  # type: ignore[arg-type]
    engine.run()
    return engine, "".join(lines)


def test_round_robin_starts_container_k_on_worker_k_minus_1_mod_w_and_never_moves_it() -> None:
    engine, log = simulated(RoundRobin(), [container(at, 500.0, 10.0) for at in range(7)])
    starts = [line.split("> ")[1] for line in log.splitlines() if "> " in line]
    assert starts == [f"Start(job={job}, plan=(({job % 3}, 1, 0),))" for job in range(7)]
    assert engine.record.column("migrations").sum() == 0


def test_a_slow_job_makes_room_once() -> None:
    works = [
        container(0.0, 600.0, 20.0),  # worker 0, converged early
        container(1.0, 50.0, 1000.0),
        container(2.0, 50.0, 1000.0),
        container(3.0, 600.0, 1000.0),  # worker 0
        container(4.0, 50.0, 1000.0),
        container(5.0, 50.0, 1000.0),
        container(6.0, 600.0, 1000.0),  # worker 0: two progress next to the converged one
    ]
    engine, _ = simulated(SpeCon(), works)
    moved = engine.record.column("migrations")
    assert moved[0] == 1
    assert moved.sum() == 1
    still, _ = simulated(RoundRobin(), works)
    ours, theirs = engine.record.column("finished"), still.record.column("finished")
    assert ours.mean() < theirs.mean()


def test_a_pause_is_paid_for_the_move() -> None:
    def ends(seconds: float) -> float:
        works = [container(0.0, 600.0, 20.0, migration_seconds=seconds)]
        works += [container(float(at), 600.0 if at % 3 == 0 else 20.0, 1000.0) for at in range(1, 7)]
        engine, _ = simulated(SpeCon(), works)
        assert engine.record.column("migrations")[0] == 1
        return float(engine.record.column("finished")[0])

    assert ends(0.0) < ends(5.0)


def test_the_threshold_is_a_part_of_the_first_loss() -> None:
    def moves(scale: float) -> list[float]:
        works = [
            Work(at, 300.0, np.zeros(3), loss=lambda done, at=at: scale * math.exp(-(5 + at) * done / 300.0))  # type: ignore[misc]
            for at in range(12)
        ]
        return simulated(SpeCon(), works)[0].record.column("finished").tolist()  # type: ignore[no-any-return]

    assert moves(1.0) == moves(1000.0)


def test_a_job_without_a_loss_never_moves() -> None:
    works = [Work(float(at), 300.0, np.zeros(3)) for at in range(9)]
    assert simulated(SpeCon(), works)[0].record.column("migrations").sum() == 0


def test_the_same_jobs_give_the_same_log() -> None:
    works = [container(7.0 * at, 200.0 + 13 * at, 20.0 + 9 * at, loss_noise=0.003) for at in range(20)]
    assert simulated(SpeCon(), works, seed=3)[1] == simulated(SpeCon(), works, seed=3)[1]


@pytest.mark.parametrize("policy", [RoundRobin, SpeCon])
def test_on_reserved_nodes_jobs_wait_for_room_in_order_and_all_end(policy: type) -> None:
    cluster = Cluster.uniform(3, cpu=4, memory=8)
    one, pod = np.array([1.0, 1.0, 0.0]), Allocation(2, 1)
    works = [Work(5.0 * at, 200.0, one, one, minimum=pod, maximum=pod, loss=falls_until(20.0)) for at in range(9)]
    engine, log = simulated(policy(), works, cluster)
    assert np.isfinite(engine.record.column("finished")).all()
    starts = [line.split("job=")[1].split(",")[0] for line in log.splitlines() if "Start(" in line]
    assert starts == [str(job) for job in range(9)]


@pytest.mark.parametrize("policy", [RoundRobin, SpeCon])
def test_a_job_larger_than_any_node_is_spread(policy: type) -> None:
    one, gang = np.array([1.0, 1.0, 0.0]), Allocation(5, 1)
    works = [Work(0.0, 500.0, one, one, minimum=gang, maximum=gang, loss=falls_until(20.0))]
    engine, log = simulated(policy(), works, Cluster.uniform(3, cpu=4, memory=8))
    assert "Start(job=0, plan=((0, 3, 1), (1, 2, 0)))" in log
    assert np.isfinite(engine.record.column("finished")).all()


@pytest.mark.parametrize("policy", [RoundRobin, SpeCon])
def test_jobs_outlive_lost_nodes(policy: type) -> None:
    works = [container(20.0 * at, 300.0, 30.0, checkpoint=10.0) for at in range(20)]
    engine, _ = simulated(policy(), works, faults=Faults(1, node_lost=400.0, node_back=60.0, function_lost=4000.0))
    assert engine.record.nodes_lost > 3
    assert np.isfinite(engine.record.column("finished")).all()


@pytest.mark.parametrize(("alpha", "interval"), [(0.0, 30.0), (0.01, 0.0)])
def test_parameters_out_of_range_are_refused(alpha: float, interval: float) -> None:
    with pytest.raises(ValueError, match="above zero"):
        SpeCon(alpha, interval)


def test_containers_without_a_loss_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpeCon, "_categorize", lambda *_: pytest.fail("nothing can change of these"))
    works = [Work(0.0, 1000.0, np.array([1.0, 0.0, 0.0])) for _ in range(3)]
    assert Engine(Cluster.uniform(2, 2), works, SpeCon()).run().column("finished").tolist() == [1000.0] * 3
