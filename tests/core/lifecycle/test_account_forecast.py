"""What an account will have spent at the end of its period: by its jobs as predicted, then by its rate so far."""

from __future__ import annotations

import math
import random

import pytest

from coach.core.jobs.accounts import Account, Accounts, Payer, Payments
from coach.core.jobs.events import AccountSet
from coach.core.lifecycle import forecast
from coach.core.lifecycle.account_forecast import account_forecast
from coach.core.money import to_amount, to_money
from coach.core.periods import Period
from tests.core.lifecycle.faulty_cluster import World, nodes, spec

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
    rests = [forecast.rest(each) for each in jobs]
    assert found is not None and all(rests)
    known = sum(rest.cost.expected for rest in rests if rest)
    assert found.spent.expected == pytest.approx(to_amount(accounts.spent(account, one.now)) + known)
    one.set_account("team-a", found.spent.expected * 0.9, "month")
    account = accounts.known["team-a"]
    soon = account_forecast(accounts, account, jobs, one.now)
    longest = max(rest.seconds.expected for rest in rests if rest)
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
