"""No finite input makes a public function of coach.core.estimation raise or warn; pytest makes a warning an error."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coach.core.cluster import Resources
from coach.core.estimation import (
    convergence,
    cost,
    curve_families,
    drift,
    forms,
    interval,
    kriging,
    mixture,
    numerics,
    speed,
)
from coach.core.estimation.convergence import CurvePoint, fit_convergence
from coach.core.estimation.first_passage import ending_times, max_noise
from coach.core.estimation.interval import Interval
from coach.core.estimation.speed import SpeedPoint, fit_speed
from coach.core.jobs.fitted_models import fit_models
from coach.core.money import PRICE_BOOKS
from coach_research.estimators.next_probe import next_probe

EXTREME = (0.0, 5e-324, 2.2e-308, 1e-300, 1e-30, 1.0, 1e30, 1e154, 1e300, 1.7e308)
positive = st.sampled_from(EXTREME[1:]) | st.floats(5e-324, 1.7e308)
anything = st.sampled_from([*EXTREME, *(-x for x in EXTREME)]) | st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(1, 4) | st.sampled_from([64, 1024])
places = st.lists(st.tuples(counts, st.integers(0, 4) | st.sampled_from([1024])), min_size=1, max_size=6)
metrics = st.sampled_from(["loss", "accuracy"])
speed_points = st.lists(
    st.builds(SpeedPoint, counts, counts, positive, positive, st.floats(0.0, 1.0), st.booleans()),
    min_size=1,
    max_size=8,
)
curve_points = st.lists(st.builds(CurvePoint, anything, anything), min_size=1, max_size=10)


def finite(*values: float) -> None:
    assert all(math.isfinite(value) for value in values), values


@given(curve_points, metrics, anything, st.integers(1, 4), anything)
@example([CurvePoint(1e300, 1.0)], "loss", 0.5, 3, 1e300)
@example([CurvePoint(-1.7e308, 1.0), CurvePoint(1.7e308, 0.5)], "loss", 0.4, 1, 0.0)
@example([CurvePoint(1.0, 5e-324)] * 6, "accuracy", 5e-324, 1, 1.0)
@example([CurvePoint(1.0, 2.0)] * 3, "loss", 1.0, 2, 1.0)
def test_a_curve_of_any_finite_points_answers_every_question(points, metric, target, hits, at):
    model = fit_convergence(points, metric)
    finite(model.predict(at))
    for found in (model.interval(at), model.asymptote, model.epochs_to(target, hits, at)):
        assert found is None or found.low <= found.expected <= found.high
    assert 0.0 <= model.chance(target) <= 1.0 + 1e-9
    assert 0.0 <= model.chance_by(target, at) <= 1.0 + 1e-9
    model.endings(target, hits, at)
    model.epochs_of_new_run(target, hits, (0.1, 0.9))
    assert convergence.ConvergenceModel.from_dict(model.to_dict()) == model
    assert fit_models((), points, metric)[1] == model.to_dict()


@given(curve_points, curve_points, metrics)
@example([CurvePoint(1.0, 5e-324)] * 6, [CurvePoint(1.0, 1e300), CurvePoint(2.0, -1e300)], "loss")
@example([CurvePoint(1.0, 1e300), CurvePoint(2.0, -1e300)], [CurvePoint(1.0, 5e-324)] * 6, "score")
def test_an_earlier_run_of_any_finite_points_leaves_every_prediction_finite(points, earlier, metric):
    known = convergence.likeliest_curve(tuple(earlier), metric)
    finite(*known)
    model = fit_convergence(points, metric, [known])
    finite(model.predict(points[-1].x))
    assert model.curves.weight.sum() == pytest.approx(1.0)


@given(speed_points, places)
@example([SpeedPoint(1, 1, 1e30, 1e-30)] * 2, [(1, 1)])
@example([SpeedPoint(1, 1, 1e-30), SpeedPoint(1, 1, 1e30)], [(1, 1), (2, 2)])
@example([SpeedPoint(w, 1, 1e30 if w % 2 else 1e-30, 1e30) for w in range(1, 7)], [(1, 1), (1024, 1024)])
def test_speeds_of_any_size_give_a_surface_that_answers_every_question(points, where):
    low, high = speed.MEASURABLE
    usable = [p for p in points if low <= p.epochs_per_second <= high and low <= p.weight <= high]
    if not usable:
        with pytest.raises(ValueError, match="needs a point"):
            fit_speed(points)
        return
    model = fit_speed(points)
    for found in [*model.intervals(where), *model.upper_bound(where)]:
        assert 0.0 <= found.low <= found.expected <= found.high
    above = [max(model.predict(*at), 1e-300) for at in where]
    finite(*above, *model.predict_all(where), *(model.parametric(*at) for at in where), *model.coefficients)
    finite(*model.improvement(where, above), *model.improvement_again(where, above))
    finite(*model.expected(tuple(where)))
    assert speed.SpeedModel.from_dict(model.to_dict()) == model
    next_probe(points, 4, 4)
    next_probe(points, 1024, 1024, where)
    assert fit_models(points, (), "loss")[0] == model.to_dict()


@given(speed_points)
@example([SpeedPoint(1, 1, 5e-324), SpeedPoint(1, 1, 1e300), SpeedPoint(1, 1, 1e300)])
@example([SpeedPoint(1, 1, 1e300, 1e300)] * 3)
def test_measurements_of_any_size_are_merged_and_brought_to_one_level(points):
    for point in drift.merged(points):
        assert 0.0 < point.epochs_per_second < math.inf
    low, high = speed.MEASURABLE  # what fit_speed passes on
    usable = [point for point in points if low <= point.epochs_per_second <= high]
    now, noise = drift.at_present_level(usable)
    assert len(now) == len(usable)
    finite(noise)


@given(st.lists(positive, min_size=1, max_size=5), st.lists(st.floats(0.0, 1e7), max_size=5))
@example([1.7e308, 1.7e308], [1e7] * 3)
def test_medians_and_noises_of_any_size_are_numbers(speeds, squares):
    """Logarithms of any two numbers differ by less than 1,500: their squares are below 1e7."""
    assert min(speeds) * (1 - 1e-12) <= drift.weighted_median(speeds) <= max(speeds) * (1 + 1e-12)
    finite(drift.noise_of(squares))


@given(st.lists(positive, min_size=1, max_size=5), counts, counts)
@example([1e300, 5e-324, 1.0], 1, 1)
@example([1.0, 1e300, 1e300], 1, 1)
def test_seconds_and_costs_are_numbers_or_infinite(values, workers, servers):
    model = fit_speed([SpeedPoint(workers, servers, 1e-30)])
    low, expected, high = sorted((values * 3)[:3])
    seconds = cost.epoch_seconds(model, workers, servers, Interval(low, expected, high), min(1.0, low))
    assert seconds.low <= seconds.expected <= seconds.high
    book = PRICE_BOOKS["flat"]
    assert cost.epoch_cost(seconds.expected, Resources(1.0, 1.0), book, 1) >= 0.0
    for share in (0.001, 0.5, 0.999):
        assert seconds.quantile(share) >= 0.0 if seconds.low > 0 else True
    assert low * (1 - 1e-9) <= interval.conservative_value(low, high) <= high * (1 + 1e-9)
    assert interval.log_normal(expected, min(high, 1e300)).low >= 0.0


@given(st.lists(anything, min_size=1, max_size=8), anything, st.integers(1, 3), st.integers(0, 3))
@example([1e300, -1e300], 0.0, 1, 0)
@example([5e-324], 5e-324, 2, 1)
@example([1.0] * 8, 1.0, 3, 3)
def test_a_mixture_of_any_values_ends_or_does_not(values, target, hits, streak):
    z = np.clip(np.array(values), -convergence.FURTHEST, convergence.FURTHEST)
    goal = float(np.clip(target, -convergence.FURTHEST, convergence.FURTHEST))
    curves = mixture.fit_mixture(np.arange(len(z)) + 1.0, z)
    assert curves.weight.sum() == pytest.approx(1.0)
    assert max_noise(z) >= 0.0
    times, chance = ending_times(curves, curves.weight, goal, hits, streak=streak, now=float(len(z)), seen=z)
    assert len(times) == len(chance)
    assert chance.sum() <= 1.0 + 1e-9


@given(st.lists(st.floats(0.0, 1.7e308), min_size=1, max_size=5), st.lists(anything, min_size=1, max_size=5))
@example([1.7e308, 0.0, 5e-324], [1.7e308, -1.7e308, 5e-324])
def test_shapes_at_any_time_have_a_part_left_between_none_and_all(times, parts):
    left = curve_families.SHAPES.remaining(np.array(times))
    assert ((left >= 0.0) & (left <= 1.0 + 1e-9)).all()
    for part in parts:
        assert (curve_families.SHAPES.time_of(np.full(len(curve_families.SHAPES.rate), part)) >= 0.0).all()


@given(speed_points, st.sampled_from(list(forms.FORMS.values())))
def test_every_form_is_fitted_to_any_measurable_speeds(points, form):
    low, high = speed.MEASURABLE
    kept = drift.merged([p for p in points if low <= p.epochs_per_second <= high and low <= p.weight <= high])
    if len(kept) < 2:
        return
    w, s, v, weight = np.array([(p.workers, p.servers, p.epochs_per_second, p.weight) for p in kept]).T
    found = kriging.fit_form(form, w, s, v, weight)
    finite(*found.theta, *found.log_mean(w, s), *found.log_variance(w, s))
    model = speed.SpeedModel(form.name, kept)
    finite(*model.improvement_again([(p.workers, p.servers) for p in kept], float(v.max())))


@given(st.lists(anything, min_size=1, max_size=5))
@example([1.7e308, -1.7e308])
def test_the_normal_distribution_of_any_number_is_a_share(values):
    found = numerics.ndtr(np.array(values))
    assert ((found >= 0.0) & (found <= 1.0)).all()
