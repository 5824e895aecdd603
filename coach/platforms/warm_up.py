"""What an HTTP client imports and sets up with its first request, done before anything waits for one."""

from __future__ import annotations

import contextlib
import socket

import httpx


async def prepare(http: httpx.AsyncClient) -> None:
    """Have `http` make a request that is refused: AnyIO's backend alone is 26 modules and 70 ms of computing."""
    with socket.socket() as bound, contextlib.suppress(httpx.TransportError):
        bound.bind(("127.0.0.1", 0))  # and it does not listen: the connection is refused
        await http.post(f"http://127.0.0.1:{bound.getsockname()[1]}/", json={}, timeout=1.0)
