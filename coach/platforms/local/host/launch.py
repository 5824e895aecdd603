"""Start and end function hosts from asyncio.

    host = await launch(folder, "demo-worker-0", "127.0.77.3:8080", python=..., env={}, log_path=..., run_dir=...)
    await host.wait_ready(timeout=30)
    ...
    await host.terminate(grace=2)

A host started here ends with its launcher, however that ends, and its wrappers end with it.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from coach.core.errors import PermanentError, TemporaryError, UserError

_NOT_INHERITED = ("PYTHON", "VIRTUAL_ENV", "NUCLIO_")
"""Coach's own Python settings say nothing about the functions' Python."""


class HostFailed(PermanentError):
    """A host could not start; `code` is its exit code (see coach.platforms.local.host.__main__)."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


class HostProcess:
    """A function host that was started; belongs to the event loop that started it, except for `kill`."""

    def __init__(
        self, name: str, address: str, process: "subprocess.Popen[bytes]", ready: int, lifeline: int
    ) -> None:
        self.name, self.address = name, address
        self.wrapper_pids: list[int] = []
        """Process groups of the workers, once ready. A worker whose event timed out has another."""
        self._process, self._lifeline = process, lifeline
        loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)
        loop.add_reader(self._pidfd, self._on_exit)
        self._announced = loop.create_task(_read_line(ready))

    @property
    def pid(self) -> int:
        """Process id of the host, also that of its session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code (negative: the signal), or None while it runs."""
        return self._process.returncode

    async def wait_ready(self, timeout: float) -> None:
        """Wait until every worker ran its init_context and the address answers.

        Raises HostFailed with the host's own line when it could not start, TemporaryError after `timeout` seconds
        (the host is then still starting: end it or wait again).
        """
        try:
            line = await asyncio.wait_for(asyncio.shield(self._announced), timeout)
        except TimeoutError:
            raise TemporaryError(
                f"function {self.name} was not ready at {self.address} after {timeout:g} s"
            ) from None
        if not line:
            code = await self.wait()
            raise HostFailed(
                f"function {self.name}: its host ended while it started (exit code {code})", code
            )
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise HostFailed(f"function {self.name}: {message['error']}", message["code"])
        self.wrapper_pids = message["wrappers"]

    async def wait(self) -> int:
        """Wait for its end and return the exit code (negative: the signal)."""
        return await asyncio.shield(self._exited)

    async def terminate(self, grace: float) -> int:
        """Let the event in hand and the termination callback finish, but kill after `grace` seconds."""
        if self.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self.wait(), grace)
            self.kill()
        return await self.wait()

    def kill(self) -> None:
        """Kill the host now; the kernel kills its wrappers with it."""
        if self.returncode is None:
            self._process.kill()

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        os.close(self._lifeline)
        self._exited.set_result(self._process.wait())


async def launch(
    function_dir: Path,
    name: str,
    address: str,
    *,
    python: Path,
    env: Mapping[str, str],
    log_path: Path,
    run_dir: Path,
    python_path: Sequence[Path] = (),
    cpus: Sequence[int] | None = None,
    prefix: Sequence[str] = (),
    namespace: str = "nuclio",
    trigger: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    health: str | None = None,
) -> HostProcess:
    """Start one function on `address` ("127.x.y.z:8080") and return at once; `wait_ready` waits for it.

    Reads `function_dir`/function.yaml (Nuclio's format), gives the function the name `name`, and writes processor.yaml
    and platform.yaml into `run_dir`, which is its working directory too. `python` is the functions' interpreter;
    `python_path` folders are importable beside `function_dir`. The function's environment is this process's without its
    Python settings, then `spec.env` of function.yaml, then `env`. `trigger` overrides keys of the HTTP trigger, such as
    numWorkers or workerTerminationTimeout. `health` is the address of /live and /ready; by default there is none,
    because `wait_ready` and `wait` tell the same. `prefix` comes before the command, to run it elsewhere on this
    machine: it must become the command, in the same process. Raises UserError when function.yaml cannot be used.
    """
    document = _read_function(function_dir / "function.yaml")
    spec = dict(document.get("spec") or {})
    spec["triggers"] = {"http": {**_http_trigger(spec), **(trigger or {}), "kind": "http", "url": address}}
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    platform = {"healthCheck": {"enabled": health is not None, "listenAddress": health or ""}}
    run_dir.mkdir(parents=True, exist_ok=True)
    _write(run_dir / "processor.yaml", {"metadata": metadata, "spec": spec})
    _write(run_dir / "platform.yaml", platform)

    own = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
    from_file = {entry["name"]: str(entry.get("value", "")) for entry in spec.get("env") or []}
    nuclio = {
        "NUCLIO_PYTHON_EXE_PATH": str(python),
        "NUCLIO_PYTHON_PATH": os.pathsep.join(str(path.resolve()) for path in (function_dir, *python_path)),
    }
    lifeline_read, lifeline = os.pipe()
    ready, ready_write = os.pipe()
    command = [*prefix, sys.executable, "-P", "-m", "coach.platforms.local.host", "--config", "processor.yaml"]
    command += ["--platform-config", "platform.yaml", "--log-file", str(log_path.resolve())]
    command += ["--parent-fd", str(lifeline_read), "--ready-fd", str(ready_write)]
    if cpus:
        command += ["--cpus", ",".join(str(cpu) for cpu in cpus)]
    try:
        with (run_dir / "host.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=run_dir,
                env={**own, **from_file, **env, **nuclio},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[lifeline_read, ready_write],
                start_new_session=True,  # the terminal's Ctrl-C is the launcher's to handle
            )
    except BaseException:
        os.close(lifeline)
        os.close(ready)
        raise
    finally:
        os.close(lifeline_read)
        os.close(ready_write)
    return HostProcess(name, address, process, ready, lifeline)


def _read_function(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); a function's folder needs one") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: is no YAML ({' '.join(str(error).split())})") from None
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        raise UserError(f"{path}: has no spec; it must be a Nuclio function file")
    return document


def _http_trigger(spec: Mapping[str, Any]) -> dict[str, Any]:
    for trigger in (spec.get("triggers") or {}).values():
        if trigger.get("kind") == "http":
            return dict(trigger)
    return {"kind": "http", "name": "http", "numWorkers": 1}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


async def _read_line(fd: int) -> bytes:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
    )
    try:
        return await reader.readline()
    finally:
        transport.close()
