"""The address at which the service listens, and who can reach it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from coach.core.errors import UserError
from coach.service.connections import Bounded, most_connections
from coach.service.operations import Service

#: Connections that wait to be accepted.
BACKLOG = 128


class _Http(uvicorn.Server):
    """Uvicorn without signal handlers: `coach serve` has its own."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Install no handlers."""
        yield


@contextlib.asynccontextmanager
async def answering(service: Service, app: ASGIApp, listening: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Answer requests for the length of a block, after which the service is stopping; the task that does it."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        http=Bounded,
        backlog=min(BACKLOG, most_connections() // 4),  # so many are accepted at once
        timeout_graceful_shutdown=2,
    )
    http = _Http(config)
    task = asyncio.create_task(http.serve(sockets=[listening]))
    try:
        yield task
    finally:
        service.stopping = True
        service.wake()
        http.should_exit = True
        await asyncio.gather(task, return_exceptions=True)


def refuse_strangers(host: str, token: Path | None) -> None:
    """Raises UserError where other machines could reach the service without a token chosen for them."""
    if not _is_loopback(host) and token is None:
        raise UserError(
            f"--host {host}: others than this machine's users could reach that address; give them a token "
            "of their own with --token FILE, or leave --host out"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises UserError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server(found[0][4], family=found[0][0], backlog=BACKLOG)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise UserError(f"cannot listen at {host}:{port}: {why}; give another --port (0 takes a free one)") from error


def allow_many_files() -> None:
    """Raise the limit of open files: each connection is one, and there may be many callers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
