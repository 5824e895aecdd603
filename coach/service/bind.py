"""The address at which the service listens, and who can reach it."""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import socket
from pathlib import Path

import uvicorn

from coach.core.errors import UserError

#: Connections that wait to be accepted.
BACKLOG = 2048


class Http(uvicorn.Server):
    """Uvicorn without signal handlers: `coach serve` has its own."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Install no handlers."""
        yield


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
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise UserError(
            f"cannot listen at {host}:{port}: {error.strerror or error}; give another --port (0 takes a free one)"
        ) from error
    return listening


def allow_many_files() -> None:
    """Raise the limit of open files: each connection is one, and there may be many callers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65536) if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
