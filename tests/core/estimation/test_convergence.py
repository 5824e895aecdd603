"""The learning curve: what it says of the last epoch, of no solution, and of odd input."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coach.core.estimation.convergence import ConvergenceModel, CurvePoint, fit_convergence, likeliest_curve


def curve(function, epochs):
    return [CurvePoint(float(x), float(function(x))) for x in range(1, epochs + 1)]


def hyperbola(x):
    return 1 / (0.3 * x + 0.5) + 0.2


finite = st.floats(-1e6, 1e6) | st.floats(allow_nan=False, allow_infinity=False)
values = st.lists(finite, min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("seen", "target"),
    [
        ([0.0, 2.7e5, 5e-324], 0.0),  # the median is so small that no noise is left
        ([2.0, 2.0, 2.0], 1e-300),  # a target as good as zero
        ([3.4e38] * 5, 0.0),  # float32's largest, without any noise
        ([1.0, 1e200, 2.0, -1e200, 3.0, 1.0], 0.5),  # squares that are no numbers
        ([1.7e308, -1.7e308], 1.7e308),  # differences that are no numbers
        ([1.7e308], -1.7e308),
        ([0.0, 0.0, 0.0], 0.0),
        ([5e-324], 5e-324),
    ],
)
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_the_largest_and_the_smallest_numbers_give_an_answer(seen, metric, target):
    any_finite_values_give_an_answer(seen, metric, target, 3)


@given(values, st.sampled_from(["loss", "accuracy"]), finite, st.integers(1, 4))
@example(seen=[0.0, 2.7e5, 5e-324], metric="loss", target=0.0, consecutive_hits=1)
def test_any_finite_values_give_an_answer(seen, metric, target, consecutive_hits):
    any_finite_values_give_an_answer(seen, metric, target, consecutive_hits)


def any_finite_values_give_an_answer(seen, metric, target, consecutive_hits):
    points = [CurvePoint(i + 1.0, v) for i, v in enumerate(seen)]
    model = fit_convergence(points, metric)
    assert math.isfinite(model.predict(len(seen) + 5.0))
    assert model.asymptote.low <= model.asymptote.expected <= model.asymptote.high
    assert 0 <= model.chance(target) <= 1 + 1e-9
    answer = model.epochs_to(target, consecutive_hits, float(len(seen)))
    assert answer is None or len(seen) + 1 <= answer.low <= answer.expected <= answer.high < math.inf


@given(values)
def test_a_model_survives_json(seen):
    model = fit_convergence([CurvePoint(i + 0.5, v) for i, v in enumerate(seen)], "loss")
    again = ConvergenceModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again == model
    assert again.predict(40.0) == model.predict(40.0)
    assert again.epochs_to(0.1, 3, 31.0) == model.epochs_to(0.1, 3, 31.0)


@pytest.mark.parametrize(
    "truth",
    [
        hyperbola,
        lambda x: 2.0 * math.exp(-x / 12) + 0.3,
        lambda x: 1.5 * (1 + 0.2 * x) ** -2 + 0.1,
        lambda x: 2.2 / (1 + math.exp((x - 12) / 4)) + 0.1,
    ],
    ids=["hyperbola", "exponential", "power", "slow start"],
)
def test_half_way_along_a_clean_curve_the_last_epoch_is_near(truth):
    last = 40
    answer = fit_convergence(curve(truth, last // 2), "loss").epochs_to(truth(last - 2), 3, last / 2)
    assert answer is not None
    assert answer.expected == pytest.approx(last, rel=0.35)
    assert last / 1.35 <= answer.high
    assert answer.low <= last * 1.1


def test_accuracy_is_a_loss_upside_down():
    loss = fit_convergence(curve(hyperbola, 12), "loss")
    accuracy = fit_convergence(curve(lambda x: 1 - hyperbola(x) / 2, 12), "accuracy")
    assert accuracy.epochs_to(1 - 0.35 / 2, 3, 12.0) == loss.epochs_to(0.35, 3, 12.0)
    assert accuracy.predict(30.0) == pytest.approx(1 - loss.predict(30.0) / 2)
    assert accuracy.asymptote.high <= 1.0


def test_accuracy_may_be_in_per_cent():
    share = fit_convergence(curve(lambda x: 1 - hyperbola(x) / 2, 12), "accuracy")
    percent = fit_convergence(curve(lambda x: 100 - 50 * hyperbola(x), 12), "accuracy")
    assert percent.epochs_to(82.5, 3, 12.0) == share.epochs_to(0.825, 3, 12.0)


def test_the_unit_of_loss_and_the_place_of_x_0_do_not_matter():
    points = curve(hyperbola, 10)
    moved = [CurvePoint(p.x + 100, p.value * 1000) for p in points]
    here, there = fit_convergence(points, "loss"), fit_convergence(moved, "loss")
    assert there.epochs_to(400.0, 3, 110.0).expected - 100 == here.epochs_to(0.4, 3, 10.0).expected


def test_a_curve_that_went_flat_above_its_target_has_no_solution():
    flat = curve(lambda x: 0.5 + 0.5 * math.exp(-x / 2), 30)
    assert fit_convergence(flat, "loss").epochs_to(0.3, 3, 30.0) is None


def test_a_curve_that_rises_has_no_solution():
    assert fit_convergence(curve(lambda x: 1 + 0.05 * x, 15), "loss").epochs_to(0.5, 3, 15.0) is None


def test_one_epoch_is_too_little_for_no_solution():
    model = fit_convergence([CurvePoint(1.0, 2.0)], "loss")
    answer = model.epochs_to(0.5, 3, 1.0)
    assert answer is not None
    assert answer.high > 2 * answer.low


def test_a_target_below_zero_of_a_loss_above_zero_has_no_solution():
    assert fit_convergence(curve(hyperbola, 15), "loss").epochs_to(-0.1, 3, 15.0) is None


def test_epochs_that_held_already_shorten_what_is_left():
    model = fit_convergence(curve(hyperbola, 20), "loss")
    target = hyperbola(19) + 1e-9
    assert model.epochs_to(target, 3, 20.0).expected == 21
    assert model.epochs_to(target, 5, 20.0).expected == 23


def test_noise_puts_off_the_last_of_several_epochs_in_a_row():
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 0.12, 16)
    clean = curve(lambda x: 1.6 - 0.06 * x, 16)
    noisy = [CurvePoint(p.x, p.value + e) for p, e in zip(clean, noise, strict=True)]
    target = 0.4
    later = fit_convergence(noisy, "loss").epochs_to(target, 3, 16.0)
    sooner = fit_convergence(noisy, "loss").epochs_to(target, 1, 16.0)
    assert later.expected >= sooner.expected + 2


def test_a_curve_nears_its_asymptote_without_turning():
    model = fit_convergence(curve(hyperbola, 10), "loss")
    seen = [model.predict(float(x)) for x in range(1, 200, 5)]
    assert all(a >= b for a, b in pairwise(seen))
    assert model.asymptote.low <= seen[-1]


def test_no_finite_point_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="finite point, got 1"):
        fit_convergence([CurvePoint(1.0, math.nan)], "loss")


def late_drop(middle):
    """A loss that rests at 0.7 and falls to 0.2 around the epoch `middle`."""
    return lambda x: 0.2 + 0.5 / (1 + math.exp((x - middle) / 3)) + 0.002 * math.sin(7 * x)


EARLIER = tuple(likeliest_curve(tuple(curve(late_drop(middle), 60)), "loss") for middle in range(12, 32, 2))


def test_a_curve_that_rests_is_expected_to_fall_as_earlier_runs_of_its_program_did():
    resting = curve(late_drop(20), 6)
    alone, informed = fit_convergence(resting, "loss"), fit_convergence(resting, "loss", EARLIER)
    assert alone.predict(60.0) > 0.6 and alone.chance(0.3) < 0.01
    assert informed.predict(60.0) < 0.5 and informed.chance(0.3) > 0.3
    assert informed.interval(60.0).low < 0.3 < 0.6 < alone.interval(60.0).low
    assert ConvergenceModel.from_dict(json.loads(json.dumps(informed.to_dict()))) == informed != alone


def test_earlier_runs_count_little_against_a_long_curve_of_its_own():
    levelled = curve(lambda x: 0.6 + 0.1 * math.exp(-x / 5) + 0.001 * math.sin(7 * x), 50)
    assert fit_convergence(levelled, "loss", EARLIER).interval(80.0).holds(0.6)
    assert fit_convergence(levelled, "loss", EARLIER).predict(80.0) == pytest.approx(0.6, abs=0.02)


def test_earlier_runs_with_an_accuracy_say_the_same_as_with_what_is_missing_to_one():
    runs = [[CurvePoint(p.x, 1 - p.value) for p in curve(late_drop(middle), 60)] for middle in (*range(12, 32, 2), 20)]
    known = [likeliest_curve(tuple(one), "accuracy") for one in runs[:-1]]
    assert np.array(known) == pytest.approx(np.array(EARLIER))
    found = fit_convergence(runs[-1][:6], "accuracy", known).predict(60.0)
    assert found == pytest.approx(1 - fit_convergence(curve(late_drop(20), 6), "loss", EARLIER).predict(60.0))
