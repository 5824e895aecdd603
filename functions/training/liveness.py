"""How members of a group learn at once that one of them died.

ps-lite does not report a lost member: its survivors wait for ever. So every member also holds one TCP connection to
the scheduler's member, on the port after the group's root port. When a process dies, for any reason, the kernel closes
its sockets; the hub sees it and notifies the others, which end themselves. The same connection carries "formed" and
"done", so that servers and the scheduler know them too. Lines are JSON, a few per epoch.
"""

import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable

from training.errors import TrainingError
from training.request import StartRequest

#: A machine that vanishes closes nothing: after so many seconds without an answer its connection counts as lost.
SILENCE_SECONDS = 8

Notify = Callable[[dict], None]


def address(request: StartRequest) -> tuple[str, int]:
    """Where the hub of a group listens."""
    host, port = request.root_address
    return host, port + 1


def watch_for_silence(connection: socket.socket) -> None:
    """Have the kernel end the connection when the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def take_lines(buffer: bytearray) -> list[dict]:
    """Take the whole lines out of `buffer`. Raises ValueError for what is not JSON objects."""
    *lines, rest = bytes(buffer).split(b"\n")
    buffer[:] = rest
    messages = [json.loads(line) for line in lines]
    if not all(isinstance(message, dict) for message in messages):
        raise ValueError("not an object")
    return messages


class Member:
    """A server's or worker's end of the liveness connection."""

    def __init__(self, request: StartRequest, notify: Notify) -> None:
        self._request = request
        self._notify = notify
        self._leaving = False
        self._connection = self._connect(time.monotonic() + request.deadline)
        self.tell({"hello": request.group, "role": request.role, "rank": request.rank})
        threading.Thread(target=self._listen, name="liveness", daemon=True).start()

    def _connect(self, until: float) -> socket.socket:
        pause = 0.01
        while True:
            try:
                source = (self._request.host, 0)
                connection = socket.create_connection(
                    address(self._request), timeout=2, source_address=source
                )
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    raise TrainingError("PeerLost", f"no scheduler at {self._request.root}") from None
                time.sleep(pause)  # the scheduler may start after us
                pause = min(pause * 1.5, 0.1)
                continue
            except OSError as error:
                message = f"from {self._request.host} to the scheduler at {self._request.root}: {error}"
                raise TrainingError("PeerLost", message) from error
            connection.settimeout(None)
            watch_for_silence(connection)
            return connection

    def tell(self, message: dict) -> None:
        """Send a line to the hub; a hub that is gone shows on the listening side."""
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def leave(self) -> None:
        """Say that this member's end is meant."""
        self._leaving = True
        self.tell({"leaving": True})

    def _listen(self) -> None:
        buffer = bytearray()
        while True:
            try:
                received = self._connection.recv(65536)
            except OSError:
                received = b""
            if not received:
                self._connection.close()
                if not self._leaving:
                    self._notify({"lost": "the scheduler"})
                return
            buffer += received
            for message in take_lines(buffer):
                self._leaving = self._leaving or "leaving" in message
                self._notify(message)


class Hub:
    """The scheduler's end: it keeps the list of members and forwards each message to all of them."""

    def __init__(self, request: StartRequest, notify: Notify) -> None:
        self._request = request
        self._notify = notify
        self._members: dict[socket.socket, str] = {}
        self._buffers: dict[socket.socket, bytearray] = {}
        self._formed: set[str] = set()
        self._failed: set[socket.socket] = set()
        self._leaving = False
        try:
            self._listener = socket.create_server(address(request), backlog=256)
        except OSError as error:
            host, port = address(request)
            raise TrainingError("Internal", f"cannot listen on {host}:{port}: {error}") from error
        threading.Thread(target=self._run, name="liveness", daemon=True).start()

    def leave(self) -> None:
        """The group is over; members may go."""
        self._leaving = True

    def tell(self, message: dict) -> None:
        """What the scheduler's own member has to say to the others."""
        if "failed" in message:
            message = {"lost": "the scheduler", "because": message["failed"]}
        self._broadcast(message)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._listener:
                        connection, _ = self._listener.accept()
                        watch_for_silence(connection)
                        self._buffers[connection] = bytearray()
                        selector.register(connection, selectors.EVENT_READ)
                    elif not self._read(key.fileobj):
                        selector.unregister(key.fileobj)
                        self._forget(key.fileobj)

    def _read(self, connection: socket.socket) -> bool:
        """Handle what came; False when the connection is over."""
        try:
            received = connection.recv(65536)
            self._buffers[connection] += received
            messages = take_lines(self._buffers[connection]) if received else []
        except (OSError, ValueError):
            return False
        for message in messages:
            if connection in self._members:
                self._heard(connection, message)
            elif not self._welcome(connection, message):
                return False
        return bool(received)

    def _welcome(self, connection: socket.socket, message: dict) -> bool:
        name = f"{message.get('role')} {message.get('rank')}"
        expected = {f"server {rank}" for rank in range(self._request.servers)}
        expected |= {f"worker {rank}" for rank in range(self._request.workers)}
        if message.get("hello") != self._request.group or name not in expected:
            return False  # a stranger, or a member of a group that was here before
        if name in self._members.values():
            refusal = {"lost": name, "because": f"{name} joined group {self._request.group} a second time"}
            self._broadcast(refusal)
            self._notify(refusal)
            return False
        self._members[connection] = name
        self._notify({"joined": len(self._members), "of": len(expected)})
        return True

    def _heard(self, connection: socket.socket, message: dict) -> None:
        name = self._members[connection]
        if "leaving" in message:
            # Once one member leaves in good order all will; from now on an end is not a loss.
            self._leaving = True
            self._broadcast({"leaving": True})
        elif "formed" in message:
            self._formed.add(name)
            if len(self._formed) == self._request.workers:
                self._broadcast({"formed": True})
                self._notify({"formed": True})
        elif "failed" in message:
            self._failed.add(connection)
            self._lose(name, message["failed"], connection)
        elif "done" in message:
            self._broadcast(message)
            self._notify(message)

    def _forget(self, connection: socket.socket) -> None:
        connection.close()
        self._buffers.pop(connection, None)
        name = self._members.pop(connection, None)
        if name is not None and not self._leaving and connection not in self._failed:
            self._lose(name, "its process ended", None)

    def _lose(self, name: str, because: str, source: socket.socket | None) -> None:
        message = {"lost": name, "because": because}
        self._broadcast(message, leaving_out=source)
        self._notify(message)

    def _broadcast(self, message: dict, leaving_out: socket.socket | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        for connection in list(self._members):
            if connection is not leaving_out:
                with contextlib.suppress(OSError):
                    connection.sendall(line)
