"""How members of a group learn at once that one of them died.

ps-lite does not report a lost member: its survivors wait for ever. So every member also holds a connection to the
scheduler's member (`lines.py`). The hub sees its end and notifies the others, which end themselves. The same connection
carries "formed" and "done", so that servers and the scheduler know them too.
"""

import socket
import threading
from collections.abc import Callable

from training.connections import lines
from training.request import StartRequest

Notify = Callable[[dict], None]


class Member:
    """A server's or worker's end of the liveness connection."""

    def __init__(self, request: StartRequest, notify: Notify) -> None:
        self._notify = notify
        self._connection = lines.connect(request, {})
        threading.Thread(target=self._listen, name="liveness", daemon=True).start()

    def tell(self, message: dict) -> None:
        """Send a line to the hub."""
        lines.send(self._connection, message)

    def _listen(self) -> None:
        for message in lines.received(self._connection):
            self._notify(message)
        self._notify({"lost": "the scheduler"})


class Hub(lines.Listener):
    """The scheduler's end: it keeps the list of members and forwards each message to all of them."""

    def __init__(self, request: StartRequest, notify: Notify) -> None:
        super().__init__(request)
        self._notify = notify
        self._formed: set[str] = set()
        self._failed: set[socket.socket] = set()
        roles = {"server": request.servers, "worker": request.workers}
        self._expected = {f"{role} {rank}" for role, count in roles.items() for rank in range(count)}
        threading.Thread(target=self._run, name="liveness", daemon=True).start()

    def tell(self, message: dict) -> None:
        """What the scheduler's own member has to say to the others."""
        if "failed" in message:
            message = {"lost": "the scheduler", "because": message["failed"]}
        self._broadcast(message)

    def _run(self) -> None:
        while True:
            self._take(*self._inbox.get())

    def _welcome(self, connection: socket.socket, message: dict) -> str | None:
        name = f"{message.get('role')} {message.get('rank')}"
        if name in self._members.values():
            self._lose(name, f"{name} joined group {self._request.group} a second time", None)
        elif name in self._expected:
            self._notify({"joined": len(self._members) + 1, "of": len(self._expected)})
            return name
        return None

    def _heard(self, connection: socket.socket, message: dict) -> None:
        name = self._members[connection]
        if "formed" in message:
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

    def _gone(self, connection: socket.socket, name: str) -> None:
        if connection not in self._failed:
            self._lose(name, "its process ended", None)

    def _lose(self, name: str, because: str, source: socket.socket | None) -> None:
        message = {"lost": name, "because": because}
        self._broadcast(message, leaving_out=source)
        self._notify(message)
