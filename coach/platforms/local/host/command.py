"""A function host's command, and the process that runs it."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coach.core.errors import PermanentError, TemporaryError

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
        self, process: "subprocess.Popen[bytes]", ready: int, lifeline: int, name: str = "", address: str = ""
    ) -> None:
        self.name, self.address = name, address
        self.wrapper_pids: list[int] = []
        """Process groups of the workers, once ready. A worker whose event timed out has another."""
        self._process, self._lifeline = process, lifeline
        loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)
        loop.add_reader(self._pidfd, self._on_exit)
        self._reader = loop.create_task(_reader(ready))
        self._announced = loop.create_task(self._line())

    @property
    def pid(self) -> int:
        """Process id of the host, also that of its session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code (negative: the signal), or None while it runs."""
        return self._process.returncode

    async def wait_spare(self) -> None:
        """Of a spare: wait until it has started, or ended."""
        await asyncio.shield(self._announced)

    def become(self, name: str, address: str, command: "Command") -> bool:
        """Make a spare the function host that `command` would have started; False when it cannot any more."""
        if self.returncode is not None:
            return False
        order = {
            "arguments": command.arguments,
            "env": dict(command.env),
            "cwd": str(command.cwd),
            "output": str(command.output),
        }
        line = json.dumps(order).encode() + b"\n"
        try:
            os.set_blocking(self._lifeline, False)
            if os.write(self._lifeline, line) < len(line):
                return False  # larger than the pipe
        except OSError:
            return False  # it has just ended, and the event loop has not seen it yet
        self.name, self.address = name, address
        spare = self._announced

        async def announced() -> bytes:
            await spare
            return await self._line()

        self._announced = asyncio.get_running_loop().create_task(announced())
        return True

    async def _line(self) -> bytes:
        reader = await asyncio.shield(self._reader)
        return await reader.readline()

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


def base_environment(python: Path) -> dict[str, str]:
    """What every host's environment begins with: this process's own, without its Python settings, and `python`."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
    return own | {"NUCLIO_PYTHON_EXE_PATH": str(python)}


@dataclass(frozen=True)
class Command:
    """How a host is started: its arguments, environment, working directory, and the file for its own output."""

    arguments: list[str]
    env: Mapping[str, str]
    cwd: Path
    output: Path

    def start(self, name: str = "", address: str = "") -> HostProcess:
        """Start it. Raises OSError."""
        lifeline_read, lifeline = os.pipe()
        ready, ready_write = os.pipe()
        line = [sys.executable, "-P", "-m", "coach.platforms.local.host", *self.arguments]
        line += ["--parent-fd", str(lifeline_read), "--ready-fd", str(ready_write)]
        try:
            with self.output.open("wb") as output:
                process = subprocess.Popen(
                    line,
                    cwd=self.cwd,
                    env=self.env,
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
        return HostProcess(process, ready, lifeline, name, address)


async def _reader(fd: int) -> asyncio.StreamReader:
    """What comes through a pipe, which is closed at its end."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(fd, "rb", 0))
    return reader
