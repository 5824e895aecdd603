"""A worker's side of parameter servers: it pushes gradients and gets the new weights."""

import collections
import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import zmq

from training import keys
from training.elastic.group import ElasticGroup
from training.elastic.line import Closed, Values
from training.membership.member import Clock
from training.membership.messages import View
from training.membership.slices import Piece, bounds, pieces
from training.request import StartRequest
from training.servers.memory import Arena, Others, Where, mapped
from training.servers.optimizers import Rule, parts

#: Milliseconds between two looks at whether a view is formed no more.
LOOK = 50


class ServedLearner(Protocol):
    """A learner whose optimizer runs on the servers. Arrays are flat, float32, and of the learner's own memory."""

    def flat_weights(self) -> list[np.ndarray]:
        """All weights, in one order on all workers."""

    def flat_gradients(self, *, used: bool) -> list[np.ndarray]:
        """In the order of flat_weights(); waits for them. Not `used`: zeros, this worker had no samples."""

    def rules(self) -> list[tuple[int, Rule]]:
        """What the servers do in the next step, and with how many elements, in the order of flat_weights()."""

    def update(self, batch_size: int) -> None:
        """The servers have done a step."""

    measured: list[np.ndarray]  #: copies of what layers measure rather than learn, to be set

    #: Steps that the servers have done, and their optimizer's state: flat arrays. None: none yet.
    updates: int
    served: list[np.ndarray] | None
    #: What else changes from step to step, as JSON has it, to be set.
    progress: Any


