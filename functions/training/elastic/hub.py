"""The scheduler's side of an elastic group: connections, timers and values around the coordinator."""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from training import ipc
from training.connections import lines
from training.errors import TrainingError
from training.membership.coordinator import Coordinator
from training.membership.messages import (
    Copied,
    Entered,
    Formed,
    Lose,
    Order,
    Send,
    Timer,
    View,
    decode,
    encode,
    is_server,
    worker_of,
)
from training.reporter import Reporter
from training.request import StartRequest

#: Ended epochs that members who come later hear of, lost members and changes that the status has.
REMEMBERED = 32


class Hub(lines.Listener):
    """One thread serves the members; the main thread listens to the function."""

    def __init__(self, request: StartRequest, reporter: Reporter) -> None:
        super().__init__(request)
        self._reporter = reporter
        self._coordinator = Coordinator(secrets.token_hex(4), request.workers, request.servers)
        self._values: dict[str, str] = {}
        self._done: list[str] = []
        self._lost: list[dict] = []
        self._changes: dict[int, dict] = {}
        #: By the number of a view when it was ordered, and what its first two steps took.
        self._ordered: dict[int, tuple[float, dict]] = {}
        self._reported: tuple[int, bool] | None = None
        #: The last view in which all members trained.
        self._view: View | None = None
        self._copied = 0
        #: The epoch that is to end after the step under way.
        self._cut: str | None = None
        if request.members is not None:
            self._resize(request.members, request.server_members)
        threading.Thread(target=self._run, name="membership", daemon=True).start()

    def serve(self, function: socket.socket) -> None:
        """Hand over what the function says, until it is gone."""
        while True:
            message, _ = ipc.receive(function)
            if message is None:
                return
            self._inbox.put((None, message))

    # -- the thread that serves -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                source, message = self._inbox.get()
                self._order(message) if source is None else self._take(source, message)
        except BaseException as error:
            self._reporter.fail(TrainingError("Internal", f"the scheduler's hub: {type(error).__name__}: {error}"))

    def _order(self, message: dict) -> None:
        if "timer" in message:
            self._ask(self._coordinator.timed_out, message["timer"])
        elif "resize" in message:
            self._resize(message["resize"], message.get("servers"))
        elif "cut" in message:
            self._cut = message["cut"]
            self._broadcast({"cut": self._cut})
        elif "request" in message:
            self._reporter.epoch = message["request"]["epoch"]
            self._report()
            if message["request"].get("members") is not None:
                self._resize(message["request"]["members"], message["request"].get("server_members"))

    def _resize(self, workers: Sequence[int], servers: Sequence[int] | None) -> None:
        self._ask(self._coordinator.resize, set(workers), None if servers is None else set(servers))

    def _ask(self, event: Callable[..., list], *arguments: Any) -> None:
        """Do what the coordinator wants done at an event; the assignment of a view is part of what that takes."""
        began = time.monotonic()
        commands = event(*arguments)
        now = time.monotonic()
        for command in commands:
            if isinstance(command, Send) and isinstance(command.message, Order):
                steps = {"assignment_ms": round(1000 * (now - began), 1)}
                self._ordered.setdefault(command.message.view.number, (now, steps))
        self._ordered = dict(sorted(self._ordered.items())[-REMEMBERED:])
        self._obey(commands)

    def _welcome(self, connection: socket.socket, message: dict) -> str | None:
        name = message.get("member")
        if not isinstance(name, str):
            return None
        for key, value in self._values.items():
            lines.send(connection, {"put": key, "value": value})
        for epoch in self._done:
            lines.send(connection, {"done": epoch})
        lines.send(connection, {"cut": self._cut})
        return name

    def _heard(self, connection: socket.socket, message: dict) -> None:
        name = self._members[connection]
        if "membership" in message:
            decoded = decode(message)
            if isinstance(decoded, Entered):
                self._entered(name, decoded, message)
            elif isinstance(decoded, Copied):
                self._copied = decoded.position
                self._report()
            elif isinstance(decoded, Formed) and decoded.number in self._ordered:
                ordered_at, steps = self._ordered[decoded.number]
                steps["registration_ms"] = round(1000 * (time.monotonic() - ordered_at), 1)  # the last one's
            self._ask(self._coordinator.hear, name, decoded)
        elif "put" in message:
            self._values[message["put"]] = message["value"]
            self._broadcast({"put": message["put"], "value": message["value"]})
        elif "done" in message and message["done"] not in self._done:
            self._epoch_done(message["done"])
        elif "failed" in message:
            self._ask(self._coordinator.lost, name, message["failed"])

    def _gone(self, connection: socket.socket, name: str) -> None:
        self._ask(self._coordinator.lost, name, "its process ended")

    def _obey(self, commands: list) -> None:
        self._reported = self._report_changes()
        for command in commands:
            match command:
                case Send(name, message):
                    for connection in [each for each, member in self._members.items() if member == name]:
                        lines.send(connection, encode(message))
                case Timer(key, seconds):
                    timer = threading.Timer(seconds, self._inbox.put, [(None, {"timer": key})])
                    timer.daemon = True
                    timer.start()
                case Lose(name, because):
                    role = "server" if is_server(name) else "worker"
                    self._lost.append({role: worker_of(name), "because": because})
                    self._report()

    # -- status -----------------------------------------------------------------------------------------------------

    def _entered(self, name: str, entered: Entered, said: dict) -> None:
        """A member or server is in a view: what the steps of the change took it, of which the longest counts."""
        view = entered.view
        change = self._changes.setdefault(view.number, {"view": view.number, "pause_ms": 0.0})
        change |= self._ordered.get(view.number, (0.0, {}))[1]
        if not is_server(name):
            change["step"] = entered.clock
        change["workers"] = [worker_of(each) for each in view.members]
        if view.servers:
            change["servers"] = [worker_of(each) for each in view.servers]
        for key, seconds in (("pause_ms", said.get("pause")), ("migration_ms", said.get("migration"))):
            if seconds is not None:
                change[key] = max(change.get(key, 0.0), round(1000 * seconds, 1))

    def _report_changes(self) -> tuple[int, bool] | None:
        """Tell the function when there is another view, or all have entered it."""
        view = self._coordinator.current
        if view is None:
            return None
        now = (view.number, self._coordinator.settled)
        if now != self._reported and now[1]:
            self._view = view
            self._reporter.state("training")
            if view.number in self._changes:
                self._changes[view.number].setdefault("at", time.time())
            self._report()
            kept = tuple(f"{each.prefix}/" for each in (view, self._coordinator.pending) if each is not None)
            self._values = {key: value for key, value in self._values.items() if key.startswith(kept)}
        return now

    def _report(self) -> None:
        """The changes into views that all have entered; of others, some have not said yet how long their steps took."""
        view = self._view
        self._changes = {number: self._changes[number] for number in sorted(self._changes)[-REMEMBERED:]}
        self._reporter.progress(
            view=view.number if view is not None else None,
            members=[worker_of(each) for each in view.members] if view is not None else [],
            changes=[change for change in self._changes.values() if "at" in change],
            lost=self._lost[-REMEMBERED:],
            copied=self._copied,
        )

    def _epoch_done(self, epoch: str) -> None:
        self._done = [*self._done[-REMEMBERED:], epoch]
        self._broadcast({"done": epoch})
        self._reporter.served(epoch)
