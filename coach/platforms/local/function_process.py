"""The process of a function on this machine: forked from the template, and gone with a pipe that this process holds."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coach.core.errors import PermanentError, TemporaryError

#: Process, user and group of the other end of a unix socket.
_CREDENTIALS = struct.Struct("3i")


class FunctionProcess:
    """A function from the order to fork it (functions/training/serving/template.py) to its end."""

    def __init__(self, name: str, template: Path, order: Mapping[str, Any]) -> None:
        """Send the order. Raises OSError where no template listens."""
        self.name = name
        self.pid = 0  #: once it was forked
        loop = asyncio.get_running_loop()
        self._forked: asyncio.Future[None] = loop.create_future()
        self._ready: asyncio.Future[str] = loop.create_future()  # what is wrong, if anything
        self._ended: asyncio.Future[None] = loop.create_future()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reader, self._lifeline = os.pipe()
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
