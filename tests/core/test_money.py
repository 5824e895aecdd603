"""Money: exact sums, prices, and a ledger that refuses what it does not have."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coach.core.cluster import NOTHING, Instance, Node, Resources
from coach.core.money import NANO, PRICE_BOOKS, Ledger, PriceBook, of_nodes, to_amount, to_money

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
    st.lists(st.tuples(st.sampled_from(["reserve", "settle", "release"]), st.integers(-5, 1200)), max_size=30),
)
def test_no_history_of_a_ledger_spends_more_than_its_budget(budget: int | None, history: list[tuple[str, int]]) -> None:
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


# -- machines by the hour, and nodes -----------------------------------------------------------------------

HOURLY = PriceBook("hourly", "USD", 0.0, 0.0, 0.0, instance=Instance(2.0, 4.0, 16.0, whole=True, by_hour=True))
ONE, THREE = Resources(4.0, 1.0), Resources(9.0, 1.0)


@pytest.mark.parametrize(
    ("held", "seconds", "hours"),
    [(ONE, 0.0, 0), (ONE, 1.0, 1), (ONE, 3600.0, 1), (ONE, 3601.0, 2), (THREE, 1.0, 3), (THREE, 7200.0, 6)],
)
def test_an_hour_begun_is_paid_whole(held: Resources, seconds: float, hours: int) -> None:
    assert HOURLY.cost(held, seconds, since=1e9) == hours * 2 * NANO
    assert HOURLY.by_hour and not BOOK.by_hour


@given(st.lists(st.tuples(st.floats(0, 20_000), st.integers(1, 4)), min_size=1, max_size=12))
def test_hours_paid_in_parts_are_those_of_each_machine_that_is_held(parts: list[tuple[float, int]]) -> None:
    """Held by the reference: a list of machines, each with its start; the gang keeps those paid the longest."""
    at, paid, cost = 1e9, dict[str, float](), 0
    machines: list[float] = []  # until when each is paid
    hours = 0
    for seconds, count in parts:
        held = Resources(4.0 * count, 1.0)
        cost += HOURLY.cost(held, seconds, since=at, paid=paid)
        paid = HOURLY.paid_until(held, at, at + seconds, {}, paid)
        machines = sorted(machines, reverse=True)[:count] + [at] * (count - len(machines))
        for number, until in enumerate(machines):
            more = max(0, math.ceil((at + seconds - until - 1e-5) / 3600))
            machines[number] += more * 3600
            hours += more
        at += seconds
    assert cost == hours * 2 * NANO
    assert sorted(paid.values()) == pytest.approx(sorted(machines))


@given(st.floats(0, 50_000), st.floats(0, 50_000), st.integers(1, 4))
def test_more_seconds_by_the_hour_never_cost_less(one: float, other: float, count: int) -> None:
    held = Resources(4.0 * count, 1.0)
    assert HOURLY.cost(held, min(one, other), since=5.0) <= HOURLY.cost(held, max(one, other), since=5.0)


def test_a_job_on_nodes_pays_its_part_of_each() -> None:
    cheap, dear = Instance(1.0, 8.0, 32.0), Instance(10.0, 8.0, 32.0, 1.0)
    has = Resources(8.0, 32.0)
    book = of_nodes([Node("a", has, cheap), Node("b", has, dear), Node("c", has)], Resources(1.0, 1.0, 0.0))
    placed = {"a": Resources(4.0, 1.0), "b": Resources(0.8, 1.0)}
    assert book.rate(Resources(4.8, 2.0), placed) * 3600 == pytest.approx(0.5 + 1.0)
    assert book.rate(Resources(4.0, 1.0)) * 3600 == pytest.approx(5.0), "planned is with the dearest"
    assert book.rate(NOTHING, {"c": Resources(4.0, 1.0)}) * 3600 == pytest.approx(5.0), "as is an unknown one"
    assert book.on(["a", "c"]) == (("a", cheap), ("c", dear))


def test_where_no_node_has_a_price_functions_are_paid_as_a_clouds() -> None:
    book = of_nodes([Node("a", Resources(8.0, 32.0))], Resources(1.0, 1.0))
    assert book.rate(GANG, {"a": GANG}) == PRICE_BOOKS["cloud-functions"].rate(GANG) > 0


def test_an_hour_of_a_gpu_counts_as_often_as_its_node_says_of_hours_of_gpus() -> None:
    has = Resources(8.0, 32.0, 4.0)
    cluster = [Node("new", has, gpu_factor=2.5), Node("old", has, gpu_factor=0.5), Node("none", Resources(8.0, 32.0))]
    book = of_nodes(cluster, Resources(2.0, 4.0, 1.0), "gpu-hours")
    two, three = Resources(2.0, 8.0, 2.0), Resources(2.0, 8.0, 3.0)
    assert book.cost(two + three, 1800.0, placed={"new": two, "old": three}) == 0.5 * (2 * 2.5 + 3 * 0.5) * NANO
    assert book.cost(two, 3600.0) == 2 * 2.5 * NANO, "planned is with the dearest"
    assert book.cost(Resources(8.0, 32.0), 1e6, placed={"none": Resources(8.0, 32.0)}) == 0, "only GPUs count"
    alike = of_nodes([replace(node, gpu_factor=1.0) for node in cluster], Resources(2.0, 4.0, 1.0), "gpu-hours")
    assert alike == PRICE_BOOKS["gpu-hours"]
