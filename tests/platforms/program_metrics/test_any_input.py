"""Whatever a program prints, writes and sends: its reader says what it reports, and never fails."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coach.core.spec.metric_source import MetricSource
from coach.platforms.program_metrics import status
from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.files import Followed
from coach.platforms.program_metrics.reader import Reader
from coach.platforms.program_metrics.status import Flags, Offer, Sender, StatusServer, only

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(("loss", "eval_loss", "epoch", "step", "accuracy", "val/loss", "loss_runtime")) | st.text(
    max_size=6
)
VALUES = (
    st.floats().map(str)
    | st.integers().map(str)
    | st.sampled_from(("nan", "1e999", "5%", "1_0", ""))
    | st.text(max_size=5)
)
#: What is nearly a line of a log, a row of a table, a record.
PIECES = st.one_of(
    NAMES,
    VALUES,
    st.sampled_from(
        ("=", ": ", " | ", ", ", "{", "}", "'", '"', "[", "]", "\t", "Epoch 3/10", "%", "\x1b[2K", "\r", "+---+")
    ),
    st.dictionaries(NAMES, VALUES | st.floats(), max_size=3).map(json.dumps),
    st.dictionaries(NAMES, st.floats(), max_size=3).map(repr),
)
LINES = st.lists(st.lists(PIECES, max_size=8).map("".join), max_size=6)
READERS = (
    Wanted("eval_loss"),
    Wanted("accuracy", (MetricSource.read("accuracy", "status"),), 100, bounded=True, percent=True),
    Wanted("loss", (MetricSource.read("loss", r"loss=(\S+)"), MetricSource.read("epoch", r"Epoch (\S+)"))),
)


def sound(report: ProgramReport) -> None:
    """What can be sent on and counted with."""
    assert all(isinstance(value, float) for value in report.values.values())
    assert report.epoch is None or (math.isfinite(report.epoch) and report.epoch >= 0)
    json.dumps({"values": report.values, "epoch": report.epoch})


@given(wanted=st.sampled_from(READERS), lines=LINES | st.lists(st.text(), max_size=4))
def test_any_lines_are_read(wanted: Wanted, lines: list[str]) -> None:
    reader = Reader(wanted)
    for line in lines:
        for report in reader.line(line):
            sound(report)


@given(wanted=st.sampled_from(READERS), records=st.lists(st.dictionaries(NAMES, ANY, max_size=4), max_size=4))
@pytest.mark.parametrize("kind", ["status", "report", "csv", "jsonl", "trainer-state", "tensorboard"])
def test_any_records_are_read(kind: str, wanted: Wanted, records: list[dict[str, Any]]) -> None:
    reader = Reader(wanted)
    for record in records:
        if (report := reader.record(kind, record)) is not None:
            sound(report)


def event(data: bytes) -> bytes:
    """A record of TensorBoard's files, whose checksums nobody looks at."""
    return struct.pack("<Q", len(data)) + bytes(4) + data + bytes(4)


#: Files as they are written, then cut, flipped and written anew.
CONTENTS = {
    "csv": LINES.map("\n".join).map(str.encode),
    "jsonl": st.lists(st.dictionaries(NAMES, ANY, max_size=3).map(json.dumps), max_size=4)
    .map("\n".join)
    .map(str.encode),
    "trainer-state": st.lists(ANY | st.dictionaries(NAMES, ANY, max_size=3), max_size=4).map(
        lambda history: json.dumps({"log_history": history}).encode()
    ),
    "tensorboard": st.lists(st.binary(max_size=60).map(event), max_size=4).map(b"".join),
}


@pytest.mark.parametrize("kind", list(CONTENTS))
@given(data=st.data())
def test_any_files_are_read(kind: str, data: st.DataObject) -> None:
    reader = Reader(Wanted("eval_loss"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        files = Followed(MetricSource("eval_loss", kind, "file"), Path(folder))
        for last in (False, False, True):
            content = data.draw(CONTENTS[kind] | st.binary(max_size=80))
            content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
            with file.open(data.draw(st.sampled_from(("ab", "wb")))) as out:
                out.write(content)
            for record in files.records(last=last):
                if (report := reader.record(kind, record, "file")) is not None:
                    sound(report)


class Watched(StatusServer):
    """It keeps what went wrong inside of it, and what it took."""

    def __init__(self, folder: Path) -> None:
        offer = Offer(folder / "token")
        self.token, self.wrong = offer.token, list[BaseException]()
        self.taken: list[tuple[str, Mapping[str, Any]]] = []
        sender = Sender(Flags(), lambda kind, record: self.taken.append((kind, record)))
        super().__init__(offer.listening, only(offer.token, sender))

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self.wrong.append(error)

    def send(self, data: bytes) -> bytes:
        """What is answered to such bytes, after which nothing more comes."""
        with socket.create_connection(self.server_address[:2], timeout=60) as caller, contextlib.suppress(OSError):
            caller.sendall(data)
            caller.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: caller.recv(65536), b""))
        return b""


@pytest.fixture(scope="module")
def server() -> Iterator[Watched]:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(status, "PER_SECOND", 1e9):
        found = Watched(Path(folder))
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield found
        found.shutdown()
        found.server_close()


BODIES = (
    st.one_of(
        st.dictionaries(st.sampled_from(("values", "asks", "trainerStatus", "group")), ANY, max_size=3),
        st.lists(ANY | st.fixed_dictionaries({"name": ANY, "value": ANY}), max_size=3).map(
            lambda metrics: {"trainerStatus": {"metrics": metrics}}
        ),
        st.dictionaries(NAMES, ANY, max_size=3).map(lambda values: {"values": values}),
        ANY,
    ).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=40)
    | st.just(b"[" * 60_000)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(body=BODIES)
def test_any_body_with_the_token_is_answered_and_what_is_taken_can_be_read(server: Watched, body: bytes) -> None:
    server.taken.clear()
    head = f"POST /status HTTP/1.1\r\nAuthorization: Bearer {server.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = server.send(head.encode() + body)
    assert int(answer.split()[1]) in (200, 400, 413, 429) and server.wrong == []
    json.loads(answer.split(b"\r\n\r\n", 1)[1])
    for kind, record in server.taken:
        if (report := Reader(Wanted("eval_loss")).record(kind, record)) is not None:
            sound(report)


HEADERS = st.sampled_from(
    (
        "Authorization: Bearer x",
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: ٣",
        "Transfer-Encoding: chunked",
        "X: y",
    )
)
REQUESTS = st.tuples(
    st.sampled_from(("POST", "GET", "PUT", "\x00", "")),
    st.text(max_size=6),
    st.sampled_from(("HTTP/1.1", "HTTP/0.9", "HTTP/9", "")),
).map(" ".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.binary(max_size=200)
    | st.tuples(REQUESTS, st.lists(HEADERS | st.text(max_size=20), max_size=4), st.binary(max_size=20)).map(
        lambda parts: "\r\n".join([parts[0], *parts[1], "", ""]).encode(errors="replace") + parts[2]
    )
)
def test_any_bytes_without_the_token_change_nothing(server: Watched, data: bytes) -> None:
    server.taken.clear()
    answer = server.send(data)
    assert server.wrong == [] and server.taken == []
    assert b" 200 " not in answer.split(b"\r\n", 1)[0]
