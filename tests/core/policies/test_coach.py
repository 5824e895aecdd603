"""Coach's policy over all jobs: who gets what, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.cluster import Allocation, Resources, Role
from coach.core.policies import ClusterView, CoachPolicy, Objective, Reason
from coach.core.policies.sharing.hill_climbing import Climb
from tests.core.policies.policy_examples import (
    FREE_SCHEDULER,
    Epochs,
    Job,
    allocation,
    cluster,
    decided,
    server_speed,
)
from tests.oracles.exhaustive_allocation import best_alone, best_together

COACH = CoachPolicy()
LINEAR = server_speed(100.0)  #: 100 s / workers; a server more is of no use
LONG, SHORT = Epochs(50.0, 100.0, 200.0), Epochs(5.0, 10.0, 20.0)


def many(workers: int, servers: int = 1) -> Allocation:
    return Allocation(workers, servers)


TOGETHER = [
    (
        "alone in a large cluster each job has what it would like to have",
        [Job("a", LINEAR), Job("b", LINEAR, created=1.0)],
        cluster(5.0, 5.0),
        {"a": "4x1", "b": "4x1"},
    ),
    (
        "equal jobs share evenly, the older one first",
        [Job("a", LINEAR), Job("b", LINEAR, created=1.0)],
        cluster(4.0, 3.0),
        {"a": "3x1", "b": "2x1"},
    ),
    (
        "a worker goes where it saves more time, which is where more is left to do",
        [Job("a", LINEAR, remaining_epochs=SHORT), Job("b", LINEAR, created=1.0, remaining_epochs=LONG)],
        cluster(4.0, 3.0),
        {"a": "1x1", "b": "4x1"},
    ),
    (
        "epochs a second do not compare: short epochs are not worth more than long ones",
        # b runs ten times the epochs a second and has ten times the epochs to go: the same seconds.
        [Job("a", LINEAR, remaining_epochs=SHORT), Job("b", server_speed(10.0), 1.0, remaining_epochs=LONG)],
        cluster(4.0, 3.0),
        {"a": "3x1", "b": "2x1"},
    ),
    (
        "a pod that takes more of the cluster has to save more",
        [
            Job("a", LINEAR),
            Job("b", LINEAR, 1.0, requests={**FREE_SCHEDULER, Role.WORKER: Resources(2.0, 1.0)}),
        ],
        cluster(5.0, 4.0),
        {"a": "3x1", "b": "2x1"},
    ),
    (
        "what is taken back depends on who needs it, a worker here and a server there",
        [
            Job("a", server_speed(100.0, traffic=5.0), maximum=many(3, 3)),
            Job("b", server_speed(10.0, traffic=60.0), 1.0, maximum=many(3, 3)),
        ],
        cluster(4.0, 4.0),
        {"a": "3x1", "b": "1x3"},
    ),
    (
        "the least anyone can do with comes before anyone's second worker",
        [Job("a", LINEAR), Job("b", LINEAR, 1.0), Job("c", LINEAR, 2.0)],
        cluster(6.0),
        {"a": "1x1", "b": "1x1", "c": "1x1"},
    ),
    (
        "when not even that fits the youngest waits",
        [Job("a", LINEAR, 2.0), Job("b", LINEAR, 1.0), Job("c", LINEAR, 0.0)],
        cluster(5.0),
        {"a": "-", "b": "1x1", "c": "2x1"},
    ),
    (
        "a higher priority comes before age",
        [Job("a", LINEAR, 0.0), Job("b", LINEAR, 1.0, priority=1)],
        cluster(3.0),
        {"a": "-", "b": "2x1"},
    ),
    (
        "a job that fits may pass one that does not",
        [Job("a", LINEAR), Job("b", LINEAR, 1.0, minimum=many(3, 2)), Job("c", LINEAR, 2.0)],
        cluster(4.0, 2.0),
        {"a": "2x1", "b": "-", "c": "2x1"},
    ),
    (
        "jobs created at once are ordered by name",
        [Job("b", LINEAR), Job("a", LINEAR)],
        cluster(3.0),
        {"a": "2x1", "b": "-"},
    ),
    (
        "a fixed demand is kept as it is, the others share the rest",
        [Job("a", LINEAR), Job("b", LINEAR, 1.0, fixed=many(3, 2))],
        cluster(8.0),
        {"a": "2x1", "b": "3x2"},
    ),
    (
        "a fixed demand that is held already comes before older ones",
        [Job("a", LINEAR, fixed=many(2, 1)), Job("b", LINEAR, 1.0, fixed=many(2, 1), current=many(2, 1))],
        cluster(5.0),
        {"a": "-", "b": "2x1"},
    ),
    (
        "a job whose smallest allocation no empty cluster holds waits and takes nothing from others",
        [
            Job("a", LINEAR, requests={**FREE_SCHEDULER, Role.WORKER: Resources(9.0, 1.0)}),
            Job("b", LINEAR, 1.0),
        ],
        cluster(8.0, 8.0),
        {"a": "-", "b": "4x1"},
    ),
    (
        "a sum that fits is not enough: pods of 3 cores do not fit twice into 5",
        [
            Job("a", LINEAR, requests={**FREE_SCHEDULER, Role.WORKER: Resources(3.0, 1.0)}),
        ],
        cluster(5.0, 5.0),
        {"a": "2x1"},
    ),
    (
        "memory is shared like cores are",
        [
            Job("a", LINEAR, requests={**FREE_SCHEDULER, Role.WORKER: Resources(0.1, 4.0)}),
            Job("b", LINEAR, 1.0, requests={**FREE_SCHEDULER, Role.WORKER: Resources(0.1, 4.0)}),
        ],
        cluster(50.0, memory=22.0),
        {"a": "3x1", "b": "2x1"},
    ),
    (
        "nothing is taken back that would not make room: servers hold no memory to speak of",
        [
            Job(
                "a",
                server_speed(100.0, traffic=20.0),
                maximum=many(2, 3),
                requests={
                    Role.SCHEDULER: Resources(0.0, 0.0),
                    Role.SERVER: Resources(1.0, 0.0),
                    Role.WORKER: Resources(1.0, 4.0),
                },
            ),
        ],
        cluster(50.0, memory=4.0),
        {"a": "1x3"},
    ),
    (
        "a job that can pay for nothing waits and takes nothing",
        [Job("a", LINEAR, money=1.0), Job("b", LINEAR, 1.0)],
        cluster(5.0),
        {"a": "-", "b": "4x1"},
    ),
    (
        "a job whose epochs would cost more with fewer workers keeps them",
        # An epoch of a costs 200 with 1x1 and 150 with 2x1, and 150 is what it may cost.
        [Job("a", LINEAR, 1.0, budget=150.0, maximum=many(2)), Job("b", LINEAR, remaining_epochs=LONG)],
        cluster(6.0),
        {"a": "2x1", "b": "2x1"},
    ),
    ("no jobs, no allocations", [], cluster(5.0), {}),
    ("no nodes, no job runs", [Job("a", LINEAR)], ClusterView(()), {"a": "-"}),
]


@pytest.mark.parametrize(("jobs", "nodes", "expected"), [pytest.param(*row[1:], id=row[0]) for row in TOGETHER])
def test_together(jobs: list[Job], nodes: ClusterView, expected: dict[str, str]) -> None:
    assert decided(COACH, jobs, nodes) == expected


HYSTERESIS = [
    # From 2x1 to 4x1 ten epochs take 250 s instead of 500 s.
    ("a change that saves more than its restart is made", 249.0, "2x1", "4x1"),
    ("a change that does not pay for its restart is not made", 251.0, "2x1", "2x1"),
    ("fewer pods that gain nothing are not worth a restart either", 1.0, "4x2", "4x2"),
    ("a job that starts has no restart to pay for", 251.0, None, "4x1"),
    ("an allocation outside the limits is left whatever it costs", 1e9, "5x1", "4x1"),
]


@pytest.mark.parametrize(("restart", "current", "expected"), [pytest.param(*row[1:], id=row[0]) for row in HYSTERESIS])
def test_a_change_must_pay_for_its_own_restart(restart: float, current: str | None, expected: str) -> None:
    job = Job("a", LINEAR, current=allocation(current), restart_seconds=restart)
    assert decided(COACH, [job], cluster(100.0)) == {"a": expected}


def test_hysteresis_does_not_keep_what_others_need() -> None:
    jobs = [
        Job("a", LINEAR, current=Allocation(4, 1), restart_seconds=1e9),
        Job("b", LINEAR, 1.0),
    ]
    assert decided(COACH, jobs, cluster(5.0)) == {"a": "2x1", "b": "1x1"}


def test_hysteresis_does_not_keep_what_breaks_the_epoch_budget() -> None:
    job = Job("a", LINEAR, current=Allocation(4, 4), restart_seconds=1e9, budget=160.0)
    assert decided(COACH, [job], cluster(50.0)) == {"a": "4x1"}


def test_what_is_kept_says_what_the_change_would_have_saved_and_what_it_costs() -> None:
    job = Job("a", LINEAR, current=Allocation(2, 1), restart_seconds=300.0)
    last = COACH.allocate([job], cluster(100.0)).why("a")[-1]
    assert last.reason is Reason.RESTART
    assert str(last) == "job a 4x1 -> 2x1: restart, 250 s saved by changing, and a restart costs 300"


BUSY = [
    (
        "room that a busy job will give back is not promised before its boundary",
        [Job("a", LINEAR, current=many(4), busy=True), Job("b", LINEAR, 1.0)],
        cluster(6.0),
        {"a": "2x1", "b": "-"},
    ),
    (
        "at its boundary the busy job gives it back and the other one starts",
        [Job("a", LINEAR, current=many(4)), Job("b", LINEAR, 1.0)],
        cluster(6.0),
        {"a": "2x1", "b": "2x1"},
    ),
    (
        "a job at its boundary does not grow into room that a waiting job can have",
        [Job("a", LINEAR, current=many(1)), Job("b", LINEAR, 1.0)],
        cluster(5.0),
        {"a": "2x1", "b": "1x1"},
    ),
    (
        "a job at its boundary grows no further than busy jobs leave it room",
        [
            Job("a", LINEAR, current=many(1), remaining_epochs=LONG),
            Job("b", LINEAR, 1.0, current=many(3), busy=True),
        ],
        cluster(7.0),
        {"a": "2x1", "b": "1x1"},
    ),
    (
        "what is left of a change is not made if it alone does not pay for its restart",
        [
            Job("a", LINEAR, current=many(2), remaining_epochs=LONG, restart_seconds=2000.0),
            Job("b", LINEAR, 1.0, current=many(2), busy=True),
        ],
        cluster(7.0),
        # 5000 s with 2, 3333 s with 3, 2500 s with 4 workers: 4 would pay, but there is room for 3.
        {"a": "2x1", "b": "1x1"},
    ),
]


@pytest.mark.parametrize(("jobs", "nodes", "expected"), [pytest.param(*row[1:], id=row[0]) for row in BUSY])
def test_jobs_in_the_middle_of_an_epoch(jobs: list[Job], nodes: ClusterView, expected: dict[str, str]) -> None:
    assert decided(COACH, jobs, nodes) == expected


def test_the_steps_have_what_was_added_and_what_was_taken_back_by_what() -> None:
    jobs = [Job("a", LINEAR, maximum=many(3)), Job("b", LINEAR, 1.0, maximum=many(3))]
    steps = COACH.allocate(jobs, cluster(6.0)).steps
    assert [(s.job, str(s.before), str(s.after), s.reason) for s in steps] == [
        ("a", "1x1", "2x1", Reason.SPEED),
        ("a", "2x1", "3x1", Reason.SPEED),
        ("b", "1x1", "2x1", Reason.SPEED),
        ("b", "2x1", "3x1", Reason.SPEED),
        ("b", "3x1", "2x1", Reason.CPU),
        ("a", "3x1", "2x1", Reason.CPU),
    ]
    # From 2 to 3 workers ten epochs save 500 - 333 s, with a sixth of the cluster.
    assert steps[-1].gain == pytest.approx((500 - 1000 / 3) * 6)


OBJECTIVES = [
    ("soonest helps the job with most left to do", Objective.SOONEST, {"a": "1x1", "b": "4x1"}),
    (
        "shortest mean completion helps the job that ends first",
        Objective.MEAN_COMPLETION,
        {"a": "4x1", "b": "1x1"},
    ),
    ("cheapest takes what an epoch costs least with", Objective.CHEAPEST, {"a": "4x1", "b": "1x1"}),
]


@pytest.mark.parametrize(("objective", "expected"), [pytest.param(*row[1:], id=row[0]) for row in OBJECTIVES])
def test_objectives(objective: Objective, expected: dict[str, str]) -> None:
    # A job b ten times as long as a; its epochs cost as much with any number of workers, a's cost less with more.
    b_speed = server_speed(100.0) if objective is not Objective.CHEAPEST else lambda a: sum(a) / 200.0
    jobs = [
        Job("a", LINEAR, remaining_epochs=SHORT),
        Job("b", b_speed, 1.0, remaining_epochs=LONG),
    ]
    assert decided(CoachPolicy(objective), jobs, cluster(7.0)) == expected


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("epochs", "first"), [(SHORT, "a"), (LONG, "b")], ids=["few left", "many left"])
def test_a_job_of_unknown_speed_passes_who_has_more_epochs_left(epochs: Epochs, first: str, unit: float) -> None:
    known = Job("a", server_speed(100.0 * unit), current=many(1), remaining_epochs=epochs)
    unknown = Job("b", lambda _: 1.0, 1.0, fixed=many(1), remaining_epochs=Epochs(3.0, 20.0, 60.0))
    given = decided(CoachPolicy(Objective.MEAN_COMPLETION), [known, unknown], cluster(2.0))
    assert {name for name, got in given.items() if got != "-"} == {first}


@pytest.mark.parametrize(
    ("epochs", "holds", "first"),
    [
        pytest.param(Epochs(5.0, 10.0, 29.0), False, "b", id="surely shorter"),
        pytest.param(Epochs(5.0, 10.0, 31.0), False, "a", id="perhaps shorter"),
        pytest.param(Epochs(5.0, 10.0, 31.0), True, "b", id="both have begun"),
    ],
)
def test_who_has_begun_is_passed_by_those_that_are_surely_shorter(epochs: Epochs, holds: bool, first: str) -> None:
    begun = Job("a", LINEAR, current=many(1), remaining_epochs=Epochs(20.0, 30.0, 90.0))
    other = Job("b", LINEAR, 1.0, current=many(1) if holds else None, remaining_epochs=epochs)
    given = decided(CoachPolicy(Objective.MEAN_COMPLETION), [begun, other], cluster(2.0))
    assert {name for name, got in given.items() if got != "-"} == {first}


def test_cheapest_takes_no_worker_that_a_deadline_needs() -> None:
    jobs = [
        Job("a", LINEAR, deadline=510.0),  # 2x1 ends after 500 s
        Job("b", LINEAR, 1.0, remaining_epochs=LONG),
    ]
    assert decided(CoachPolicy(Objective.CHEAPEST), jobs, cluster(5.0)) == {"a": "2x1", "b": "1x1"}


CHEAP = Objective.CHEAPEST
FIXED_HALF = server_speed(50.0, fixed=50.0)  #: 1x1 is the cheapest: 100 s; 2x1 takes 75 s and costs an eighth more


@pytest.mark.parametrize(
    ("what", "jobs", "cores", "expected"),
    [
        (
            "each job gets what its own file asks for",
            [Job("fast", FIXED_HALF), Job("thrifty", FIXED_HALF, 1.0, objective=CHEAP)],
            100.0,
            {"fast": "4x1", "thrifty": "1x1"},
        ),
        (
            "a cheap one still takes what its deadline needs",
            [Job("fast", FIXED_HALF), Job("thrifty", FIXED_HALF, 1.0, objective=CHEAP, deadline=950.0)],
            100.0,
            {"fast": "4x1", "thrifty": "2x1"},
        ),
        (
            "pods that its deadline needs are the last to be taken back",
            [Job("fast", LINEAR), Job("thrifty", LINEAR, 1.0, objective=CHEAP, deadline=510.0)],
            5.0,
            {"fast": "1x1", "thrifty": "2x1"},
        ),
        (
            "where all want to be cheap, money decides",
            [
                Job("a", LINEAR, objective=CHEAP, deadline=510.0),
                Job("b", LINEAR, 1.0, objective=CHEAP, remaining_epochs=LONG),
            ],
            5.0,
            {"a": "2x1", "b": "1x1"},
        ),
    ],
)
def test_jobs_of_both_objectives_share_a_cluster(what, jobs, cores, expected) -> None:
    assert decided(CoachPolicy(), jobs, cluster(cores)) == expected


def test_the_policy_cheapest_overrides_what_jobs_ask_for() -> None:
    jobs = [Job("fast", FIXED_HALF), Job("thrifty", FIXED_HALF, 1.0, objective=CHEAP)]
    assert decided(CoachPolicy(CHEAP), jobs, cluster(100.0)) == {"fast": "1x1", "thrifty": "1x1"}


def test_a_cheap_job_keeps_what_it_has_unless_changing_saves_more_money_than_the_restart_costs() -> None:
    held = Job("a", FIXED_HALF, current=Allocation(2, 1), objective=CHEAP, restart_seconds=1e9)
    assert decided(CoachPolicy(), [held], cluster(100.0)) == {"a": "2x1"}
    cheap = Job("a", FIXED_HALF, current=Allocation(4, 4), objective=CHEAP, restart_seconds=1.0)
    assert decided(CoachPolicy(), [cheap], cluster(100.0)) == {"a": "1x1"}


@st.composite
def contests(draw: st.DrawFn) -> tuple[list[Job], ClusterView]:
    """2 or 3 jobs, each able to keep its epoch budget alone, on 1 to 3 nodes."""
    jobs = []
    for i in range(draw(st.integers(2, 3))):
        work, fixed, traffic = draw(st.integers(10, 200)), draw(st.integers(0, 10)), draw(st.integers(0, 30))
        job = Job(
            f"j{i}",
            server_speed(work, fixed, traffic, draw(st.integers(0, 3)), draw(st.integers(0, 2))),
            float(i),
            maximum=Allocation(draw(st.integers(1, 4)), draw(st.integers(1, 3))),
            remaining_epochs=Epochs(1.0, draw(st.integers(1, 60)), 99.0),
        )
        if draw(st.booleans()):
            best = best_alone(job, Climb(Objective.CHEAPEST))
            assert best is not None
            job = replace(job, budget=job.epoch_cost(best) * draw(st.sampled_from([1.0, 1.2, 1.5])))
        jobs.append(job)
    return jobs, cluster(*(draw(st.sampled_from([2.0, 4.0, 8.0])) for _ in range(draw(st.integers(1, 3)))))


@given(contests())
def test_taking_back_the_least_utility_is_within_ten_percent_of_the_best_of_all(
    contest: tuple[list[Job], ClusterView],
) -> None:
    jobs, nodes = contest
    climb = Climb(least_efficiency=0.0)
    best = best_together(jobs, nodes, climb)
    given_ = CoachPolicy(least_efficiency=0.0).allocate(jobs, nodes).allocations
    if best is None:
        assert None in given_.values()
        return

    def judge(allocations: dict[str, Allocation]) -> tuple[int, float]:
        broken = sum(climb.level(job, allocations[job.id])[0] < 1 for job in jobs)
        assert all(job.remaining_epochs is not None for job in jobs)
        return broken, sum(job.remaining_epochs.expected / job.speed(allocations[job.id]) for job in jobs)

    found = {job: a for job, a in given_.items() if a is not None}
    assert len(found) == len(jobs), "all minimums fit together"
    (broken, seconds), (least_broken, least_seconds) = judge(found), judge(best)
    # Where someone's epoch budget has to be broken it is a matter of whose, and seconds do not compare.
    assert broken >= least_broken
    if broken == least_broken == 0:
        assert least_seconds <= seconds * (1 + 1e-9)
        assert seconds <= 1.1 * least_seconds


def test_no_job_waits_for_ever_behind_smaller_jobs() -> None:
    """A large job that small ones passed gets its room as these come to their boundaries."""
    large = Job("large", LINEAR, 0.0, minimum=Allocation(4, 2))
    small = [Job(f"s{i}", LINEAR, 1.0 + i, current=Allocation(1, 1), busy=True) for i in range(4)]
    nodes = cluster(8.0)
    for boundary in range(4):
        at_boundary = replace(small[boundary], busy=False)
        decision = COACH.allocate([large, at_boundary, *small[boundary + 1 :]], nodes).allocations
        given_up = decision[at_boundary.id] is None
        assert given_up or decision["large"] is not None
        if decision["large"] is not None:
            return
    pytest.fail("the large job never got its room")
