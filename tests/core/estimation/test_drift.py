"""Speeds measured at different times are compared at one level."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.estimation import drift
from coach.core.estimation.kriging import NOISE
from coach.core.estimation.speed import SpeedPoint

TRUE = {(1, 1): 1.0, (2, 1): 1.6, (2, 2): 1.5}


def points(*measured):
    return [SpeedPoint(w, s, TRUE[w, s] * level) for (w, s), level in measured]


def at_present_level(measured):
    return drift.at_present_level(measured)[0]


def noise(*levels):
    """Standard deviation of ln speed, from one configuration measured so often."""
    return drift.at_present_level(points(*(((2, 1), level) for level in levels)))[1] ** 0.5


def test_on_a_steady_machine_nothing_changes():
    steady = points(((1, 1), 1), ((2, 1), 1), ((2, 1), 1), ((2, 2), 1), ((1, 1), 1))
    assert at_present_level(steady) == steady


def test_points_that_were_never_repeated_say_nothing_of_the_hour():
    once = points(((1, 1), 1.0), ((2, 1), 0.5), ((2, 2), 0.7))
    assert at_present_level(once) == once


def test_a_machine_that_slows_down_leaves_the_best_choice_the_best():
    slowing = points(((1, 1), 1), ((2, 2), 1), ((2, 1), 1), *[((2, 1), 0.5)] * 5)
    now = at_present_level(slowing)
    there = {(p.workers, p.servers): p.epochs_per_second for p in now}
    assert max(there, key=there.get) == (2, 1)
    assert there[1, 1] == pytest.approx(0.5, rel=0.15)
    raw = {(p.workers, p.servers): p.epochs_per_second for p in slowing}
    assert max(raw, key=raw.get) != (2, 1), "without it the choice would have changed"


def test_a_mini_epoch_does_not_move_the_level():
    mini = [SpeedPoint(1, 1, 1.0), SpeedPoint(1, 1, 0.4, mini=True), SpeedPoint(1, 1, 0.4, mini=True)]
    assert at_present_level(mini) == mini


def test_epochs_slower_than_a_lucky_mini_epoch_do_not_slow_down_what_was_measured_elsewhere():
    lucky = [SpeedPoint(2, 2, 1.5, mini=True), SpeedPoint(1, 1, 1.2, mini=True)]
    steady = [*lucky, *points(((1, 1), 1.0), ((1, 1), 0.98), ((1, 1), 0.99), ((1, 1), 1.0))]
    assert at_present_level(steady)[0].epochs_per_second == pytest.approx(1.5, rel=0.02)


def test_a_job_of_short_epochs_slows_down_too():
    slowing = [
        *[SpeedPoint(1, 1, 1.0, weight=0.2, mini=True), SpeedPoint(2, 1, 1.6, weight=0.2, mini=True)],
        *[SpeedPoint(2, 1, 1.6, weight=0.3)] * 3,
        *[SpeedPoint(2, 1, 0.8, weight=0.3)] * 4,
    ]
    assert at_present_level(slowing)[0].epochs_per_second == pytest.approx(0.5, rel=0.15)


def test_one_slow_minute_is_not_the_hour():
    slow_once = points(((1, 1), 1), ((2, 1), 1), ((2, 1), 0.5), ((2, 1), 1), ((2, 1), 1), ((1, 1), 1))
    now = at_present_level(slow_once)
    assert [p.epochs_per_second for p in now] == pytest.approx([p.epochs_per_second for p in slow_once])


def test_an_allocation_that_was_first_measured_in_a_slow_minute_does_not_raise_the_level_when_it_recovers():
    slow_first = points(((1, 1), 1), ((2, 1), 0.5), ((2, 1), 1), ((2, 1), 1), ((2, 1), 1))
    now = at_present_level(slow_first)
    assert [p.epochs_per_second for p in now] == pytest.approx([p.epochs_per_second for p in slow_first])


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(TRUE)), st.floats(0.01, 100), st.floats(0.01, 1)),
        min_size=1,
        max_size=40,
    )
)
def test_any_points_stay_positive_and_the_last_one_is_as_measured(measured):
    given_points = [SpeedPoint(w, s, speed, weight) for (w, s), speed, weight in measured]
    scaled = at_present_level(given_points)
    assert all(math.isfinite(p.epochs_per_second) and p.epochs_per_second > 0 for p in scaled)
    assert scaled[-1] == given_points[-1]


def test_noise_is_believed_until_repeated_points_show_another():
    assert noise(1.0) > noise(1.0, 1.0)
    random = np.random.default_rng(1)
    for true in (0.01, 0.1, 0.3):
        shown = noise(*np.exp(true * random.standard_normal(40)))
        assert shown == pytest.approx(true, rel=0.3, abs=0.01)
    assert NOISE < noise(1.0) < 1.5 * NOISE, "what is itself uncertain has a heavier tail"


def test_one_slow_minute_does_not_pass_for_noise():
    assert noise(*[1.0, 1.02] * 5, 0.3, *[1.0, 1.02] * 5) < NOISE


def test_a_short_probe_before_a_long_epoch_says_less_of_noise_than_another_epoch():
    long, short = SpeedPoint(2, 1, 1.0), SpeedPoint(2, 1, 1.0, weight=0.1)
    off = SpeedPoint(2, 1, 1.1)
    assert drift.at_present_level([short, off])[1] < drift.at_present_level([long, off])[1]
