"""A worker's side of an elastic group: its connection to the scheduler, and views formed in the background."""

import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from training.connections import lines
from training.membership.member import Command, Member
from training.membership.messages import Close, End, Form, Tell, View, decode, encode
from training.request import StartRequest

#: How long a worker waits in an exchange before it says so: then the scheduler asks the others for a sign of life.
WAITING_SECONDS = 1.0
#: How long a worker that has left waits for the others to have finished the exchange with it.
RELEASE_SECONDS = 8.0


class Closed(Exception):
    """The view is formed no more."""


class Left(Exception):
    """This worker is not in the group any more, as was asked for."""


class Replaced(Exception):
    """The group went on without this worker, which now has its state: what it was doing is void."""


class Transport(Protocol):
    """How a framework connects the members of a view."""

    def connect(self, view: View, rank: int, values: "Values") -> Any:
        """A group of all members of the view, or any exception. In a thread of its own."""

    def close(self, group: Any) -> None:
        """Have all that wait in it, here and at the others, fail at once. None: what is not formed yet."""


class Values:
    """Texts by name that the members of one view share. What waits for one is raised out of it by close()."""

    def __init__(self, line: "Line", view: View) -> None:
        self._line = line
        self._view = view
        self.closed = False

    def set(self, key: str, value: str) -> None:
        """Share a value."""
        self._line.send({"put": f"{self._view.prefix}/{key}", "value": value})

    def get(self, key: str, seconds: float | None = None) -> str:
        """A value that a member shares; waits for it, at most so long. Raises TimeoutError."""
        name, changed, values = f"{self._view.prefix}/{key}", self._line.changed, self._line.values
        with changed:
            found = changed.wait_for(lambda: self.closed or name in values, seconds)
            if self.closed:
                raise Closed(self._view.prefix)
            if not found:
                raise TimeoutError(f"no other worker has said {key} for {seconds:g} s")
            return values[name]


