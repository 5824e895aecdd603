"""The liveness connection reports a death to every member, and only a death."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable

import pytest
from training.connections import liveness
from training.errors import TrainingError
from training.request import StartRequest

from tests.functions.hosting import eventually


def request(role: str, rank: int, port: int, group: str = "g", key: str = "the-key-of-the-group") -> StartRequest:
    where = {"root": f"127.0.40.1:{port}", "host": f"127.0.40.{10 + rank}", "key": key}
    return StartRequest(epoch="e", group=group, role=role, rank=rank, workers=2, servers=1, deadline=5, **where)


@pytest.fixture
def line() -> tuple[int, list, Callable]:
    with socket.create_server(("127.0.40.1", 0)) as free:
        port = free.getsockname()[1] - 1  # the hub listens at the next one
    heard: list[tuple[str, dict]] = []

    def join(role: str, rank: int = 0, group: str = "g", **more: str) -> liveness.Member | liveness.Hub:
        make = liveness.Hub if role == "scheduler" else liveness.Member
        return make(request(role, rank, port, group, **more), lambda message: heard.append((f"{role} {rank}", message)))

    return port, heard, join


def nonce_alone(stranger: socket.socket) -> bool:
    """Whether the hub has said no more than what everybody hears, and gone."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while part := stranger.recv(1000):
            heard += part
    return list(json.loads(heard)) == ["nonce"]


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
        b'{"hello": "g", "role": "worker", "rank": 1}\n',
        b'{"hello": "g", "role": "worker", "rank": 1, "nonce": "a", "proof": "b"}\n',
        b"[]\n",
        b"\xff\n",
        b"a" * 5000,
        b'{"proof": ' + b"[" * 4000 + b"\n",
    ):
        with socket.create_connection(("127.0.40.1", port + 1), timeout=30) as stranger:
            stranger.sendall(said)
            assert nonce_alone(stranger)
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


def test_who_has_not_the_groups_key_neither_joins_nor_leads(line: tuple) -> None:
    """Another user of the machine may listen at the scheduler's port first: nobody takes it for the scheduler."""
    port, heard, join = line
    with socket.create_server(("127.0.40.1", port + 1)) as squatter:
        found: list[TrainingError] = []

        def member() -> None:
            with pytest.raises(TrainingError) as caught:
                join("worker", 0)
            found.append(caught.value)

        thread = threading.Thread(target=member)
        thread.start()
        shown = b""
        while thread.is_alive():
            squatter.settimeout(0.2)
            with contextlib.suppress(OSError):
                theirs, _ = squatter.accept()
                with theirs:
                    theirs.sendall(b'{"nonce": "1"}\n')
                    shown += theirs.recv(1000)
                    theirs.sendall(b'{"proof": "2"}\n')
                    shown += theirs.recv(1000)
    assert found and "is not this group's scheduler" in found[0].message
    assert b"the-key-of-the-group" not in shown and b"proof" in shown
    join("scheduler")
    with pytest.raises(TrainingError):
        join("worker", 1, key="the-key-of-another-group")
    join("worker", 0)
    eventually(lambda: received(heard, "scheduler 0", "joined"))
    assert len(received(heard, "scheduler 0", "joined")) == 1
