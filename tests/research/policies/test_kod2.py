"""KOD2: the weights, every branch of its three algorithms as a table, and whole runs of jobs in the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coach.core.cluster import Allocation
from coach.simulation.faults import Faults
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.policies.consolidated import fewest_nodes, idleness
from coach_research.policies.kod2 import KOD2, scale_in, scale_out, weight
from coach_research.scheduling.api import JobId, demand
from coach_research.workload import FloatArray, Plan, Work

NOTHING = np.zeros(3)
ONE, NINE = Allocation(1, 1), Allocation(9, 1)


def cpus(*counts: float) -> FloatArray:
    """[node, resource] with so many cores, and memory for all."""
    return np.array([[count, 100.0, 0.0] for count in counts])


def pod(cpu: float, memory: float = 0.0) -> FloatArray:
    return np.array([cpu, memory, 0.0])


@dataclass
class Job:
    """The parts of a `JobState` that the algorithms read. Plans of one server: it is in the first part."""

    id: JobId
    plan: Plan = ()
    minimum: Allocation = ONE
    maximum: Allocation = NINE
    arrived: float = 0.0
    worker: FloatArray = field(default_factory=lambda: pod(1.0))
    server: FloatArray = field(default_factory=lambda: pod(1.0))
    scheduler: FloatArray = field(default_factory=lambda: NOTHING)

    @property
    def workers(self) -> int:
        return sum(part[1] for part in self.plan)


# -- Equation 1 ------------------------------------------------------------------------------------------------


def test_the_weight_is_the_sigmoid_of_workers_over_normalised_resources() -> None:
    # 2 workers and 1 server: 3 of a node's 10 cores and 3 of its 30 GiB, so w' = 2 / (0.3 + 0.1).
    job = Job(0, minimum=Allocation(2, 1), worker=pod(1.0, 1.0), server=pod(1.0, 1.0))
    assert weight(job, np.array([[10.0, 30.0, 0.0]] * 3)) == pytest.approx(1 / (1 + math.exp(-5.0)))


@pytest.mark.parametrize(
    ("what", "lighter"),
    [
        ("a worker of more cores", Job(0, worker=pod(2.0))),
        ("a worker of more memory", Job(0, worker=pod(1.0, 5.0))),
        ("a larger server", Job(0, server=pod(4.0))),
        ("a scheduler", Job(0, scheduler=pod(1.0))),
    ],
)
def test_more_resources_weigh_less(what: str, lighter: Job) -> None:
    assert weight(lighter, cpus(10.0, 10.0)) < weight(Job(0), cpus(10.0, 10.0)), what


def test_more_workers_of_the_same_job_weigh_more() -> None:
    # The server is shared by more workers, so the resources for each worker are fewer.
    assert weight(Job(0, minimum=Allocation(2, 1)), cpus(10.0)) > weight(Job(0), cpus(10.0))


def test_weights_stay_between_a_half_and_one() -> None:
    for size in (0.001, 0.1, 1.0, 1000.0):
        assert 0.5 <= weight(Job(0, worker=pod(size)), cpus(10.0)) <= 1.0
    assert weight(Job(0, worker=NOTHING, server=NOTHING), cpus(10.0)) == 1.0


# -- Section 4.1: fewest nodes -----------------------------------------------------------------------------------

#: (what, free cores, workers x servers of one core each, plan)
FEWEST: list[tuple[str, list[float], tuple[int, int], Plan | None]] = [
    ("one node holds all", [3, 5, 2], (2, 1), ((1, 2, 1),)),
    ("the idlest of those that hold all", [4, 5, 9], (2, 1), ((2, 2, 1),)),
    ("equally idle: the first", [4, 4, 4], (2, 1), ((0, 2, 1),)),
    ("spread in the order of idleness, the server first", [2, 1, 3], (4, 1), ((2, 2, 1), (0, 2, 0))),
    ("spread over three", [2, 1, 3], (5, 1), ((2, 2, 1), (0, 2, 0), (1, 1, 0))),
    ("no room for all", [2, 1, 3], (6, 1), None),
    ("room in the sum only", [1.5, 1.5, 0.0], (2, 1), None),
    ("without servers", [1, 2, 0], (3, 0), ((1, 2, 0), (0, 1, 0))),
]


@pytest.mark.parametrize(("what", "free", "counts", "plan"), FEWEST)
def test_fewest_nodes(what: str, free: list[float], counts: tuple[int, int], plan: Plan | None) -> None:
    capacity = cpus(*[10.0] * len(free))
    assert fewest_nodes(Job(0), Allocation(*counts), cpus(*free), capacity) == plan, what


def test_the_first_node_of_a_spread_job_holds_its_scheduler() -> None:
    job = Job(0, scheduler=pod(1.0))
    assert fewest_nodes(job, Allocation(3, 1), cpus(3.0, 2.0), cpus(9.0, 9.0)) == ((0, 1, 1), (1, 2, 0))
    assert fewest_nodes(job, Allocation(4, 1), cpus(3.0, 2.0), cpus(9.0, 9.0)) is None


def test_a_lost_node_is_not_idle() -> None:
    free = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    assert idleness(free, free, np.array([0, 1])).tolist() == [0.0, 2.0]


@given(
    free=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    workers=st.integers(1, 12),
    servers=st.integers(0, 4),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2)),
)
def test_fewest_nodes_places_everything_and_over_commits_nothing(
    free: list[int], workers: int, servers: int, sizes: tuple[int, int, int]
) -> None:
    job = Job(0, worker=pod(sizes[0]), server=pod(sizes[1]), scheduler=pod(sizes[2]))
    room = cpus(*free)
    plan = fewest_nodes(job, Allocation(workers, servers), room, cpus(*[8] * len(free)))
    if plan is not None:
        assert sum(p[1] for p in plan) == workers
        assert sum(p[2] for p in plan) == servers
        assert all((need <= room[node]).all() for node, need in demand(job, plan).items())  # type: ignore[arg-type]


# -- Algorithm 2 -----------------------------------------------------------------------------------------------


def smaller(
    waiting: Job, running: Sequence[Job], weights: dict[JobId, float], *free: float
) -> dict[JobId, Plan] | None:
    before = cpus(*free)
    plans = scale_in(waiting, running, weights, before)  # type: ignore[arg-type]
    assert (before == cpus(*free)).all()
    return plans


def test_scale_in_takes_from_the_lightest_job_first() -> None:
    running = [Job(1, ((0, 3, 1),)), Job(2, ((1, 3, 1),)), Job(3, ((2, 3, 1),))]
    assert smaller(Job(9), running, {1: 0.7, 2: 0.6, 3: 0.8, 9: 0.9}, 0, 0, 0) == {2: ((1, 1, 1),)}


def test_scale_in_takes_no_more_workers_than_it_must() -> None:
    assert smaller(Job(9), [Job(1, ((0, 5, 1),))], {1: 0.6, 9: 0.9}, 1, 0) == {1: ((0, 4, 1),)}


def test_scale_in_leaves_every_job_its_fewest_workers() -> None:
    running = [Job(1, ((0, 3, 1),), minimum=Allocation(2, 1)), Job(2, ((1, 3, 1),))]
    weights = {1: 0.6, 2: 0.7, 9: 0.9}
    # Lines 19-22: one worker of job 1 is not enough; line 24: it stays in the plan all the same (choice 6).
    assert smaller(Job(9), running, weights, 0, 0) == {1: ((0, 2, 1),), 2: ((1, 1, 1),)}
    assert smaller(Job(9), running[:1], weights, 0, 0) is None


def test_scale_in_needs_the_room_on_one_node() -> None:
    running = [Job(1, ((0, 2, 1),)), Job(2, ((1, 2, 1),))]
    assert smaller(Job(9), running, {1: 0.6, 2: 0.7, 9: 0.9}, 0, 0) is None


def test_scale_in_passes_jobs_of_equal_weight_that_came_earlier() -> None:
    weights = {1: 0.8, 2: 0.8, 9: 0.8}
    early, late = Job(1, ((0, 3, 1),), arrived=5.0), Job(2, ((1, 3, 1),), arrived=15.0)
    waiting = Job(9, arrived=10.0)
    assert smaller(waiting, [early], weights, 0, 0) is None
    assert smaller(waiting, [early, late], weights, 0, 0) == {2: ((1, 1, 1),)}


def test_scale_in_searches_the_server_s_node_last_and_never_takes_the_server() -> None:
    spread = Job(1, ((0, 3, 1), (1, 3, 0)))
    assert smaller(Job(9), [spread], {1: 0.6, 9: 0.9}, 0, 0) == {1: ((0, 3, 1), (1, 1, 0))}
    # With all workers of the other node gone there is not enough: on to the server's node.
    first = Job(1, ((0, 3, 1), (1, 1, 0)))
    assert smaller(Job(9), [first], {1: 0.6, 9: 0.9}, 0, 0) == {1: ((0, 1, 1),)}
    server_only = Job(1, ((0, 0, 1), (1, 4, 0)))
    assert smaller(Job(9), [server_only], {1: 0.6, 9: 0.9}, 1, 0) == {1: ((0, 0, 1), (1, 2, 0))}


def test_scale_in_looks_after_the_last_worker_of_a_node_too() -> None:
    spread = Job(1, ((0, 3, 1), (1, 2, 0)))
    assert smaller(Job(9), [spread], {1: 0.6, 9: 0.9}, 0, 0) == {1: ((0, 3, 1),)}


def test_scale_in_finds_nothing_where_nothing_runs() -> None:
    assert smaller(Job(9), [], {9: 0.9}, 0, 0) is None


# -- Algorithm 3 -----------------------------------------------------------------------------------------------


def larger(running: Sequence[Job], weights: dict[JobId, float], *free: float) -> dict[JobId, Plan]:
    return scale_out(running, weights, cpus(*free))  # type: ignore[arg-type]


def test_scale_out_serves_the_heaviest_job_first() -> None:
    running = [Job(1, ((0, 1, 1),)), Job(2, ((0, 1, 1),))]
    assert larger(running, {1: 0.6, 2: 0.7}, 2.5) == {2: ((0, 3, 1),)}


def test_scale_out_stops_at_the_most_workers_and_goes_on_with_the_next_job() -> None:
    running = [Job(1, ((0, 1, 1),)), Job(2, ((0, 1, 1),), maximum=Allocation(2, 1))]
    assert larger(running, {1: 0.6, 2: 0.7}, 3.5) == {2: ((0, 2, 1),), 1: ((0, 3, 1),)}


def test_scale_out_walks_the_nodes_in_order() -> None:
    assert larger([Job(1, ((1, 1, 1),))], {1: 0.6}, 1.5, 2.5, 1.5) == {1: ((1, 3, 1), (0, 1, 0), (2, 1, 0))}


def test_scale_out_does_not_fill_a_node_to_the_brim() -> None:
    assert larger([Job(1, ((0, 1, 1),))], {1: 0.6}, 1.0) == {}
    assert larger([Job(1, ((0, 1, 1),))], {1: 0.6}, 2.0) == {1: ((0, 2, 1),)}


def test_scale_out_compares_only_what_a_worker_asks_for() -> None:
    # No node has a GPU left (there is none), and no worker wants one.
    assert larger([Job(1, ((0, 1, 1),), worker=pod(1.0, 1.0))], {1: 0.6}, 1.5) == {1: ((0, 2, 1),)}


def test_scale_out_of_jobs_of_equal_weight_serves_the_earlier() -> None:
    running = [Job(1, ((0, 1, 1),), arrived=9.0), Job(2, ((0, 1, 1),), arrived=3.0)]
    assert larger(running, {1: 0.6, 2: 0.6}, 1.5) == {2: ((0, 2, 1),)}


# -- Algorithm 1, in the engine ----------------------------------------------------------------------------------


def tfjob(
    arrival: float,
    work: float,
    workers: tuple[int, int],
    cpu: float = 1.0,
    server: float = 1.0,
    **more: float,
) -> Work:
    low, high = workers
    return Work(
        arrival, work, pod(cpu, 1.0), pod(server, 1.0),
        minimum=Allocation(low, 1), maximum=Allocation(high, 1), **more,
    )  # type: ignore[arg-type]  # fmt: skip


class Run:
    """A run with its log; `did(t)` is what was done at second t."""

    def __init__(self, works: list[Work], *cores: float, policy: KOD2 | None = None, **more: object) -> None:
        capacity = np.array([[count, 32.0, 0.0] for count in cores])
        self.lines: list[str] = []
        self.policy = policy or KOD2()
        self.engine = Engine(Cluster(capacity), works, self.policy, log=self.lines.append, **more)  # type: ignore[arg-type]
        self.record = self.engine.run()

    def did(self, second: float) -> list[str]:
        return [
            line.split(" > ")[1].strip()
            for line in self.lines
            if " > " in line and "ScheduleTimer" not in line and float(line.split(" ")[0]) == second
        ]


def test_a_job_starts_with_its_fewest_workers_and_gets_what_is_idle() -> None:  # lines 6-9, 31-36
    run = Run([tfjob(0.0, 100.0, (1, 3))], 10.0)
    assert run.did(0.0) == ["Start(job=0, plan=((0, 1, 1),))", "Resize(job=0, plan=((0, 3, 1),))"]


def test_nothing_starts_without_room_for_its_fewest_workers() -> None:  # lines 6, 16: nothing to scale in
    run = Run([tfjob(0.0, 100.0, (3, 3)), tfjob(1.0, 100.0, (1, 3))], 4.0)
    assert run.did(1.0) == []
    assert run.record.column("started")[1] == pytest.approx(100.0 / 3)


def test_a_job_of_at_least_the_greatest_running_weight_takes_workers() -> None:  # lines 5, 11-15
    run = Run([tfjob(0.0, 1000.0, (1, 6), cpu=1.2), tfjob(1.0, 100.0, (2, 2))], 7.0)
    assert run.did(0.0)[-1] == "Resize(job=0, plan=((0, 4, 1),))"
    assert run.did(1.0) == ["Resize(job=0, plan=((0, 2, 1),))", "Start(job=1, plan=((0, 2, 1),))"]


def test_an_equal_weight_suffices_but_takes_nothing_from_who_came_earlier() -> None:  # line 5; algorithm 2, line 5
    run = Run([tfjob(0.0, 90.0, (1, 4)), tfjob(1.0, 90.0, (1, 4))], 5.5)
    assert run.did(1.0) == []
    later = Run([tfjob(0.0, 90.0, (1, 2)), tfjob(1.0, 90.0, (1, 2))], 5.5)
    assert later.did(1.0)[0] == "Start(job=1, plan=((0, 1, 1),))"


def test_a_lighter_job_takes_nothing_but_starts_where_it_fits() -> None:  # lines 18-26
    heavy, light = tfjob(0.0, 400.0, (1, 4)), tfjob(1.0, 100.0, (1, 1), cpu=3.0)
    assert Run([heavy, light], 7.0).did(1.0) == []
    assert Run([heavy, light], 10.0).did(1.0) == ["Start(job=1, plan=((0, 1, 1),))"]


def test_while_a_running_job_is_heavier_whatever_fits_starts_in_the_order_of_weight() -> None:  # lines 19-26
    heavy = tfjob(0.0, 400.0, (2, 2), cpu=0.5)
    works = [heavy, tfjob(1.0, 50.0, (6, 6)), tfjob(2.0, 50.0, (1, 1), cpu=3.0), tfjob(3.0, 50.0, (1, 1))]
    run = Run(works, 6.0)
    # Job 1 is the heaviest that waits and does not fit; job 2 fills the node; job 3 is heavier than 2 but came later.
    assert run.did(1.0) == []
    assert run.did(2.0) == ["Start(job=2, plan=((0, 1, 1),))"]
    assert run.did(3.0) == []
    ended = run.record.column("finished")[2]
    assert run.did(ended) == ["Start(job=3, plan=((0, 1, 1),))"]


def test_the_heaviest_waiting_job_is_not_passed_when_it_outweighs_all_that_run() -> None:  # lines 5-17
    # Job 1 outweighs job 0, but its six workers fit on no node; job 2 would fit.
    works = [tfjob(0.0, 400.0, (1, 1), cpu=3.0), tfjob(1.0, 50.0, (6, 6)), tfjob(2.0, 50.0, (1, 1), cpu=2.5)]
    run = Run(works, 8.0)
    assert run.did(1.0) == []
    assert run.did(2.0) == []


def test_a_starving_job_is_served_first() -> None:  # lines 27-29
    # Always a heavier job runs and another one waits, so the wide job's turn comes only by STARVELIMIT.
    stream = [tfjob(40.0 * at, 150.0, (2, 2)) for at in range(30)]
    works = sorted([*stream, tfjob(1.0, 50.0, (1, 1), cpu=4.0)], key=lambda work: work.arrival)
    late = Run(works, 6.0, policy=KOD2(starve_limit=1e6)).record
    soon = Run(works, 6.0, policy=KOD2(starve_limit=200.0)).record
    assert late.column("started")[1] > 1000.0
    assert 201.0 <= soon.column("started")[1] < 300.0


def test_starting_again_while_something_starts() -> None:  # the reconcile loop (choice 3)
    works = [tfjob(0.0, 100.0, (6, 6)), *(tfjob(1.0, 100.0, (1, 1)) for _ in range(3))]
    run = Run(works, 7.0)
    ended = run.record.column("finished")[0]
    assert [line.split(",")[0] for line in run.did(ended)] == [f"Start(job={job}" for job in (1, 2, 3)]


def test_the_finished_job_s_room_goes_to_running_jobs() -> None:  # lines 31-36 at an end
    run = Run([tfjob(0.0, 30.0, (3, 3)), tfjob(1.0, 300.0, (1, 4))], 6.5)
    assert run.did(10.0) == ["Resize(job=1, plan=((0, 4, 1),))"]


def test_no_policy_state_is_left_behind() -> None:
    run = Run([tfjob(5.0 * at, 60.0, (1, 3)) for at in range(20)], 6.0, 6.0)
    assert run.policy.weights == {}
    assert np.isfinite(run.record.column("finished")).all()


def test_jobs_outlive_lost_nodes() -> None:
    works = [tfjob(30.0 * at, 300.0, (1, 4), checkpoint=10.0, rescale_seconds=5.0) for at in range(20)]
    run = Run(works, 6.0, 6.0, 6.0, faults=Faults(1, node_lost=400.0, node_back=60.0))
    assert run.record.nodes_lost > 2
    assert np.isfinite(run.record.column("finished")).all()


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.floats(0.0, 60.0), st.floats(10.0, 300.0), st.integers(1, 3), st.integers(0, 3),
            st.sampled_from([0.5, 1.0, 2.0, 3.0]),
        ),
        min_size=1,
        max_size=12,
    ),
    nodes=st.integers(2, 4),
)  # fmt: skip
def test_whatever_comes_ends(jobs: list[tuple[float, float, int, int, float]], nodes: int) -> None:
    # The engine refuses a plan that over-commits or goes beyond the job's limits.
    arrival, works = 0.0, []
    for gap, work, low, more, cpu in jobs:
        arrival += gap
        works.append(tfjob(arrival, work, (low, low + more), cpu, rescale_seconds=3.0))
    run = Run(works, *[10.0] * nodes)
    assert np.isfinite(run.record.column("finished")).all()
    again = Run(works, *[10.0] * nodes)
    assert run.lines == again.lines


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above zero"):
        KOD2(starve_limit=0.0)
