"""Budgets over jobs in the API: set, read, and named by a job that waits for one."""

from __future__ import annotations

import asyncio
from typing import Any

from coach.handler.state.state_directory import StateDirectory
from coach.report.row_types import JobRow
from tests.handler.fake_platform import FakePlatform
from tests.service.conftest import Api, job_text, serve

TERMS = {"amount": 0.02, "currency": "USD", "period": "month"}
PAID: dict[str, Any] = {"budget": {"account": "team-a"}}


def slow() -> FakePlatform:
    return FakePlatform(epoch_seconds=60.0)


def test_an_account_is_set_and_read_and_survives_the_service(home: StateDirectory) -> None:
    async def first(api: Api) -> None:
        row = await api.ask("PUT", "/accounts/team-a", json=TERMS)
        assert (row["name"], row["amount"], row["left"], row["period"]) == ("team-a", 0.02, 0.02, "month")
        inner = {**TERMS, "period": "1h", "parent": "team-a", "timezone": "Europe/Berlin"}
        rows = await asyncio.gather(*(api.ask("PUT", f"/accounts/one-{n}", json=inner) for n in range(5)))
        assert [row["name"] for row in rows] == [f"one-{n}" for n in range(5)]

    async def second(api: Api) -> None:
        rows = (await api.get("/accounts"))["accounts"]
        assert [(row["name"], row["parent"]) for row in rows] == [
            ("team-a", ""),
            *((f"one-{n}", "team-a") for n in range(5)),
        ]

    serve(home, first)
    serve(home, second)


def test_terms_that_cannot_be_are_refused(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        for name, terms, why in (
            ("team-a", {"period": "fortnight"}, "no period 'fortnight'"),
            ("team-a", {"timezone": "Mars"}, "no time zone 'Mars'"),
            ("team-a", {"parent": "nobody"}, "there is no account nobody"),
            ("team-a", {"amount": -1}, ""),
            ("team-a", {"currency": "dollars"}, ""),
        ):
            error = await api.ask("PUT", f"/accounts/{name}", status=422, json={**TERMS, **terms})
            assert why in error["error"]
        assert (await api.get("/accounts"))["accounts"] == []

    serve(home, body)


def test_the_second_job_waits_and_every_page_says_why_in_numbers(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.ask("PUT", "/accounts/team-a", json=TERMS)
        await api.submit("a", **PAID)
        await api.until("a", lambda row: row["state"] == "Probing")
        await api.submit("b", **PAID)
        row = await api.until("b", lambda row: row["reason"] == "AccountSpent")
        assert (row["state"], row["account"], row["budget"]) == ("Waiting", "team-a", None)
        assert "account team-a has 0.00" in row["message"] and "reserved by a; goes on at" in row["message"]
        assert row["message"] in (await api.get("/jobs/b/why"))["summary"]
        (account,) = (await api.get("/accounts"))["accounts"]
        assert account["jobs"] == 2 and account["waiting"] == 1
        assert account["reserved"] + account["left"] == 0.02
        await api.post("/jobs/a/cancel", {})
        await api.until("b", lambda row: row["state"] == "Probing")
        assert set(row) >= {field for field in JobRow.__dataclass_fields__}

    serve(home, body, slow())


def test_a_submission_is_refused_whole_where_an_account_can_never_pay_one_of_its_jobs(
    home: StateDirectory,
) -> None:
    async def body(api: Api) -> None:
        await api.ask("PUT", "/accounts/team-a", json={**TERMS, "amount": 0.00001})
        refused = await api.submit("a", "b", status=422, **PAID)
        assert "needs" in refused["error"] and "coach budget set team-a AMOUNT" in refused["error"]
        unknown = await api.submit("a", status=422, budget={"account": "team-x"})
        assert "there is no account team-x; there are team-a" in unknown["error"]
        assert (await api.get("/jobs"))["jobs"] == []

    serve(home, body)


def test_an_account_does_not_go_while_a_job_that_it_pays_is_being_submitted(home: StateDirectory) -> None:
    """In each order in which they come, at once: the job is taken and the account stays, or no job comes."""

    async def body(api: Api) -> None:
        for number in range(12):
            name = f"team-{number}"
            await api.ask("PUT", f"/accounts/{name}", json=TERMS)
            file = {"path": str(api.folder / "job.yaml"), "text": job_text(f"a{number}", budget={"account": name})}
            asked = [
                api.http.post("/jobs", json={"files": [file], "policy": ""}),
                api.http.delete(f"/accounts/{name}"),
            ]
            answers = await asyncio.gather(*(asked if number % 2 else reversed(asked)))
            submitted, removed = (answer.status_code for answer in (answers if number % 2 else reversed(answers)))
            known = name in [row["name"] for row in (await api.get("/accounts"))["accounts"]]
            assert (submitted, removed, known) in {(201, 422, True), (422, 200, False)}
            if submitted == 201:
                await api.post(f"/jobs/a{number}/cancel")

    serve(home, body, slow())
