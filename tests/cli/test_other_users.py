"""What another user of the machine reaches of a real service, with a job of each kind.

The other user is a process with the rights of nobody, on this machine's loopback addresses alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from coach.handler import endpoint
from coach.handler.state.state_directory import StateDirectory
from tests.chaos.processes import descendants
from tests.cli.conftest import ROOT
from tests.cli.test_run import coach, started, write_job

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(300), pytest.mark.root]

#: What is said to each listening socket, by a user who may not speak there; the answers as JSON.
STRANGER = """
import json, os, socket, sys
answers, model = {}, sys.argv[2]
assert os.getuid() == 65534
start = {"op": "start", "epoch": "e", "group": "g", "role": "worker", "rank": 0, "workers": 1, "servers": 1,
         "deadline": 20, "root": "127.0.0.1:2000", "host": "127.0.0.1", "model": {"uri": model},
         "data": {"format": "custom"},
         "batch_size": 1, "samples": 1, "optimizer": {"name": "sgd"}}
for host, port in json.loads(sys.argv[1]):
    for op in ({"op": "health"}, {"op": "stop", "group": "g"}, start):
        body = json.dumps(op).encode()
        head = "POST / HTTP/1.1\\r\\nHost: x\\r\\nOrigin: http://x\\r\\nContent-Type: text/plain\\r\\n"
        head += f"Content-Length: {len(body)}"
        said = b""
        with socket.socket() as end:
            end.settimeout(1)
            try:
                end.connect((host, port))
                end.sendall(head.encode() + b"\\r\\n\\r\\n" + body)
                said = end.recv(200)
            except OSError:
                pass
        answers.setdefault(f"{host}:{port}", []).append(said.decode(errors="replace").split("\\r\\n")[0])
for path in json.loads(sys.argv[3]):
    try:
        open(path).close()
        answers[path] = "read"
    except PermissionError:
        answers[path] = "refused"
print(json.dumps(answers))
"""


def listeners(pids: set[int]) -> list[tuple[str, int]]:
    """Where these processes listen, by TCP."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(str(entry.readlink()))
            except OSError:
                continue
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        row = line.split()
        if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
            host, port = row[1].split(":")
            found.append((".".join(str(each) for each in reversed(bytes.fromhex(host))), int(port, 16)))
    return sorted(found)


def test_none_of_its_ports_runs_ends_or_tells_anything_for_another_user(home: StateDirectory, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user's process needs root")
    tmp_path.chmod(0o755)
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'pwned')!r}, 'w').write('x')\n")
    slow = {"target": {"loss": 0.000001}, "budget": {"unlimited": True}, "stopEarly": False}
    (tmp_path / "endless.py").write_text(
        "import time\nwhile True:\n    print('epoch=1 loss=1', flush=True); time.sleep(1)\n"
    )
    trained = write_job(tmp_path / "job.yaml", **slow)
    program = json.dumps(
        {
            "apiVersion": "coach.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "program"},
            "spec": {
                "program": {"command": ["python3", "endless.py"]},
                "target": {"loss": 0.1},
                "budget": {"unlimited": True},
            },
        }
    )
    (tmp_path / "program.yaml").write_text(program)
    allowed = ("--allow", str(tmp_path), "--allow", str(ROOT))
    with started("serve", "--port", "0", "--nodes", "1x4", *allowed) as service:
        service.until("serving at http://127.0.0.1:")
        for job in (trained, tmp_path / "program.yaml"):
            assert (done := coach("submit", str(job))).returncode == 0, done.stderr
        service.until("digits: epoch 1")
        running = endpoint.find(home)
        assert running is not None
        # The group and the program listen a little later than the service, and while workers come and go.
        while len(places := listeners({running.pid, *descendants(running.pid)})) <= 3:
            time.sleep(0.1)
        api = int(running.url.rpartition(":")[2])
        assert ("127.0.0.1", api) in places
        assert not [port for _, port in places if port == 8080], "a function listens where others reach it"
        private = [home.path / "token", home.journal(1), home.path, tmp_path / "home"]
        said = subprocess.run(
            ["/usr/bin/python3", "-c", STRANGER, json.dumps(places), str(evil), json.dumps([*map(str, private)])],
            capture_output=True,
            text=True,
            check=False,
            user=65534,
            group=65534,
            extra_groups=[],
        )
        assert said.returncode == 0, said.stderr
        answers = json.loads(said.stdout)
        assert {answers[str(path)] for path in private} <= {"refused"}
        heard = {line for host, port in places for line in answers[f"{host}:{port}"] if line}
        http = {line.split(" ")[1] for line in heard if line.startswith("HTTP/")}
        # The members of a group say no more than what is to be proven; ps-lite's own protocol no word.
        assert http <= {"401", "403"} and not any("state" in line or "group" in line for line in heard), answers
        assert not (tmp_path / "pwned").exists()
        service.until("digits: epoch 3")
        assert json.loads(coach("show", "program", "-o", "json").stdout)["state"] in ("Running", "Training")
        for name in ("digits", "program"):
            coach("cancel", name)
