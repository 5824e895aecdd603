"""Budgets over jobs: nothing is reserved that an account does not cover, a job that waits says why, forecasts."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import pytest

from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.accounts import Account, Accounts, Payer, Payments
from coach.core.jobs.events import AccountSet
from coach.core.jobs.job import Phase
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle import forecast
from coach.core.lifecycle.account_forecast import account_forecast
from coach.core.lifecycle.account_wait import shortage
from coach.core.money import to_amount, to_money
from coach.core.periods import Period
from coach.handler.accounts import refuse, removal, setting
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
    one.run(until=lambda: one.job("a").attempts.running is not None)
    one.submit(job("b"))
    assert waits(one, "b") and one.job("b").state is State.WAITING
    said = one.job("b").message
    assert re.fullmatch(
        r"the next epoch at 1x1 needs 0\.01\d+ USD; account team-a has 0\.003\d+ left of 0\.02 USD/month: 0\.0000 "
        r"spent, 0\.016\d+ reserved by a; goes on at 1970-02-01 00:00 UTC or when a job releases money",
        said,
    ), said
    assert not one.job("b").gang.pods, "one that waits holds nothing"


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
    assert ended.money.ledger.spent > 2_000_000


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
    assert one.job("a").reason is Reason.EPOCH_LIMIT and not one.job("a").money.ledger.reserved


def test_an_amount_of_the_jobs_own_bounds_it_too() -> None:
    one = world(10.0)
    one.submit(spec("a", budget={**usd(0.01), "account": "team-a"}))
    one.run()
    assert one.job("a").state is State.BUDGET_EXHAUSTED and one.job("a").money.ledger.spent <= 10_000_000
    assert "account" not in one.job("a").message


def test_after_a_restart_it_waits_on_and_the_turn_still_wakes_it() -> None:
    one = world(0.002, "month")
    one.submit(job("a"))
    one.run(until=lambda: waits(one, "a") and not one.pods and not one.job("a").money.ledger.reserved)
    before = one.reducer.accounts
    one.restart()
    assert waits(one, "a") and one.reducer.accounts == before
    one.run()
    assert one.job("a").reason is Reason.EPOCH_LIMIT


def test_what_a_killed_handler_had_reserved_stays_reserved_until_it_is_paid() -> None:
    one = world(0.02, "month")
    one.submit(job("a"))
    one.run(until=lambda: one.job("a").attempts.running is not None)
    one.now += 5.0
    one.restart(down=50 * 86400.0)
    account = one.reducer.accounts.known["team-a"]
    assert one.job("a").money.ledger.spent > 0
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
    one.run(until=lambda: one.job("a").attempts.running is not None)
    one.set_account("team-a", 0.0001)
    orders = sum(isinstance(record, act.RunEpoch) for record in one.history)
    one.run()
    assert sum(isinstance(record, act.RunEpoch) for record in one.history) == orders
    assert one.job("a").state is State.BUDGET_EXHAUSTED and "team-a has 0.0000 left" in one.job("a").message


def test_a_job_that_its_account_can_never_pay_is_known_before_it_starts() -> None:
    one = world(0.00001, "month")
    one.submit(job("a"))
    assert one.job("a").state is State.BUDGET_EXHAUSTED and one.job("a").attempts.count == 0
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


# -- by label, and removed --------------------------------------------------------------------------------

VISION = {"team": "vision"}


def labelled(name: str, labels: dict[str, str] = VISION, **changes: Any) -> dict[str, Any]:
    changes = {"budget": {"unlimited": True}, "maxEpochs": 4, "target": {"loss": 0.01}} | changes
    file = spec(name, **changes)
    file["metadata"] = {"name": name, "labels": labels}
    return file


def spent(one: World, account: str) -> int:
    return one.reducer.accounts.spent(one.reducer.accounts.known[account], one.now)


def test_an_account_pays_the_jobs_that_have_its_labels_and_the_second_waits() -> None:
    one = World.of(nodes(4, 4.0), shadow=True)
    one.set_account("vision", 0.02, "month", labels=VISION)
    one.submit(labelled("a"))
    one.submit(labelled("free", {"team": "speech"}))
    one.run(until=lambda: one.job("a").attempts.running is not None and one.job("free").attempts.running is not None)
    one.submit(labelled("b", {**VISION, "paper": "x"}))
    assert one.job("b").reason is Reason.ACCOUNT_SPENT
    assert "account vision has" in one.job("b").message and "reserved by a;" in one.job("b").message
    one.cancel("free")
    one.run()
    assert spent(one, "vision") == 0, "the month has turned since"


def test_a_job_is_paid_by_the_account_that_it_names_and_by_all_whose_labels_it_has_each_once() -> None:
    one = World.of(nodes(4, 4.0), shadow=True)
    one.set_account("department", 5.0)
    one.set_account("vision", 5.0, parent="department", labels=VISION)
    one.set_account("paper", 5.0, parent="department", labels={"paper": "x"})
    one.set_account("own", 5.0)
    one.submit(labelled("a", {**VISION, "paper": "x"}, budget={"account": "own"}))
    one.run()
    paid = one.job("a").money.ledger.spent
    assert paid and {name: spent(one, name) for name in ("department", "vision", "paper", "own")} == dict.fromkeys(
        ("department", "vision", "paper", "own"), paid
    )
    assert one.reducer.accounts.innermost(one.job("a")) == ["own", "vision", "paper"]


def test_the_least_that_one_of_them_has_left_bounds_a_job() -> None:
    one = World.of(nodes(4, 4.0), shadow=True)
    one.set_account("vision", 0.002, labels=VISION)
    one.set_account("own", 5.0)
    one.submit(labelled("a", budget={"account": "own"}))
    one.run()
    assert one.job("a").state is State.BUDGET_EXHAUSTED and "account vision" in one.job("a").message


def test_a_label_that_is_set_later_finds_what_its_jobs_have_spent_and_reserved() -> None:
    one = World.of(nodes(4, 4.0), shadow=True)
    one.submit(labelled("a"))
    one.run(until=lambda: len(one.job("a").epochs) > 1 and one.job("a").attempts.running is not None)
    one.set_account("vision", 5.0, labels=VISION)
    account = one.reducer.accounts.known["vision"]
    assert account.reserved == {"a": one.job("a").money.ledger.reserved}
    assert spent(one, "vision") == one.job("a").money.ledger.spent > 0
    one.run()
    assert spent(one, "vision") == one.job("a").money.ledger.spent


def test_what_is_moved_into_another_account_brings_what_it_has_spent() -> None:
    one = World.of(nodes(4, 4.0), shadow=True)
    one.set_account("top", 5.0)
    one.set_account("low", 5.0)
    one.submit(spec("a", budget={"account": "low"}, maxEpochs=2, target={"loss": 0.01}))
    one.run()
    assert spent(one, "top") == 0
    one.set_account("low", 5.0, parent="top")
    assert spent(one, "top") == spent(one, "low") == one.job("a").money.ledger.spent > 0


def test_an_account_that_is_removed_pays_nothing_and_set_again_it_has_its_history() -> None:
    one = World.of(nodes(4, 4.0), shadow=True)
    one.set_account("team-a", 5.0)
    one.submit(spec("a", budget={**usd(0.002), "account": "team-a"}))
    one.run()
    paid = one.job("a").money.ledger.spent
    one.set_account("team-a", 0.0, removed=True)
    assert one.reducer.accounts.present == []
    one.resume("a", 10**9)
    one.run()
    assert one.job("a").state is State.BUDGET_EXHAUSTED and one.job("a").money.ledger.spent == paid
    one.set_account("team-a", 5.0)
    assert spent(one, "team-a") == paid


def test_what_pays_a_job_or_has_an_account_in_it_is_not_removed() -> None:
    one = World.of(nodes(4, 4.0), shadow=True)
    one.set_account("top", 5.0)
    one.set_account("low", 5.0, parent="top")
    one.set_account("vision", 5.0, labels=VISION)
    one.submit(spec("a", budget={"account": "low"}))
    one.submit(labelled("b"))
    one.run(until=lambda: bool(one.job("a").money.ledger.reserved and one.job("b").money.ledger.reserved))
    accounts = one.reducer.accounts
    for name, problem in (("top", "low is in it"), ("low", "a has not ended"), ("vision", "b has not ended")):
        with pytest.raises(UserError, match=f"account {name}: {problem}"):
            refuse(accounts, one.reducer.jobs, removal(accounts, name))
    with pytest.raises(UserError, match="there is no account nobody; there are low, top, vision"):
        removal(accounts, "nobody")
    one.run()
    refuse(accounts, one.reducer.jobs, removal(accounts, "low"))


def test_labels_in_another_currency_and_words_that_are_no_label_are_refused() -> None:
    one = World.of(nodes(4, 4.0), shadow=True)
    one.submit(labelled("a"))
    with pytest.raises(UserError, match="a, which has these labels, is billed in USD, not EUR"):
        refuse(one.reducer.accounts, one.reducer.jobs, setting("v", "5EUR", labels=["team=vision"]))
    with pytest.raises(UserError, match="'team' is no label; such as team=vision"):
        setting("v", "5EUR", labels=["team"])
    one.cancel("a")
    one.run()
    refuse(one.reducer.accounts, one.reducer.jobs, wanted := setting("v", "5EUR", labels=["team=vision"]))
    one.reducer.accounts.apply(wanted)
    problem = one.reducer.accounts.problem_of(one.job("a").job_file)
    assert problem == "account v is in EUR, the job's prices are in USD"


# -- forecasts --------------------------------------------------------------------------------------------

DAY = 86400.0
PAYER = Payer("team-a", frozenset(), "USD")


def paid(amount: float, period: str, payments: list[tuple[float, float]]) -> tuple[Accounts, Account]:
    """An account, and what jobs that have ended paid out of it: when, how much."""
    accounts = Accounts()
    accounts.apply(AccountSet(0.0, "team-a", to_money(amount), "USD", period))
    (account,) = accounts.known.values()
    for number, (at, much) in enumerate(payments):
        one = Payments()
        one.add(at, to_money(much))
        account.payments.add(at, to_money(much))
        accounts._jobs[f"job-{number}"] = PAYER, one
    return accounts, account


def test_without_jobs_the_rate_so_far_goes_on_to_the_periods_end() -> None:
    accounts, account = paid(100.0, "month", [(day * DAY, 1.0) for day in range(11)])
    found = account_forecast(accounts, account, [], 10 * DAY)
    assert found is not None and found.unknown == 0
    # 11 payments in 10 days, 21 days to go, and 11 are spent.
    assert found.spent.expected == pytest.approx(11 + 11 * 2.1)
    assert found.spent.low < found.spent.expected < found.spent.high < 100 and found.runs_out is None
    accounts, account = paid(22.0, "month", [(day * DAY, 1.0) for day in range(11)])
    found = account_forecast(accounts, account, [], 10 * DAY)
    assert found is not None and found.runs_out == pytest.approx(20 * DAY, rel=1e-6)


def test_the_first_tenth_of_a_period_says_nothing_of_its_rest() -> None:
    accounts, account = paid(100.0, "month", [(0.0, 1.0), (DAY, 1.0)])
    assert account_forecast(accounts, account, [], 2 * DAY) is None
    assert account_forecast(*paid(100.0, "ever", [])[:2], [], 2 * DAY) is None


def test_in_a_rolling_window_what_leaves_it_is_no_longer_spent() -> None:
    accounts, account = paid(10.0, "10d", [(day * DAY, 1.0) for day in range(10)])
    found = account_forecast(accounts, account, [], 9.5 * DAY)
    assert found is not None and found.spent.expected == pytest.approx(10 * 10 / 9.5)
    assert found.runs_out is None or found.runs_out > 9.5 * DAY


def test_running_jobs_spend_what_is_predicted_of_them() -> None:
    one = World.of(nodes(4, 4.0))
    one.set_account("team-a", 1.0, "month")
    for name in "ab":
        one.submit(spec(name, budget={"account": "team-a"}, target={"loss": 0.12}), known_epochs=20.0)
    accounts = one.reducer.accounts
    account = accounts.known["team-a"]
    jobs = [one.job("a"), one.job("b")]
    found = account_forecast(accounts, account, jobs, one.now)
    assert found is None, "no speed is known"
    one.run(until=lambda: all(len(each.epochs) > 8 for each in jobs))
    found = account_forecast(accounts, account, jobs, one.now)
    rests = [rest for each in jobs if (rest := forecast.remaining(each).bounded)]
    assert found is not None and len(rests) == len(jobs)
    known = sum(cost.expected for _, cost in rests)
    assert found.spent.expected == pytest.approx(to_amount(accounts.spent(account, one.now)) + known)
    one.set_account("team-a", found.spent.expected * 0.9, "month")
    account = accounts.known["team-a"]
    soon = account_forecast(accounts, account, jobs, one.now)
    longest = max(seconds.expected for seconds, _ in rests)
    assert soon is not None and soon.runs_out is not None and one.now < soon.runs_out < one.now + longest


def test_four_of_five_random_months_end_inside_the_interval() -> None:
    """Jobs come by chance, their costs differ by a factor of ten; the interval is of the tenth day."""
    dice, inside, months = random.Random(7), 0, 300
    for _ in range(months):
        at, payments = 0.0, []
        while (at := at + dice.expovariate(1.5 / DAY)) < 31 * DAY:
            payments.append((at, math.exp(dice.gauss(0, 1))))
        accounts = Accounts()
        accounts.apply(AccountSet(0.0, "team-a", to_money(1000.0), "USD", "month"))
        (account,) = accounts.known.values()
        for number, (when, much) in enumerate(payments):
            if when < 10 * DAY:
                one = Payments()
                one.add(when, to_money(much))
                account.payments.add(when, to_money(much))
                accounts._jobs[str(number)] = PAYER, one
        found = account_forecast(accounts, account, [], 10 * DAY)
        assert Period("month").end(0.0) == 31 * DAY and found is not None
        inside += found.spent.holds(sum(much for _, much in payments))
    assert 0.7 < inside / months < 0.9, inside
