"""The published methods, on data of their own form: what the comparison compares with is the real thing."""

import numpy as np
import pytest

from coach.core.estimation.convergence import ConvergenceModel
from coach.core.estimation.observations import CurvePoint, SpeedPoint
from coach.core.estimation.speed import SpeedModel
from coach.core.jobs.fitted_models import fit_models
from coach_research.estimators.published import fit_optimus_speed, fit_thesis_curve, fit_thesis_quadratic

PLACES = [(w, s) for w in (1, 2, 3, 5) for s in (1, 2, 4)]


def test_the_thesis_s_surface_finds_its_own_parabola():
    points = [SpeedPoint(w, s, 9 - 0.2 * (w - 4) ** 2 - 0.1 * (s - 3) ** 2) for w, s in PLACES]
    assert fit_thesis_quadratic(points).predict(4, 3) == pytest.approx(9, rel=0.01)


def test_the_thesis_s_surface_may_turn_negative_and_depends_on_the_unit():
    speeds = {(1, 1): 15.8, (1, 2): 28.7, (2, 1): 15.4, (2, 2): 27.3}  # resnet-50
    recorded = fit_thesis_quadratic([SpeedPoint(*at, v) for at, v in speeds.items()])
    batches = fit_thesis_quadratic([SpeedPoint(*at, v / 32) for at, v in speeds.items()])
    assert batches.predict(4, 4) < 0 < recorded.predict(4, 4)


def test_optimus_s_surface_finds_its_own_coefficients():
    points = [SpeedPoint(w, s, 1 / (3 / w + 1 + 0.5 * w / s + 0.2 * w + 0.1 * s)) for w, s in PLACES]
    assert fit_optimus_speed(points).coefficients == pytest.approx((3, 1, 0.5, 0.2, 0.1), rel=0.02)


def test_the_thesis_s_curve_finds_its_own_hyperbola_and_where_it_crosses():
    points = [CurvePoint(float(x), 1 / (0.2 * x + 0.5) + 0.3) for x in range(1, 15)]
    curve = fit_thesis_curve(points)
    assert curve.b == pytest.approx((0.2, 0.5, 0.3), rel=0.05)
    assert curve.epochs_to(0.4) == pytest.approx((1 / 0.1 - 0.5) / 0.2, rel=0.05)
    assert curve.epochs_to(0.29) is None


def test_optimus_s_weights_follow_the_late_points():
    values = np.concatenate([np.linspace(3, 2, 10), 1 / (0.1 * np.arange(10) + 1) + 1.0])
    points = [CurvePoint(float(i + 1), float(v)) for i, v in enumerate(values)]
    plain, weighted = fit_thesis_curve(points), fit_thesis_curve(points, segments=3)

    def miss(curve):
        b0, b1, b2 = curve.b
        return abs(1 / (b0 * 20 + b1) + b2 - values[-1])

    assert miss(weighted) < miss(plain)


def test_one_refit_gives_what_models_are_rebuilt_from():
    speed, convergence = fit_models([SpeedPoint(1, 1, 0.1)], [CurvePoint(1.0, 2.0)], "loss")
    assert SpeedModel.from_dict(speed).predict(1, 1) == pytest.approx(0.1, rel=0.01)
    assert ConvergenceModel.from_dict(convergence).predict(1.0) == pytest.approx(2.0, rel=0.2)
    assert fit_models([], [], "loss") == (None, None)
