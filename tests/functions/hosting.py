"""Hosts a function in its own process and environment, and talks to it in JSON lines, without HTTP."""

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coach.platforms.local import pytorch_runtime

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ROOT / "functions"
PYTHON = os.environ.get("COACH_FUNCTIONS_PYTHON", str(ROOT / ".venv-functions" / "bin" / "python"))


def process(arguments: list[str], environment: dict[str, str], **options: Any) -> subprocess.Popen:
    """A process of the Python of the framework that `environment` names."""
    pytorch = environment.get("COACH_FRAMEWORK") == "pytorch"
    python = str(pytorch_runtime.torch().python) if pytorch else PYTHON
    env = {**os.environ, "PYTHONPATH": str(FUNCTIONS), **environment}
    return subprocess.Popen([python, *arguments], env=env, **options)


HOST = """
import json, os, sys
from training.function import Function
private = open(os.path.join(os.environ["PYTHONPATH"], "worker/handler.py"))  # as a processor might; not for children
os.set_inheritable(private.fileno(), True)
function = Function(sys.argv[1])
for line in sys.stdin:
    status, body = function.handle(json.loads(line))
    print(json.dumps({"status": status, "body": body}), flush=True)
"""


class HostedFunction:
    """One running function."""

    def __init__(self, role: str, address: str, **environment: str) -> None:
        self.role, self.address = role, address
        arguments = ["-c", HOST, role]
        self.process = process(arguments, environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def post(self, **body: object) -> tuple[int, dict]:
        """Status and body of the handler's answer."""
        self.process.stdin.write(json.dumps(body).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["status"], answer["body"]

    def start(self, **message: object) -> dict:
        status, body = self.post(op="start", **message)
        assert status == 202, body
        return body

    def wait(
        self, epoch: str, states: tuple[str, ...] = ("done", "failed", "stopped"), seconds: float = 60
    ) -> dict:
        """Poll until the epoch is in one of `states`."""
        until = time.monotonic() + seconds
        seen = 0
        while time.monotonic() < until:
            status, body = self.post(op="status", epoch=epoch, wait=0.5, seen=seen)
            assert status == 200, body
            if body["state"] in states:
                return body
            seen = body["version"]
        raise AssertionError(f"{self.role} {self.address}: still {body} after {seconds} s")

    def health(self) -> dict:
        return self.post(op="health")[1]

    def close(self) -> None:
        """End the function's process the hard way, as a pod's end does."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def living(mark: str) -> list[str]:
    """Processes of a test run that still live, by the mark in their environment. Zombies do not live."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            command = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if f"COACH_TEST_MARK={mark}".encode() in environment and state != "Z":
            found.append(f"{entry.name} {command[:100]}")
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait for a condition, with a deadline."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.01)


class Template:
    """A running template process."""

    def __init__(self, path: Path, **environment: str) -> None:
        self.path = path
        arguments = ["-m", "training.serving.template", str(path), "--parent", str(os.getpid())]
        self.process = process(arguments, environment, cwd=FUNCTIONS, stdin=subprocess.DEVNULL)
        eventually(path.exists, 60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


_numbers = itertools.count(1)


class Gang:
    """A scheduler, servers and workers, driven as Coach's handler would drive them."""

    def __init__(self, workers: int, servers: int, network: int = 30, **environment: str) -> None:
        self.functions = {("scheduler", 0): HostedFunction("scheduler", f"127.0.{network}.1", **environment)}
        for rank in range(servers):
            self.functions["server", rank] = HostedFunction(
                "server", f"127.0.{network}.{10 + rank}", **environment
            )
        for rank in range(workers):
            self.functions["worker", rank] = HostedFunction(
                "worker", f"127.0.{network}.{100 + rank}", **environment
            )
        self.fresh_group()

    @property
    def worker(self) -> HostedFunction:
        return self.functions["worker", 0]

    def fresh_group(self) -> str:
        """The next start forms a new group, on a root port of its own."""
        number = next(_numbers)
        self.group = f"group-{number}"
        self.port = 20000 + (os.getpid() * 7 + 2 * number) % 10000
        return self.group

    def stop(self) -> None:
        """End the group, as the handler does after a failure."""
        for function in self.functions.values():
            assert function.post(op="stop", group=self.group) == (200, {"state": "stopped"})

    def members(self, workers: int, servers: int) -> list[tuple[str, int]]:
        counts = {"scheduler": 1, "server": servers, "worker": workers}
        return [(role, rank) for role, rank in self.functions if rank < counts[role]]

    def start(self, workers: int, servers: int, **message: object) -> list[HostedFunction]:
        """Send every member its start message."""
        root = f"{self.functions['scheduler', 0].address}:{self.port}"
        started = []
        for role, rank in self.members(workers, servers):
            function = self.functions[role, rank]
            common = {"role": role, "rank": rank, "workers": workers, "servers": servers, "root": root}
            function.start(**common, host=function.address, **{"group": self.group, **message})
            started.append(function)
        return started

    def epoch(self, workers: int, servers: int, **message: object) -> dict:
        """Run an epoch to its end; worker 0's report."""
        self.start(workers, servers, **message)
        answers = [self.functions["worker", rank].wait(message["epoch"]) for rank in range(workers)]
        if any(answer["state"] != "done" for answer in answers):
            said = {
                f"{role} {rank}": self.functions[role, rank].post(op="status", epoch=message["epoch"])[1]
                for role, rank in self.members(workers, servers)
            }
            raise AssertionError(said)
        return answers[0]["report"]

    def close(self) -> None:
        for function in self.functions.values():
            function.close()
