"""Messages, as a real HTTP server and a real command receive them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import JobForecast
from coach.handler.state.state_directory import StateDirectory
from coach.service.views import messages
from tests.handler.fake_platform import FakePlatform
from tests.service.conftest import Api, serve

pytestmark = pytest.mark.standard

#: Some 0.01 USD an epoch, and ten times that is reserved: twenty epochs are two thirds of AMOUNT.
DEAR = {"name": "dear", "currency": "USD", "vcpuSecond": 0.0001, "gibSecond": 0.0, "invocation": 0.001}
AMOUNT = 0.3


class Receiver:
    """A server that gives `answers`, then 200; 0 is no answer at all. `got`: bodies, `path`: of the last request."""

    def __init__(self, *answers: int) -> None:
        receiver, self.answers, self.got, self.path = self, list(answers), [], ""
        self.free = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.path = self.path
                receiver.got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                answer = receiver.answers.pop(0) if receiver.answers else 200
                if answer == 0:
                    receiver.free.wait(60)
                self.send_response(answer or 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook?secret=1"

    @contextlib.contextmanager
    def running(self) -> Iterator[Receiver]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self.free.set()
            self._server.shutdown()
            self._server.server_close()


async def spend(api: Api) -> None:
    """An account is spent by one job."""
    await api.ask("PUT", "/accounts/team-a", json={"amount": AMOUNT, "currency": "USD"})
    changes: dict[str, Any] = {
        "prices": DEAR,
        "maxEpochs": 2000,
        "target": {"loss": 0.01},
        "stopEarly": False,
    }
    await api.submit("a", budget={"account": "team-a"}, **changes)
    await api.until("a", lambda row: row["state"] == "BudgetExhausted")


async def received(receiver: Receiver, count: int) -> None:
    async with asyncio.timeout(120):
        while len(receiver.got) < count or (count > 2 and receiver.got[-1]["kind"] != "job"):
            await asyncio.sleep(0.01)


def test_notices_and_the_end_of_a_job_are_sent_in_order_and_again_after_an_error(
    home: StateDirectory,
) -> None:
    async def body(api: Api) -> None:
        async with messages.sending(receiver.url, api.service.handler, api.service.reader, [0.01, 0.01]):
            await spend(api)
            await received(receiver, 5)

    with Receiver(503, 429).running() as receiver:
        serve(home, body, FakePlatform(epoch_seconds=0.01))
    assert receiver.got[:3] == receiver.got[:1] * 3 and receiver.path == "/hook?secret=1"
    got = [one for one in receiver.got[2:] if one["kind"] != "prediction"]
    first = got[0]
    assert [(one["kind"], one.get("percent")) for one in got] == [
        ("notice", 50),
        ("notice", 100),
        ("job", None),
    ]
    assert first["account"] == "team-a" and AMOUNT / 2 <= first["spent"] <= first["amount"] == AMOUNT
    assert first["text"].startswith("account team-a: 50 %, 0.1") and first["text"].endswith("of 0.30 spent USD")
    last = got[-1]
    assert (last["name"], last["state"], last["account"]) == ("a", "BudgetExhausted", "team-a")
    assert len({one["id"] for one in receiver.got}) == len(receiver.got) - 2


def test_a_receiver_that_refuses_or_never_answers_holds_nothing_up(
    home: StateDirectory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "LAST_SECONDS", 0.1)

    async def body(api: Api) -> None:
        async with messages.sending(receiver.url, api.service.handler, api.service.reader, [0.01]):
            await spend(api)
            await received(receiver, 2)

    with Receiver(404, 0).running() as receiver:
        serve(home, body, FakePlatform(epoch_seconds=0.01))
    assert len(receiver.got) == 2, "404 is final, and the rest waits behind the one without an answer"
    assert f"127.0.0.1 did not take a message (HTTP 404); given up: {receiver.got[0]['text']}" in caplog.text
    assert "secret" not in caplog.text


def test_too_many_that_wait_are_dropped_with_a_line_in_the_log(
    home: StateDirectory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MOST_WAITING", 0)

    async def body(api: Api) -> None:
        async with messages.sending("http://127.0.0.1:9/", api.service.handler, api.service.reader):
            await spend(api)

    serve(home, body, FakePlatform(epoch_seconds=0.01))
    assert "0 messages wait; dropped: a: BudgetExhausted" in caplog.text


def test_a_command_gets_each_message_as_json_and_as_text(
    home: StateDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(api: Api) -> None:
        command = f'cat >> {tmp_path}/got; echo "$COACH_KIND $COACH_TEXT" >> {tmp_path}/text; exit 3'
        async with messages.sending(command, api.service.handler, api.service.reader):
            changes: dict[str, Any] = {"prices": DEAR, "target": {"loss": 0.01}, "stopEarly": False}
            # 16 times what is reserved for an epoch: it ends with 94 % spent.
            await api.submit("a", budget={"amount": 2.0, "currency": "USD"}, maxEpochs=2000, **changes)
            assert (await api.ended("a"))["state"] == "BudgetExhausted"

    serve(home, body, FakePlatform(epoch_seconds=0.01))
    got = [json.loads(line) for line in (tmp_path / "got").read_text().splitlines()]
    (nearly, end) = [one for one in got if one["kind"] != "prediction"]
    assert (nearly["kind"], end["kind"], end["state"]) == ("budget", "job", "BudgetExhausted")
    assert 0.8 * nearly["budget"] <= nearly["spent"] <= end["spent"] <= nearly["budget"]
    text = (tmp_path / "text").read_text().splitlines()
    assert [line.partition(": ")[0] for line in text] == [f"{one['kind']} a" for one in got]
    assert any(line.startswith("budget a: over 80% of its budget: 1.") for line in text)
    assert "the command did not take a message (exit code 3): a: BudgetExhausted" in caplog.text


def test_a_prediction_is_sent_when_it_leaves_the_bounds_of_the_last_one(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        orders: list[act.RunEpoch] = []
        handler = api.service.handler
        handler.observers.append(lambda _, done: orders.extend(one for one in done if isinstance(one, act.RunEpoch)))
        await api.submit("a", budget={"amount": 1.0, "currency": "USD"})
        await api.ended("a")
        found = messages.Messages(handler, api.service.reader)
        whole = next(one for one in orders if one.predicted_seconds is not None and one.fraction == 1.0)

        def sent(low: float, expected: float, high: float) -> list[str]:
            order = replace(whole, job_forecast=JobForecast((low, expected, high), (0.1, 0.2, 0.3)))
            return [one["text"] for one in found.about(ev.TimerFired(1.0, "a", ""), [order])]

        assert [sent(50, 60, 70), sent(40, 51, 60), sent(40, 69, 80)] == [[], [], []]
        (now,) = sent(80, 90, 100)
        assert now.startswith(
            "a: the whole job is now predicted to take 1m30s (1m20s-1m40s) instead of 1m00s (50s-1m10s)"
        )
        assert sent(70, 81, 100) == []

    serve(home, body, FakePlatform(epoch_seconds=0.01))


@pytest.mark.parametrize("receiver", ["ftp://x/y", "http:///path"])
def test_what_is_no_url_of_a_receiver_is_refused(receiver: str) -> None:
    with pytest.raises(UserError, match="neither https://HOST/PATH nor a command"):
        messages.checked(receiver)
