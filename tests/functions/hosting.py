"""Hosts a function in its own process and environment, and talks to it in JSON lines, without HTTP."""

import ctypes
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
private = open(sys.modules["training"].__path__[0] + "/nuclio.py")  # as a processor might; not for children
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

    def wait(self, epoch: str, states: tuple[str, ...] = ("done", "failed", "stopped"), seconds: float = 120) -> dict:
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
    """Whether a process runs; a zombie does not, unless it is its first thread alone that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] != "Z" or int(fields[17]) > 1
    except OSError:
        return False


def eventually(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition, with a deadline."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.01)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends: PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Template:
    """A running template process."""

    def __init__(self, path: Path, **environment: str) -> None:
        self.path = path
        arguments = ["-m", "training.serving.template", str(path)]
        self.process = process(
            arguments, environment, cwd=FUNCTIONS, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
        )
        eventually(lambda: path.exists() or self.process.poll() is not None, 180)
        assert self.process.poll() is None, "the template's process ended"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


_numbers = itertools.count(1)


class Gang:
    """A scheduler, servers and workers, driven as Coach's handler would drive them."""

    def __init__(self, workers: int, servers: int, network: int = 30, **environment: str) -> None:
        self.functions = {("scheduler", 0): HostedFunction("scheduler", f"127.0.{network}.1", **environment)}
        for rank in range(servers):
            self.functions["server", rank] = HostedFunction("server", f"127.0.{network}.{10 + rank}", **environment)
        for rank in range(workers):
            self.functions["worker", rank] = HostedFunction("worker", f"127.0.{network}.{100 + rank}", **environment)
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

    def start(self, workers: int, servers: int, scheduler: dict | None = None, **message: object) -> list:
        """Send every member its start message; `scheduler`: what is for that one alone."""
        root = f"{self.functions['scheduler', 0].address}:{self.port}"
        started = []
        for role, rank in self.members(workers, servers):
            function = self.functions[role, rank]
            common = {"role": role, "rank": rank, "workers": workers, "servers": servers, "root": root}
            own = (scheduler or {}) if role == "scheduler" else {}
            function.start(**common, host=function.address, **{"group": self.group, **message, **own})
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


class Elastic:
    """An elastic group, driven as Coach's handler would drive it."""

    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self.message: dict[str, Any] = {}
        self.go: Path | None = None

    @property
    def scheduler(self) -> HostedFunction:
        return self.gang.functions["scheduler", 0]

    def worker(self, rank: int) -> HostedFunction:
        return self.gang.functions["worker", rank]

    def server(self, rank: int) -> HostedFunction:
        return self.gang.functions["server", rank]

    def start(self, ranks: list[int], message: dict, servers: int = 0) -> None:
        self._begin(message)
        self._start("scheduler", 0, len(ranks), servers=servers)
        for rank in range(servers):
            self.serve(rank, servers)
        for rank in ranks:
            self.join(rank, len(ranks), servers)

    def _begin(self, message: dict) -> None:
        """An epoch is slow until the test lets it go, also where an earlier one of the same folder was let go."""
        self.message = message
        self.go = Path(message["model"]["uri"]).with_name("go")
        self.go.unlink(missing_ok=True)

    def go_on(self, ranks: list[int], message: dict) -> None:
        """Start the next epoch as the handler does: with whom is in the scheduler's start message."""
        self._begin(message)
        self._start("scheduler", 0, len(ranks), members=ranks)
        for rank in ranks:
            self.join(rank, len(ranks))

    def _start(self, role: str, rank: int, workers: int, **more: Any) -> None:
        function = self.gang.functions[role, rank]
        root = f"{self.gang.functions['scheduler', 0].address}:{self.gang.port}"
        common = {"role": role, "rank": rank, "workers": workers, "servers": 0, "root": root}
        message = {"group": self.gang.group, **self.message, **more}
        function.start(**{**common, **message}, host=function.address)

    def join(self, rank: int, workers: int = 1, servers: int = 0) -> None:
        """Start a worker: it connects to the group by itself."""
        self._start("worker", rank, workers, servers=servers)

    def serve(self, rank: int, servers: int = 1) -> None:
        """Start a server: it connects to the group by itself."""
        self._start("server", rank, 1, servers=servers)

    def resize(self, *ranks: int, servers: list[int] | None = None) -> None:
        wanted = {"members": list(ranks)} | ({"server_members": servers} if servers else {})
        answer = self.scheduler.post(op="resize", group=self.gang.group, **wanted)
        assert answer == (200, {"group": self.gang.group, **wanted}), answer

    def status(self, function: HostedFunction) -> dict:
        return function.post(op="status", epoch=self.message["epoch"])[1]

    def until_trained(self, rank: int, samples: int = 320) -> None:
        eventually(lambda: self.status(self.worker(rank))["progress"].get("samples", 0) >= samples, 30)

    def view(self) -> dict:
        return self.status(self.scheduler)["progress"]

    def until_members(self, *ranks: int, seconds: float = 60) -> dict:
        eventually(lambda: sorted(self.view().get("members", [])) == sorted(ranks), seconds)
        return self.view()

    def until_servers(self, *ranks: int, seconds: float = 60) -> dict:
        """The change by which the group has got these servers."""
        eventually(lambda: (self.view().get("changes") or [{}])[-1].get("servers") == list(ranks), seconds)
        return self.view()["changes"][-1]

    def kill_server(self, rank: int, left: int) -> int:
        """Kill one of two once a worker has a copy of what they hold. Samples that are trained again, at most."""
        eventually(lambda: self.view().get("copied"), 30)
        copied = self.view()["copied"]
        os.kill(self.server(rank).health()["child_pid"], signal.SIGKILL)
        self.until_servers(left)
        assert {"server": rank, "because": "its process ended"} in self.view()["lost"]
        steps = len(Path(self.message["model"]["uri"]).with_name("steps").read_bytes())
        return (steps + 1) * self.message["batch_size"] - copied

    def done(self, *ranks: int) -> list[dict]:
        """The reports of these workers, at the end of the epoch."""
        self.go.touch()
        # Each is asked again and again, as the handler does: a function that is not asked does not see its process end.
        with ThreadPoolExecutor() as threads:
            answers = list(threads.map(lambda rank: self.worker(rank).wait(self.message["epoch"]), ranks))
        errors = [answer.get("error") for answer in answers]
        assert all(answer["state"] == "done" for answer in answers), (errors, self.status(self.scheduler))
        return [answer["report"] for answer in answers]

    def left(self, rank: int) -> dict:
        """The report of a worker that leaves within the epoch."""
        answer = self.worker(rank).wait(self.message["epoch"])
        assert answer["state"] == "done" and answer["report"]["left"], answer
        return answer["report"]

    def pids(self, *ranks: int) -> list[int]:
        return [self.worker(rank).health()["child_pid"] for rank in ranks]
