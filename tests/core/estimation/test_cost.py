"""Seconds and money of an epoch: intervals that follow from the speed's."""

import pytest

from coach.core.cluster import Resources
from coach.core.estimation.cost import USUAL_CALLS, USUAL_CALLS_PER_SECOND, epoch_cost, epoch_seconds
from coach.core.estimation.interval import Interval
from coach.core.estimation.speed import SpeedPoint, fit_speed
from coach.core.money import PriceBook

MODEL = fit_speed([SpeedPoint(1, 1, 0.1), SpeedPoint(2, 2, 0.16), SpeedPoint(3, 3, 0.2)])
FIXED = Interval(2.0, 3.0, 5.0)
PRICES = PriceBook("test", "USD", vcpu_second=0.001, gib_second=0.0001, invocation=0.01)


def test_an_epoch_takes_its_fixed_seconds_and_its_fraction():
    whole, half = epoch_seconds(MODEL, 2, 2, FIXED), epoch_seconds(MODEL, 2, 2, FIXED, fraction=0.5)
    assert whole.expected == pytest.approx(3.0 + 1 / MODEL.predict(2, 2))
    assert half.expected - 3.0 == pytest.approx((whole.expected - 3.0) / 2)
    assert 2.0 < whole.low < whole.expected < whole.high
    assert half.high > 5.0


def test_cost_is_resource_seconds_at_their_prices_and_the_calls():
    seconds = epoch_seconds(MODEL, 2, 2, FIXED)
    cost = epoch_cost(seconds, Resources(4.0, 6.0), PRICES, pods=5)
    rate = 4 * 0.001 + 6 * 0.0001 + 5 * USUAL_CALLS_PER_SECOND * PRICES.invocation
    for bound in ("low", "expected", "high"):
        assert getattr(cost, bound) == pytest.approx(
            getattr(seconds, bound) * rate + 5 * USUAL_CALLS * PRICES.invocation
        )


def test_a_quantile_of_an_interval_agrees_with_its_bounds():
    interval = Interval(2.0, 3.0, 6.0)
    assert interval.quantile(0.9) == pytest.approx(6.0)
    assert interval.quantile(0.5) == pytest.approx(3.0)
    assert interval.quantile(0.1) == pytest.approx(2.0)
    assert interval.quantile(0.99) > 6.0
    with pytest.raises(ValueError, match="positive"):
        Interval(0.0, 1.0, 2.0).quantile(0.9)


def test_an_interval_is_ordered():
    with pytest.raises(ValueError, match="not an interval"):
        Interval(2.0, 1.0, 3.0)
