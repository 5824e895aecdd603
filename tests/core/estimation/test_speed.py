"""The speed model: positive, finite, and what it says where nothing was measured."""

import math

from hypothesis import given
from hypothesis import strategies as st

from coach.core.estimation.speed import SpeedModel, SpeedPoint, fit_speed, next_probe

counts = st.integers(1, 64)
points = st.lists(
    st.builds(SpeedPoint, counts, counts, st.floats(1e-9, 1e9), st.floats(0.01, 100.0)),
    min_size=1,
    max_size=12,
)


@given(points, counts, counts)
def test_any_positive_points_give_a_positive_finite_speed_everywhere(known, workers, servers):
    interval = fit_speed(known).interval(workers, servers)
    assert 0 < interval.low <= interval.expected <= interval.high < math.inf


@given(points, counts, counts)
def test_a_model_survives_json(known, workers, servers):
    import json

    model = fit_speed(known)
    again = SpeedModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again == model
    assert again.predict(workers, servers) == model.predict(workers, servers)


def test_the_next_probe_was_never_measured_and_ends():
    known = [SpeedPoint(1, 1, 0.1)]
    while (probe := next_probe(known, 3, 3)) is not None:
        assert probe not in {(p.workers, p.servers) for p in known}
        known.append(SpeedPoint(*probe, 0.1 * sum(probe)))
    assert 2 <= len(known) <= 9
