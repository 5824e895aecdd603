"""JSON objects as lines over TCP: a group's members are connected to its scheduler, on the port after its root port.

When a process dies, for any reason, the kernel closes its sockets, so the other end sees it at once. There are a few
lines per epoch.
"""

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Iterator

from training.errors import TrainingError
from training.request import StartRequest

#: A machine that vanishes closes nothing: after so many seconds without an answer its connection counts as lost.
SILENCE_SECONDS = 8


def connect(request: StartRequest, hello: dict) -> socket.socket:
    """To the group's scheduler, which may start later. Raises TrainingError PeerLost at the deadline."""
    until, pause = time.monotonic() + request.deadline, 0.01
    while True:
        try:
            connection = socket.create_connection(_address(request), timeout=2, source_address=(request.host, 0))
            connection.settimeout(None)
            _watch_for_silence(connection)
            whole = {"hello": request.group, "role": request.role, "rank": request.rank, **hello}
            connection.sendall(_line(whole))
            return connection
        except OSError as error:
            if time.monotonic() > until:
                message = f"from {request.host}: no scheduler at {request.root}: {error}"
                raise TrainingError("PeerLost", message) from error
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)


def send(connection: socket.socket, message: dict) -> None:
    """Send a line; an end that is gone shows where its lines are read."""
    with contextlib.suppress(OSError):
        connection.sendall(_line(message))


def received(connection: socket.socket) -> Iterator[dict]:
    """The messages that come, until the other end is gone; then it is closed."""
    buffer = bytearray()
    while True:
        try:
            some = connection.recv(65536)
        except OSError:
            some = b""
        if not some:
            connection.close()
            return
        buffer += some
        yield from _take(buffer)


class Listener:
    """The scheduler's end. A connection is a member's once `_welcome` has said so; strangers are sent away."""

    def __init__(self, request: StartRequest) -> None:
        self._request = request
        self._members: dict[socket.socket, str] = {}
        self._buffers: dict[socket.socket, bytearray] = {}
        host, port = _address(request)
        try:
            self._listener = socket.create_server((host, port), backlog=256)
        except OSError as error:
            raise TrainingError("Internal", f"cannot listen on {host}:{port}: {error}") from error

    def _welcome(self, connection: socket.socket, message: dict) -> str | None:
        """The name of the member whose first message this is; None for a stranger."""
        raise NotImplementedError

    def _heard(self, connection: socket.socket, message: dict) -> None:
        """Take a member's further message."""
        raise NotImplementedError

    def _gone(self, connection: socket.socket, name: str) -> None:
        """A member's connection is over."""
        raise NotImplementedError

    def _ready(self, selector: selectors.BaseSelector, ready: socket.socket) -> None:
        if ready is self._listener:
            connection, _ = self._listener.accept()
            _watch_for_silence(connection)
            self._buffers[connection] = bytearray()
            selector.register(connection, selectors.EVENT_READ)
        elif not self._read(ready):
            selector.unregister(ready)
            ready.close()
            self._buffers.pop(ready)
            name = self._members.pop(ready, None)
            if name is not None:
                self._gone(ready, name)

    def _read(self, connection: socket.socket) -> bool:
        """Handle what came; False when the connection is over."""
        try:
            some = connection.recv(65536)
            self._buffers[connection] += some
            messages = _take(self._buffers[connection]) if some else []
        except (OSError, ValueError):
            return False
        for message in messages:
            if connection in self._members:
                self._heard(connection, message)
                continue
            name = self._welcome(connection, message) if message.get("hello") == self._request.group else None
            if name is None:
                return False  # a stranger, or a member of a group that was here before
            self._members[connection] = name
            self._joined(connection)
        return bool(some)

    def _joined(self, connection: socket.socket) -> None:
        """A connection has become a member's."""

    def _broadcast(self, message: dict, leaving_out: socket.socket | None = None) -> None:
        for connection in list(self._members):
            if connection is not leaving_out:
                send(connection, message)


def _address(request: StartRequest) -> tuple[str, int]:
    host, port = request.root_address
    return host, port + 1


def _watch_for_silence(connection: socket.socket) -> None:
    """Have the kernel end the connection when the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _line(message: dict) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _take(buffer: bytearray) -> list[dict]:
    """Take the whole lines out of `buffer`. Raises ValueError for what is not JSON objects."""
    *lines, rest = bytes(buffer).split(b"\n")
    buffer[:] = rest
    messages = [json.loads(line) for line in lines]
    if not all(isinstance(message, dict) for message in messages):
        raise ValueError("not an object")
    return messages
