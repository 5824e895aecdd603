"""A request with an Idempotency-Key is done once: asked twice at a time, after a crash, and after half of it."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from coach import Client
from coach.core.errors import UserError
from coach.handler.state.state_directory import StateDirectory
from tests.service.conftest import Api, job_text, serve
from tests.service.test_api import ENDLESS
from tests.service.test_serve import served

pytestmark = pytest.mark.processes

BUDGET = {"amount": 1.0, "currency": "USD"}


def test_a_retry_after_a_crash_pays_nothing_twice(home: StateDirectory, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(job_text("a", "b", maxEpochs=100_000, budget=BUDGET, **ENDLESS))
    with served(tmp_path, "0", "5"), Client() as coach:
        first = coach.submit([file], key="first")
        assert coach.resume("a", add_budget=0.5, key="more").budget == 1.5
    with served(tmp_path, "0", "5"), Client() as coach:
        again = coach.submit([file], key="first")
        assert [(one.job.name, one.went_on) for one in again.jobs] == [("a", False), ("b", False)]
        later = [one.type for one in coach.records(["a", "b"], after=again.seq).records]
        assert first.seq <= again.seq and later.count("JobSubmitted") == 2, "what follows it has all of both jobs"
        assert coach.resume("a", add_budget=0.5, key="more").budget == 1.5
        assert [(row.name, row.budget) for row in coach.list_jobs().jobs] == [("a", 1.5), ("b", 1.0)]
        assert coach.resume("a", add_budget=0.5, key="yet-more").budget == 2.0
        with pytest.raises(UserError, match="Idempotency-Key more was used for another request, about job a"):
            coach.resume("b", add_budget=0.5, key="more")
        with pytest.raises(UserError, match="another request"):
            coach.submit([file], policy="static:1x1", key="first")
        assert [one.job.name for one in coach.submit([file], key="second").jobs] == ["a-2", "b-2"]


def test_of_a_submission_that_a_crash_cut_in_half_the_retry_does_the_other_half(home: StateDirectory) -> None:
    async def submitted(api: Api) -> list[str]:
        file = {"path": str(api.folder / "job.yaml"), "text": job_text("a", "b", **ENDLESS)}
        headers = {"Idempotency-Key": "half"}
        answer = await api.ask("POST", "/jobs", 201, json={"files": [file]}, headers=headers)
        return [one["job"]["name"] for one in answer["jobs"]]

    async def first(api: Api) -> None:
        both = await asyncio.gather(submitted(api), submitted(api))
        assert both == [["a", "b"]] * 2, "the second waited for the first"

    async def second(api: Api) -> None:
        assert [row["name"] for row in (await api.get("/jobs"))["jobs"]] == ["a"]
        assert await submitted(api) == ["a", "b"]
        assert [row["name"] for row in (await api.get("/jobs"))["jobs"]] == ["a", "b"]

    serve(home, first)
    with sqlite3.connect(home.journal(1)) as journal:  # as if the process had ended between the two
        journal.execute("DELETE FROM records WHERE job = 'b'")
        journal.execute("DELETE FROM snapshots WHERE job = 'b'")
    serve(home, second)
