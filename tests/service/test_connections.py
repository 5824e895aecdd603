"""Callers without the token cannot end a service, nor keep others out, however many connections they hold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coach.handler import endpoint
from coach.handler.endpoint import API
from coach.handler.state.state_directory import StateDirectory
from coach.service import connections
from coach.service.bind import answering, listen
from coach.service.http_app import make_app
from coach.service.journal_checks import journal_checks
from coach.service.schemas import Status
from tests.service.conftest import TOKEN, Api, job_text, serve
from tests.service.test_api import ENDLESS
from tests.service.test_serve import rows, served, until

#: What a stranger sends and then says no more.
SILENT = {
    "nothing": b"",
    "half a head": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "half a body": b"POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2000000\r\n\r\n" + b"x" * 60_000,
    "half a body of a job": b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 60_000,
}


@contextlib.asynccontextmanager
async def listening(api: Api) -> AsyncIterator[tuple[int, httpx.AsyncClient]]:
    """The service at a port, and a caller who has the token."""
    with listen("127.0.0.1", 0) as end:
        port = end.getsockname()[1]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            answering(api.service, make_app(api.service, TOKEN), end),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}{API}", headers=headers, timeout=60) as client,
        ):
            yield port, client
        api.service.stopping = False


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the service has closed a connection, whatever it said before."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


async def opened(port: int, said: bytes) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    return reader, writer


@pytest.mark.parametrize("said", SILENT.values(), ids=SILENT)
def test_who_does_not_go_on_is_cut_off(home: StateDirectory, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.3)

    async def body(api: Api) -> None:
        async with listening(api) as (port, client):
            reader, writer = await opened(port, said)
            await asyncio.wait_for(ended(reader), 30)
            writer.close()
            assert (await client.get("/jobs")).status_code == 200

    serve(home, body)


@pytest.mark.parametrize("said", SILENT.values(), ids=SILENT)
def test_more_connections_than_there_may_be_take_nobodys_place(
    home: StateDirectory, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times as many strangers as connections: the descriptors stay bounded, and who has the token is answered."""
    monkeypatch.setattr(connections, "MOST", 40)

    async def body(api: Api) -> None:
        async with listening(api) as (port, client):
            assert (await client.get("/jobs")).status_code == 200  # this connection is known
            before = len(list(Path("/proc/self/fd").iterdir()))
            strangers = [await opened(port, said) for _ in range(120)]
            assert (await client.get("/jobs")).status_code == 200
            async with httpx.AsyncClient(headers=client.headers, timeout=60) as another:  # and so is a new one
                assert (await another.get(f"{client.base_url}jobs")).status_code == 200
            # Of this process are both ends.
            assert len(list(Path("/proc/self/fd").iterdir())) - before < 120 + 45
            for reader, writer in strangers[:60]:
                await asyncio.wait_for(ended(reader), 30)
                writer.close()
            for _, writer in strangers[60:]:
                writer.close()
            for _, writer in strangers:
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    serve(home, body)


def test_a_head_that_comes_byte_by_byte_has_no_more_time(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 0.5)

    async def body(api: Api) -> None:
        async with listening(api) as (port, _):
            reader, writer = await opened(port, b"GET /health HTTP/1.1\r\nX: ")
            over = asyncio.create_task(ended(reader))
            with contextlib.suppress(ConnectionError):
                while not over.done():
                    writer.write(b"x")
                    await asyncio.wait({over}, timeout=0.05)
            assert over.done()
            writer.close()

    serve(home, body)


def test_a_caller_with_the_token_may_be_slower(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 3.0)

    async def body(api: Api) -> None:
        async with listening(api) as (port, _):
            text = b'{"files": []}'
            head = f"POST {API}/validate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
            reader, writer = await opened(port, head.encode())
            for number in range(len(text)):
                await asyncio.sleep(0.3)  # all in all longer than a stranger has
                writer.write(text[number : number + 1])
            assert (await reader.readline()).startswith(b"HTTP/1.1 ")
            writer.close()

    serve(home, body)


