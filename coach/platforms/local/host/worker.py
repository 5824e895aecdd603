"""One warm wrapper process: start it, hand it one event at a time, end it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from coach.platforms.local.host.config import HostConfig
from coach.platforms.local.host.logs import FunctionLog

_HEAD = struct.Struct(">II")
_FRAME = struct.Struct(">cI")
_DRAIN_AFTER_EXIT = 0.2
"""Seconds to read on after a wrapper's end: its own children may hold the socket open for ever."""


class WrapperDied(Exception):
    """The wrapper process ended; the message says how."""


class WrapperNotStarted(Exception):
    """The function could not be loaded, or its init_context failed; the message is one line."""


@dataclass
class Answer:
    """What a handler returned, as the SDK encoded it, and the log entries of the call."""

    payload: bytes
    logs: list[dict[str, Any]] = field(default_factory=list)


class Worker:
    """A slot of the function: a process of its own, started again only after an event timed out.

    Holds at most one event; the caller sees to that. `died` is done when the process ended without being asked to.
    """

    def __init__(self, config: HostConfig, index: int, log: FunctionLog) -> None:
        self.id = str(index)
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._config, self._log = config, log
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False

    @property
    def pid(self) -> int | None:
        """The wrapper's process id, also that of its process group; None when it does not run."""
        return self._process.pid if self._process is not None else None

    def spawn(self) -> None:
        """Start the process; returns at once, so that many can start side by side."""
        mine, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        output, output_write = os.pipe()
        config = self._config
        command = [config.python, "-u", config.wrapper, "--handler", config.handler, "--namespace", config.namespace]
        command += ["--worker-id", self.id, "--trigger-kind", "http", "--trigger-name", config.trigger_name]
        command += ["--platform-kind", "local"]
        command += ["--channel-fd", str(theirs.fileno()), "--lifeline-fd", str(lifeline)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=[theirs.fileno(), lifeline],
                env=self._environment(),
                process_group=0,
            )
        except OSError as error:
            mine.close()
            os.close(output)
            raise WrapperNotStarted(f"{config.python}: cannot be started ({error.strerror})") from None
        finally:
            theirs.close()
            os.close(lifeline)
            os.close(output_write)
        self._ending = False
        self._socket, self._output = mine, output
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = loop.create_future()
        self._terminated: asyncio.Future[None] = loop.create_future()
        self._answer: asyncio.Future[Answer] | None = None
        self._logs: list[dict[str, Any]] = []
        self._tasks = [loop.create_task(self._read_frames()), loop.create_task(self._read_output())]
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pidfd, self._on_exit)

    async def ready(self) -> None:
        """Wait until init_context is done. Raises WrapperNotStarted."""
        await self._started

    async def call(self, head: dict[str, Any], body: bytes) -> Answer:
        """Hand over one event. Raises WrapperDied, or TimeoutError after the function's event timeout."""
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._logs = []
        text = json.dumps(head).encode()
        try:
            self._writer.writelines([_HEAD.pack(len(text), len(body)), text, body])
            await self._writer.drain()
            return await asyncio.wait_for(self._answer, self._config.event_timeout)
        except ConnectionError:
            return await self._answer  # the end of the process resolves it
        finally:
            self._answer = None

    async def restart(self) -> None:
        """Kill the process with its group and start a new one. Raises WrapperNotStarted."""
        await self.kill()
        self.spawn()
        await self.ready()

    async def terminate(self, timeout: float) -> None:
        """Let the function's termination callback run (after the event in hand), then kill; bounded by `timeout`."""
        if self._process is not None and not self._ending:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                self._process.send_signal(signal.SIGUSR1)
                await asyncio.wait_for(asyncio.shield(self._terminated), timeout)
        await self.kill()

    def kill_group(self) -> None:
        """Send SIGKILL to the wrapper and to what it started in its group."""
        self._ending = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """Kill the process with its group and give back what it held."""
        if self._process is None:
            return
        self.kill_group()
        await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
        self._close()

    def _environment(self) -> dict[str, str]:
        config = self._config
        paths = [config.python_path, os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "NUCLIO_HANDLER": config.handler,
            "NUCLIO_FUNCTION_NAME": config.name,
            "NUCLIO_FUNCTION_DESCRIPTION": "",
            "NUCLIO_FUNCTION_VERSION": "0",
            "NUCLIO_FUNCTION_HANDLER": config.handler,
        }

    async def _read_frames(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, length = _FRAME.unpack(await reader.readexactly(_FRAME.size))
                self._on_frame(kind, await reader.readexactly(length))

    def _on_frame(self, kind: bytes, payload: bytes) -> None:
        if kind == b"l":
            self._on_log(json.loads(payload))
        elif kind == b"r" and self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(payload, self._logs))
        elif kind == b"s" and not self._started.done():
            self._started.set_result(None)
        elif kind == b"t" and not self._terminated.done():
            self._terminated.set_result(None)
        elif kind == b"x" and not self._started.done():
            failure = json.loads(payload)
            self._log.write("error", failure["traceback"], worker=self.id)
            self._started.set_exception(WrapperNotStarted(f"{self._config.handler}: {failure['error']}"))

    def _on_log(self, record: dict[str, Any]) -> None:
        level = "warn" if record["level"] == "warning" else record["level"]
        self._logs.append({**record, "level": level, "time": time.time() * 1000})
        more = {key: value for key, value in record["with"].items() if key != "worker_id"}
        self._log.write(level, record["message"], worker=self.id, more=more)

    async def _read_output(self) -> None:
        """Take the function's standard output and error, line by line, into its log."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(self._output, "rb", 0)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        rest = b""
        while data := await reader.read(65536):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > 65536:
                lines, rest = [*lines, rest], b""
            for line in lines:
                if line.strip():
                    self._log.write("info", line.decode("utf-8", "replace"), worker=self.id)
        if rest.strip():
            self._log.write("info", rest.decode("utf-8", "replace"), worker=self.id)

    def _on_exit(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        if not self._ending:
            # What it still sent counts: wait for the end of its socket, or a moment.
            waiting = loop.create_task(asyncio.wait(self._tasks, timeout=_DRAIN_AFTER_EXIT))
            waiting.add_done_callback(lambda _: self._after_exit())
            self._tasks.append(waiting)  # type: ignore[arg-type]

    def _after_exit(self) -> None:
        if self._ending or self._process is None:
            return
        code = self._process.wait()
        reason = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        if not self._started.done():
            self._started.set_exception(
                WrapperNotStarted(f"{self._config.handler}: the process ended while it started ({reason})")
            )
            return
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WrapperDied(reason))
        if not self.died.done():
            self.died.set_result(reason)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        for task in self._tasks:
            task.cancel()
        if hasattr(self, "_writer"):
            self._writer.close()
        os.close(self._lifeline)
        os.close(self._pidfd)
        self._process = None
