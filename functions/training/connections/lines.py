"""JSON objects as lines over TCP: a group's members are connected to its scheduler, on the port after its root port.

Both ends prove first that they have the group's key (training/keys.py): any process of the machine, or in the cluster,
can reach that port, and may listen there before the scheduler does.

When a process dies, for any reason, the kernel closes its sockets, so the other end sees it at once. There are a few
lines per epoch.
"""

import contextlib
import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator

from training import keys
from training.errors import TrainingError
from training.request import StartRequest

#: A machine that vanishes closes nothing: after so many seconds without an answer its connection counts as lost.
SILENCE_SECONDS = 8
#: What a line that is none raises.
_NO_LINE = (OSError, ValueError, RecursionError)
#: Seconds and bytes in which both ends have to prove who they are.
GREETING_SECONDS, LONGEST_GREETING = 5.0, 4096


def connect(request: StartRequest, hello: dict) -> socket.socket:
    """To the group's scheduler, which may start later. Raises TrainingError PeerLost at the deadline."""
    until, pause = time.monotonic() + request.deadline, 0.01
    while True:
        try:
            connection = socket.create_connection(request.line_address, timeout=2, source_address=(request.host, 0))
            try:
                _greet(connection, request, hello)
            except BaseException:
                connection.close()
                raise
            _watch_for_silence(connection)
            return connection
        except _NO_LINE as error:
            if time.monotonic() > until:
                message = f"from {request.host}: no scheduler at {request.root}: {error}"
                raise TrainingError("PeerLost", message) from error
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)


def _greet(connection: socket.socket, request: StartRequest, hello: dict) -> None:
    """Say who this is, and see that the other end is the scheduler. Raises one of _NO_LINE."""
    until = time.monotonic() + GREETING_SECONDS
    theirs, ours = str(_greeting(connection, until).get("nonce")), secrets.token_hex(16)
    whole = {"hello": request.group, "role": request.role, "rank": request.rank, **hello, "nonce": ours}
    connection.sendall(_line(whole | {"proof": keys.proof(request.key, "member", theirs, ours)}))
    if not keys.fits(_greeting(connection, until).get("proof"), keys.proof(request.key, "scheduler", theirs, ours)):
        raise ConnectionError("who listens there is not this group's scheduler")
    connection.settimeout(None)


def _greeting(connection: socket.socket, until: float) -> dict:
    """One line, byte by byte: what follows is read elsewhere. Raises one of _NO_LINE."""
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, until - time.monotonic()))
        if len(line) > LONGEST_GREETING or not (byte := connection.recv(1)):
            raise ConnectionError("it does not say who it is")
        line += byte
    found = json.loads(line)
    return found if isinstance(found, dict) else {}


def send(connection: socket.socket, message: dict) -> None:
    """Send a line; an end that is gone shows where its lines are read."""
    with contextlib.suppress(OSError):
        connection.sendall(_line(message))


def received(connection: socket.socket) -> Iterator[dict]:
    """The messages that come, until the other end is gone, or says what is no JSON object; then it is closed."""
    with contextlib.suppress(*_NO_LINE), connection, connection.makefile("rb") as file:
        for line in file:
            message = json.loads(line)
            if not isinstance(message, dict):
                return
            yield message


class Listener:
    """The scheduler's end. A connection is a member's once `_welcome` has said so; strangers are sent away.

    Threads put what comes into `_inbox`: one thread of a subclass takes it out, and gives it to `_take`.
    """

    def __init__(self, request: StartRequest) -> None:
        self._request = request
        self._members: dict[socket.socket, str] = {}
        self._inbox: queue.SimpleQueue = queue.SimpleQueue()
        try:
            listener = socket.create_server(request.line_address, backlog=256)
        except OSError as error:
            address = "{}:{}".format(*request.line_address)
            raise TrainingError("Internal", f"cannot listen on {address}: {error}") from error
        threading.Thread(target=self._accept, args=(listener,), name="listener", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # strangers have all descriptors, for some seconds
                time.sleep(0.05)
                continue
            threading.Thread(target=self._receive, args=(connection,), name="member", daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        _watch_for_silence(connection)
        try:
            hello = self._proven(connection)
        except _NO_LINE:
            connection.close()  # a stranger
            return
        self._inbox.put((connection, hello))
        for message in received(connection):
            self._inbox.put((connection, message))
        self._inbox.put((connection, None))

    def _proven(self, connection: socket.socket) -> dict:
        """The first message of one that has the group's key. Raises one of _NO_LINE."""
        until, ours = time.monotonic() + GREETING_SECONDS, secrets.token_hex(16)
        send(connection, {"nonce": ours})
        hello = _greeting(connection, until)
        theirs, key = str(hello.get("nonce")), self._request.key
        if not keys.fits(hello.get("proof"), keys.proof(key, "member", ours, theirs)):
            raise ConnectionError("a stranger")
        send(connection, {"proof": keys.proof(key, "scheduler", ours, theirs)})
        connection.settimeout(None)
        return hello

    def _welcome(self, connection: socket.socket, message: dict) -> str | None:
        """The name of the member whose first message this is; None for a stranger."""
        raise NotImplementedError

    def _heard(self, connection: socket.socket, message: dict) -> None:
        """Take a member's further message."""
        raise NotImplementedError

    def _gone(self, connection: socket.socket, name: str) -> None:
        """A member's connection is over."""
        raise NotImplementedError

    def _take(self, connection: socket.socket, message: dict | None) -> None:
        """What has come from a connection; None: its end."""
        if message is None:
            name = self._members.pop(connection, None)
            if name is not None:
                self._gone(connection, name)
        elif connection in self._members:
            self._heard(connection, message)
        elif message.get("hello") == self._request.group and (name := self._welcome(connection, message)) is not None:
            self._members[connection] = name
        else:  # a stranger, or a member of a group that was here before
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _broadcast(self, message: dict, leaving_out: socket.socket | None = None) -> None:
        for connection in list(self._members):
            if connection is not leaving_out:
                send(connection, message)


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
