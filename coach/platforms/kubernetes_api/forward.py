"""Reach a port of a pod from this machine, as `kubectl port-forward` does: through the API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlencode

import aiohttp

from coach.core.errors import CoachError, PermanentError, TemporaryError
from coach.platforms.kubernetes_api.client import CORE, Api

#: The first byte of each message says which of the port's two streams it is of.
DATA, ERROR = 0, 1
#: Bytes that are sent at once.
CHUNK = 1 << 16


@contextlib.asynccontextmanager
async def connection(api: Api, pod: str, port: int) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A connection to a pod's port. Raises PermanentError where the user may not do so, else TemporaryError."""
    path = f"{CORE}/namespaces/{api.namespace}/pods/{pod}/portforward?{urlencode({'ports': port})}"
    try:
        async with api.websocket(path) as socket:
            yield socket
    except aiohttp.WSServerHandshakeError as error:
        if error.status in (401, 403):
            raise PermanentError(
                f"you may not reach ports of pod {api.namespace}/{pod} (pods/portforward: HTTP {error.status}); "
                "ask for that right"
            ) from error
        raise TemporaryError(f"pod {api.namespace}/{pod} cannot be reached now: HTTP {error.status}") from error
    except aiohttp.ClientError as error:
        raise TemporaryError(f"the API server at {api.server} does not respond: {error}") from error


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
