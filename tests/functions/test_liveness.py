"""The liveness connection reports a death to every member, and only a death."""

import socket
import threading
from collections.abc import Callable

import pytest
from training.connections import liveness
from training.request import StartRequest

from tests.functions.hosting import eventually


def request(role: str, rank: int, port: int, group: str = "g") -> StartRequest:
    where = {"root": f"127.0.40.1:{port}", "host": f"127.0.40.{10 + rank}"}
    return StartRequest(epoch="e", group=group, role=role, rank=rank, workers=2, servers=1, deadline=5, **where)


@pytest.fixture
def line() -> tuple[int, list, Callable]:
    with socket.create_server(("127.0.40.1", 0)) as free:
        port = free.getsockname()[1] - 1  # the hub listens at the next one
    heard: list[tuple[str, dict]] = []

    def join(role: str, rank: int = 0, group: str = "g") -> liveness.Member | liveness.Hub:
        make = liveness.Hub if role == "scheduler" else liveness.Member
        return make(request(role, rank, port, group), lambda message: heard.append((f"{role} {rank}", message)))

    return port, heard, join


def received(heard: list, who: str, key: str) -> list:
    return [message for name, message in list(heard) if name == who and key in message]


def test_a_death_is_reported_to_all_others(line: tuple) -> None:
    _, heard, join = line
    join("scheduler")
    server, one, other = join("server"), join("worker", 0), join("worker", 1)
    for member in (one, other):
        member.tell({"formed": True})
    eventually(lambda: received(heard, "server 0", "formed"))
    assert not received(heard, "scheduler 0", "lost")
    other._connection.shutdown(socket.SHUT_RDWR)  # what the kernel does for a killed process
    for who in ("scheduler 0", "server 0", "worker 0"):
        eventually(lambda who=who: received(heard, who, "lost"))
        assert received(heard, who, "lost")[0]["lost"] == "worker 1"
    del server


def test_strangers_are_sent_away_and_change_nothing(line: tuple) -> None:
    port, heard, join = line
    join("scheduler")
    join("worker", 0)
    for said in (
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"hello": "other", "role": "worker", "rank": 1}\n',
        b"[]\n",
        b"\xff\n",
    ):
        with socket.create_connection(("127.0.40.1", port + 1), timeout=30) as stranger:
            stranger.sendall(said)
            assert stranger.recv(10) == b""
    eventually(lambda: received(heard, "scheduler 0", "joined"))
    assert len(received(heard, "scheduler 0", "joined")) == 1
    assert not [entry for entry in heard if "lost" in entry[1]]


def test_a_second_member_of_one_name_ends_the_group(line: tuple) -> None:
    _, heard, join = line
    join("scheduler")
    join("worker", 0)
    eventually(lambda: received(heard, "scheduler 0", "joined"))
    join("worker", 0)
    eventually(lambda: received(heard, "scheduler 0", "lost"))
    assert "second time" in received(heard, "scheduler 0", "lost")[0]["because"]


def test_a_member_waits_for_a_scheduler_that_starts_later(line: tuple) -> None:
    _, heard, join = line
    thread = threading.Thread(target=join, args=("worker", 0))
    thread.start()
    join("scheduler")
    thread.join(30)
    assert not thread.is_alive()
    eventually(lambda: received(heard, "scheduler 0", "joined"))
