"""The two engines under contract: how one is started with a function, asked, signalled and ended."""

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
FUNCTIONS_PYTHON = Path(os.environ.get("COACH_FUNCTIONS_PYTHON") or REPOSITORY / ".venv-functions/bin/python")
_addresses = itertools.count(1)


def real_missing() -> str | None:
    """Why Nuclio's processor cannot be run here, or None when it can."""
    for name in ("COACH_NUCLIO_PROCESSOR", "COACH_NUCLIO_WRAPPER"):
        path = os.environ.get(name)
        if not path:
            return f"{name} is not set: Nuclio's processor was not run; see docs/reference/nuclio-contract.md"
        if not Path(path).exists():
            return f"{name}={path} does not exist"
    return None


def free_address() -> str:
    """An address of the loopback network where nothing listens on the function's or the health port."""
    while True:
        number = os.getpid() * 64 + next(_addresses)
        address = f"127.{100 + number // 62500 % 100}.{1 + number // 250 % 250}.{1 + number % 250}"
        try:
            for port in (8080, 8082):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((address, port))
        except OSError:
            continue
        return address


@dataclass
class Answer:
    """What a caller saw; `headers` without Date, names as sent."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def wait_for(condition: Callable[[], Any], timeout: float = 20.0, what: str = "a condition") -> Any:
    """The first true value of `condition`; fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {timeout:g} s")
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """The processes that have `pid` as parent."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if int((path / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    found.append(int(path.name))
    return sorted(found)


class Running:
    """A function under one engine, until the end of a `with` block."""

    def __init__(
        self, engine: "Engine", folder: Path, address: str, process: "subprocess.Popen[bytes]"
    ) -> None:
        self.engine, self.folder, self.address, self.process = engine, folder, address, process
        self._seen: set[int] = set()
        self._leftovers: set[Path] = set()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wrappers(self) -> list[int]:
        found = children(self.pid)
        self._seen.update(found)
        for child in found:
            self._leftovers.update(self.engine.leftovers(child))
        return found

    def request(
        self,
        method: str = "POST",
        path: str = "/",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        port: int = 8080,
        timeout: float = 40,
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(self.address, port, timeout=timeout)
        try:
            began = time.monotonic()
            connection.request(method, path, body=body, headers=dict(headers or {}))
            return _answer(connection.getresponse(), began)
        finally:
            connection.close()

    def raw(self, data: bytes, port: int = 8080, method: str = "POST") -> Answer:
        """Send bytes as they are and read one answer."""
        with socket.create_connection((self.address, port), timeout=20) as sock:
            began = time.monotonic()
            sock.sendall(data)
            response = http.client.HTTPResponse(sock, method=method)
            response.begin()
            return _answer(response, began)

    def health(self, path: str = "/ready") -> int | None:
        """Status of the health address, None when nobody answers there."""
        try:
            return self.request("GET", path, port=8082).status
        except OSError:
            return None

    def listening(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex((self.address, 8080)) == 0

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log()}"
            return self.health() == 200 and self.listening()

        wait_for(ready, what="readiness")
        self.wrappers()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_exit(self, timeout: float = 30) -> int:
        return self.process.wait(timeout)

    def log(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.wrappers()
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        for pid in self._seen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in self._leftovers:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Engine:
    """Coach's host (`real` false), started with its function or as a spare that then becomes it; Nuclio's processor."""

    name: str
    real: bool
    spare: bool = False

    def start(
        self,
        folder: Path,
        source: str,
        *,
        handler: str = "handler",
        trigger: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        address: str | None = None,
        module: str = "snippets",
    ) -> Running:
        """Start a function from its source text; returns at once."""
        folder.mkdir(parents=True, exist_ok=True)
        address = address or free_address()
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
        http = {"kind": "http", "name": "http", "numWorkers": 1, "url": f"{address}:8080", **(trigger or {})}
        function = {
            "runtime": "python:3.11",
            "handler": f"{module}:{handler}",
            "triggers": {"http": http},
            **(spec or {}),
        }
        config = {"metadata": {"name": "contract", "namespace": "nuclio"}, "spec": function}
        platform = {
            "healthCheck": {"enabled": True, "listenAddress": f"{address}:8082"},
            "webAdmin": {"enabled": False},
            "logger": {
                "sinks": {"stdout": {"kind": "stdout"}},
                "system": [{"level": "debug", "sink": "stdout"}],
                "functions": [{"level": "debug", "sink": "stdout"}],
            },
        }
        (folder / "processor.yaml").write_text(json.dumps(config))
        (folder / "platform.yaml").write_text(json.dumps(platform))
        arguments = ["--config", "processor.yaml", "--platform-config", "platform.yaml"]
        environment = {**self._environment(folder), **(env or {})}
        if self.spare:
            return Running(self, folder, address, self._become(folder, arguments, environment))
        command = [*self._command(), *arguments]
        with (folder / "output.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Running(self, folder, address, process)

    def _become(self, folder: Path, arguments: list[str], env: dict[str, str]) -> "subprocess.Popen[bytes]":
        """Start a spare that knows nothing of the function, in another folder, and tell it what to become."""
        process = subprocess.Popen(
            [*self._command(), "--spare", "--parent-fd", "0"],
            cwd="/",
            env={name: env[name] for name in ("PATH", "NUCLIO_PYTHON_EXE_PATH", "PYTHONDONTWRITEBYTECODE")},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        order = {"arguments": arguments, "env": env, "cwd": str(folder), "output": str(folder / "output.log")}
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        return process

    def leftovers(self, pid: int) -> list[Path]:
        """Socket files that Nuclio's processor never removes."""
        if not self.real:
            return []
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            return []
        return [Path(word) for word in words if word.startswith("/tmp/nuclio-rpc-")]

    def _command(self) -> list[str]:
        if self.real:
            return [os.environ["COACH_NUCLIO_PROCESSOR"]]
        return [sys.executable, "-P", "-m", "coach.platforms.local.host"]

    def _environment(self, folder: Path) -> dict[str, str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "CONTRACT_ENV": "passed",
            "NUCLIO_PYTHON_EXE_PATH": str(FUNCTIONS_PYTHON),
            "NUCLIO_PYTHON_PATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if self.real:
            environment["NUCLIO_PYTHON_WRAPPER_PATH"] = os.environ["COACH_NUCLIO_WRAPPER"]
            environment["PYTHONPATH"] = os.environ.get("COACH_NUCLIO_PYTHONPATH", "")
        return environment


HOST = Engine("host", real=False)
SPARE = Engine("spare", real=False, spare=True)
NUCLIO = Engine("nuclio", real=True)


def _answer(response: http.client.HTTPResponse, began: float) -> Answer:
    body = response.read()
    headers = {name: value for name, value in response.getheaders() if name.lower() != "date"}
    return Answer(response.status, headers, body, time.monotonic() - began)