class Flat:
    """Arrays one after the other, as one array."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        self._starts = [0, *itertools.accumulate(each.size for each in arrays)]
        self.size = self._starts[-1]

    def _parts(self, start: int, stop: int) -> Iterator[np.ndarray]:
        for array, begin in zip(self._arrays, self._starts, strict=False):
            if begin < stop and begin + array.size > start:
                yield array[max(0, start - begin) : stop - begin]

    def read(self, start: int, stop: int) -> np.ndarray:
        """These elements; a copy only where they are of several arrays."""
        parts = list(self._parts(start, stop))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def write(self, start: int, values: np.ndarray) -> None:
        """Set the elements from `start` on."""
        done = 0
        for part in self._parts(start, start + values.size):
            part[:] = values[done : done + part.size]
            done += part.size


class Connections:
    """To all servers of one view. Another thread may close them: what waits then raises Closed."""

    def __init__(self, context: zmq.Context, view: View, name: str, password: str) -> None:
        self.view = view
        #: Servers that read this worker's arena where it is, and it theirs.
        self.near: set[int] = set()
        self._wake, self._waker = os.pipe()
        self._poller = zmq.Poller()
        self._poller.register(self._wake, zmq.POLLIN)
        self.pieces = [pieces(view.owner, number) for number in range(len(view.servers))]
        self._sockets: list[zmq.Socket] = []
        self._inbox: collections.deque[list[zmq.Frame]] = collections.deque()
        for server in view.servers:
            end = context.socket(zmq.DEALER)
            end.setsockopt_string(zmq.IDENTITY, f"{name}/{view.number}")
            for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
                end.setsockopt(option, 0)
            end.plain_username, end.plain_password = b"member", password.encode()
            end.connect(f"tcp://{server.partition('@')[2]}")
            self._poller.register(end, zmq.POLLIN)
            self._sockets.append(end)

    def send(self, server: int, message: dict, frames: Sequence[Any] = ()) -> None:
        """To the server of this number."""
        self._sockets[server].send_multipart([json.dumps(message).encode(), *frames], copy=False)

    def receive(self, milliseconds: int | None = None) -> tuple[dict, list[Any]] | None:
        """The next message of a server, with its frames; None after so many milliseconds. Raises Closed."""
        if not self._inbox:
            ready = dict(self._poller.poll(milliseconds))
            if self._wake in ready:
                raise Closed(self.view.prefix)
            for end in self._sockets:
                while end in ready:
                    try:
                        self._inbox.append(end.recv_multipart(zmq.NOBLOCK, copy=False))
                    except zmq.Again:
                        break
        if not self._inbox:
            return None
        head, *frames = self._inbox.popleft()
        return json.loads(head.bytes), frames

    def answers(self, *kinds: str) -> Iterator[tuple[dict, list[Any]]]:
        """The messages of these kinds that come; others are of what is over. Raises Closed."""
        while True:
            message, frames = self.receive()
            if message["op"] in kinds:
                yield message, frames

    def close(self) -> None:
        """From any thread."""
        with contextlib.suppress(OSError):
            os.write(self._waker, b"x")

    def __del__(self) -> None:
        for end in self._sockets:
            end.close()
        os.close(self._wake)
        os.close(self._waker)


class ServerGroup(ElasticGroup):
    """See training.elastic.group. A contribution is the gradients, None where there are none, and numbers to add."""

    failures = (Closed,)

    def __init__(self, request: StartRequest, owner: Any, fail: Callable[[BaseException], None]) -> None:
        self._context = zmq.Context()
        self._password = keys.proof(request.key, "servers")
        #: By which a server knows whether it is on the same machine.
        self._here = Arena(0)
        super().__init__(request, owner, fail, self)
        #: What near servers read gradients from; another one after an exchange that broke, in which they may still.
        self._arena: Arena | None = None
        self._read_from: tuple[Connections | None, Others] = (None, Others())

    def ready(self, learner: ServedLearner) -> None:
        """See training.elastic.group: the coordinator cuts the weights into slices."""
        self.line.member.size = Flat(learner.flat_weights()).size
        self.line.ready()

    def connect(self, view: View, rank: int, values: Values) -> Connections:
        """The worker's update: connections to the servers of the next view, while the present one trains."""
        del rank
        made = Connections(self._context, view, self.line.member.name, self._password)
        for number in range(len(view.servers)):
            made.send(number, {"op": "join", "memory": self._here.where})
        ready = 0
        while ready < len(view.servers):
            found = made.receive(LOOK)  # nothing else comes before
            ready += found is not None
            if found is not None and mapped(found[0].get("memory")) is not None:
                made.near.add(view.servers.index(found[0]["server"]))
            if values.closed:
                raise Closed(view.prefix)
        return made

    def close(self, group: Connections | None) -> None:
        """See training.elastic.line.Transport; what is not formed yet looks by itself."""
        if group is not None:
            group.close()

    # -- entering a view --------------------------------------------------------------------------------------------

    def _gather(self, view: View, group: Connections, clock: Clock) -> list[Clock]:
        group.send(0, {"op": "say", "value": clock})
        message, _ = next(group.answers("say"))
        return [Clock(*each) for each in message["values"]]

    def _founded(self, view: View, group: Connections) -> None:
        self._seed(self._owner.state()[0], group)

    def loaded(self, learner: ServedLearner) -> None:
        """See training.elastic.group: the first member's goes to the servers, before any gradient."""

        def seed(rank: int, members: int) -> list[float]:
            del members
            if rank == 0:
                with self.line.changed:
                    group = self.line.groups.get(self.line.member.view.number)
                if group is not None:
                    self._seed(learner, group)
            return [0.0]

        self.total(seed)

    @property
    def may_copy(self) -> bool:
        """See training.elastic.group: with the last server the group ends."""
        return self.rank == 0 and len(self.line.member.view.servers) > 1

    def copy(self, learner: ServedLearner, position: int) -> Callable[[ServedLearner], None]:
        """See training.elastic.group. After a step, whose update no server has gone beyond without this worker."""
        self.collect(learner)
        weights = [each.copy() for each in learner.flat_weights()]
        measured, served, progress = learner.measured, learner.served, json.dumps(learner.progress)

        def restore(into: ServedLearner) -> None:
            into.measured, into.progress, into.served = measured, json.loads(progress), served
            for mine, values in zip(into.flat_weights(), weights, strict=True):
                mine[:] = values

        with self.line.changed:
            self.line.do(self.line.member.copies(position))
        return restore

    def _seed(self, learner: ServedLearner, group: Connections) -> None:
        """Give the servers the weights, and the state of their optimizer where it goes on from a checkpoint."""
        flat = [Flat(learner.flat_weights()), *(Flat([each]) for each in learner.served or ())]
        starts = bounds(flat[0].size)
        for number, of in enumerate(group.pieces):
            for piece in of:
                counts = [learner.updates] * len(piece)
                frames = [each.read(starts[n], starts[n + 1]) for n in piece for each in flat]
                group.send(number, {"op": "seed", "piece": piece, "counts": counts}, frames)

    def _give(self, group: Connections, rank: int, *, whole: bool) -> None:
        message: dict[str, Any] = {"op": "given", "last": self._last}
        frames: list[np.ndarray] = []
        if whole:
            learner, plain = self._owner.state()
            frames = learner.measured
            message |= {"plain": plain, "progress": learner.progress, "measured": len(frames)}
            if _relays(group.view):
                frames += learner.flat_weights()
        to = group.view.members[rank]
        group.send(0, {"op": "relay", "to": to, "message": message}, frames)

    def _receive(self, group: Connections, rank: int, *, whole: bool) -> Any:
        answer, frames = next(group.answers("given"))
        if not whole:
            self._write(self._owner.state()[0], self._pull(group))
            return answer["last"]
        measured, weights = frames[: answer["measured"]], frames[answer["measured"] :]
        fresh = {} if _relays(group.view) else self._pull(group)

        def restore(learner: ServedLearner) -> None:
            kinds = zip(measured, learner.measured, strict=True)
            learner.measured = [np.frombuffer(each, mine.dtype) for each, mine in kinds]
            learner.progress = answer["progress"]
            for mine, values in zip(learner.flat_weights(), weights, strict=False):
                mine[:] = np.frombuffer(values, np.float32)
            self._write(learner, fresh)

        return lambda: self._owner.install(restore, answer["plain"])

    def _write(self, learner: ServedLearner, fresh: dict[Piece, list[Any]]) -> None:
        flat = Flat(learner.flat_weights())
        starts = bounds(flat.size)
        for piece, frames in fresh.items():
            for number, frame in zip(piece, frames, strict=True):
                flat.write(starts[number], np.frombuffer(frame, np.float32))

    def _pull(self, group: Connections, *, whole: bool = False) -> dict[Piece, list[Any]]:
        """The weights that the servers have, or whole slices."""
        waiting = {(number, piece) for number, of in enumerate(group.pieces) for piece in of}
        for number, piece in waiting:
            group.send(number, {"op": "pull", "piece": piece, "whole": whole})
        fresh: dict[Piece, list[Any]] = {}
        for message, frames in group.answers("pulled") if waiting else ():
            fresh[tuple(message["piece"])] = frames
            if len(fresh) == len(waiting):
                break
        return fresh

    # -- exchanges --------------------------------------------------------------------------------------------------

    def _add_up(
        self,
        group: Connections,
        view: View,
        given: tuple[ServedLearner | None, list[np.ndarray], list[float]],
        offer: tuple[float, float],
    ) -> tuple[list[float], tuple]:
        learner, gradients, numbers = given
        clock = self.line.member.clock
        group.send(0, {"op": "add", "clock": clock, "values": [*numbers, *offer]})
        waiting: set[Piece] = set()
        if learner is not None:
            flat = Flat(gradients)
            starts, (runs, rules) = bounds(flat.size), zip(*learner.rules(), strict=True)
            said = json.dumps([vars(rule) for rule in rules])
            push = {"op": "push", "clock": clock, "offer": int(offer[0]), "rules": said}
            arena, self._arena = self._arena or (Arena(flat.size) if group.near else None), None
            for turn in itertools.zip_longest(*group.pieces):  # all servers have work from the beginning
                for number, piece in enumerate(turn):
                    if piece is not None:
                        waiting.add(piece)
                        frames = [flat.read(starts[n], starts[n + 1]) for n in piece]
                        said_of = push | {
                            "piece": piece,
                            "parts": [parts(runs, starts[n], starts[n + 1]) for n in piece],
                        }
                        if arena is not None and number in group.near:
                            for n, frame in zip(piece, frames, strict=True):
                                arena.array[starts[n] : starts[n + 1]] = frame
                            said_of, frames = said_of | {"memory": arena.where, "size": flat.size}, []
                        group.send(number, said_of, frames)
        sums, fresh = None, {}
        for message, frames in group.answers("add", "weights"):
            if message["op"] == "add":
                sums = message["values"]
            else:
                piece = tuple(message["piece"])
                fresh[piece] = frames or self._read(group, message["memory"], piece, starts)
            if sums is not None and len(fresh) == len(waiting):
                break
        if learner is not None:
            self._arena = arena
        if learner is not None:  # only now: a step that breaks is computed again with the weights before it
            self._write(learner, fresh)
        return sums[:-2], tuple(sums[-2:])

    def _read(self, group: Connections, where: Where, piece: Piece, starts: list[int]) -> list[np.ndarray]:
        """The weights of a near server, which it does not change before this worker's next gradients."""
        if self._read_from[0] is not group:
            self._read_from = group, Others()
        found = self._read_from[1].read(str(group.view.owner[piece[0]]), where)
        if found is None:  # it has just died
            raise Closed(group.view.prefix)
        return [found[starts[n] : starts[n + 1]] for n in piece]

    def step(self, learner: ServedLearner, compute: Callable[[int, int], tuple[bool, list[float]]]) -> list[float]:
        """See training.elastic.group."""

        def contribute(rank: int, members: int) -> tuple[ServedLearner, list[np.ndarray], list[float]]:
            used, numbers = compute(rank, members)
            return learner, learner.flat_gradients(used=used), numbers

        sums = self.exchange(contribute, step=True)
        learner.update(0)
        return sums

    def average_buffers(self, learner: ServedLearner) -> None:
        """See training.elastic.group."""
        measured = learner.measured
        flat = Flat([each for each in measured if each.dtype.kind == "f"])
        if flat.size:
            sums = np.array(self.total(lambda *_: [1.0, *flat.read(0, flat.size).tolist()]))
            flat.write(0, sums[1:] / sums[0])
            learner.measured = measured

    def total(self, compute: Callable[[int, int], list[float]]) -> list[float]:
        """See training.elastic.group."""
        return self.exchange(lambda rank, members: (None, [], compute(rank, members)))

    def collect(self, learner: ServedLearner) -> None:
        """See training.elastic.group: the optimizer's state is on the servers."""
        fresh: dict[Piece, list[Any]] | None = None
        while fresh is None:
            given, view, group = self._in_view()
            if given is None:
                try:
                    with self.line.waiting():
                        fresh = self._pull(group, whole=True)
                except Closed:
                    self._broke(view)
        starts = bounds(Flat(learner.flat_weights()).size)
        served: list[np.ndarray] = []
        for piece, frames in fresh.items():
            each = len(frames) // len(piece)
            served = served or [np.zeros(starts[-1], np.float32) for _ in range(each - 1)]
            for place, number in enumerate(piece):
                for array, frame in zip(served, frames[place * each + 1 : (place + 1) * each], strict=True):
                    array[starts[number] : starts[number + 1]] = np.frombuffer(frame, np.float32)
        learner.served = served


def _relays(view: View) -> bool:
    """Whether a newcomer gets the weights from a worker: a step that this view has cut off is applied in part."""
    return not view.planned and view.newcomers != view.members
