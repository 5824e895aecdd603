"""Another user of the machine attacks a service that is killed again and again: what was acknowledged is there."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coach.handler import endpoint
from coach.handler.state.state_directory import StateDirectory
from coach.service.journal_checks import journal_checks
from coach.service.schemas import Status
from tests.service.conftest import job_text
from tests.service.test_api import ENDLESS
from tests.service.test_serve import rows, served, until

pytestmark = [pytest.mark.processes, pytest.mark.root, pytest.mark.timeout(3600)]

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
