"""The speed model: positive and finite always, true to its form, honest about what was not measured."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coach.core.estimation import kriging, speed
from coach.core.estimation.drift import merged
from coach.core.estimation.forms import PARAMETER_SERVER
from coach.core.estimation.kriging import fit_form
from coach.core.estimation.speed import SpeedModel, SpeedPoint, fit_speed
from coach_research.estimators.next_probe import next_probe

counts = st.integers(1, 64)
points = st.lists(
    st.builds(
        SpeedPoint,
        counts,
        counts,
        st.floats(1e-9, 1e9),
        st.floats(0.01, 100.0),
        st.sampled_from([0.0, 0.4, 1.0]),
    ),
    min_size=1,
    max_size=12,
)
positive = st.floats(0.0, exclude_min=True, allow_infinity=False)
GRID = [(w, s) for w in range(1, 9) for s in range(1, 9)]


def parameter_server(w, s, a=1.0, b=0.2, c=0.3, d=0.02, e=0.01):
    """Epochs/s of a job that follows the form exactly."""
    return 1 / (a / w + b + c * w / s + d * w + e * s)


def measured(truth, *where):
    return [SpeedPoint(w, s, truth(w, s)) for w, s in where]


FIVE = ((1, 1), (1, 2), (2, 1), (2, 2), (8, 8))


@given(points, counts, counts)
def test_any_positive_points_give_a_positive_finite_speed_everywhere(known, workers, servers):
    model = fit_speed(known)
    interval = model.interval(workers, servers)
    assert 0 < interval.low <= interval.expected <= interval.high < math.inf
    assert interval.expected == pytest.approx(model.predict(workers, servers))
    assert 0 < model.parametric(workers, servers) < math.inf
    assert model.predict_all([(workers, servers)])[0] == pytest.approx(model.predict(workers, servers))


@given(
    st.lists(st.builds(SpeedPoint, counts, counts, positive, positive, st.floats(0, 1)), max_size=6),
    counts,
    counts,
)
@example(known=[SpeedPoint(1, 1, 1e-200), SpeedPoint(1, 1, 1e-200)], workers=2, servers=2)
@example(known=[SpeedPoint(1, 1, 1e-300), SpeedPoint(1, 1, 1e300)], workers=2, servers=2)
@example(known=[SpeedPoint(1, 1, 1.0, weight=5e-324)], workers=2, servers=2)
@example(known=[SpeedPoint(1, 1, 1.0, computing_part=5e-324)], workers=2, servers=2)
def test_no_number_is_too_large_or_too_small_for_a_speed_or_a_weight(known, workers, servers):
    sound = SpeedPoint(2, 2, 1.0)
    model = fit_speed([*known, sound])
    (interval,) = model.intervals([(workers, servers)])
    assert 0 < interval.low <= interval.expected <= interval.high < math.inf
    assert interval.expected == pytest.approx(model.predict(workers, servers))
    assert np.isfinite(model.improvement([(workers, servers)], 1.0)).all()
    assert np.isfinite(model.improvement_again([(2, 2)], 1.0)).all()
    assert next_probe([*known, sound], 2, 2) in {(1, 1), (1, 2), (2, 1), None}


@given(points, counts, counts)
def test_a_model_survives_json(known, workers, servers):
    model = fit_speed(known)
    again = SpeedModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again == model
    assert again.predict(workers, servers) == model.predict(workers, servers)


def test_reading_a_model_fits_nothing(monkeypatch):
    model = fit_speed([SpeedPoint(1, 1, 0.24), SpeedPoint(2, 2, 0.29), SpeedPoint(2, 1, 0.27)])
    data = json.loads(json.dumps(model.to_dict()))
    monkeypatch.setattr(kriging, "nnls", None)
    speed.fitted.cache_clear()
    again = SpeedModel.from_dict(data)
    assert again.interval(3, 2) == model.interval(3, 2)
    speed.fitted.cache_clear()
    with pytest.raises(TypeError):
        SpeedModel.from_dict({name: value for name, value in data.items() if name != "theta"})


def test_servers_are_not_expected_to_bring_what_only_workers_can():
    """From (1, 1) and (2, 2) alone the surface does not tell which of the two helped."""
    corners = [SpeedPoint(1, 1, 0.24), SpeedPoint(2, 2, 0.29)]
    guessed = fit_speed(corners).interval(1, 2)
    computing = fit_speed([replace(point, computing_part=0.9) for point in corners])
    known = computing.interval(1, 2)
    assert guessed.expected > 0.255
    # A tenth of the time is waiting, and half of that is left.
    most = computing.predict(1, 1) / (0.9 + 0.1 / 2)
    assert known.expected == computing.predict(1, 2) == computing.predict_all([(1, 2)])[0] == pytest.approx(most)
    assert known.low <= known.expected < known.high < guessed.high
    assert computing.predict(2, 1) == fit_speed(corners).predict(2, 1), "a worker more may bring as much"


def test_what_was_measured_is_believed_whatever_workers_compute():
    measured_there = [SpeedPoint(1, 1, 0.2, computing_part=1.0), SpeedPoint(1, 2, 0.3, 9.0)]
    assert fit_speed(measured_there).predict(1, 2) > 0.25
    assert fit_speed(measured_there).upper_bound([(1, 2)])[0].expected < 0.25


@given(points, counts, counts)
def test_no_measured_speed_allows_more_than_it_had_where_it_was_measured(known, workers, servers):
    model = fit_speed(known)
    (most,) = model.upper_bound([(workers, servers)])
    for point in model.points:
        if point.computing_part > 0.0:
            there = model.predict(point.workers, point.servers)
            gain = max(1.0, workers / point.workers) / point.computing_part
            assert most.expected <= there * gain * (1 + 1e-9)


@given(points, st.floats(1e-4, 1e4))
def test_the_unit_of_speed_does_not_matter(known, unit):
    scaled = [replace(p, epochs_per_second=p.epochs_per_second * unit) for p in known]
    assert fit_speed(scaled).predict(3, 2) == pytest.approx(fit_speed(known).predict(3, 2) * unit, rel=1e-4)


@given(points)
def test_next_probe_is_a_candidate_that_was_not_measured(known):
    probe = next_probe(known, 6, 4)
    if probe is not None:
        assert 1 <= probe[0] <= 6
        assert 1 <= probe[1] <= 4
        assert probe not in {(p.workers, p.servers) for p in known}


def test_a_job_that_follows_the_form_is_predicted_from_five_points():
    model = fit_speed(measured(parameter_server, *FIVE))
    assert model.form == "parameter-server"
    errors = [abs(model.predict(w, s) / parameter_server(w, s) - 1) for w, s in GRID]
    assert np.median(errors) <= 0.05
    assert max(errors) <= 0.25
    assert all(0 < c < 10 for c in model.coefficients if c)


def test_a_smooth_job_gains_from_servers_and_has_one_peak_in_workers():
    model = fit_speed(measured(lambda w, s: parameter_server(w, s, e=0.0), *FIVE, (1, 8), (8, 1), (4, 4)))
    for w in range(1, 9):
        by_servers = [model.parametric(w, s) for s in range(1, 9)]
        assert all(b >= a * 0.999 for a, b in pairwise(by_servers))
    for s in range(1, 9):
        steps = np.sign(np.diff([model.parametric(w, s) for w in range(1, 9)]))
        assert list(steps) == sorted(steps, reverse=True)  # up, then down


def test_a_machine_too_small_for_more_workers_is_seen_to_slow_down():
    def two_cores(w, s):
        return 1 / (0.4 + 0.5 * max(w, 2) + 0.1 * (w + s))

    model = fit_speed(measured(two_cores, (1, 1), (1, 2), (2, 1), (3, 3)))
    assert model.predict(3, 1) < model.predict(1, 1)
    assert model.predict(1, 3) < model.predict(1, 1)
    for w in (1, 2, 3):
        for s in (1, 2, 3):
            assert model.predict(w, s) == pytest.approx(two_cores(w, s), rel=0.2)


def test_one_point_is_believed_and_little_else_is():
    model = fit_speed([SpeedPoint(1, 1, 0.1)])
    assert model.predict(1, 1) == pytest.approx(0.1, rel=0.01)
    assert 0.1 < model.predict(2, 1) < 0.2
    far = model.interval(8, 8)
    assert far.high / far.low > 3
    near = model.interval(1, 1)
    assert near.high / near.low < 1.3


def test_what_the_data_cannot_identify_stays_uncertain():
    alone = fit_speed(measured(parameter_server, (1, 1), (2, 1), (4, 1)))
    both = fit_speed(measured(parameter_server, (1, 1), (2, 1), (4, 1), (2, 4), (4, 4)))

    def width(model, w, s):
        interval = model.interval(w, s)
        return math.log(interval.high / interval.low)

    assert width(alone, 2, 4) > 2 * width(both, 2, 4)
    assert width(alone, 4, 1) == pytest.approx(width(both, 4, 1), rel=0.5)


def test_more_measurements_of_a_configuration_narrow_its_interval_and_average():
    once = fit_speed([SpeedPoint(2, 2, 1.0), SpeedPoint(1, 1, 0.6)])
    often = fit_speed([SpeedPoint(2, 2, v) for v in (1.02, 1.0, 0.98, 1.0, 1.01)] + [SpeedPoint(1, 1, 0.6)])
    assert often.predict(2, 2) == pytest.approx(1.0, rel=0.02)
    assert often.interval(2, 2).high <= once.interval(2, 2).high
    assert len(often.points) == 2


def test_measurements_that_disagree_widen_the_interval_of_the_next_one():
    agree = fit_speed([SpeedPoint(2, 2, 1.0), SpeedPoint(2, 2, 1.02), SpeedPoint(1, 1, 0.6)])
    disagree = fit_speed([SpeedPoint(2, 2, 1.0), SpeedPoint(2, 2, 0.8), SpeedPoint(1, 1, 0.6)])
    assert agree.noise < disagree.noise
    for at in ((2, 2), (1, 1)):  # who was measured once knows from the others what such a machine does
        wide, narrow = disagree.interval(*at), agree.interval(*at)
        assert math.log(wide.high / wide.low) > 1.2 * math.log(narrow.high / narrow.low)


@pytest.mark.parametrize(
    ("measured_there", "expected"),
    [
        ([1.0], 1.0),
        ([1.0, 0.5], 1.0),  # a slow minute, or a probe that was too fast: the next epoch will tell
        ([0.5, 1.0], 1.0),
        ([1.0, 0.5, 0.5], 0.5),  # it told
        ([1.0, 0.5, 1.0, 0.7], 1.0),
        ([1.0, 0.5, 1.0, 0.9], math.sqrt(0.9)),
        ([0.96, 1.0], math.sqrt(0.96)),  # ordinary noise: the faster one was lucky
    ],
)
def test_of_several_measurements_the_median_counts_and_of_two_that_disagree_the_faster(measured_there, expected):
    (point,) = merged([SpeedPoint(2, 1, v, 0.5) for v in measured_there])
    assert point.epochs_per_second == pytest.approx(expected)
    assert point.weight == 0.5 * len(measured_there)


def test_one_slow_minute_among_many_measurements_changes_little():
    steady = [SpeedPoint(2, 1, 1.0)] * 9
    slow_once = [*steady, SpeedPoint(2, 1, 0.2)]
    assert fit_speed(slow_once).predict(2, 1) == pytest.approx(fit_speed(steady).predict(2, 1), rel=1e-3)
    assert fit_speed(slow_once).interval(2, 1).low > 0.85


def test_what_was_never_measured_may_improve_and_what_was_measured_may_if_that_was_a_mistake():
    model = fit_speed([SpeedPoint(1, 1, 0.8), SpeedPoint(2, 1, 0.5), SpeedPoint(1, 2, 0.8), SpeedPoint(2, 2, 1.5)])
    known, unknown = model.improvement([(2, 1), (3, 2)], 0.8)
    assert known < 1e-3 < unknown
    assert model.improvement_again([(2, 1)], 0.8) > 0.01
    assert fit_speed([SpeedPoint(1, 1, 0.8)]).improvement_again([(1, 1)], 0.8) == 0.0


def test_a_measurement_is_the_more_doubted_the_less_the_others_support_it():
    def doubt(there):
        known = [SpeedPoint(1, 1, 1.0), SpeedPoint(1, 2, 1.0), SpeedPoint(2, 2, 1.9), SpeedPoint(2, 1, there)]
        return fit_speed(known).improvement_again([(2, 1)], 1.9)[0]

    assert doubt(1.8) < doubt(0.9) < doubt(0.4)


@given(points)
def test_merging_keeps_to_the_measured_speeds_and_all_of_their_weight(known):
    for point in merged(known):
        there = [p for p in known if (p.workers, p.servers) == (point.workers, point.servers)]
        speeds = [p.epochs_per_second for p in there]
        assert min(speeds) <= point.epochs_per_second * (1 + 1e-9)
        assert point.epochs_per_second <= max(speeds) * (1 + 1e-9)
        assert point.weight == pytest.approx(sum(p.weight for p in there))


def test_a_measurement_of_little_weight_moves_little():
    sure = measured(parameter_server, *FIVE)

    def moved(weight):
        wrong = SpeedPoint(4, 4, 3 * parameter_server(4, 4), weight)
        return fit_speed([*sure, wrong]).predict(4, 4) / fit_speed(sure).predict(4, 4)

    assert 1 <= moved(0.001) < moved(0.01) < moved(1.0)
    assert moved(0.001) < 1.1


def test_holes_are_no_measurements():
    good = measured(parameter_server, *FIVE)
    holes = [SpeedPoint(3, 1, 0.0), SpeedPoint(1, 3, math.nan), SpeedPoint(3, 3, 1.0, 0.0)]
    assert fit_speed([*good, *holes]) == fit_speed(good)
    with pytest.raises(ValueError, match="positive speed, got 3 without"):
        fit_speed(holes)


def test_a_model_of_an_older_journal_with_another_form_is_fitted_anew():
    model = fit_speed(measured(parameter_server, *FIVE))
    old = {**model.to_dict(), "form": "quadratic", "theta": [1.0, 2.0, 3.0, 4.0, 5.0]}
    assert SpeedModel.from_dict(old).intervals(GRID) == model.intervals(GRID)


def test_probes_start_small_and_find_a_fast_configuration():
    known = []
    while len(known) < 6 and (probe := next_probe(known, 8, 8)) is not None:
        known += measured(parameter_server, probe)
    assert (known[0].workers, known[0].servers) == (1, 1)
    model = fit_speed(known)
    best = max(GRID, key=lambda at: model.predict(*at))
    assert parameter_server(*best) >= 0.97 * max(parameter_server(w, s) for w, s in GRID)


def test_probing_ends_when_nothing_could_change_the_choice():
    known = []
    while (probe := next_probe(known, 3, 3)) is not None:
        known += measured(lambda w, s: 1 / (0.1 + w + s), probe)
    assert 2 <= len(known) < 9  # one worker, one server is best by far


def test_candidates_limit_the_probes_and_many_are_thinned():
    known = measured(parameter_server, (1, 1))
    assert next_probe(known, 8, 8, [(1, 1), (2, 1)]) in {(2, 1), None}
    assert next_probe(known, 8, 8, [(1, 1)]) is None
    assert next_probe([], 8, 8, []) is None
    wide = next_probe(known, 1000, 1000, [(w, s) for w in range(1, 101) for s in range(1, 101)])
    assert wide is not None
    assert wide != (1, 1)


def test_speeds_of_fifteen_orders_of_magnitude_are_fitted() -> None:
    """SciPy's own limit of steps is too low for these: columns come and go in its active set."""
    workers = np.array([30.0, 16, 2, 40, 10])
    servers = np.array([17.0, 17, 35, 54, 55])
    speeds = np.array([132695.6199337465, 12864518.54818923, 0.0048418112012869035, 137028.2, 2.539376947667396e-07])
    weights = np.array([0.0031416579876454016, 0.11325166193219975, 0.00350391068855, 0.19686493344271377, 0.004121])
    fit = fit_form(PARAMETER_SERVER, workers, servers, speeds, weights)
    assert np.isfinite(fit.theta).all() and fit.theta.max() > 0


