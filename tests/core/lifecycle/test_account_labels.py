"""Budgets that collect jobs by label, and budgets that are removed."""

from __future__ import annotations

from typing import Any

import pytest

from coach.core.errors import UserError
from coach.core.jobs.reasons import Reason, State
from coach.handler.accounts import refuse, removal, setting
from tests.core.lifecycle.faulty_cluster import World, nodes, spec, usd

VISION = {"team": "vision"}


def world() -> World:
    return World.of(nodes(4, 4.0), shadow=True)


def labelled(name: str, labels: dict[str, str] = VISION, **changes: Any) -> dict[str, Any]:
    changes = {"budget": {"unlimited": True}, "maxEpochs": 4, "target": {"loss": 0.01}} | changes
    file = spec(name, **changes)
    file["metadata"] = {"name": name, "labels": labels}
    return file


def spent(one: World, account: str) -> int:
    return one.reducer.accounts.spent(one.reducer.accounts.known[account], one.now)


def test_an_account_pays_the_jobs_that_have_its_labels_and_the_second_waits() -> None:
    one = world()
    one.set_account("vision", 0.02, "month", labels=VISION)
    one.submit(labelled("a"))
    one.submit(labelled("free", {"team": "speech"}))
    one.run(until=lambda: one.job("a").running is not None and one.job("free").running is not None)
    one.submit(labelled("b", {**VISION, "paper": "x"}))
    assert one.job("b").reason is Reason.ACCOUNT_SPENT
    assert "account vision has" in one.job("b").message and "reserved by a;" in one.job("b").message
    one.cancel("free")
    one.run()
    assert spent(one, "vision") == 0, "the month has turned since"


def test_a_job_is_paid_by_the_account_that_it_names_and_by_all_whose_labels_it_has_each_once() -> None:
    one = world()
    one.set_account("department", 5.0)
    one.set_account("vision", 5.0, parent="department", labels=VISION)
    one.set_account("paper", 5.0, parent="department", labels={"paper": "x"})
    one.set_account("own", 5.0)
    one.submit(labelled("a", {**VISION, "paper": "x"}, budget={"account": "own"}))
    one.run()
    paid = one.job("a").ledger.spent
    assert paid and {
        name: spent(one, name) for name in ("department", "vision", "paper", "own")
    } == dict.fromkeys(("department", "vision", "paper", "own"), paid)
    assert one.reducer.accounts.innermost(one.job("a")) == ["own", "vision", "paper"]


def test_the_least_that_one_of_them_has_left_bounds_a_job() -> None:
    one = world()
    one.set_account("vision", 0.002, labels=VISION)
    one.set_account("own", 5.0)
    one.submit(labelled("a", budget={"account": "own"}))
    one.run()
    assert one.job("a").state is State.BUDGET_EXHAUSTED and "account vision" in one.job("a").message


def test_a_label_that_is_set_later_finds_what_its_jobs_have_spent_and_reserved() -> None:
    one = world()
    one.submit(labelled("a"))
    one.run(until=lambda: len(one.job("a").epochs) > 1 and one.job("a").running is not None)
    one.set_account("vision", 5.0, labels=VISION)
    account = one.reducer.accounts.known["vision"]
    assert account.reserved == {"a": one.job("a").ledger.reserved}
    assert spent(one, "vision") == one.job("a").ledger.spent > 0
    one.run()
    assert spent(one, "vision") == one.job("a").ledger.spent


def test_what_is_moved_into_another_account_brings_what_it_has_spent() -> None:
    one = world()
    one.set_account("top", 5.0)
    one.set_account("low", 5.0)
    one.submit(spec("a", budget={"account": "low"}, maxEpochs=2, target={"loss": 0.01}))
    one.run()
    assert spent(one, "top") == 0
    one.set_account("low", 5.0, parent="top")
    assert spent(one, "top") == spent(one, "low") == one.job("a").ledger.spent > 0


def test_an_account_that_is_removed_pays_nothing_and_set_again_it_has_its_history() -> None:
    one = world()
    one.set_account("team-a", 5.0)
    one.submit(spec("a", budget={**usd(0.002), "account": "team-a"}))
    one.run()
    paid = one.job("a").ledger.spent
    one.set_account("team-a", 0.0, removed=True)
    assert one.reducer.accounts.present == []
    one.resume("a", 10**9)
    one.run()
    assert one.job("a").state is State.BUDGET_EXHAUSTED and one.job("a").ledger.spent == paid
    one.set_account("team-a", 5.0)
    assert spent(one, "team-a") == paid


def test_what_pays_a_job_or_has_an_account_in_it_is_not_removed() -> None:
    one = world()
    one.set_account("top", 5.0)
    one.set_account("low", 5.0, parent="top")
    one.set_account("vision", 5.0, labels=VISION)
    one.submit(spec("a", budget={"account": "low"}))
    one.submit(labelled("b"))
    one.run(until=lambda: bool(one.job("a").ledger.reserved and one.job("b").ledger.reserved))
    accounts = one.reducer.accounts
    for name, problem in (("top", "low is in it"), ("low", "a has not ended"), ("vision", "b has not ended")):
        with pytest.raises(UserError, match=f"account {name}: {problem}"):
            refuse(accounts, one.reducer.jobs, removal(accounts, name))
    with pytest.raises(UserError, match="there is no account nobody; there are low, top, vision"):
        removal(accounts, "nobody")
    one.run()
    refuse(accounts, one.reducer.jobs, removal(accounts, "low"))


def test_labels_in_another_currency_and_words_that_are_no_label_are_refused() -> None:
    one = world()
    one.submit(labelled("a"))
    with pytest.raises(UserError, match="a, which has these labels, is billed in USD, not EUR"):
        refuse(one.reducer.accounts, one.reducer.jobs, setting("v", "5EUR", labels=["team=vision"]))
    with pytest.raises(UserError, match="'team=' is no label; such as team=vision"):
        setting("v", "5EUR", labels=["team"])
    one.cancel("a")
    one.run()
    refuse(one.reducer.accounts, one.reducer.jobs, wanted := setting("v", "5EUR", labels=["team=vision"]))
    one.reducer.accounts.apply(wanted)
    problem = one.reducer.accounts.problem_of(one.job("a").job_file)
    assert problem == "account v is in EUR, the job's prices are in USD"
