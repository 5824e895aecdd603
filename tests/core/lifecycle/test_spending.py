"""Money for the epochs that may remain first, then speed where it saves most."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval
from coach.core.lifecycle import spending

#: Epochs of three allocations: the cheapest, one that is twice as fast for half as much again, and a poor one.
SECONDS, COSTS = np.array([60.0, 30.0, 29.0]), np.array([1.0, 1.5, 4.0])
PRIOR = spending.at_least(Interval(3.0, 20.0, 60.0))


def plan(
    left: float,
    seconds: FloatArray = SECONDS,
    costs: FloatArray = COSTS,
    remain: FloatArray = PRIOR,
    reserve: float = 0.0,
    chance: float = 0.1,
) -> spending.Spending:
    return spending.plan(left, seconds, costs, remain, reserve, chance)


def test_the_number_of_epochs_is_spread_as_its_interval_says() -> None:
    assert PRIOR[0] == 1.0 and list(PRIOR) == sorted(PRIOR, reverse=True)
    assert PRIOR[20] == pytest.approx(0.5, abs=0.05)
    assert PRIOR[60] == pytest.approx(0.12, abs=0.02)
    sure = spending.at_least(Interval(7.0, 7.0, 7.0))
    assert (sure[6], sure[7]) == (pytest.approx(1.0), pytest.approx(0.0))


def test_endings_are_counted_from_now() -> None:
    remain = spending.at_least_of(np.array([11.0, 12.0, 1000.0]), np.array([0.5, 0.25, 0.25]), 10.0)
    assert remain[:4].tolist() == [1.0, 0.5, 0.25, 0.25]
    assert len(remain) == spending.HORIZON


def test_earlier_jobs_epochs_narrow_what_a_curve_leaves_open_and_yield_to_what_it_excludes() -> None:
    times, chance = np.array([12.0, 20.0, 100.0]), np.array([0.2, 0.3, 0.5])
    both = spending.as_before(times, chance, 20.0, 1.5)
    assert both.sum() == pytest.approx(1.0) and both[1] > 0.8 and both[2] < 1e-4
    assert spending.as_before(np.array([500.0]), np.array([1.0]), 5.0, 1.5).tolist() == [1.0]


def test_with_little_money_the_cheapest_is_bought_and_with_much_the_fastest() -> None:
    poor = plan(10.0)
    assert poor.spare <= 0.0 and poor.epoch == 1.0
    enough = plan(70.0)
    assert enough.epoch == 1.5, "the dear second costs 2.5 for one second"
    rich = plan(1000.0)
    assert rich.epoch > 4.0, "what no epoch needs may be tried out"


def test_what_is_kept_leaves_less_for_speed() -> None:
    kept = [plan(80.0, reserve=reserve).spare for reserve in (0.0, 5.0)]
    assert kept[0] > kept[1]


def test_who_accepts_running_out_more_often_keeps_less_and_trains_faster() -> None:
    found = [plan(90.0, chance=chance) for chance in (0.01, 0.05, 0.2, 0.5)]
    assert [one.provided for one in found] == sorted((one.provided for one in found), reverse=True)
    assert [one.spare for one in found] == sorted(one.spare for one in found)
    assert found[0].provided > 1.5 * found[-1].provided


def test_a_number_of_epochs_that_no_money_pays_for_decides_nothing() -> None:
    """Half of these jobs need a hundred epochs, which 16 do not pay for: the others' ten are provided for."""
    either = np.where(np.arange(spending.HORIZON) < 10, 1.0, np.where(np.arange(spending.HORIZON) < 100, 0.2, 0.0))
    assert plan(16.0, remain=either).epoch == 1.5
    certain = np.where(np.arange(spending.HORIZON) < 100, 1.0, 0.0)
    assert plan(16.0, remain=certain).epoch == 1.0


def test_a_little_dearer_and_twice_as_fast_is_as_good_as_cheap() -> None:
    assert plan(10.0, np.array([60.0, 29.0]), np.array([1.0, 1.09])).cheapest == 1.09


@given(
    st.floats(0.0, 1e6),
    st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-9, 1e6)), min_size=1, max_size=12),
    st.tuples(st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.0, 1e5)),
    st.floats(0.0, 1e3),
    st.floats(1e-9, 0.5),
)
def test_any_numbers_give_a_cost_at_which_the_provided_epochs_are_paid(
    left: float,
    choices: list[tuple[float, float]],
    interval: tuple[float, float, float],
    reserve: float,
    chance: float,
) -> None:
    seconds, costs = np.array(choices).T
    found = plan(left, seconds, costs, spending.at_least(Interval(*sorted(interval))), reserve, chance)
    assert math.isfinite(found.epoch) and found.epoch >= found.cheapest >= costs.min()
    if found.spare > 0.0:
        rest = (found.provided - 1) * found.cheapest
        assert found.epoch + rest + reserve <= left * (1 + 1e-9)