def all_reduce(w, work=1.0, shared=0.1, exchange=0.2, step=0.02):
    """Epochs/s of a job without servers that follows the form exactly."""
    return 1 / (work / w + shared + exchange * (1 - 1 / w) + step * (w - 1))


@given(
    st.lists(
        st.builds(SpeedPoint, counts, st.just(0), st.floats(1e-9, 1e9), st.floats(0.01, 100.0)),
        min_size=1,
        max_size=12,
    ),
    counts,
)
def test_without_servers_a_speed_is_positive_and_finite_everywhere(known, workers):
    model = fit_speed(known)
    interval = model.interval(workers, 0)
    assert 0 < interval.low <= interval.expected <= interval.high < math.inf
    assert interval.expected == pytest.approx(model.predict(workers, 0))
    assert model.predict_all([(workers, 0)])[0] == pytest.approx(model.predict(workers, 0))
    assert 0 < model.parametric(workers, 0) < math.inf
    assert np.isfinite(model.improvement([(workers, 0)], 1.0)).all()
    assert SpeedModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model
    assert next_probe(known, 4, 0) in {(1, 0), (2, 0), (3, 0), (4, 0), None}


def test_few_probes_of_a_job_without_servers_predict_the_others_and_find_the_best():
    points, most = [], 16
    while (probe := next_probe(points, most, 0)) is not None:
        assert probe[1] == 0
        points.append(SpeedPoint(*probe, all_reduce(probe[0])))
    assert points[0].workers == 1
    assert len(points) <= most / 2
    model = fit_speed(points)
    assert model.form == "all-reduce"
    for workers in range(1, most + 1):
        assert model.predict(workers, 0) == pytest.approx(all_reduce(workers), rel=0.1)
    best = max(range(1, most + 1), key=all_reduce)
    assert all_reduce(max(range(1, most + 1), key=lambda w: model.predict(w, 0))) > 0.97 * all_reduce(best)


def test_workers_whose_exchange_costs_more_than_they_save_are_not_predicted_to_help():
    slow = [SpeedPoint(w, 0, all_reduce(w, exchange=3.0)) for w in (1, 2)]
    model = fit_speed(slow)
    assert model.predict(2, 0) < model.predict(1, 0)
    assert model.predict(4, 0) < model.predict(1, 0)


def test_the_bound_of_the_workers_computing_holds_without_servers():
    """A slow second measurement does not hide that four workers cannot be four times as fast as two."""
    points = [SpeedPoint(1, 0, 1.0), SpeedPoint(2, 0, 1.9, computing_part=0.9)]
    model = fit_speed(points)
    (bound,) = model.upper_bound([(4, 0)])
    assert bound.expected == pytest.approx(2 * model.interval(2, 0).expected)
    assert model.predict(4, 0) <= bound.expected
