"""What programs send: with their own token alone, of a bounded size and rate."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from coach.platforms.program_metrics import status
from coach.platforms.program_metrics.status import Flags, Offer, Sender, StatusServer, only


class Program:
    """What a program has of its status server, and what the server took."""

    def __init__(self, folder: Path) -> None:
        offer = Offer(folder / "token")
        self.env = offer.env({"no_proxy": "example.com"})
        self.flags = Flags()
        self.taken: list[tuple[str, Mapping[str, Any]]] = []
        self.sender = Sender(self.flags, lambda kind, record: self.taken.append((kind, record)))
        self.server = StatusServer(offer.listening, only(offer.token, self.sender))
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def token(self) -> str:
        return Path(self.env["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text()

    def send(self, what: object, token: str | None = None) -> tuple[int, dict[str, Any]]:
        data = what if isinstance(what, bytes) else json.dumps(what).encode()
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        request = urllib.request.Request(self.env["KUBEFLOW_TRAINER_SERVER_URL"], data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    found = Program(tmp_path)
    yield found
    found.server.shutdown()
    found.server.server_close()


def kubeflow(**metrics: object) -> dict[str, Any]:
    return {"trainerStatus": {"metrics": [{"name": name, "value": str(value)} for name, value in metrics.items()]}}


def test_a_trainjob_status_is_taken(program: Program) -> None:
    assert program.send(kubeflow(loss=0.5, current_epoch=1.2)) == (200, {})
    assert program.send({"trainerStatus": {"progressPercentage": 3}}) == (200, {})
    assert program.taken == [("status", {"loss": "0.5", "current_epoch": "1.2"}), ("status", {})]


def test_only_the_jobs_own_token_is_accepted(program: Program, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Program(tmp_path / "other")
    for token in ("", "x", other.token, program.token + "x", "ü"):
        if token.isascii():
            assert program.send(kubeflow(loss=0), token)[0] == 401
    assert program.taken == other.taken == []
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0
    assert program.env["KUBEFLOW_TRAINER_SERVER_URL"].startswith("http://127.0.0.1:")
    other.server.shutdown()
    other.server.server_close()


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (b"x" * (status.LONGEST_REQUEST + 1), 413),
        (b"not json", 400),
        (b"[]", 400),
        (b"[" * 60_000, 400),
        ({"trainerStatus": []}, 200),
        ({"trainerStatus": {"metrics": {}}}, 200),
        ({"trainerStatus": {"metrics": [1, {}, {"name": 1}]}}, 200),
        ({"values": 3}, 200),
    ],
)
def test_what_is_no_status_is_refused_or_passed_over(program: Program, what: object, code: int) -> None:
    assert program.send(what)[0] == code
    assert all(not record for _, record in program.taken)
    assert program.send(kubeflow(loss=1))[0] == 200


def test_more_requests_than_a_trainer_sends_are_refused(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "PER_SECOND", 0.0)
    codes = [program.send(kubeflow(loss=n))[0] for n in range(status.BURST + 5)]
    assert codes == [200] * status.BURST + [429] * 5
    assert len(program.taken) == status.BURST


def test_connections_that_say_nothing_keep_nobody_out_for_long(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "CONNECTION_SECONDS", 0.2)
    with contextlib.ExitStack() as stack:
        for _ in range(status.MAX_CONNECTIONS):
            one = stack.enter_context(socket.create_connection(program.server.socket.getsockname()))
            one.sendall(b"POST /status HTTP/1.1\r\n")
        for one in [socket.create_connection(program.server.socket.getsockname())]:
            with one:
                assert one.recv(100) in (b"",), "one too many is closed"
        while True:
            with contextlib.suppress(OSError):
                if program.send(kubeflow(loss=1))[0] == 200:
                    break


def test_a_program_that_asks_is_answered(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program.send({"values": {"loss": 0.5, "epoch": 2}}) == (200, {"stop": False, "checkpoint": False})
    assert program.taken == [("report", {"loss": 0.5, "epoch": 2})]
    assert not program.flags.asks
    assert program.send({"asks": True}) == (200, {"stop": False, "checkpoint": False})
    assert program.flags.asks
    program.flags.stop = True
    assert program.send({"asks": True}) == (200, {"stop": True, "checkpoint": False})
    monkeypatch.setattr(program.sender, "_checkpoint", 0.0)
    assert [program.send({"asks": True})[1]["checkpoint"] for _ in range(2)] == [True, False], "after its time"
    assert len(program.taken) == 1