class Line:
    """Everything about membership is under one lock, `changed`, which is notified of each change."""

    def __init__(self, request: StartRequest, transport: Transport, fail: Any) -> None:
        self._request = request
        self._transport = transport
        self._fail = fail
        self.changed = threading.Condition(threading.RLock())
        self.member = Member(f"{request.rank}.{secrets.token_hex(4)}")
        self.values: dict[str, str] = {}
        #: What was formed, by the number of the view.
        self.groups: dict[int, Any] = {}
        #: Views that are left: they are let go of when that costs nothing.
        self.retired: list[Any] = []
        self.done: list[str] = []
        #: The epoch that is to end after the step under way.
        self.cut: str | None = None
        self.ended: End | None = None
        self._forming: dict[int, Values] = {}
        self._ready = False
        self._leaving = False
        self._waits_since: float | None = None
        #: The number of the last view that this worker trained in, and when it ended.
        self.entered: int | None = None
        self._broken_at: float | None = None
        self._connection = self._connect()
        threading.Thread(target=self._listen, name="membership", daemon=True).start()
        threading.Thread(target=self._watch, name="waiting", daemon=True).start()

    # -- the connection ---------------------------------------------------------------------------------------------

    def _connect(self) -> Any:
        return lines.connect(self._request, {"member": self.member.name})

    def send(self, message: dict) -> None:
        """One line to the scheduler; one that is gone shows on the listening side."""
        with self.changed:
            lines.send(self._connection, message)

    tell = send

    def _listen(self) -> None:
        try:
            while True:
                self._hear_until_lost()
                if self._leaving:
                    return
                # The workers go on without a scheduler. They need the next one for the next change.
                connection = self._connect()
                with self.changed:
                    self._connection = connection
                    if self._ready:
                        self.do(self.member.hello())
        except BaseException as error:
            if not self._leaving:
                self._fail(error)

    def _hear_until_lost(self) -> None:
        for message in lines.received(self._connection):
            with self.changed:
                if "put" in message:
                    self.values[message["put"]] = message["value"]
                elif "done" in message:
                    self.done.append(message["done"])
                elif "cut" in message:
                    self.cut = message["cut"]
                elif "membership" in message:
                    self.do(self.member.hear(decode(message)))
                self.changed.notify_all()
        with self.changed:
            for values in self._forming.values():
                values.closed = True  # the values that they wait for went with it
            self.changed.notify_all()

    def _watch(self) -> None:
        while not self._leaving:
            time.sleep(WAITING_SECONDS / 4)
            since = self._waits_since
            if since is not None and time.monotonic() - since > WAITING_SECONDS:
                with self.changed:
                    self._waits_since = time.monotonic()
                    self.do(self.member.waits())

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """In here the main thread waits for the others."""
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waits_since = None

    # -- commands ---------------------------------------------------------------------------------------------------

    def ready(self) -> None:
        """This worker can train from now on."""
        with self.changed:
            self._ready = True
            self.do(self.member.hello())

    def do(self, commands: list[Command], **more: Any) -> None:
        """What the member wants done. Under the lock."""
        for command in commands:
            match command:
                case Tell(message):
                    self.send({**encode(message), **more})
                case Form(view):
                    self._forming[view.number] = values = Values(self, view)
                    threading.Thread(target=self._form, args=(view, values), daemon=True).start()
                case Close(view):
                    if view.number == self.entered:
                        self._broken_at = time.monotonic()
                    if view.number in self._forming:
                        self._forming[view.number].closed = True
                    if view.number in self._forming or view.number in self.groups:
                        group = self.groups.pop(view.number, None)
                        self._transport.close(group)
                        self.retired.append(group)
                case End():
                    self.ended = self.ended or command  # the first says why
        self.changed.notify_all()

    def _form(self, view: View, values: Values) -> None:
        group = None
        try:
            if len(view.members) > 1 or view.servers:
                group = self._transport.connect(view, view.members.index(self.member.name), values)
            failed = values.closed
        except Exception as error:  # whatever keeps it from being formed: the group goes on under another view
            failed = True
            if not values.closed:
                sys.stderr.write(f"view {view.number} was not formed: {error}\n")
        with self.changed:
            self._forming.pop(view.number, None)
            if failed:
                self.retired.append(group)
                self.do(self.member.not_formed(view.number))
                return
            self.groups[view.number] = group
            self.do(self.member.formed(view.number))
            for number in [each for each in self.groups if each < view.number and not self._used(each)]:
                self.retired.append(self.groups.pop(number))

    def _used(self, number: int) -> bool:
        views = (self.member.view, self.member.next, self.member.offered)
        return any(view is not None and view.number == number for view in views)

    def went_over(self, old: View) -> None:
        """All agreed to leave that view after this exchange. It is let go of later: that takes tens of milliseconds."""
        self.retired.append(self.groups.pop(old.number, None))

    def begin_pause(self) -> None:
        """From here on this worker only waits for the next view. A view that broke made it wait already."""
        self._broken_at = self._broken_at or time.monotonic()

    def take_pause(self) -> float | None:
        """Seconds since the last view broke or was left, once."""
        since, self._broken_at = self._broken_at, None
        return None if since is None else time.monotonic() - since

    # -- leaving ----------------------------------------------------------------------------------------------------

    def rests(self, idle: bool) -> None:
        """See Member.rests."""
        with self.changed:
            self.do(self.member.rests(idle))
            retired, self.retired = self.retired, ([] if idle else self.retired)
        if idle:
            retired.clear()

    def leave(self) -> None:
        """This worker goes; the others go on."""
        self._leaving = True

    def wait_for_release(self) -> None:
        """Wait until the others have finished what they did with this worker."""
        with self.changed:
            self._leaving = True
            self.changed.wait_for(lambda: self.ended is not None, RELEASE_SECONDS)
