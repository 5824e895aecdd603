"""TrainingBudgets on a real API server, reconciled with a real service on a platform in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coach.controller.budgets import notices, settled
from coach.report.row_types import AccountRow
from coach.service.operations import Service
from tests.controller.test_controller import EVENTS, Cluster, holds, reconciled
from tests.handler.fake_platform import FakePlatform
from tests.service.test_messages import AMOUNT, DEAR

pytestmark = pytest.mark.processes
__all__ = ["reconciled"]

BUDGETS = "/apis/coach.dev/v1alpha1/namespaces/default/trainingbudgets"
MONTH: dict[str, Any] = {"amount": 0.02, "currency": "USD", "period": "month", "timeZone": "Europe/Berlin"}
PAID: dict[str, Any] = {"budget": {"account": "team-a"}}


class Budgets(Cluster):
    """The TrainingBudgets as a user sees and changes them."""

    path = BUDGETS

    async def make(self, name: str, **spec: Any) -> dict[str, Any]:
        document = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingBudget", "metadata": {"name": name}}
        made: dict[str, Any] = await self.ask("POST", body={**document, "spec": {**MONTH, **spec}})
        return made


def with_budgets(
    reconciled: Callable[..., None],
    server: Any,
    body: Callable[[Budgets, Cluster, Service], Awaitable[None]],
    seconds: float = 60.0,
) -> None:
    async def main(cluster: Cluster, _platform: FakePlatform, service: Service) -> None:
        budgets = Budgets(server)
        await body(budgets, cluster, service)
        for one in (await cluster.ask("GET"))["items"]:
            await cluster.ask("DELETE", one["metadata"]["name"])
            await cluster.gone(one["metadata"]["name"])
        left = [one["metadata"]["name"] for one in (await budgets.ask("GET"))["items"]]
        for name in left:
            await budgets.ask("DELETE", name)
        for name in left:
            await budgets.gone(name)
        assert service.handler.accounts.present == []

    reconciled(main, FakePlatform(epoch_seconds=seconds))


def ready(status: dict[str, Any]) -> bool:
    return bool(status) and holds(status)["Ready"]


def test_two_jobs_of_a_team_and_one_month_the_second_waits_with_the_reason_in_numbers(
    reconciled: Any, server: Any, tmp_path: Path
) -> None:
    async def body(budgets: Budgets, cluster: Cluster, service: Service) -> None:
        await budgets.make("team-a")
        status = await budgets.until("team-a", ready)
        assert (status["budget"], status["left"]) == ("0.02 USD/month", "0.020 USD")
        assert status["periodEnd"] > status["periodStart"] and status["jobs"] == 0
        await cluster.apply("first", tmp_path, **PAID)
        await cluster.until("first", lambda status: status.get("state") == "Probing")
        await cluster.apply("second", tmp_path, **PAID)
        waits = await cluster.until("second", lambda status: status.get("reason") == "AccountSpent")
        assert waits["state"] == "Waiting" and "reserved by first; goes on at" in waits["message"]
        assert "account team-a has 0.00" in waits["message"] and "left of 0.02 USD/month" in waits["message"]
        status = await budgets.until("team-a", lambda status: status.get("waiting") == 1)
        assert status["jobs"] == 2 and float(status["reserved"].split()[0]) > 0.01
        await budgets.ask("PATCH", "team-a", {"spec": {"amount": 5}})
        await cluster.until("second", lambda status: status.get("state") == "Probing")
        status = await budgets.until("team-a", lambda status: status.get("budget") == "5 USD/month")
        assert status["observedGeneration"] == 2

    with_budgets(reconciled, server, body)


def test_notices_are_events_of_the_budget_and_a_budget_that_is_used_up_says_so(
    reconciled: Any, server: Any, tmp_path: Path
) -> None:
    async def body(budgets: Budgets, cluster: Cluster, service: Service) -> None:
        await budgets.make("team-a", amount=AMOUNT, period="ever", selector={"matchLabels": {"team": "vision"}})
        await budgets.until("team-a", ready)
        changes = {"prices": DEAR, "maxEpochs": 2000, "target": {"loss": 0.01}, "stopEarly": False, **PAID}
        await cluster.apply("all", tmp_path, **changes)
        await cluster.until("all", lambda status: status.get("state") == "BudgetExhausted")
        status = await budgets.until("team-a", lambda status: status.get("noticed") == 100)
        assert holds(status) == {"Ready": True, "Exhausted": True}
        row = next(row for row in service.accounts() if row.name == "team-a")
        assert row.spent + row.reserved <= row.amount == AMOUNT
        found: list[Any] = []
        async with asyncio.timeout(120):
            while not any(one["reason"] == "Exhausted" for one in found):
                found = (await asyncio.to_thread(cluster._http.get, EVENTS)).json()["items"]
                found = [one for one in found if one["involvedObject"]["name"] == "team-a"]
        assert {one["involvedObject"]["kind"] for one in found} == {"TrainingBudget"}
        assert [one["reason"] for one in found].count("Exhausted") == 1
        assert {one["reason"] for one in found} == {"Spent50", "Exhausted"}
        assert any("of 0.3 USD spent" in one["message"] for one in found)

    with_budgets(reconciled, server, body, 0.01)


def test_terms_that_cannot_be_are_refused_by_the_api_server_or_said_by_the_status(
    reconciled: Any, server: Any, tmp_path: Path
) -> None:
    async def body(budgets: Budgets, cluster: Cluster, service: Service) -> None:
        for changes, words in (
            ({"amount": -1}, "spec.amount"),
            ({"currency": "dollars"}, "spec.currency"),
            ({"period": "fortnight"}, "spec.period"),
            ({"parent": "team-a"}, "a budget is not in itself"),
            ({"selector": {"matchLabels": {}}}, "spec.selector.matchLabels"),
        ):
            answer = await budgets.make("team-a", **changes)
            assert answer["kind"] == "Status" and words in answer["message"], answer
        await budgets.make("low", parent="high", timeZone="Moon/Crater")
        status = await budgets.until("low", bool)
        assert holds(status) == {"Ready": False} and "no time zone 'Moon/Crater'" in str(status["conditions"])
        await budgets.ask("PATCH", "low", {"spec": {"timeZone": "UTC"}})
        await budgets.until("low", lambda status: "there is no account high" in str(status) or ready(status))
        await cluster.apply("early", tmp_path, budget={"account": "low"})
        early = await cluster.until("early", bool)
        assert early["reason"] == "Invalid" and "there is no account low" in early["message"]
        await budgets.make("high")
        await budgets.until("low", ready)
        await cluster.until("early", lambda status: status.get("state") == "Probing")
        answer = await budgets.ask("PATCH", "low", {"spec": {"currency": "EUR"}})
        assert "cannot change, it has spent this one" in answer["message"]

    with_budgets(reconciled, server, body)


def test_a_budget_that_is_deleted_stays_until_no_job_needs_it(reconciled: Any, server: Any, tmp_path: Path) -> None:
    async def body(budgets: Budgets, cluster: Cluster, service: Service) -> None:
        await budgets.make("team-a")
        await budgets.until("team-a", ready)
        await cluster.apply("needs", tmp_path, **PAID)
        await cluster.until("needs", lambda status: status.get("state") == "Probing")
        await budgets.ask("DELETE", "team-a")
        status = await budgets.until("team-a", lambda status: not ready(status))
        (why,) = [one for one in status["conditions"] if one["type"] == "Ready"]
        assert why["reason"] == "InUse" and "needs has not ended" in why["message"]
        assert [one.name for one in service.handler.accounts.present] == ["team-a"]
        await cluster.ask("DELETE", "needs")
        await cluster.gone("needs")
        await budgets.gone("team-a")

    with_budgets(reconciled, server, body)


def test_what_was_set_by_another_command_is_set_back(reconciled: Any, server: Any) -> None:
    async def body(budgets: Budgets, cluster: Cluster, service: Service) -> None:
        from coach.handler.accounts import setting

        await budgets.make("team-a")
        await budgets.until("team-a", ready)
        await service.set_account(setting("team-a", "900USD"))
        async with asyncio.timeout(120):
            while service.accounts()[0].amount != 0.02:
                await asyncio.sleep(0.02)

    with_budgets(reconciled, server, body)


def row(spent: float, noticed: int) -> AccountRow:
    fields: dict[str, Any] = dict.fromkeys(AccountRow.__dataclass_fields__)
    return AccountRow(
        **{**fields, "amount": 10.0, "currency": "USD", "spent": spent, "reserved": 0.0, "noticed": noticed}
    )


@pytest.mark.parametrize(
    ("spent", "before", "now", "reasons"),
    [
        (5.0, 0, 50, ["Spent50"]),
        (9.0, 0, 80, ["Spent50", "Spent80"]),
        (4.0, 0, 100, ["Exhausted"]),
        (9.9, 80, 100, ["Exhausted"]),
        (9.9, 100, 100, []),
        (0.0, 100, 0, []),
    ],
)
def test_each_percentage_is_noticed_once_and_none_that_was_not_spent(
    spent: float, before: int, now: int, reasons: list[str]
) -> None:
    names = ("name", "namespace", "uid", "resourceVersion")
    found = {"apiVersion": "v1", "kind": "TrainingBudget", "metadata": dict.fromkeys(names, "x")}
    made = notices(found, {"noticed": now}, {"noticed": before}, row(spent, now), 0.0)
    assert [one["reason"] for one in made] == reasons
    assert settled({"spent": "1", "forecast": {}, "runsOut": ""}) == {"spent": "1"}
