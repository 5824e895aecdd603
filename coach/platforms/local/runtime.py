"""One framework's functions on this machine, and the process that all of them are forked from."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coach.core.errors import PermanentError, TemporaryError
from coach.platforms.local.environment import NAMES, Functions
from coach.platforms.local.install_runtime import LIBGOMP
from coach.platforms.local.pytorch_runtime import IMPORT_SECONDS

#: Seconds that a template may take to fork: it does nothing else. One that takes longer was paused from outside.
FORK_SECONDS = 10.0


#: Process, user and group of the other end of a unix socket.
_CREDENTIALS = struct.Struct("3i")


class FunctionProcess:
    """A function from the order to fork it (functions/training/serving/template.py) to its end.

    It is forked from the template, and gone with a pipe that this process holds.
    """

    def __init__(self, name: str, template: Path, order: Mapping[str, Any]) -> None:
        """Send the order. Raises OSError where no template listens."""
        self.name = name
        self.address, self.socket = str(order["address"]), str(order["socket"])  #: where it is asked
        self.pid = 0  #: once it was forked
        loop = asyncio.get_running_loop()
        self._forked: asyncio.Future[None] = loop.create_future()
        self._ready: asyncio.Future[str] = loop.create_future()  # what is wrong, if anything
        self._ended: asyncio.Future[None] = loop.create_future()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            reader, self._lifeline = os.pipe()
        except OSError:
            self._connection.close()
            raise
        try:
            self._connection.setblocking(False)
            self._connection.connect(str(template))
            message = json.dumps({"op": "function", "name": name, **order})
            socket.send_fds(self._connection, [message.encode()], [reader])
        except OSError:
            self._connection.close()
            os.close(self._lifeline)
            raise
        finally:
            os.close(reader)
        loop.add_reader(self._connection, self._hear)

    @property
    def template_pid(self) -> int:
        """The process that was asked to fork it."""
        sent = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(sent)[0])

    async def wait_forked(self, seconds: float) -> None:
        """Raises TimeoutError, or ConnectionError when the template has ended."""
        async with asyncio.timeout(seconds):
            await asyncio.wait((self._forked, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if not self._forked.done():
            raise ConnectionError("the template has ended")

    async def wait_ready(self, seconds: float) -> None:
        """Wait until it answers. Raises PermanentError with what it said, TemporaryError after so many seconds."""
        await asyncio.wait((self._ready, self._ended), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            if self._ended.done():
                raise PermanentError("its process ended while it started")
            raise TemporaryError(f"it was not ready after {seconds:g} s")
        if wrong := self._ready.result():
            raise PermanentError(wrong)

    async def wait(self) -> None:
        """Until it has ended."""
        await asyncio.shield(self._ended)

    def kill(self) -> None:
        """End it now, and with it its zygote and the member of a group."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _hear(self) -> None:
        try:
            packet = self._connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()
            self.kill()
            self._ended.set_result(None)
            return
        said: dict[str, Any] = json.loads(packet)
        if "pid" in said:
            self.pid = said["pid"]
            self._forked.set_result(None)
        else:
            self._ready.set_result(said.get("error", ""))


class Runtime:
    """The template process of `functions`."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        #: Where the last template listens, and next to it its functions: in a folder of its own, 0700, which its keeper
        #: deletes.
        self._socket = Path()
        #: The keepers of the templates so far, and their lifelines; of all but the last, functions may run still.
        self._keepers: list[tuple[asyncio.subprocess.Process, int]] = []
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Start the template, which imports the framework once for all. Raises PermanentError with what it said.

        A keeper runs it (functions/training/keeper.py): all that functions start ends with this process, however that
        ends.
        """
        self._socket = Path(tempfile.mkdtemp(prefix="coach-"), "template.sock")
        python, (ours, theirs) = str(self._functions.python), os.pipe()
        keeper = await asyncio.create_subprocess_exec(
            *(python, "-m", "training.keeper", "--lifeline", str(ours), "--remove", str(self._socket), "--"),
            *(python, "-m", "training.serving.template", str(self._socket)),
            cwd=self._functions.folder,
            env=self._functions.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(ours,),
        )
        os.close(ours)
        self._keepers.append((keeper, theirs))
        started = False
        try:
            async with asyncio.timeout(IMPORT_SECONDS):
                while not (started := self._socket.exists()) and keeper.returncode is None:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pass
        finally:
            if not started:
                await self._close_last()
        if started:
            return
        said = (await keeper.stdout.read()).decode(errors="replace").strip() if keeper.stdout else ""
        last = said.splitlines()[-1] if said else f"nothing said within {IMPORT_SECONDS:.0f} s"
        step = LIBGOMP if "libgomp" in last else f"try {self._functions.remedy}"
        name = NAMES[self._functions.framework]
        raise PermanentError(f"the functions' Python ({python}) cannot import {name}: {last}; {step}")

    async def close(self) -> None:
        """End the template, and all functions."""
        while self._keepers:
            await self._close_last()

    async def _close_last(self) -> None:
        keeper, lifeline = self._keepers.pop()
        os.close(lifeline)
        await keeper.wait()

    @property
    def ended(self) -> bool:
        """Whether no template runs."""
        return not self._keepers or self._keepers[-1][0].returncode is not None or not self._socket.exists()

    async def launch(
        self,
        role: str,
        name: str,
        address: str,
        *,
        log_path: Path,
        cpus: Sequence[int] | None,
        network: str | None,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> FunctionProcess:
        """Have a function forked, with these variables; it may not be ready yet. Raises CoachError."""
        order = {
            "role": role,
            "address": address,
            "log": str(log_path.resolve()),
            "cpus": list(cpus) if cpus else None,
            "network": network,
            "env": dict(env),
        }
        problem: OSError | None = None
        for _ in range(2):
            async with self._lock:
                if self.ended:
                    await self.open()
            try:
                return await self._fork(name, order | {"socket": str(self._socket.with_name(f"{address}.sock"))})
            except OSError as error:  # the template has ended just now, or is ended because it was paused
                problem = error
            until = time.monotonic() + FORK_SECONDS
            while not self.ended and time.monotonic() < until:  # until its keeper has seen it
                await asyncio.sleep(0.02)
        raise TemporaryError(f"there is no process to fork it from ({problem})") from problem

    async def _fork(self, name: str, order: Mapping[str, Any]) -> FunctionProcess:
        """Raises OSError when the template has ended."""
        function = FunctionProcess(name, self._socket, order)
        try:
            await function.wait_forked(FORK_SECONDS)
        except BaseException as error:
            function.kill()
            if isinstance(error, TimeoutError):
                os.kill(function.template_pid, signal.SIGKILL)
            raise
        return function
