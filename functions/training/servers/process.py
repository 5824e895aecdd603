"""A parameter server's process: sockets around the server of training.servers.server."""

import functools
import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq
from zmq.auth.thread import ThreadAuthenticator

from training import ipc, keys
from training.connections import lines
from training.errors import TrainingError
from training.membership.messages import Entered, Tell, View, as_view, decode, encode
from training.membership.slices import bounds
from training.reporter import Reporter
from training.request import StartRequest
from training.servers import optimizers
from training.servers.memory import Arena, Others, mapped
from training.servers.optimizers import Rule, Rules
from training.servers.server import End, Norms, Push, Reply, Server, Ship, Slice


@functools.lru_cache(8)
def _rules(text: str) -> tuple[Rule, ...]:
    return tuple(Rule(**each) for each in json.loads(text))


def update(
    arrays: list[np.ndarray], gradients: Sequence[np.ndarray], rules: Rules, count: int, squares: float | None
) -> None:
    """See training.servers.server.Update."""
    factor = 1.0 if squares is None else optimizers.clip_factor(rules.rules[0], squares)
    optimizers.apply_all(rules, arrays, optimizers.add_up(gradients), count, factor)


def squares(gradients: Sequence[np.ndarray]) -> float:
    """Of their sum."""
    total = optimizers.add_up(gradients).astype(np.float64)
    return float(total @ total)


def _arrays(frames: Sequence[Any]) -> list[np.ndarray]:
    return [np.frombuffer(frame, np.float32) for frame in frames]


