"""A function that is asked over HTTP: in Coach's own process, as in a pod, or in Nuclio's processor."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from training import keys

from tests.functions.hosting import FUNCTIONS, PYTHON, process

#: The key of the functions here.
KEY = "the-key-of-this-function"

#: What Nuclio publishes in images only, and Python's path to msgpack, which its wrapper needs.
NUCLIO = ("COACH_NUCLIO_PROCESSOR", "COACH_NUCLIO_WRAPPER", "COACH_NUCLIO_PYTHONPATH")


@dataclass
class Served:
    """A running function. `addresses` are of the function and of its health."""

    process: subprocess.Popen
    address: str
    health_address: str
    log: Path
    answers: dict[str, str] = field(default_factory=dict)  #: headers of the last answer

    def ask(
        self, body: bytes | dict, kind: str = "application/json", timeout: float = 30, key: str = KEY
    ) -> tuple[int, Any]:
        """Status, and body as JSON where it is."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": kind, **({keys.HEADER: key} if key else {})}
        request = urllib.request.Request(f"http://{self.address}/", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                self.answers = dict(answer.headers)
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                self.answers = dict(error.headers)
                status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode()

    def get(self, path: str, address: str = "") -> int:
        """The status of a GET, 0 where nobody listens."""
        try:
            with urllib.request.urlopen(f"http://{address or self.health_address}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    def wait_ready(self) -> None:
        """Until its readiness probe would be answered."""
        until = time.monotonic() + 60
        while self.get("/ready") != 200 or self.get("/__internal/health", self.address) != 200:
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    def entries(self) -> list[dict[str, Any]]:
        """What is in its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextlib.contextmanager
def in_a_pod(folder: Path, *options: str, role: str = "worker", **environment: str) -> Iterator[Served]:
    """The first process of a pod's container."""
    port, health_port = free_ports(2)
    command = ["-m", "training.serving.serve", *([role] if role else []), *options]
    ports = ["--port", str(port), "--health-port", str(health_port)]
    log = folder / "output.log"
    with log.open("wb") as output:
        running = process([*command, *ports], {keys.VARIABLE: KEY, **environment}, stdout=output, stderr=output)
    try:
        yield Served(running, f"127.0.0.1:{port}", f"127.0.0.1:{health_port}", log)
    finally:
        running.kill()
        running.wait()


@contextlib.contextmanager
def in_nuclio(
    folder: Path, role: str = "worker", host: str = "127.0.0.1", ports: tuple[int, int] | None = None
) -> Iterator[Served]:
    """The function in Nuclio's processor."""
    folder.mkdir(exist_ok=True)
    port, health_port = ports or free_ports(2)
    document = yaml.safe_load((FUNCTIONS / role / "function.yaml").read_text())
    document["spec"]["triggers"]["http"]["url"] = f"{host}:{port}"
    document["metadata"] |= {"name": f"real-{role}", "namespace": "nuclio"}
    (folder / "processor.yaml").write_text(json.dumps(document))
    health = {"enabled": True, "listenAddress": f"{host}:{health_port}"}
    (folder / "platform.yaml").write_text(json.dumps({"healthCheck": health, "webAdmin": {"enabled": False}}))
    environment = {
        **os.environ,
        "COACH_FRAMEWORK": "mxnet",
        "COACH_ROLE": role,
        keys.VARIABLE: KEY,
        "OMP_NUM_THREADS": "1",
        "NUCLIO_PYTHON_EXE_PATH": PYTHON,
        "NUCLIO_PYTHON_WRAPPER_PATH": os.environ["COACH_NUCLIO_WRAPPER"],
        "NUCLIO_PYTHON_PATH": str(FUNCTIONS),
        "PYTHONPATH": os.environ.get("COACH_NUCLIO_PYTHONPATH", ""),
    }
    command = [os.environ["COACH_NUCLIO_PROCESSOR"], "--config", "processor.yaml"]
    log = folder / "output.log"
    with log.open("wb") as output:
        running = subprocess.Popen(
            [*command, "--platform-config", "platform.yaml"],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Served(running, f"{host}:{port}", f"{host}:{health_port}", log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in taken]
