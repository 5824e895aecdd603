"""Whatever is sent to a function is answered, with what it does or what is wrong; it never fails itself."""

import json
import os
import socket
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training import function, ipc, zygote_client
from training.function import OPERATIONS, Function

from tests.functions.messages import job

ROLES = ("worker", "server", "scheduler")
#: Any JSON, also what its standard does not know.
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
START = {
    "op": "start", "epoch": "e", "group": "g", "rank": 0, "workers": 1, "servers": 1, "root": "127.0.0.1:2000",
    "host": "127.0.0.1", "weights_out": "file:///tmp/x.npz", "elastic": True, **job(),
}  # fmt: skip
#: The other operations, right but for what is replaced.
OTHERS = (
    {"op": "status", "epoch": "e", "wait": 0, "seen": 1},
    {"op": "resize", "group": "g", "members": [0, 1], "server_members": [0]},
    {"op": "cut", "group": "g", "epoch": "e"},
    {"op": "stop", "group": "g", "epoch": "e"},
    {"op": "health"},
)
#: Longer than what one process of a function sends to another.
LONG = "x" * 2 * ipc.LARGEST_PACKET


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message that is right, or has one or two fields replaced; or any JSON; or any bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=40) | ANY.map(lambda value: json.dumps(value).encode()))
    message = dict(draw(st.sampled_from((START, START, *OTHERS))))
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(sorted(message)) | st.text(max_size=5))
        message[key] = draw(ANY | st.sampled_from((LONG, [LONG], {"name": LONG}, OPERATIONS[0])))
    return json.dumps(message).encode()


class Zygotes:
    """In place of the processes that fork: they hear everything and say nothing."""

    def __init__(self) -> None:
        self._others: list[socket.socket] = []

    def start(self) -> zygote_client.ZygoteHandle:
        ours, theirs = ipc.pair()
        theirs.setblocking(False)
        self._others.append(theirs)
        reader, writer = os.pipe()
        os.close(reader)
        return zygote_client.ZygoteHandle(ours, writer, 1)

    def hear(self) -> None:
        for one in self._others:
            while (heard := ipc.receive(one, 4))[0] is not None:
                for descriptor in heard[1]:
                    os.close(descriptor)

    def close(self) -> None:
        for one in self._others:
            one.close()


@pytest.fixture(params=ROLES)
def role(request: pytest.FixtureRequest) -> Iterator[str]:
    with mock.patch.object(function, "KILL_SECONDS", 0), mock.patch.object(function, "LIFELINE_SECONDS", 0):
        yield request.param


def answered(role: str, sent: list[bytes]) -> list[tuple[int, Any]]:
    """The answers to messages, as one function of this role gives them."""
    zygotes = Zygotes()
    with mock.patch.object(zygote_client, "start", zygotes.start):
        one = Function(role)
        found = []
        try:
            for message in sent:
                status, answer = one.handle(message)
                found.append((status, json.loads(json.dumps(answer))))
                zygotes.hear()
        finally:
            one._drop_child()
            one._zygote.close()
            zygotes.close()
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(sent=st.lists(messages(), min_size=1, max_size=5))
def test_any_messages_are_answered(role: str, sent: list[bytes]) -> None:
    for status, answer in answered(role, sent):
        assert status in (200, 202, 400, 409), answer
        assert (status >= 400) == ("error" in answer and "reason" in (answer["error"] or {}))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"op":' * 50_000, id="deep objects"),
        pytest.param(json.dumps({**START, "seed": 10**4000}).encode(), id="a long number"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(json.dumps({**START, "model": {"uri": "/m.py", "args": {"a": LONG}}}).encode(), id="long"),
    ],
)
def test_what_no_process_of_a_function_could_pass_on_is_a_bad_request(role: str, body: bytes) -> None:
    [(status, answer)] = answered(role, [body])
    assert (status, answer["error"]["reason"]) == (400, "BadRequest")


def test_the_messages_that_are_mutated_here_are_right(role: str) -> None:
    [(status, answer)] = answered(role, [json.dumps({**START, "role": role}).encode()])
    assert status == 202, answer


def test_a_scheduler_refuses_a_cut_that_it_cannot_pass_on() -> None:
    start = json.dumps({**START, "role": "scheduler"}).encode()
    cut = json.dumps({"op": "cut", "group": "g", "epoch": LONG}).encode()
    statuses = [status for status, _ in answered("scheduler", [start, cut])]
    assert statuses == [202, 400]