def test_the_rest_of_the_descriptors_is_for_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((65536, 1024), (1024, 128), (400, 50), (20, 8)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert connections.most_connections() == most


def test_bodies_of_strangers_take_a_bounded_memory(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each connection so much is kept as one read brings and one pause lets in, whatever was announced and sent."""
    monkeypatch.setattr(connections, "MOST", 20)
    kept = list[int]()
    received = connections.Bounded.data_received

    def watched(self: connections.Bounded, data: bytes) -> None:
        received(self, data)
        if not self.known and self.cycle is not None:
            kept.append(len(self.cycle.body) + len(data))

    monkeypatch.setattr(connections.Bounded, "data_received", watched)
    head = b"POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"

    async def body(api: Api) -> None:
        async with listening(api) as (port, client):
            strangers = [await opened(port, head + b"Content-Length: 2000000\r\n\r\n") for _ in range(60)]
            for _, writer in strangers:
                writer.write(b"x" * 1_900_000)
            assert (await client.get("/jobs")).status_code == 200
            for reader, writer in strangers[:40]:
                await asyncio.wait_for(ended(reader), 60)
                writer.transport.abort()
            for _, writer in strangers[40:]:
                writer.transport.abort()

    serve(home, body)
    assert kept and max(kept) <= 3 * (256 << 10)


#: Until its input ends: connections that say nothing, halves of requests, requests without and with a wrong token, and
#: whatever else is tried at the port and at the folder. It prints what it was answered, and what it could read.
ATTACKER = """
import json, os, random, select, socket, sys, time
assert os.getuid() == 65534
port, private, answers, held, read = int(sys.argv[1]), json.loads(sys.argv[2]), {}, [], []
post = b"POST /api/v1/jobs HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-Type: application/json\\r\\n"
said = [
    b"", b"GET / HTTP/1.1\\r\\nX: ", post + b"Content-Length: 2000000\\r\\n\\r\\n" + b"x" * 60000, os.urandom(500),
    b"POST /api/v1/jobs/keep-0/cancel HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\n\\r\\n",
    b"GET /api/v1/jobs HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nAuthorization: Bearer " + b"x" * 43 + b"\\r\\n\\r\\n",
    post + b"Authorization: Bearer \\x00\\r\\nContent-Length: 2\\r\\n\\r\\n{}",
]
while not select.select([sys.stdin], [], [], 0.002)[0]:
    for path in private:
        try:
            open(path).close()
            read.append(path)
        except OSError:
            pass
    try:
        one = socket.create_connection(("127.0.0.1", port), timeout=0.2)
    except OSError:
        time.sleep(0.02)
        continue
    what = random.choice(said)
    try:
        one.sendall(what)
        if what[:4] in (b"POST", b"GET ") and what.endswith((b"\\r\\n\\r\\n", b"{}")):
            status = one.recv(100).split(b" ")[1:2]
            answers[b"".join(status).decode()] = answers.get(b"".join(status).decode(), 0) + 1
    except OSError:
        pass
    held.append(one)
    while len(held) > 300:
        held.pop(0).close()
print(json.dumps([answers, read]))
"""


@contextlib.contextmanager
def attacked(port: int, home: StateDirectory) -> Iterator[list[Any]]:
    """Another user attacks for the length of the block; then what it got."""
    private = [home.path, home.journal(1), home.path / "token", home.path / "service.json"]
    command = ["/usr/bin/python3", "-c", ATTACKER, str(port), json.dumps([*map(str, private)])]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=65534, group=65534, extra_groups=[]
    )
    got: list[Any] = []
    try:
        yield got
        got += json.loads(process.communicate(timeout=60)[0])
    finally:
        process.kill()
        process.wait()


def ask(home: StateDirectory, path: str, body: dict[str, Any]) -> bool:
    """Whether a request of the owner's was acknowledged before the service was killed."""
    here = endpoint.find(home)
    if here is None:
        return False
    headers = {"Authorization": f"Bearer {here.token}"}
    try:
        answer = httpx.post(f"{here.url}{endpoint.API}{path}", json=body, headers=headers, timeout=30, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code in (200, 201)


@pytest.mark.root
@pytest.mark.processes
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.full)])
def test_kills_while_another_user_attacks_lose_nothing(home: StateDirectory, tmp_path: Path, kills: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's process needs root")
    places = random.Random(kills)
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    taken, cancelled, asked = set[str](), set[str](), 0
    file = str(tmp_path / "job.yaml")
    short = {"maxEpochs": 3, "workers": {"min": 1, "max": 1}}
    with attacked(port, home) as got:
        for number in range(kills):
            with served(tmp_path, "0.02", port=str(port)) as service:
                keep, end = f"keep-{number}", f"end-{number}"
                texts = {
                    keep: job_text(keep, **short),
                    end: job_text(end, maxEpochs=10**5, **ENDLESS, workers={"max": 1}),
                }
                for name, text in texts.items():
                    asked += 1
                    if ask(home, "/jobs", {"files": [{"path": file, "text": text}]}):
                        taken.add(name)
                if end in taken and ask(home, f"/jobs/{end}/cancel", {}):
                    cancelled.add(end)
                time.sleep(places.uniform(0, 0.2))  # any instant
                service.send_signal(signal.SIGKILL)
        with served(tmp_path, "0.02", port=str(port)):
            for name in taken - cancelled - {one for one in taken if one.startswith("keep")}:
                ask(home, f"/jobs/{name}/cancel", {})
            until(lambda: all(row["ended_at"] for row in rows().values()))
            found = rows()
    answers, read = got
    assert taken <= found.keys() and {found[name]["state"] for name in cancelled} <= {"Cancelled"}
    assert {found[name]["epoch"] for name in taken if name.startswith("keep")} == {3}
    assert all(row["spent"] <= row["budget"] for row in found.values() if row["budget"] is not None)
    assert {check.status for check in journal_checks(home)} == {Status.OK}
    assert read == [] and not {"200", "201"} & answers.keys(), answers
    assert len(taken) > asked / 2 and cancelled
    print(f"{kills} kills; {len(taken)} of {asked} jobs and {len(cancelled)} cancellations acknowledged, none lost; "
          f"answers to the attacker: {answers}")  # fmt: skip
