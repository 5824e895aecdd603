"""A local port leads to a pod's through an API server: what is sent comes back, and what fails is said."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from coach.core.errors import CoachError, PermanentError, TemporaryError
from coach.platforms.kubernetes_api.client import Api
from coach.platforms.kubernetes_api.credentials import Credential, Credentials
from coach.platforms.kubernetes_api.pod_access import connection, forwarded

PORT = 8421


async def portforward(request: web.Request) -> web.StreamResponse:
    """As a kubelet answers: pod `echo` sends back what it gets, `deaf` listens on no port, `secret` is forbidden."""
    pod = request.match_info["pod"]
    if pod == "secret":
        return web.Response(status=403)
    socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
    await socket.prepare(request)
    for stream in (0, 1):
        await socket.send_bytes(bytes([stream]) + struct.pack("<H", int(request.query["ports"])))
    if pod == "deaf":
        await socket.send_bytes(b"\x01connection refused")
    async for message in socket:
        await socket.send_bytes(message.data)
    return socket


async def credential() -> Credential:
    return Credential()


def reach(port: int) -> Api:
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{port}"
    return Api(configuration, "ml", Credentials(Credential(), credential, "no user"))


@asynccontextmanager
async def api_server() -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/ml/pods/{pod}/portforward", portforward)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with reach(runner.addresses[0][1]) as api:
            yield api
    finally:
        await runner.cleanup()


def test_what_is_sent_comes_back_and_nothing_is_left() -> None:
    pods, content = ["echo", "deaf", "echo"], bytes(range(256)) * 1000
    said: list[CoachError] = []

    async def find() -> str:
        return pods.pop(0)

    async def main() -> None:
        before = asyncio.all_tasks()
        async with api_server() as api:
            async with forwarded(api, find, PORT, 0, said.append) as port:
                first, to_first = await asyncio.open_connection("127.0.0.1", port)
                to_first.write(content)
                assert await first.readexactly(len(content)) == content
                deaf, to_deaf = await asyncio.open_connection("127.0.0.1", port)
                assert await deaf.read() == b""
                third, to_third = await asyncio.open_connection("127.0.0.1", port)
                to_third.write(b"?")
                assert await third.readexactly(1) == b"?"
            assert await first.read() == await third.read() == b""
            for writer in (to_first, to_deaf, to_third):
                writer.close()
                await writer.wait_closed()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(main(), 60))
    assert [str(error) for error in said] == ["connection refused"]


def test_what_a_user_may_not_do_is_said_and_a_missing_pod_or_server_too() -> None:
    async def main() -> None:
        async with api_server() as api:
            for pod, kind, words in (
                ("secret", PermanentError, "pods/portforward: HTTP 403"),
                ("x/y", TemporaryError, "cannot be reached now: HTTP 404"),
            ):
                with pytest.raises(kind, match=words):
                    async with connection(api, pod, PORT) as socket:
                        assert isinstance(socket, aiohttp.ClientWebSocketResponse)
        async with reach(1) as api:
            with pytest.raises(TemporaryError, match="does not respond"):
                async with connection(api, "echo", PORT):
                    pass

    asyncio.run(asyncio.wait_for(main(), 60))
