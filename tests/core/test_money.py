"""Money: exact sums, prices, and a ledger that refuses what it does not have."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.cluster import NOTHING, Resources
from coach.core.money import NANO, PRICE_BOOKS, Ledger, PriceBook, to_amount, to_money

GANG = Resources(cpu=2.0, memory=1.5, gpu=1.0)
BOOK = PriceBook("own", "USD", vcpu_second=1e-5, gib_second=2e-6, invocation=4e-7, gpu_second=1e-3)


@pytest.mark.parametrize(
    ("book", "requests", "seconds", "calls", "amount"),
    [
        ("cloud-functions", Resources(1.0, 0.0), 3600.0, 0, 0.0864),
        ("cloud-functions", Resources(0.0, 1.0), 3600.0, 0, 0.009),
        ("cloud-functions", NOTHING, 0.0, 1_000_000, 0.4),
        ("flat", Resources(2.0, 64.0), 1800.0, 10**6, 1.0),
        ("flat", Resources(2.0, 64.0), 0.0, 10**6, 0.0),
    ],
)
def test_the_shipped_books_charge_what_they_say(
    book: str, requests: Resources, seconds: float, calls: int, amount: float
) -> None:
    assert PRICE_BOOKS[book].name == book
    cost = PRICE_BOOKS[book].cost(requests, seconds, calls)
    assert to_amount(cost) == pytest.approx(amount, abs=2e-9)


def test_every_kind_of_resource_has_its_price() -> None:
    assert BOOK.rate(GANG) == pytest.approx(2 * 1e-5 + 1.5 * 2e-6 + 1e-3)
    assert BOOK.cost(GANG, 10.0, 5) == math.ceil((10 * BOOK.rate(GANG) + 5 * 4e-7) * NANO)


@given(
    cpu=st.floats(0, 1000),
    seconds=st.floats(0, 1e6),
    calls=st.integers(0, 10**6),
    parts=st.integers(1, 50),
)
def test_what_is_paid_in_parts_is_never_less_than_the_whole_and_at_most_a_nano_a_part_more(
    cpu: float, seconds: float, calls: int, parts: int
) -> None:
    held = Resources(cpu, 0.0)
    whole = BOOK.cost(held, seconds, calls)
    paid = sum(BOOK.cost(held, seconds / parts, calls // parts) for _ in range(parts - 1))
    paid += BOOK.cost(held, seconds - seconds / parts * (parts - 1), calls - calls // parts * (parts - 1))
    rounding = 1 + whole * 1e-12
    assert whole - rounding <= paid <= whole + parts + rounding


@given(st.integers(0, 10**15))
def test_amounts_and_nano_units_go_back_and_forth(money: int) -> None:
    assert to_money(to_amount(money)) == money
    assert abs(Fraction(to_amount(money)) * NANO - money) < Fraction(1, 2)


def test_a_ledger_reserves_settles_and_releases() -> None:
    ledger = Ledger(budget=100)
    ledger.reserve(60)
    assert (ledger.spent, ledger.reserved, ledger.left) == (0, 60, 40)
    ledger.settle(25)
    assert (ledger.spent, ledger.reserved, ledger.left) == (25, 35, 40)
    ledger.reserve(75)  # in place of what was held
    assert (ledger.spent, ledger.reserved, ledger.left) == (25, 75, 0)
    ledger.release()
    assert (ledger.spent, ledger.reserved, ledger.left) == (25, 0, 75)


@pytest.mark.parametrize("amount", [-1, 76])
def test_a_ledger_reserves_no_more_than_is_left(amount: int) -> None:
    ledger = Ledger(budget=100, spent=25)
    with pytest.raises(ValueError, match="cannot reserve"):
        ledger.reserve(amount)
    assert (ledger.spent, ledger.reserved) == (25, 0)


@pytest.mark.parametrize("amount", [-1, 11])
def test_nothing_is_paid_that_was_not_reserved(amount: int) -> None:
    ledger = Ledger(budget=None)
    ledger.reserve(10)
    with pytest.raises(ValueError, match="cannot settle"):
        ledger.settle(amount)
    assert (ledger.spent, ledger.reserved, ledger.left) == (0, 10, None)


@given(
    st.none() | st.integers(0, 1000),
    st.lists(
        st.tuples(st.sampled_from(["reserve", "settle", "release"]), st.integers(-5, 1200)), max_size=30
    ),
)
def test_no_history_of_a_ledger_spends_more_than_its_budget(
    budget: int | None, history: list[tuple[str, int]]
) -> None:
    ledger = Ledger(budget)
    spent = 0
    for what, amount in history:
        before = ledger.spent, ledger.reserved
        try:
            ledger.release() if what == "release" else getattr(ledger, what)(amount)
        except ValueError:
            assert (ledger.spent, ledger.reserved) == before
        else:
            spent += amount if what == "settle" else 0
        assert ledger.spent == spent >= 0 and ledger.reserved >= 0
        assert budget is None or ledger.spent + ledger.reserved <= budget
