"""What the API says in addition to a job's row: why, as data; who holds the cluster; and compression."""

from __future__ import annotations

import os
from pathlib import Path

from coach.handler.state.state_directory import StateDirectory
from tests.service.conftest import Api, serve
from tests.service.test_api import ENDLESS


def test_why_is_data_for_a_job_that_trains_and_for_one_that_waits(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        names = [f"job-{number}" for number in range(7)]
        await api.submit(*names, maxEpochs=100_000, budget={"amount": 1.0, "currency": "USD"}, **ENDLESS)
        await api.until(names[0], lambda row: row["epoch"] >= 2)
        cluster = await api.get("/cluster")
        holding = {one["job"] for node in cluster["nodes"] for one in node["held_by"]}
        trains = await api.get(f"/jobs/{names[0]}/why")
        chosen, *others = trains["alternatives"]
        assert chosen["verdict"] == "chosen" and others
        for one in trains["alternatives"]:
            assert 0 < one["seconds_low"] <= one["seconds"] <= one["seconds_high"] and one["cost"] > 0
        assert all(step["text"] for step in trains["steps"]) and trains["steps"]
        assert [one["action"] for one in trains["actions"]] == ["add-budget", "suspend", "cancel"]
        assert (names[0] in holding, trains["queue"], trains["blockers"]) == (True, None, [])
        waits = await api.get(f"/jobs/{cluster['queue'][1]['job']}/why")
        assert (waits["queue"], waits["before"]) == (2, [cluster["queue"][0]["job"]])
        assert len(waits["blockers"]) == 1 + len(cluster["nodes"])

    serve(home, body)


def test_a_long_answer_is_compressed_for_who_takes_that(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit(*(f"job-{number}" for number in range(7)), **ENDLESS)
        for takes, sent in (("gzip", "gzip"), ("identity", None)):
            answer = await api.http.get("/jobs", headers={"Accept-Encoding": takes})
            assert answer.headers.get("content-encoding") == sent
            assert len(answer.json()["jobs"]) == 7

    serve(home, body)


def test_a_checkpoint_that_is_a_link_to_the_handlers_own_files_is_not_handed_out(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a")
        await api.ended("a")
        best = api.service.jobs["a"].best
        assert best is not None
        file = Path(best.report.weights.removeprefix("file://"))
        whole = await api.http.get("/jobs/a/model")
        assert whole.content == file.read_bytes()
        secret = home.path / "token"
        secret.write_text("a secret")
        for put in (lambda: file.symlink_to(secret), lambda: os.mkfifo(file), file.mkdir):
            file.unlink()
            put()
            assert "which this machine does not have" in str(await api.get("/jobs/a/model", 409))

    serve(home, body)
