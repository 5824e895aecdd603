"""Budgets over jobs: nothing is reserved that an account does not cover, and a job that waits for one says why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Phase
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.account_wait import shortage
from coach.core.periods import Period
from tests.core.lifecycle.faulty_cluster import World, nodes, spec, usd

#: What a first mini-epoch at 1x1 reserves in this world: some 390 s at 0.000042 USD a second.
FIRST = 0.0165


def world(amount: float, period: str = "ever", parent: str = "") -> World:
    made = World.of(nodes(4, 4.0), shadow=True)
    made.set_account("team-a", amount, period, parent)
    return made


def job(name: str, account: str = "team-a", **changes: Any) -> dict[str, Any]:
    return spec(name, budget={"account": account}, maxEpochs=4, target={"loss": 0.01}, **changes)


def waits(one: World, name: str) -> bool:
    return one.job(name).reason is Reason.ACCOUNT_SPENT


def notices(one: World) -> list[tuple[str, int]]:
    return [(n.account, n.percent) for n in one.history if isinstance(n, act.NoticeAccount)]


def test_the_second_job_waits_with_the_numbers_when_the_first_has_reserved_the_rest() -> None:
    one = world(0.02, "month")
    one.submit(job("a"))
    one.run(until=lambda: one.job("a").running is not None)
    one.submit(job("b"))
    assert waits(one, "b") and one.job("b").state is State.WAITING
    said = one.job("b").message
    assert re.fullmatch(
        r"the next epoch at 1x1 needs 0\.01\d+ USD; account team-a has 0\.003\d+ left of 0\.02 USD/month: 0\.0000 "
        r"spent, 0\.016\d+ reserved by a; goes on at 1970-02-01 00:00 UTC or when a job releases money",
        said,
    ), said
    assert not one.job("b").pods, "one that waits holds nothing"


def test_it_goes_on_by_itself_when_the_first_ends() -> None:
    one = world(0.1)
    one.submit(job("a", workers={"min": 3, "max": 3}, servers={"min": 3, "max": 3}))
    one.submit(job("b"))
    one.run(until=lambda: waits(one, "b") or one.job("b").ended)
    assert waits(one, "b")
    one.cancel("a")
    one.run(until=lambda: one.job("b").phase is Phase.RUNNING)
    assert one.job("a").ended


def test_it_goes_on_by_itself_when_the_month_turns() -> None:
    one = world(0.002, "month")
    one.submit(job("a"))
    one.run()
    ended = one.job("a")
    assert ended.state is State.FAILED and ended.reason is Reason.EPOCH_LIMIT, ended.message
    assert one.now > Period("month").end(1_000_000.0), "the first month did not suffice"
    assert ended.ledger.spent > 2_000_000


def test_in_a_rolling_window_it_goes_on_when_enough_has_left_it() -> None:
    one = world(0.002, "1h")
    one.submit(job("a"))
    one.run()
    assert one.job("a").reason is Reason.EPOCH_LIMIT
    paid = [(record.until, record.amount) for record in one.history if isinstance(record, act.Settle)]
    for at, _ in paid:
        assert sum(amount for when, amount in paid if at - 3600 <= when <= at) <= 2_000_000
    assert one.now - 1_000_000 < 3 * 3600, "it does not wait longer than it must"


def test_a_department_pays_for_its_teams_and_keeps_them_within_its_own_amount() -> None:
    one = World.of(nodes(4, 4.0), shadow=True)
    one.set_account("department", 0.02, "week")
    one.set_account("team-a", 1.0, "month", "department")
    one.set_account("team-b", 1.0, parent="department")
    one.submit(job("a"))
    one.submit(job("b", "team-b"))
    one.run(until=lambda: waits(one, "b"))
    assert waits(one, "b")
    assert "account department has" in one.job("b").message and "reserved by a" in one.job("b").message
    one.set_account("department", 2.0, "week")
    one.run()
    assert {one.job(name).reason for name in "ab"} == {Reason.EPOCH_LIMIT}


def test_an_account_for_ever_that_is_used_up_ends_its_jobs_and_more_money_lets_them_go_on() -> None:
    one = world(0.002)
    one.submit(job("a"))
    one.run()
    ended = one.job("a")
    assert ended.state is State.BUDGET_EXHAUSTED and ended.epochs
    assert ended.message.endswith("; to go on: coach budget set team-a AMOUNT")
    assert notices(one)[-1] == ("team-a", 100)
    one.set_account("team-a", 1.0)
    one.resume("a")
    one.run()
    assert one.job("a").reason is Reason.EPOCH_LIMIT and not one.job("a").ledger.reserved


def test_an_amount_of_the_jobs_own_bounds_it_too() -> None:
    one = world(10.0)
    one.submit(spec("a", budget={**usd(0.01), "account": "team-a"}))
    one.run()
    assert one.job("a").state is State.BUDGET_EXHAUSTED and one.job("a").ledger.spent <= 10_000_000
    assert "account" not in one.job("a").message


def test_after_a_restart_it_waits_on_and_the_turn_still_wakes_it() -> None:
    one = world(0.002, "month")
    one.submit(job("a"))
    one.run(until=lambda: waits(one, "a") and not one.pods and not one.job("a").ledger.reserved)
    before = one.reducer.accounts
    one.restart()
    assert waits(one, "a") and one.reducer.accounts == before
    one.run()
    assert one.job("a").reason is Reason.EPOCH_LIMIT


def test_what_a_killed_handler_had_reserved_stays_reserved_until_it_is_paid() -> None:
    one = world(0.02, "month")
    one.submit(job("a"))
    one.run(until=lambda: one.job("a").running is not None)
    one.now += 5.0
    one.restart(down=50 * 86400.0)
    account = one.reducer.accounts.known["team-a"]
    assert one.job("a").ledger.spent > 0
    assert one.reducer.accounts.spent(account, one.now) == 0, "it was spent before the month turned"


def test_notices_come_once_a_period_at_50_80_and_100_percent() -> None:
    one = world(0.002, "month")
    one.submit(job("a"))
    one.run()
    assert notices(one) == [("team-a", 50), ("team-a", 80), ("team-a", 100)]
    for name in "bcd":
        one.submit(job(name))
    one.run()
    month = Period("month").start
    said = [(month(n.at), n.percent) for n in one.history if isinstance(n, act.NoticeAccount)]
    assert len(said) == len(set(said)) and len({when for when, _ in said}) > 2


def test_an_account_that_is_set_lower_reserves_nothing_more() -> None:
    one = world(1.0)
    one.submit(job("a"))
    one.run(until=lambda: one.job("a").running is not None)
    one.set_account("team-a", 0.0001)
    orders = sum(isinstance(record, act.RunEpoch) for record in one.history)
    one.run()
    assert sum(isinstance(record, act.RunEpoch) for record in one.history) == orders
    assert one.job("a").state is State.BUDGET_EXHAUSTED and "team-a has 0.0000 left" in one.job("a").message


def test_a_job_that_its_account_can_never_pay_is_known_before_it_starts() -> None:
    one = world(0.00001, "month")
    one.submit(job("a"))
    assert one.job("a").state is State.BUDGET_EXHAUSTED and one.job("a").attempts == 0
    short = shortage(one.reducer.accounts, one.job("a"), one.now)
    assert short is not None and short.never and short.helps == "coach budget set team-a"


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (ev.AccountSet(0, "x", 1, "USD", "month", parent="nobody"), "there is no account nobody; there are"),
        (ev.AccountSet(0, "top", 1, "USD", "ever", parent="low"), "low is in top, so top cannot be in it"),
        (ev.AccountSet(0, "top", 1, "USD", "ever", parent="top"), "top is in top"),
        (ev.AccountSet(0, "x", 1, "EUR", "ever", parent="low"), "is in USD, not EUR"),
        (ev.AccountSet(0, "top", 1, "EUR", "ever"), "low, which is in one tree with it, is in USD"),
        (ev.AccountSet(0, "low", 5, "USD", "week", parent="top"), ""),
    ],
)
def test_accounts_that_cannot_be_are_refused(setting: ev.AccountSet, problem: str) -> None:
    one = World.of(nodes(1, 1.0))
    one.set_account("top", 1.0)
    one.set_account("low", 1.0, parent="top")
    found = one.reducer.accounts.problem(setting)
    assert problem in found and bool(found) == bool(problem)