class ServerProcess:
    """One thread serves; others listen to the scheduler and to the function."""

    def __init__(self, request: StartRequest, reporter: Reporter, function: socket.socket) -> None:
        self._request = request
        self._reporter = reporter
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.plain_server = True  # of one without the group's password no message is read
        self._password = keys.proof(request.key, "servers")
        self._strangers = ThreadAuthenticator(self._context)
        self._strangers.start()
        self._strangers.configure_plain(passwords={"member": self._password})
        try:
            port = self._socket.bind_to_random_port(f"tcp://{request.host}")
        except zmq.ZMQError as error:
            raise TrainingError("Internal", f"cannot listen on {request.host}: {error}") from error
        name = f"{request.rank}.{secrets.token_hex(4)}@{request.host}:{port}"
        self.server = Server(name, update, squares)
        self._peers: dict[str, zmq.Socket] = {}
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._wake, self._waker = socket.socketpair()
        self._entered_at = time.monotonic()
        self._view: View | None = None
        #: Of the present view: what near workers push, and what they read, with the clock of each slice's weights.
        self._others, self._arena, self._written = Others(), Arena(0), dict[int, int]()
        #: Workers, with their views, of this machine.
        self._near: set[str] = set()
        self._size = 0
        self._over = False
        self._connection = self._connect()
        threading.Thread(target=self._listen, name="membership", daemon=True).start()
        threading.Thread(target=self._listen_to_function, args=(function,), daemon=True).start()

    # -- other threads ----------------------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        return lines.connect(self._request, {"member": self.server.name})

    def _listen(self) -> None:
        """Hear the scheduler, and the next one when it is lost: until then workers are served as they are."""
        try:
            while True:
                self._put("connected", None)
                for message in lines.received(self._connection):
                    self._put("line", message)
                self._connection = self._connect()
        except BaseException as error:
            self._put("failed", error)

    def _listen_to_function(self, function: socket.socket) -> None:
        while True:
            message, _ = ipc.receive(function)
            if message is None:
                return  # the zygote ends this process
            self._put("function", message)

    def _put(self, kind: str, content: Any) -> None:
        self._inbox.put((kind, content))
        self._waker.send(b"x")

    # -- the thread that serves -------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until the scheduler lets this server go."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while not self._over:
            ready = dict(poller.poll())
            if self._wake.fileno() in ready:
                self._wake.recv(64)
                while not self._inbox.empty():
                    self._hear(*self._inbox.get())
            while not self._over:
                try:
                    frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                self._obey(self._serve(frames[0].bytes.decode(), json.loads(frames[1].bytes), frames[2:]))
        self._strangers.stop()
        self._context.destroy(linger=5000)  # what was shipped is to arrive

    def _hear(self, kind: str, content: Any) -> None:
        if kind == "failed":
            raise content
        if kind == "connected":
            self._obey(self.server.hello())
        elif kind == "function":
            self._reporter.epoch = content["request"]["epoch"]
            if self.server.settled:
                self._reporter.state("training")
        elif "membership" in content:
            self._obey(self.server.hear(decode(content)))
        elif "done" in content:
            self._reporter.served(content["done"])

    def _serve(self, sender: str, header: dict, frames: list[zmq.Frame]) -> list:
        """What a worker's or another server's message makes the server do."""
        worker, _, view = sender.rpartition("/")
        number, server = int(view), self.server
        match header["op"]:
            case "join":
                if mapped(header["memory"]) is not None:
                    self._near.add(sender)
                return server.join(worker, number)
            case "push":
                known = _rules(header["rules"])
                rules = [Rules(known, parts) for parts in header["parts"]]
                arrays = _arrays(frames)
                if frames:
                    self._near.discard(sender)
                else:
                    found = self._others.read(sender, header["memory"])
                    if found is None:
                        return []  # the worker has just died
                    self._size, starts = header["size"], bounds(header["size"])
                    arrays = [found[starts[n] : starts[n + 1]] for n in header["piece"]]
                push = Push(tuple(header["piece"]), header["clock"], arrays, header["offer"], rules)
                return server.push(worker, number, push)
            case "add":
                return server.add(worker, number, header["clock"], header["values"])
            case "say":
                return server.say(worker, number, header["value"])
            case "pull":
                return server.pull(worker, number, tuple(header["piece"]), header["whole"])
            case "seed":
                return server.seed(number, tuple(header["piece"]), _slices(header["counts"], frames))
            case "relay":
                return server.relay(number, header["to"], header["message"], frames)
            case "ship":
                (slice_,) = _slices([header["count"]], frames)
                slice_.applied = header["applied"]
                return server.shipped(as_view(header["view"]), header["number"], slice_)
            case "norms":
                given = {int(each): value for each, value in header["squares"].items()}
                return server.norms(header["view"], header["clock"], given)
        return []

    def _obey(self, commands: list) -> None:
        if self.server.view is not self._view:
            self._view, self._entered_at = self.server.view, time.monotonic()
            self._others, self._arena, self._written = Others(), Arena(0), {}
            number = 0 if self._view is None else self._view.number
            self._near = {each for each in self._near if int(each.rpartition("/")[2]) >= number}
        for command in commands:
            match command:
                case Reply(worker, view, message, frames):
                    self._send(worker, view, message, frames)
                case Ship(server, view, number, slice_):
                    header = {"op": "ship", "view": vars(view), "number": number}
                    header |= {"count": slice_.count, "applied": slice_.applied}
                    self._send_peer(server, header, slice_.arrays)
                case Norms(server, view, clock, known):
                    header = {"op": "norms", "view": view, "clock": clock, "squares": known}
                    self._send_peer(server, header, [])
                case Tell(message):
                    seconds = time.monotonic() - self._entered_at
                    more = {"migration": seconds} if isinstance(message, Entered) else {}
                    lines.send(self._connection, encode(message) | more)
                    if isinstance(message, Entered):
                        self._reporter.state("training")
                case End(because):
                    if because is not None:
                        raise TrainingError("PeerLost", because)
                    self._reporter.done({"left": True})  # it may be started again within this epoch
                    self._over = True

    def _send(self, worker: str, view: int, message: dict, frames: Sequence[Any]) -> None:
        name = f"{worker}/{view}"
        if message["op"] == "ready" and name in self._near:
            message |= {"memory": self._arena.where, "server": self.server.name}
        elif message["op"] == "weights" and name in self._near and self._size:
            message, frames = message | {"memory": self._write(message["clock"], message["piece"], frames)}, []
        self._socket.send_multipart([name.encode(), json.dumps(message).encode(), *frames], copy=False)

    def _write(self, clock: int, piece: Sequence[int], arrays: Sequence[Any]) -> Any:
        """Have these weights, after exchange `clock`, where near workers read them: all have read those before."""
        starts = bounds(self._size)
        if not self._arena.array.size:
            self._arena = Arena(self._size)
        for number, array in zip(piece, arrays, strict=True):
            if self._written.get(number) != clock:
                self._arena.array[starts[number] : starts[number + 1]] = array
                self._written[number] = clock
        return self._arena.where

    def _send_peer(self, server: str, message: dict, frames: Sequence[Any]) -> None:
        if server not in self._peers:
            peer = self._peers[server] = self._context.socket(zmq.DEALER)
            peer.setsockopt_string(zmq.IDENTITY, f"{self.server.name}/0")
            peer.setsockopt(zmq.SNDHWM, 0)
            peer.plain_username, peer.plain_password = b"member", self._password.encode()
            peer.connect(f"tcp://{server.partition('@')[2]}")
        self._peers[server].send_multipart([json.dumps(message).encode(), *frames], copy=False)


def _slices(counts: Sequence[int], frames: Sequence[Any]) -> list[Slice]:
    """Slices of equally many arrays each, copied."""
    each = len(frames) // len(counts)
    arrays = [array.copy() for array in _arrays(frames)]
    return [Slice(arrays[n * each : (n + 1) * each], count) for n, count in enumerate(counts)]
