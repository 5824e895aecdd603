"""Spot machines under a deadline and a budget: neither is broken, whatever spot does."""

from __future__ import annotations

import numpy as np
import pytest

from coach.core.cluster import CapacityType
from coach.core.policies.spot import Holding, Situation, Terms, elastic
from coach_research.policies.uniform_progress import greedy, uniform_progress
from coach_research.spot_traces import Choose, Trace, bound, run

TERMS = Terms(spot=0.33, on_demand=1.0, change=0.1, step=0.25, speeds=(1.0, 1.9, 2.7, 3.4))
ONE = Terms(0.33, 1.0, 0.1, 0.25)


def situation(**changes: object) -> Situation:
    given = {"hours": 20.0, "work": 12.0, "money": 100.0, "available": False, "holding": Holding()}
    return Situation(**(given | changes))  # type: ignore[arg-type]


def trace(seed: int, share: float) -> Trace:
    """Spot that comes and goes at random, for `share` of the time."""
    draw = np.random.default_rng([5, seed])
    lengths = draw.geometric(0.1, 400)
    there = np.repeat(draw.random(400) < share, lengths)[:400]
    return Trace("drawn", 0.25, there.astype(int))


def test_it_waits_without_spot_as_long_as_on_demand_machines_can_still_end_it() -> None:
    assert elastic(situation(), TERMS) == Holding()
    # 4 workers take 12 / 3.4 + 0.1 h; one step later it would be too late.
    assert elastic(situation(hours=3.8), TERMS) == Holding(CapacityType.ON_DEMAND, 4, 0.1)
    assert elastic(situation(hours=12.2), ONE) == Holding(CapacityType.ON_DEMAND, 1, 0.1)


@pytest.mark.parametrize(("hours", "workers"), [(100.0, 1), (30.0, 2), (13.0, 4)])
def test_it_takes_as_many_spot_workers_as_end_the_job_by_how_often_spot_was_there(hours: float, workers: int) -> None:
    found = elastic(situation(hours=hours, available=True), TERMS)  # at first a quarter of the time
    assert found == Holding(CapacityType.SPOT, workers, 0.1)
    seen = situation(hours=13.0, available=True, elapsed=20.0, there=20.0)
    assert elastic(seen, TERMS) == Holding(CapacityType.SPOT, 2 if 13 * 21 / 24 < 12 else 1, 0.1)


def test_fewer_workers_are_not_taken_where_the_change_costs_more_than_it_saves() -> None:
    held = Holding(CapacityType.SPOT, 4)
    almost = situation(work=1.0, available=True, holding=held, elapsed=20.0, there=20.0)
    assert elastic(almost, TERMS) == held
    assert elastic(situation(available=True, holding=held, elapsed=20.0, there=20.0), TERMS).workers == 1


def test_money_wins_where_it_and_the_deadline_cannot_both_be_kept() -> None:
    poor = situation(hours=4.0, money=1.0)
    assert elastic(poor, TERMS) == Holding()
    assert elastic(situation(hours=4.0, money=1.0, available=True), TERMS).kind is CapacityType.SPOT
    assert elastic(situation(hours=4.0, money=0.01, available=True), TERMS) == Holding()


def test_an_epoch_that_is_lost_with_its_spot_node_begins_once_it_is_loaded() -> None:
    whole, dear = Terms(0.33, 1.0, 0.1, 0.25, kept=False), Holding(CapacityType.ON_DEMAND, 1)
    # Fresh on-demand machines take 12.1 h; loading and the epoch that may be lost take 0.35 h more.
    for hours, there in ((12.44, False), (12.46, True)):
        found = elastic(situation(hours=hours, available=True, holding=dear), whole)
        assert (found.kind is CapacityType.SPOT) == there


def test_a_job_that_may_be_late_keeps_its_on_demand_machines_until_its_deadline_is_over() -> None:
    held = Holding(CapacityType.ON_DEMAND, 1)
    for hours, found in ((11.9, held), (0.1, held), (0.0, Holding(CapacityType.SPOT, 1, 0.1))):
        assert elastic(situation(hours=hours, available=True, holding=held), ONE) == found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_no_deadline_is_missed_and_no_budget_overspent_when_both_can_be_kept(seed: int, share: float) -> None:
    draw = np.random.default_rng([6, seed])
    work = float(draw.uniform(5.0, 40.0))
    deadline = work + 1.0 + float(draw.uniform(0.0, 30.0))
    for terms in (ONE, TERMS):
        money = float(draw.uniform(1.02, 1.5)) * (work + 2 * terms.change)
        ran = run(elastic, trace(seed, share), 0, work, deadline, terms, money)
        assert ran.work == 0.0 and ran.hours <= deadline + 1e-9
        assert ran.cost <= money + 1e-9
        poor = run(elastic, trace(seed, share), 0, work, deadline, terms, 0.4 * work)
        assert poor.cost <= 0.4 * work + 1e-9


@pytest.mark.parametrize("choose", [greedy, uniform_progress])
def test_the_policies_of_the_paper_meet_their_deadlines_and_cost_no_less_than_the_bound(
    choose: Choose,
) -> None:
    for seed in range(6):
        for deadline in (21.0, 30.0):
            one = trace(seed, 0.5)
            ran = run(choose, one, 0, 20.0, deadline, ONE, float("inf"))
            assert ran.work == 0.0
            assert ran.cost >= bound(one, 0, 20.0, deadline, ONE) - 1e-9


def test_uniform_progress_pays_for_on_demand_when_it_is_behind_and_stops_two_changes_ahead() -> None:
    behind = situation(hours=10.0, work=8.0, elapsed=10.0, done=3.0)
    assert uniform_progress(behind, ONE).kind is CapacityType.ON_DEMAND
    ahead = situation(hours=10.0, work=5.0, elapsed=10.0, done=5.1)
    assert uniform_progress(ahead, ONE) == Holding()
    held = Holding(CapacityType.ON_DEMAND, 1)
    assert uniform_progress(situation(hours=10.0, work=5.0, elapsed=10.0, done=5.1, holding=held), ONE) == held
    assert uniform_progress(situation(available=True), ONE).kind is CapacityType.SPOT


def test_in_a_trace_without_spot_the_job_pays_for_on_demand_alone() -> None:
    ran = run(elastic, trace(1, 0.0), 0, 10.0, 12.0, ONE, 10.2)
    assert ran.cost == pytest.approx(10.1) and ran.work == 0.0
