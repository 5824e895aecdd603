"""One wrapper process: start it, hand it one event at a time, end it."""

import asyncio
import contextlib
import json
import os
import signal
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coach.platforms.local.host.config import HostConfig
from coach.platforms.local.host.idle_wrapper import BareWrapper
from coach.platforms.local.host.logs import FunctionLog

_HEAD = struct.Struct(">II")
_FRAME = struct.Struct(">cI")
_DRAIN_AFTER_EXIT = 0.2
"""Seconds to read on after a wrapper's end: children of its own may hold its socket open for ever."""


class WrapperDied(Exception):
    """The wrapper process ended by itself; the message says how."""


class WrapperNotStarted(Exception):
    """The function could not be loaded, or its init_context failed; the message is one line."""


@dataclass
class Answer:
    """What a handler returned, as the SDK encoded it, and the log entries of the call."""

    payload: bytes
    logs: list[dict[str, Any]] = field(default_factory=list)


class WrapperProcess:
    """A wrapper in a process group of its own, from `__init__` (which starts it and returns at once) to `kill`.

    Holds at most one event; the caller sees to that. `ended` gets the reason when it ends without being asked to.
    A `bare` wrapper that runs already becomes this one; without it a new one is started, with the same first message.
    """

    def __init__(
        self, config: HostConfig, worker: str, log: FunctionLog, bare: BareWrapper | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = loop.create_future()
        self._config, self._worker, self._log = config, worker, log
        self._started: asyncio.Future[None] = loop.create_future()
        self._terminated: asyncio.Future[None] = loop.create_future()
        self._answer: asyncio.Future[Answer] | None = None
        self._logs: list[dict[str, Any]] = []
        self._writer: asyncio.StreamWriter | None = None
        self._ending = self._reaped = False
        bare = bare or BareWrapper(config.python)
        self._process, self._socket, self._lifeline = bare.process, bare.socket, bare.lifeline
        self._send_function()
        self._tasks = [
            loop.create_task(self._read_frames()),
            loop.create_task(self._read_output(bare.output)),
        ]
        self._pidfd = os.pidfd_open(self.pid)
        loop.add_reader(self._pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        """Its process id, also that of its process group."""
        return self._process.pid

    async def ready(self) -> None:
        """Wait until init_context is done. Raises WrapperNotStarted."""
        await asyncio.shield(self._started)

    async def call(self, head: dict[str, Any], body: bytes) -> Answer:
        """Hand over one event. Raises WrapperDied, or TimeoutError after the function's event timeout."""
        self._answer = asyncio.get_running_loop().create_future()
        self._logs = []
        text = json.dumps(head).encode()
        try:
            if self.ended.done() or self._writer is None:
                raise WrapperDied("the process has ended")
            self._writer.writelines([_HEAD.pack(len(text), len(body)), text, body])
            return await asyncio.wait_for(self._answer, self._config.event_timeout)
        finally:
            self._answer = None

    async def terminate(self, timeout: float) -> None:
        """Let the function's termination callback run (after the event in hand), then kill; bounded by `timeout`."""
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            self._process.send_signal(signal.SIGUSR1)
            waiting: list[asyncio.Future[Any]] = [
                asyncio.shield(self._terminated),
                asyncio.shield(self.ended),
            ]
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        await self.kill()

    def kill_group(self) -> None:
        """Send SIGKILL to the wrapper and to what it started in its group."""
        self._ending = True
        if not self._terminated.done():
            self._terminated.set_result(None)  # `terminate` waits for the callback no longer
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """Kill the process with its group and give back what it held."""
        if self._reaped:
            return
        self._reaped = True
        self.kill_group()
        while self._process.poll() is None:
            await asyncio.sleep(0.001)  # a killed process is gone within a moment
        loop = asyncio.get_running_loop()
        await asyncio.wait(self._tasks, timeout=_DRAIN_AFTER_EXIT)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        os.close(self._lifeline)

    def _send_function(self) -> None:
        """The first message: which function the process is to load, and where."""
        config = self._config
        role = {
            "handler": config.handler,
            "namespace": config.namespace,
            "worker_id": self._worker,
            "trigger_kind": "http",
            "trigger_name": config.trigger_name,
            "env": _environment(config),
            "cwd": str(Path.cwd()),
        }
        text = json.dumps(role).encode()
        with contextlib.suppress(OSError):  # it ended already: `_on_exit` says so
            os.sched_setaffinity(self.pid, os.sched_getaffinity(0))
            self._socket.sendall(_HEAD.pack(len(text), 0) + text)

    async def _read_frames(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        try:
            while True:
                kind, length = _FRAME.unpack(await reader.readexactly(_FRAME.size))
                self._on_frame(kind, await reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writer.close()

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
            self._log.write("error", failure["traceback"], worker=self._worker)
            self._started.set_exception(WrapperNotStarted(f"{self._config.handler}: {failure['error']}"))

    def _on_log(self, record: dict[str, Any]) -> None:
        level = "warn" if record["level"] == "warning" else record["level"]
        self._logs.append({**record, "level": level, "time": time.time() * 1000})
        more = {key: value for key, value in record["with"].items() if key != "worker_id"}
        self._log.write(level, record["message"], worker=self._worker, more=more)

    async def _read_output(self, fd: int) -> None:
        """Take the function's standard output and error, line by line, into its log."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(fd, "rb", 0)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        rest = b""
        try:
            while data := await reader.read(65536):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > 65536:
                    lines, rest = [*lines, rest], b""
                self._log_output(lines)
        finally:
            self._log_output([rest])
            transport.close()

    def _log_output(self, lines: list[bytes]) -> None:
        for line in lines:
            if line.strip():
                self._log.write("info", line.decode("utf-8", "replace"), worker=self._worker)

    def _on_exit(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        if not self._ending:
            # What it still sent counts: read to the end of its socket, or for a moment.
            reading = loop.create_task(asyncio.wait(self._tasks, timeout=_DRAIN_AFTER_EXIT))
            reading.add_done_callback(lambda _: self._after_exit())

    def _after_exit(self) -> None:
        code = self._process.wait()
        reason = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        if self._ending:
            return
        if not self._started.done():
            text = f"{self._config.handler}: the process ended while it started ({reason})"
            self._started.set_exception(WrapperNotStarted(text))
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WrapperDied(reason))
        self.ended.set_result(reason)


def _environment(config: HostConfig) -> dict[str, str]:
    """The wrapper's environment: the host's own, and what Nuclio's processor adds."""
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
