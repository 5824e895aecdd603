"""Reach into pods through the API server, with the rights of its user: ports, and calls of functions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp

from coach.core.errors import CoachError, TemporaryError
from coach.platforms.function_calls import KEY_HEADER, Unanswered
from coach.platforms.kubernetes_api.client import CORE, Api

#: Of a forwarded port the first byte of each message says which of its two streams it is of.
DATA, ERROR = 0, 1
#: Bytes that are sent at once.
CHUNK = 1 << 16


def connection(api: Api, pod: str, port: int) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
    """A connection to a pod's port. Raises PermanentError where the user may not do so, else TemporaryError."""
    return api.pod_stream(pod, port)


@contextlib.asynccontextmanager
async def forwarded(
    api: Api, find: Callable[[], Awaitable[str]], port: int, local: int, failed: Callable[[CoachError], None]
) -> AsyncIterator[int]:
    """Pass what connects to `local` (0: a free port) on loopback on to `port` of a pod; the number of the local port.

    `find` names the pod for each connection: another may have taken its place. `failed` gets why one was refused.
    Raises OSError where the local port is taken.
    """
    tasks = set[asyncio.Task[None]]()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            async with connection(api, await find(), port) as socket:
                await _pump(reader, writer, socket)
        except CoachError as error:
            failed(error)
        except asyncio.CancelledError:
            pass  # the end of `forwarded`, which awaits this task
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", local)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in (left := list(tasks)):
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: aiohttp.ClientWebSocketResponse
) -> None:
    """Pass bytes on in both directions until one side ends."""

    async def up() -> None:
        while data := await reader.read(CHUNK):
            await socket.send_bytes(bytes([DATA]) + data)

    async def down() -> None:
        named = set[int]()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            stream, data = message.data[0], message.data[1:]
            if stream not in named:
                named.add(stream)  # the first message of each stream has the port's number alone
            elif stream == ERROR:
                raise TemporaryError(data.decode(errors="replace").strip())
            else:
                writer.write(data)
                await writer.drain()

    sides = [asyncio.create_task(up()), asyncio.create_task(down())]
    try:
        done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        for side in done:
            with contextlib.suppress(ConnectionError):
                side.result()
    finally:
        for side in sides:
            side.cancel()
        await asyncio.gather(*sides, return_exceptions=True)


class PodProxy:
    """Sends what is meant for a pod's address to the API server, which passes it on (the `pods/proxy` resource).

    It needs no tunnel. `pod_at` gives the name of the pod that has an IP address, or None.
    """

    def __init__(self, api: Api, pod_at: Callable[[str], str | None]) -> None:
        self._api = api
        self._pod_at = pod_at
        self.followed = 0

    async def post(self, address: str, body: Mapping[str, Any], seconds: float, key: str = "") -> tuple[int, bytes]:
        """See coach.platforms.function_calls."""
        host, _, port = address.rpartition(":")
        name = self._pod_at(host)
        if name is None:
            raise Unanswered(f"no pod has the address {host} any more")
        path = f"{CORE}/namespaces/{self._api.namespace}/pods/{name}:{port}/proxy/"
        try:
            async with asyncio.timeout(seconds):
                return await self._api.forward(path, body, {KEY_HEADER: key} if key else {})
        except TimeoutError as error:
            raise Unanswered(f"no answer in {seconds:g} s", late=True) from error
        except TemporaryError as error:
            raise Unanswered(str(error)) from error

    async def close(self) -> None:
        """It has no connections of its own."""
