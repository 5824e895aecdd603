"""What the API answers: jobs taken on, looked at, stopped and gone on with; and nothing to strangers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.handler.resume_rules import NotNowError
from coach.handler.state.codec import decode
from coach.handler.state.journal import fold
from coach.handler.state.state_directory import StateDirectory, choose
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import load_jobs
from coach.platforms.base import EpochError, EpochOrder
from tests.handler.fake_platform import FakePlatform
from tests.service.conftest import TOKEN, URL, Api, job_text, serve

pytestmark = pytest.mark.standard

#: A target that is reached, but has to hold for longer than any test takes.
ENDLESS: dict[str, Any] = {"target": {"loss": 100.0, "epochsInARow": 1000}}

PAGES = [
    ("GET", "/jobs"),
    ("POST", "/jobs"),
    ("GET", "/jobs/a"),
    ("GET", "/jobs/a/events"),
    ("GET", "/jobs/a/why"),
    ("GET", "/jobs/a/logs"),
    ("GET", "/jobs/a/logs/a-worker-0"),
    ("POST", "/jobs/a/cancel"),
    ("POST", "/jobs/a/suspend"),
    ("POST", "/jobs/a/resume"),
    ("GET", "/records"),
    ("GET", "/cluster"),
    ("GET", "/nothing"),
    ("GET", f"{URL}/metrics"),
    ("GET", f"{URL}/jobs"),
]


# -- strangers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), PAGES)
def test_without_the_token_there_is_no_answer(home: StateDirectory, method: str, path: str) -> None:
    async def body(api: Api) -> None:
        for shown in (
            "",
            "Bearer",
            "Bearer wrong",
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
        ):
            answer = await api.http.request(method, path, headers={"Authorization": shown}, content=b"{")
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "token" in answer.json()["error"]
            assert TOKEN not in answer.text
        latin = await api.http.request(method, path, headers={b"Authorization": "Bearer \xfc".encode("latin-1")})
        assert latin.status_code == 401

    serve(home, body)


def test_a_token_is_compared_in_constant_time(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    compare, shown = secrets.compare_digest, []

    def noting(one: bytes, other: bytes) -> bool:
        shown.append(one)
        return compare(one, other)

    monkeypatch.setattr(secrets, "compare_digest", noting)

    async def body(api: Api) -> None:
        for token in ("wrong", TOKEN[:-1], TOKEN):
            await api.http.get("/jobs", headers={"Authorization": f"Bearer {token}"})
        assert shown == [b"wrong", TOKEN[:-1].encode(), TOKEN.encode()], "nothing else decides"

    serve(home, body)


def test_health_needs_no_token(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        answer = await api.http.get(f"{URL}/health", headers={"Authorization": ""})
        assert answer.status_code == 200
        assert answer.json()["status"] == "ok"

    serve(home, body)


def test_a_body_over_the_limit_is_refused_before_it_is_read(home: StateDirectory) -> None:
    async def endless() -> Any:
        for _ in range(1000):
            yield b" " * 65536
        raise AssertionError("all of it was read")

    async def body(api: Api) -> None:
        declared = await api.http.post("/jobs", content=b" " * (3 << 20))
        assert (declared.status_code, declared.json()["error"]) == (
            413,
            "a body of more than 2 MiB; send fewer files at once",
        )
        assert (await api.http.post("/jobs", content=endless())).status_code == 413

    serve(home, body)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"files": ' + b"[" * 50_000,
        b"\xff\xfe",
        b'{"files": [{"path": "/\\ud800", "text": "\\ud800"}]}',
        b'{"files": [{"path": "/a\\u0000b", "text": ""}]}',
        b'{"files": [{"path": "relative.yaml", "text": ""}]}',
        b'{"files": [], "policy": ""}',
        b'{"files": [{"path": "/a", "text": ""}], "more": 1}',
        b'{"files": [{"path": "/a", "text": ""}], "policy": 1}',
        b"null",
        b"NaN",
        b'{"files": 1e999}',
    ],
)
def test_what_is_no_submission_is_one_clear_error(home: StateDirectory, content: bytes) -> None:
    async def body(api: Api) -> None:
        answer = await api.http.post("/jobs", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["error"]
        assert "Traceback" not in answer.text
        assert (await api.get("/jobs"))["jobs"] == []

    serve(home, body)


def test_names_that_are_no_labels_find_nothing(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        for name in ("A", "a_b", "-a", "a" * 41, "..", "%2e%2e", "a%00", "a%0ab", "%ff"):
            answer = await api.http.get(f"/jobs/{name}/events")
            assert answer.status_code in (404, 422), name
        assert "did you mean digits?" in (await submitted(api, "digits"))

    async def submitted(api: Api, name: str) -> str:
        await api.submit(name)
        return str((await api.get("/jobs/digist", 404))["error"])

    serve(home, body)


def test_a_misspelt_query_parameter_is_refused_with_those_that_there_are(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        answer = await api.http.get("/jobs?wiat=5")
        assert answer.status_code == 422
        known = "after, cursor, limit, q, state, wait"
        assert answer.json()["error"] == f'unknown query parameter "wiat" - this request knows one of {known}'
        answer = await api.http.get("/cluster?after=5")
        assert answer.json()["error"] == 'unknown query parameter "after" - this request knows one of cursor, limit'

    serve(home, body)


# -- submitting -----------------------------------------------------------------------------------------


def test_a_job_is_taken_on_runs_and_can_be_looked_at(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        (taken,) = (await api.submit("digits"))["jobs"]
        assert (taken["job"]["name"], taken["went_on"], taken["note"]) == ("digits", False, "")
        row = await api.ended("digits")
        assert (row["state"], row["reason"], row["epoch"]) == ("Failed", "EpochLimit", 4)
        detail = await api.get("/jobs/digits")
        assert detail["job"] == row
        whole = [epoch["epoch"] for epoch in detail["epochs"] if epoch["kind"] == "full"]
        assert whole == list(range(1, row["epoch"] + 1))
        assert detail["ledger"][-1]["spent"] == pytest.approx(row["spent"])
        assert [one["share"] for one in detail["forecasts"]] == [0.1, 0.5, 0.9]
        assert detail["forecasts"][-1]["actual_cost"] == pytest.approx(row["spent"])
        table = (await api.http.get("/jobs/digits/forecasts.csv")).text.splitlines()
        assert [line.split(",")[:2] for line in table[1:]] == [["digits", x] for x in ("0.1", "0.5", "0.9")]
        assert detail["spec"]["spec"]["model"]["file"] == f"file://{api.folder}/model.py"
        assert (await api.get("/jobs"))["jobs"] == [row]
        why = (await api.get("/jobs/digits/why"))["lines"]
        assert why[0].startswith("digits is Failed: the last allowed epoch ended before the target (4 of at most 4")

    serve(home, body)


def test_mistakes_are_the_lines_that_coach_run_shows(home: StateDirectory, tmp_path: Path) -> None:
    texts = {
        "a.yaml": job_text("a", target={"loss": -1}, workers={"min": 3, "max": 2}),
        "b.yaml": "kind: [\n",
        "c.yaml": job_text("c", model={"file": "missing.py"}),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(JobFileError) as told:
        load_jobs([tmp_path / name for name in texts])

    async def body(api: Api) -> None:
        files = [{"path": str(tmp_path / name), "text": text} for name, text in texts.items()]
        answer = await api.post("/jobs", {"files": files}, 422)
        assert [problem["text"] for problem in answer["problems"]] == list(map(str, told.value.problems))
        assert answer["error"] == f"{len(told.value.problems)} mistakes in the job files; nothing was started"
        assert (await api.get("/jobs"))["jobs"] == []

    serve(home, body)


def test_job_files_reach_only_into_the_allowed_folders(home: StateDirectory, tmp_path: Path) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    for folder in (allowed, outside):
        folder.mkdir()
        (folder / "model.py").write_text("secret")
    (allowed / "link.py").symlink_to(outside / "model.py")

    async def body(api: Api) -> None:
        for name in (
            "../outside/model.py",
            str(outside / "model.py"),
            "link.py",
            "../outside/missing.py",
            "/etc/passwd",
        ):
            text = job_text("a", model={"file": name})
            answer = await api.post("/jobs", {"files": [{"path": f"{allowed}/j.yaml", "text": text}]}, 422)
            (problem,) = answer["problems"]
            assert problem["problem"] == "outside of what is allowed", problem
            assert problem["right"] == f"a path inside of {allowed}"
        for name in ("model.py", "../allowed/model.py"):
            text = job_text("a", model={"file": name})
            await api.post("/jobs", {"files": [{"path": f"{allowed}/j.yaml", "text": text}]}, 201)
        text = job_text("b", model={"file": "model.py"}, checkpoint={"uri": "/etc/coach"})
        answer = await api.post("/jobs", {"files": [{"path": f"{allowed}/j.yaml", "text": text}]}, 422)
        assert answer["problems"][0]["field"] == "spec.checkpoint.uri"

    serve(home, body, folders=[allowed])


def test_all_jobs_of_a_submission_start_or_none(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", "b", "a", status=422)
        assert (await api.get("/jobs"))["jobs"] == []
        taken = (await api.submit("a", "b"))["jobs"]
        assert [one["job"]["name"] for one in taken] == ["a", "b"]

    serve(home, body)


def test_a_file_with_a_warning_is_taken_with_it(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        (plain,) = (await api.submit("a"))["jobs"]
        (suspended,) = (await api.submit("b", suspend=True))["jobs"]
        assert plain["warnings"] == []
        (warning,) = suspended["warnings"]
        assert "spec.suspend: suspended (true) - nothing on this machine" in warning
        assert warning.startswith(f"{api.folder}/job.yaml:")

    serve(home, body)


def test_a_budget_that_an_earlier_job_shows_to_be_too_small_is_said(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        terms = {"target": {"loss": 1.0, "epochsInARow": 1}}
        await api.submit("first", **terms)
        first = await api.ended("first")
        assert first["state"] == "Succeeded"
        little = {"amount": round(first["spent"] / 10, 9), "currency": "USD"}
        (taken,) = (await api.submit("second", budget=little, **terms))["jobs"]
        assert taken["note"].startswith("second: ") and "reach the target with a chance of at most" in taken["note"]
        assert (await api.ended("second"))["reason"] == "BudgetSpent"
        (enough,) = (await api.submit("third", **terms))["jobs"]
        assert enough["note"] == ""

    serve(home, body)


def test_a_name_that_is_taken_gets_a_number(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        first, second = await asyncio.gather(api.submit("a"), api.submit("a"))
        names = {one["jobs"][0]["job"]["name"]: one["jobs"][0]["note"] for one in (first, second)}
        assert set(names) == {"a", "a-2"}
        assert "this one is called a-2" in names["a-2"]
        await api.ended("a")
        (third,) = (await api.submit("a"))["jobs"]
        assert (third["job"]["name"], third["went_on"]) == ("a-3", False)

    serve(home, body)


def test_a_job_no_node_can_hold_is_refused_at_once_with_the_numbers(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        role = {"cpu": "64", "memory": "1Gi"}
        (taken,) = (await api.submit("huge", resources={"worker": role, "server": role, "scheduler": role}))["jobs"]
        assert (taken["job"]["state"], taken["job"]["reason"]) == ("Failed", "NeverFits")
        assert "64" in taken["job"]["message"]

    serve(home, body)


def test_a_policy_other_than_the_services_is_refused_and_a_static_one_taken(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        answer = await api.submit("a", policy="coach:cheapest", status=422)
        assert "the service that runs shares the cluster out by coach" in answer["error"]
        assert "there is no policy" in (await api.submit("a", policy="nonsense", status=422))["error"]
        await api.submit("a", policy="static:2x1")
        await api.ended("a")
        assert {(e["workers"], e["servers"]) for e in (await api.get("/jobs/a"))["epochs"]} == {(2, 1)}

    serve(home, body)


# -- stopping and going on ------------------------------------------------------------------------------


def test_a_stopped_job_goes_on_where_it_was(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", maxEpochs=12, **ENDLESS)
        await api.until("a", lambda row: row["epoch"] >= 2)
        await api.post("/jobs/a/suspend", {"now": False})
        stopped = await api.until("a", lambda row: row["reason"] == "Suspended" and row["reserved"] == 0)
        await api.post("/jobs/a/suspend", {"now": True})  # it stays as it is
        row = await api.post("/jobs/a/resume", {})
        assert row["state"] != "Suspended"
        ended = await api.ended("a")
        assert ended["epoch"] == 12
        epochs = (await api.get("/jobs/a"))["epochs"]
        whole = [epoch["epoch"] for epoch in epochs if epoch["kind"] == "full"]
        assert whole == list(range(1, len(whole) + 1))
        assert stopped["epoch"] < len(epochs)

    serve(home, body, FakePlatform(epoch_seconds=0.1))


def test_submitting_the_file_of_a_stopped_job_again_goes_on_with_it(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", maxEpochs=12, **ENDLESS)
        await api.until("a", lambda row: row["epoch"] >= 1)
        await api.post("/jobs/a/suspend", {"now": True})
        await api.until("a", lambda row: row["reason"] == "Suspended" and row["reserved"] == 0)
        (taken,) = (await api.submit("a", maxEpochs=12, **ENDLESS))["jobs"]
        assert (taken["job"]["name"], taken["went_on"]) == ("a", True)
        assert (await api.ended("a"))["epoch"] == 12

    serve(home, body, FakePlatform(epoch_seconds=0.1))


def test_a_cancelled_job_stays_so_until_it_is_resumed(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", maxEpochs=1000, **ENDLESS)
        await api.until("a", lambda row: row["epoch"] >= 1)
        await api.post("/jobs/a/cancel")
        assert (await api.ended("a"))["state"] == "Cancelled"
        assert (await api.post("/jobs/a/cancel", status=409))["error"] == "a has ended already: Cancelled"
        await api.post("/jobs/a/resume", {})
        row = await api.until("a", lambda row: row["state"] == "Training")
        assert row["ended_at"] is None
        await api.post("/jobs/a/cancel")
        await api.ended("a")

    serve(home, body, FakePlatform(epoch_seconds=0.01))


def test_a_job_without_money_goes_on_with_more(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit(
            "a",
            budget={"amount": 0.0002, "currency": "USD"},
            policy="static:1x1",
            maxEpochs=1000,
            **ENDLESS,
        )
        row = await api.ended("a")
        assert row["state"] == "BudgetExhausted"
        refused = await api.post("/jobs/a/resume", {}, 409)
        assert "coach resume a --add-budget AMOUNT" in refused["error"]
        more = await api.post("/jobs/a/resume", {"add_budget": 0.0002})
        assert more["budget"] == pytest.approx(0.0004)
        after = await api.until("a", lambda now: now["epoch"] > row["epoch"])
        assert after["spent"] > row["spent"]
        await api.post("/jobs/a/cancel")

    # So slow that the money counts: an epoch takes a part of a second, and costs that.
    serve(home, body, FakePlatform(epoch_seconds=0.02, speed=lambda workers, servers: 50.0 * workers))


@pytest.mark.parametrize(
    ("body_of_request", "status", "said"),
    [
        ({}, 409, "a was not stopped"),
        ({"add_budget": 1}, 409, "has no budget"),
        ({"add_budget": -1}, 422, "add_budget"),
        ({"add_budget": "1"}, 422, "add_budget"),
        ({"add_budget": 1e300}, 422, "add_budget"),
        ({"now": True}, 422, "now"),
        (None, 422, "body"),
    ],
)
def test_a_resumption_that_makes_no_sense_is_refused(
    home: StateDirectory, body_of_request: Any, status: int, said: str
) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", **ENDLESS)
        answer = await api.post("/jobs/a/resume", body_of_request, status)
        assert said in json.dumps(answer)
        await api.post("/jobs/a/cancel")

    serve(home, body, FakePlatform(epoch_seconds=0.01))


def test_a_model_file_that_was_changed_is_trained_only_when_it_is_accepted(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", maxEpochs=1000, **ENDLESS | {"budget": {"amount": 5.0, "currency": "USD"}})
        await api.until("a", lambda row: row["epoch"] >= 1)
        running = await api.post("/jobs/a/resume", {"accept_model": True, "add_budget": 1.0}, 409)
        assert "stop it first: coach suspend a" in running["error"]
        await api.post("/jobs/a/cancel")
        await api.ended("a")
        was = api.service.jobs["a"].job_file.spec.model
        file = Path(was.file.removeprefix("file://"))
        file.write_text(file.read_text() + "\nimport parts\n")
        (file.parent / "parts.py").write_text("")
        refused = (await api.post("/jobs/a/resume", {}, 409))["error"]
        assert was.sha256 in refused and "parts.py next to it" in refused
        assert refused.endswith("coach resume a --accept-model")
        await api.post("/jobs/a/resume", {"accept_model": True})
        await api.until("a", lambda row: row["state"] == "Training")
        now = api.service.jobs["a"].job_file.spec.model
        assert now.sha256 == hashlib.sha256(file.read_bytes()).hexdigest() and list(now.files) == ["parts.py"]
        said = json.dumps(await api.get("/jobs/a/events"))
        assert f"SHA-256 {now.sha256}, and 1 file next to it; it was {was.sha256}" in said
        await api.post("/jobs/a/cancel")
        await api.ended("a")

    serve(home, body, FakePlatform(epoch_seconds=0.01))


def test_a_job_that_reached_its_target_is_not_resumed(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", target={"loss": 0.4}, maxEpochs=100)
        assert (await api.ended("a"))["state"] == "Succeeded"
        assert "there is nothing left to do" in (await api.post("/jobs/a/resume", {}, 409))["error"]

    serve(home, body)


def test_the_next_service_goes_on_with_what_no_user_stopped(home: StateDirectory) -> None:
    async def first(api: Api) -> None:
        for name in ("running", "stopped", "ended"):
            await api.submit(name, maxEpochs=3 if name == "ended" else 15, **ENDLESS, workers={"min": 1, "max": 1})
        await api.ended("ended")
        await api.post("/jobs/stopped/suspend", {"now": True})
        await api.until("stopped", lambda row: row["reason"] == "Suspended" and row["reserved"] == 0)
        api.service.handler.suspend(["running"], now=True, by_user=False)  # what a service does at its end
        await api.until("running", lambda row: row["reason"] == "HandlerStopped")

    async def second(api: Api) -> None:
        row = await api.ended("running")
        assert row["epoch"] == 15
        rows = {row["name"]: row["reason"] for row in (await api.get("/jobs"))["jobs"]}
        assert rows == {"running": "EpochLimit", "stopped": "Suspended", "ended": "EpochLimit"}

    serve(home, first, FakePlatform(epoch_seconds=0.3))
    serve(home, second)


def test_a_service_that_is_killed_goes_on_with_its_jobs(home: StateDirectory) -> None:
    async def first(api: Api) -> None:
        await api.submit("a", maxEpochs=15, **ENDLESS)
        await api.until("a", lambda row: row["epoch"] >= 3)  # and away

    async def second(api: Api) -> None:
        assert (await api.ended("a"))["epoch"] == 15

    serve(home, first, FakePlatform(epoch_seconds=0.3))
    serve(home, second)


HOSTILE = "\x1b]0;pwn\x07\x1b[31mred\x1b[2J\u202eevil\r\nfake: 00:00:00 INFO forged line\0<script>alert(1)</script>"


def test_what_a_program_says_is_plain_text_wherever_it_is_shown(home: StateDirectory) -> None:
    def fails(order: EpochOrder) -> None:
        raise EpochError(Reason.MODEL_INVALID, HOSTILE, 1)

    async def body(api: Api) -> None:
        await api.submit("a", **ENDLESS)
        row = await api.ended("a")
        assert "redevil\nfake: 00:00:00 INFO forged line<script>" in row["message"]
        for path in ("/jobs", "/jobs/a", "/jobs/a/events", "/jobs/a/why"):
            said = json.dumps(await api.get(path), ensure_ascii=False)
            assert not [one for one in ("\\u001b", "\\u0000", "\u202e", "\\r") if one in said], path

    serve(home, body, FakePlatform(on_epoch=fails))


class Deaf(FakePlatform):
    """Its epochs do not hear that they are to end."""

    async def stop_epoch(self, token: str, reason: Reason) -> None:
        """Nothing."""


@pytest.mark.parametrize("signalled", [True, False], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("does", ["cancel", "suspend"])
def test_what_was_answered_holds_though_the_service_ends_before_the_job_does(
    home: StateDirectory, signalled: bool, does: str
) -> None:
    end = {"cancel": "Cancelled", "suspend": "Waiting"}[does]

    async def first(api: Api) -> None:
        await api.submit("a", maxEpochs=15, **ENDLESS)
        await api.until("a", lambda row: row["reserved"] > 0)
        await api.post(f"/jobs/a/{does}", {"now": True} if does == "suspend" else None)
        if signalled:
            api.service.handler.suspend(["a"], now=True, by_user=False)
            await api.service.until(lambda: api.service.jobs["a"].stop.suspend)

    async def second(api: Api) -> None:
        row = await api.until("a", lambda row: row["reserved"] == 0 and row["reason"] != "HandlerStopped")
        assert (row["state"], row["epoch"]) == (end, 0)
        assert not api.platform.orders

    serve(home, first, Deaf(epoch_seconds=600))
    for _ in range(2):
        serve(home, second)


def test_a_cancelled_job_whose_service_was_killed_is_not_taken_up_by_its_file(home: StateDirectory) -> None:
    async def first(api: Api) -> None:
        await api.submit("a", maxEpochs=15, **ENDLESS)
        await api.until("a", lambda row: row["reserved"] > 0)
        await api.post("/jobs/a/cancel")

    serve(home, first, Deaf(epoch_seconds=600))
    chosen = choose(home.past()["a"].job.job_file, home.past())
    assert (chosen.name, chosen.past) == ("a-2", None)


@pytest.mark.parametrize("state", ["running", "suspended", "ended"])
def test_a_budget_that_is_asked_for_many_times_at_once_is_given_once(home: StateDirectory, state: str) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", maxEpochs=10**6, budget={"amount": 0.002, "currency": "USD"}, **ENDLESS)
        await api.until("a", lambda row: row["epoch"] >= 1)
        if state == "suspended":
            await api.post("/jobs/a/suspend", {"now": True})
            await api.until("a", lambda row: row["reason"] == "Suspended" and row["reserved"] == 0)
        if state == "ended":
            await api.post("/jobs/a/cancel")
            await api.ended("a")
        many = (api.http.post("/jobs/a/resume", json={"budget": 0.05}) for _ in range(8))
        answers = await asyncio.gather(*many)
        assert {answer.status_code for answer in answers} <= {200, 409} and answers[0].status_code == 200
        assert (await api.get("/jobs/a"))["job"]["budget"] == pytest.approx(0.05)
        events = json.dumps(await api.get("/jobs/a/events"))
        assert "with a budget of 0.050 USD" in events
        await api.post("/jobs/a/cancel")
        await api.ended("a")

    serve(home, body, FakePlatform(epoch_seconds=0.01))


def test_money_that_comes_too_late_does_not_undo_what_its_user_asked_for(home: StateDirectory) -> None:
    """All three are sent at once: whoever adds money did not know that the job was stopped."""

    async def body(api: Api) -> None:
        for name, does in (("a", "cancel"), ("b", "suspend")):
            await api.submit(name, maxEpochs=10**6, budget={"amount": 0.5, "currency": "USD"}, **ENDLESS)
            await api.until(name, lambda row: row["epoch"] >= 1)
            service = api.service
            stop = service.cancel(name) if does == "cancel" else service.suspend(name, now=True)
            late = [service.resume(name, 10**7) for _ in range(3)]
            _, *more = await asyncio.gather(stop, *late, return_exceptions=True)
            assert {type(each) for each in more} == {NotNowError}
            assert "meanwhile; to take that back: coach resume" in str(more[0])
        assert (await api.ended("a"))["state"] == "Cancelled"
        await api.until("b", lambda row: row["reason"] == "Suspended" and row["reserved"] == 0)

    serve(home, body, FakePlatform(epoch_seconds=0.01))


# -- following ------------------------------------------------------------------------------------------


def test_a_long_poll_is_answered_when_something_happens_and_not_before(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        seq = (await api.get("/jobs", after=0, wait=20))["seq"]  # the start of the handler
        waiting = asyncio.create_task(api.get("/jobs", after=seq, wait=20))
        await asyncio.sleep(0)
        assert not waiting.done()
        await api.submit("a")
        assert [row["name"] for row in (await waiting)["jobs"]] == ["a"]
        await api.ended("a")
        seq = await api.settled()
        assert (await api.get("/jobs", after=seq, wait=0.05))["seq"] == seq

    serve(home, body)


def test_events_are_sent_once_in_order(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a")
        seq, told, ended = 0, [], False
        while not ended:
            found = await api.get("/jobs/a/events", after=seq, wait=20)
            seq, ended = found["seq"], found["ended"]
            told += found["events"]
        told += (await api.get("/jobs/a/events", after=seq))["events"]
        whole = (await api.get("/jobs/a/events"))["events"]
        assert told == whole[: len(told)]
        assert told[0]["text"] == "submitted"
        assert whole[-1]["text"].startswith("Failed: 4 of at most 4 epochs done")
        assert [event["seq"] for event in whole] == sorted({event["seq"] for event in whole})

    serve(home, body)


def test_the_records_of_a_job_are_its_whole_state(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", "b")
        await api.ended("a")
        await api.ended("b")
        await api.settled()
        records, seq = [], 0
        while page := (await api.get("/records", job="a", after=seq))["records"]:
            records += page
            seq = page[-1]["seq"]
        jobs: dict[str, Job] = fold(decode(row["type"], json.dumps(row["body"])) for row in records)
        assert jobs == {"a": api.service.jobs["a"]}

    serve(home, body)


def test_the_logs_of_functions_are_read_piece_by_piece(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a")
        folder = home.logs("a")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a-worker-0.log").write_bytes(b'{"message": "one"}\n{"message": "tw')
        (home.path / "jobs" / "secret.log").write_text("secret")
        assert (await api.get("/jobs/a/logs"))["functions"] == [{"function": "a-worker-0", "bytes": 34}]
        first = await api.get("/jobs/a/logs/a-worker-0")
        assert first == {"text": '{"message": "one"}\n', "next": 19}
        with (folder / "a-worker-0.log").open("ab") as file:
            file.write(b'o"}\n')
        assert (await api.get("/jobs/a/logs/a-worker-0", after=19))["text"] == '{"message": "two"}\n'
        (folder / "a-worker-0.log").write_bytes(b"{}\n")  # begun anew
        assert await api.get("/jobs/a/logs/a-worker-0", after=38) == {"text": "{}\n", "next": 3}
        await api.get("/jobs/a/logs/secret", 404)
        await api.get("/jobs/a/logs/..%2Fsecret", 404)

    serve(home, body)


# -- numbers and logs -----------------------------------------------------------------------------------


def test_metrics_are_what_the_jobs_are(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a")
        row = await api.ended("a")
        await api.get("/jobs/nobody", 404)
        page = (await api.http.get(f"{URL}/metrics")).text
        found = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }
        assert found["coach_jobs", "Failed"] == 1
        assert found["coach_jobs", "Training"] == 0
        assert found["coach_epochs_total", "full"] == 4
        assert found["coach_spent_total", "USD"] == pytest.approx(row["spent"])
        assert found["coach_records_total", "JobSubmitted"] == 1
        assert found["coach_http_request_seconds_count", "/api/v1/jobs", "201", "POST"] == 1
        assert found["coach_http_request_seconds_count", "/api/v1/jobs/{name}", "404", "GET"] == 1
        assert "nobody" not in page

    serve(home, body)


def test_no_log_has_the_token(home: StateDirectory, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def body(api: Api) -> None:
        await api.submit("a")
        await api.http.get(f"/jobs/{TOKEN}", params={"after": TOKEN})
        await api.http.get("/jobs", headers={"Authorization": f"Bearer {TOKEN}wrong"})
        await api.ended("a")

    serve(home, body)
    assert "POST /api/v1/jobs 201" in caplog.text
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("coach")]
    assert not [line for line in ours if TOKEN in line and "/jobs/" not in line]


def test_unforeseen_errors_are_one_line(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(api: Api) -> None:
        monkeypatch.setattr(api.service, "last_seq", lambda: 1 / 0)
        transport = httpx.ASGITransport(api.http._transport.app, raise_app_exceptions=False)  # type: ignore[attr-defined]
        async with httpx.AsyncClient(transport=transport, base_url=api.http.base_url, headers=api.http.headers) as http:
            answer = await http.get("/jobs")
        assert answer.status_code == 500
        assert answer.json()["error"] == "this is a bug of Coach: ZeroDivisionError; the service's log has more"

    serve(home, body)
