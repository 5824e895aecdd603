"""Accounts of a handler that is killed, and of a state folder with several handlers."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle.reducer import Reducer
from coach.core.money import to_money
from coach.core.policies.coach import CoachPolicy
from coach.handler.accounts import payments, read, set_account, setting
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.handler.fake_platform import FakePlatform
from tests.handler.test_handler import Killed, job_of

pytestmark = pytest.mark.standard

#: A core for a second costs a tenth of a USD: epochs of milliseconds cost something.
DEAR = {"name": "dear", "currency": "USD", "vcpuSecond": 0.1, "gibSecond": 0.0, "invocation": 0.0001}
KILLS = 100


class Steps:
    """A clock that goes on by a hundredth of a second whenever it is asked: a busy machine costs no more money.

    With the machine's, the account was spent before the last kill where the test took a minute, and both jobs waited
    for the next month.
    """

    def __init__(self, since: float = 0.0) -> None:
        self._at = since

    def now(self) -> float:
        self._at += 0.01
        return self._at


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coach.handler.state.journal.Clock", Steps)


def job(name: str, **changes: Any) -> Any:
    changes = {"prices": DEAR, "maxEpochs": 200, "target": {"loss": 0.01}, "stopEarly": False} | changes
    return job_of(name, budget={"account": "team-a"}, **changes)


def handled(path: Path, records: int | None, *jobs: Any) -> bool:
    """Run a handler until so many more records are written, then kill it; whether it came to that before all ended."""

    async def main() -> bool:
        journal = Journal.write(path)
        append, left = journal.append, records

        async def dying(batch: Any) -> None:
            nonlocal left
            batch = list(batch)
            append(batch)
            if left is not None:
                left -= len(batch)
                if left <= 0:
                    raise Killed

        journal.append_when_free = dying  # type: ignore[method-assign]
        handler = Handler(FakePlatform(), journal, CoachPolicy())
        await handler.__aenter__()
        try:
            for one in jobs:
                if one.name not in handler.jobs:
                    handler.submit(one, path.parent.as_uri())
            names = {one.name for one in jobs}
            await asyncio.wait_for(
                handler.wait(lambda: names <= handler.jobs.keys() and all(handler.jobs[name].ended for name in names)),
                30,
            )
            assert journal.accounts(journal.jobs()) == handler.accounts, "the journal alone gives the same accounts"
            return False
        except Killed:
            return True
        finally:
            handler._loop.cancel()
            for task in handler._tasks:
                task.cancel()
            await asyncio.gather(handler._loop, *handler._tasks, return_exceptions=True)
            journal.close()

    return asyncio.run(main())


def test_two_jobs_never_overdraw_their_account_though_the_handler_is_killed_a_hundred_times(
    tmp_path: Path,
) -> None:
    home = StateDirectory(tmp_path)
    set_account(home, setting("team-a", "1.5USD/month"))
    dice, path = random.Random(50), home.journal(1)
    kills = sum(handled(path, dice.randint(3, 12), job("a"), job("b")) for _ in range(KILLS))
    assert kills == KILLS, "the jobs ended before"
    reader = Journal.read(path)
    records = [record for _, record in reader.records()]
    reader.close()
    folded, most = Reducer(CoachPolicy()), 0
    for record in records:
        folded.apply(record)
        account = folded.accounts.known["team-a"]
        used = folded.accounts.spent(account, record.at) + account.held
        assert used <= account.amount == to_money(1.5)
        most = max(most, used)
    paid = sum(record.amount for record in records if isinstance(record, act.Settle))
    assert 0 < paid <= most
    assert any(isinstance(one, act.SetStatus) and one.reason is Reason.ACCOUNT_SPENT for one in records)
    known, jobs = read(home)
    assert (
        sum(payment.amount for payment in payments(home, {name: known.innermost(job) for name, job in jobs.items()}))
        == paid
    )
    assert known.spent(known.known["team-a"], records[-1].at) == paid


def test_a_job_whose_account_is_not_there_or_too_small_is_refused_before_it_is_written_down(
    tmp_path: Path,
) -> None:
    home = StateDirectory(tmp_path)
    with pytest.raises(UserError, match=r"b: there is no account team-a; make it: coach budget set team-a 50USD/month"):
        handled(home.journal(1), None, job("b"))
    set_account(home, setting("team-a", "0.01USD/month"))
    with pytest.raises(UserError, match=r"b: the next epoch .* needs .* raise it: coach budget set team-a AMOUNT"):
        handled(home.journal(1), None, job("b"))
    assert not read(home)[1]


def test_an_account_keeps_its_currency_and_is_not_set_while_another_handler_has_it(tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    set_account(home, setting("team-a", "5USD/week", "Europe/Berlin"))
    with pytest.raises(UserError, match="account team-a: it has spent USD, so it cannot be in EUR"):
        set_account(home, setting("team-a", "5EUR"))
    journal = home.open_journal(home.journal(1))
    try:
        with pytest.raises(UserError, match="another handler has the accounts now"):
            set_account(home, setting("team-a", "6USD/week"))
    finally:
        journal.close()
    (account,) = read(home)[0].known.values()
    assert (account.written(), account.period.zone) == ("5 USD/week", "Europe/Berlin")


@pytest.mark.parametrize(
    "amount",
    ["", "50", "USD", "50 dollars", "-5USD", "50USD/", "50USD/fortnight", "50USD/month/week", "1e9USD"],
)
def test_what_is_no_budget_is_refused_with_an_example(amount: str) -> None:
    with pytest.raises(UserError, match=r"50USD/month|30d"):
        setting("team-a", amount)


def test_a_window_is_of_ten_years_at_most() -> None:
    assert setting("team-a", "50USD/3650d").period == "3650d"
    with pytest.raises(UserError, match="a window of 3651d is longer than 3650d; without a period it is for ever"):
        setting("team-a", "50USD/3651d")
