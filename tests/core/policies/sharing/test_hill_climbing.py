"""What one job would like to have, if it were alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.cluster import Allocation
from coach.core.policies import Objective, Reason, Step
from coach.core.policies.api.allocation import NOT_TAKEN
from coach.core.policies.sharing.hill_climbing import Climb
from tests.core.policies.policy_examples import Epochs, Job, allocation, server_speed
from tests.oracles.exhaustive_allocation import allocations, best_alone

SOONEST = Climb(Objective.SOONEST)
CHEAPEST = Climb(Objective.CHEAPEST)


def table(*rows: tuple[float, ...]):
    """Speeds by [workers - 1][servers - 1]."""
    return lambda a: rows[a.workers - 1][a.servers - 1]


COMPUTE_BOUND = server_speed(100.0, fixed=1.0, server=0.5)
NETWORK_BOUND = server_speed(10.0, fixed=1.0, traffic=40.0)

#: By how much more epochs a deadline counts on than are expected: of `Epochs(8, 10, 14)` it is 11.8.
COUNTED_ON = 1.4**0.5

ALONE = [
    ("a compute-bound job takes workers", SOONEST, Job("a", COMPUTE_BOUND), "4x1"),
    ("a network-bound job takes servers", SOONEST, Job("a", NETWORK_BOUND), "1x4"),
    (
        "nothing is added that slows the job down",
        SOONEST,
        Job("a", server_speed(10.0, worker=5.0, server=5.0)),
        "1x1",
    ),
    (
        "a gain that is noise compared with a pod's average contribution is not worth a pod",
        SOONEST,
        Job("a", table((1.0, 1.02), (1.024, 1.03)), maximum=Allocation(2, 2)),
        "1x1",
    ),
    (
        "where neither a worker nor a server helps by itself, both together may",
        SOONEST,
        Job("a", table((1.0, 1.0), (1.0, 3.0)), maximum=Allocation(2, 2)),
        "2x2",
    ),
    (
        "a dip of one step does not end the climb",
        SOONEST,
        Job("a", table((1.0,), (0.9,), (2.0,)), maximum=Allocation(3, 1)),
        "3x1",
    ),
    ("the maximum is respected", SOONEST, Job("a", COMPUTE_BOUND, maximum=Allocation(2, 1)), "2x1"),
    (
        "the minimum is respected",
        SOONEST,
        Job("a", server_speed(1.0, worker=9.0), minimum=Allocation(2, 2)),
        "2x2",
    ),
    (
        "the epoch budget stops the climb",  # 1x1 costs 2 x 101.5 = 203, 2x1 154.5, 3x1 139.3, 4x1 132.5
        SOONEST,
        Job("a", server_speed(100.0, fixed=60.0), budget=340.0),  # 320, 330, 373.3
        "2x1",
    ),
    (
        "where the smallest allocation breaks the epoch budget the climb leads to one that keeps it",
        SOONEST,
        Job("a", server_speed(100.0), budget=140.0),  # 1x1: 200, 2x1: 150, 3x1: 133.3, 3x2: 166.7
        "4x1",
    ),
    (
        "where all break the epoch budget the cheapest is taken",
        SOONEST,
        Job("a", server_speed(100.0, fixed=10.0), budget=1.0),  # 220, 180, 173.3, 175
        "3x1",
    ),
    (
        "an allocation whose reservation cannot be paid is not taken, though its epoch keeps the epoch budget",
        SOONEST,
        Job("a", server_speed(100.0, fixed=60.0), budget=400.0, money=335.0),
        "2x1",
    ),
    (
        "a job that can pay for nothing waits",
        SOONEST,
        Job("a", server_speed(100.0), budget=1.0, money=1.0),
        None,
    ),
    (
        "cheapest without a deadline is what an epoch costs least with",
        CHEAPEST,
        Job("a", server_speed(100.0, fixed=10.0)),
        "3x1",
    ),
    (
        "cheapest with a deadline is as fast as it must be",  # of 10 epochs in seconds: 1x1 700, 2x1 650, 2x2 550
        CHEAPEST,
        Job("a", server_speed(10.0, fixed=10.0, traffic=50.0), deadline=460.0 * COUNTED_ON),
        "1x2",
    ),
    (
        # 1x1 takes 1600 s for the 10 epochs expected, 3786 s for the 23.7 counted on; 2x1 2603 s for those
        "cheapest hurries the more, the less is known of how many epochs there are",
        CHEAPEST,
        Job("a", server_speed(100.0, fixed=60.0), deadline=2700.0, remaining_epochs=Epochs(8.0, 10.0, 56.0)),
        "2x1",
    ),
    (
        "a deadline that nothing can keep gets the fastest",
        CHEAPEST,
        Job("a", COMPUTE_BOUND, deadline=1.0),
        "4x1",
    ),
]


@pytest.mark.parametrize(("climb", "job", "expected"), [pytest.param(*row[1:], id=row[0]) for row in ALONE])
def test_alone(climb: Climb, job: Job, expected: str | None) -> None:
    assert climb(job)[0] == allocation(expected)


def test_each_step_says_where_from_where_to_and_what_it_gains_and_costs() -> None:
    job = Job("a", server_speed(100.0), maximum=Allocation(2, 1))
    _, steps = SOONEST(job)
    assert steps == [Step("a", Allocation(1, 1), Allocation(2, 1), Reason.SPEED, 0.02 - 0.01, "epochs/s", 150.0)]
    assert str(steps[0]) == "job a 1x1 -> 2x1: speed, 0.01 epochs/s, an epoch costs 150"


@pytest.mark.parametrize(
    ("climb", "job", "pruned"),
    [
        pytest.param(
            SOONEST,  # 320, 330, 373.3
            Job("a", server_speed(100.0, fixed=60.0), budget=340.0, maximum=Allocation(4, 1)),
            ["job a 2x1, not 3x1: over-epoch-budget, 0.001623 epochs/s, an epoch costs 373.3"],
            id="what the epoch budget prunes",
        ),
        pytest.param(
            SOONEST,
            Job("a", server_speed(100.0, fixed=60.0), budget=400.0, money=335.0, maximum=Allocation(4, 1)),
            ["job a 2x1, not 3x1: over-epoch-budget, 0.001623 epochs/s, an epoch costs 373.3"],
            id="what the money left prunes",
        ),
        pytest.param(
            SOONEST,
            Job("a", table((1.0, 1.02), (1.024, 1.03)), maximum=Allocation(2, 2)),
            [
                "job a 1x1, not 2x1: too-little, 0.024 epochs/s, an epoch costs 2.93",
                "job a 1x1, not 1x2: too-little, 0.02 epochs/s, an epoch costs 2.941",
            ],
            id="what the least efficiency prunes",
        ),
        pytest.param(
            CHEAPEST,  # in time from 2 workers on, though an epoch with one costs less
            Job("a", server_speed(100.0, fixed=60.0), deadline=1200.0 * COUNTED_ON, maximum=Allocation(4, 1)),
            ["job a 2x1, not 1x1: late, 10 an epoch, an epoch costs 320"],
            id="what the deadline prunes",
        ),
        pytest.param(SOONEST, Job("a", server_speed(1.0, worker=9.0)), [], id="what is slower is not worth a word"),
    ],
)
def test_what_was_pruned_is_said_and_by_what(climb: Climb, job: Job, pruned: list[str]) -> None:
    at, steps = climb(job)
    not_taken = [step for step in steps if step.reason in NOT_TAKEN]
    assert [str(step) for step in not_taken] == pruned
    assert all(step.before == at for step in not_taken)


positive = st.floats(0.0, 50.0)


@st.composite
def smooth_jobs(draw: st.DrawFn) -> Job:
    speed = server_speed(1.0 + draw(positive), draw(positive), draw(positive), draw(positive) / 10, draw(positive) / 10)
    job = Job("a", speed, maximum=Allocation(draw(st.integers(1, 5)), draw(st.integers(1, 5))))
    costs = sorted(job.epoch_cost(a) for a in allocations(job))
    return Job(
        "a",
        speed,
        maximum=job.maximum,
        budget=draw(st.none() | st.floats(costs[0] * 0.9, costs[-1] * 1.1)),
        deadline=draw(st.none() | st.floats(1.0, 20.0 / speed(Allocation(1, 1)))),
        money=draw(st.just(float("inf")) | st.floats(costs[0] * 0.9, costs[-1] * 1.1)),
    )


@given(smooth_jobs(), st.sampled_from(Objective))
def test_on_the_parameter_server_form_the_climb_finds_the_best_of_all(job: Job, objective: Objective) -> None:
    climb = Climb(objective, least_efficiency=0.0)
    found, best = climb(job)[0], best_alone(job, climb)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        (tier, value), (best_tier, best_value) = climb.level(job, found), climb.level(job, best)
        assert tier == best_tier
        assert value == pytest.approx(best_value, rel=1e-6)


@given(
    st.lists(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=3), min_size=3, max_size=3),
    st.none() | st.floats(1.0, 20.0),
    st.floats(0.0, 0.5),
)
def test_on_any_table_of_speeds_the_climb_ends_inside_the_limits_and_never_below_its_start(
    speeds: list[list[float]], budget: float | None, efficiency: float
) -> None:
    job = Job("a", table(*map(tuple, speeds)), maximum=Allocation(3, 3), budget=budget)
    climb = Climb(Objective.SOONEST, efficiency)
    found = climb(job)[0]
    assert found in list(allocations(job))
    assert climb.level(job, found) >= climb.level(job, job.minimum)


def test_unknown_epochs_do_not_stop_the_climb() -> None:
    for remaining in (None, Epochs(1.0, float("inf"), float("inf"))):
        job = Job("a", COMPUTE_BOUND, remaining_epochs=remaining, deadline=10.0)
        assert SOONEST(job)[0] == Allocation(4, 1)
        assert CHEAPEST(job)[0] is not None
