"""What a parameter server does with what it hears. Pure: arrays come in and go out, nothing here opens a socket.

Workers of a view send, each numbered by the view: `join` once; `push` and `add` in an exchange, numbered by `clock`,
how many exchanges the group had completed before; `say` when they enter it; `pull`, `seed` and `relay`. What comes for
a view that is not there yet waits for it; what comes for one that is over is dropped: it was never applied.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from training.membership import slices
from training.membership.coordinator import KEPT
from training.membership.messages import Alive, Entered, Hello, Message, Order, Out, Ping, Tell, View
from training.membership.slices import Piece


@dataclass
class Slice:
    """A part of the weights with its optimizer's state."""

    #: The weights, then the state. (n,), float32.
    arrays: list[Any]
    #: Updates that it has had.
    count: int = 0
    #: The exchange of its last update; -1 before the first since the group was founded.
    applied: int = -1


@dataclass(frozen=True)
class Push:
    """A worker's gradient of a piece: one array for each of its slices."""

    piece: Piece
    clock: int
    gradients: Sequence[Any]
    #: By how many the view that it offers as the next one is newer; 0 for none.
    offer: int
    #: Of each slice; the norm that it clips by is the same in all.
    rules: Sequence[Any]


# -- commands, with Tell of the membership -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    """Send a worker of a view an answer, or what another worker gives it, with arrays."""

    worker: str
    view: int
    message: dict
    frames: Sequence[Any] = ()


@dataclass(frozen=True)
class Ship:
    """Send a slice to another server, which owns it now."""

    server: str
    view: View
    number: int
    slice: Slice


@dataclass(frozen=True)
class Norms:
    """Send the sums of squares of this server's slices to another server."""

    server: str
    view: int
    clock: int
    squares: dict[int, float]


@dataclass(frozen=True)
class End:
    """This server is not needed any more. With a reason it is not what was asked for."""

    because: str | None = None


Command = Tell | Reply | Ship | Norms | End

#: Update a slice: its arrays, the workers' gradients in their order, its rule, the number of the update, what the sum
#: of squares of all slices is (None where the rule does not clip by the norm).
Update = Callable[[list[Any], Sequence[Any], Any, int, float | None], None]


@dataclass
class _Step:
    """The exchange under way: what its workers have pushed."""

    clock: int
    pushes: dict[Piece, dict[str, Push]] = field(default_factory=lambda: defaultdict(dict))
    done: set[Piece] = field(default_factory=set)
    #: Sums of squares by slice, where gradients are clipped by the norm of all.
    squares: dict[int, float] = field(default_factory=dict)
    summed: bool = False


class Server:
    """One server. `squares` is the sum of squares of gradients that are to be added."""

    def __init__(self, name: str, update: Update, squares: Callable[[Sequence[Any]], float]) -> None:
        self.name = name
        self._update = update
        self._squares = squares
        #: The view that it serves, the last one or the present one, and whether it holds all that this gives it.
        self.view: View | None = None
        self.settled = False
        self._ordered: dict[int, View] = {}
        self._seen = 0
        #: The number of the view that all workers offered last: they may have its order before this server does.
        self._agreed = 0
        self.slices: dict[int, Slice] = {}
        self._joined: dict[int, set[str]] = defaultdict(set)
        self._early: list[tuple[int, Callable, tuple]] = []
        self._pulls: list[tuple[str, Piece, bool]] = []
        #: Slices that came for a view that founds the group, before it.
        self._shipped: list[tuple[View, int, Slice]] = []
        self._step: _Step | None = None
        self._said: dict[tuple, dict[str, Any]] = defaultdict(dict)
        self._commands: list[Command] = []

    # -- the coordinator --------------------------------------------------------------------------------------------

    def hello(self) -> list[Command]:
        """Registration: connected to a coordinator, the first or the next one."""
        return [Tell(Hello(self.view, self.settled, self._seen))]

    def hear(self, message: Message) -> list[Command]:
        """A message of the coordinator's."""
        match message:
            case Ping():
                self._commands.append(Tell(Alive()))
            case Out(because):
                self._commands.append(End(because))
            case Order(view) if view.number > self._seen:
                self._seen = view.number
                self._forget(view.number - KEPT + 1)
                self._ordered[view.number] = view
                if view.planned and view.number != self._agreed:
                    self._ready(view)
                else:
                    self._enter(view)
        return self._take()

    def _take(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    def _ready(self, view: View) -> None:
        """Workers may offer a view when all of them are connected to all of its servers."""
        if self.name in view.servers and self._joined[view.number] >= set(view.members):
            for worker in view.members:
                self._commands.append(Reply(worker, view.number, {"op": "ready"}))

    # -- views ------------------------------------------------------------------------------------------------------

    def _enter(self, view: View) -> None:
        """From now on this view's pushes count."""
        if self.view is None or view.founded > self.view.founded:
            self.slices = {}
        self.view, self.settled, self._step = view, False, None
        self._said.clear()
        self._pulls.clear()
        self._forget(view.number)
        self._ordered.pop(view.number, None)
        shipped, self._shipped = self._shipped, []
        for each in shipped:
            self._take_in(*each)
        self.migrate()
        if not view.planned:
            self._ready(view)
        self._settle()
        early, self._early = self._early, []
        for number, call, arguments in early:
            self._in_view(number, call, *arguments)

    def _forget(self, before: int) -> None:
        """Views before this one are not entered any more."""
        self._ordered = {number: each for number, each in self._ordered.items() if number >= before}
        for number in [each for each in self._joined if each < before]:
            del self._joined[number]
        self._early = [each for each in self._early if each[0] >= before]

    def migrate(self) -> None:
        """Ship what others own in this view."""
        for number in sorted(self.slices):
            owner = self.view.servers[self.view.owner[number]]
            if owner != self.name:
                self._commands.append(Ship(owner, self.view, number, self.slices.pop(number)))

    def shipped(self, view: View, number: int, slice_: Slice) -> list[Command]:
        """A slice comes from another server, which was in `view` then."""
        is_new = self.view is None or self.name not in self.view.servers
        if is_new and (self.view is None or view.number > self.view.number):
            self._seen = max(self._seen, view.number)
            self._enter(view)  # all others are in it, or will be: this one has no step after which it could
        self._take_in(view, number, slice_)
        self.migrate()
        self._settle()
        return self._take()

    def _take_in(self, view: View, number: int, slice_: Slice) -> None:
        if view.number > self.view.number:
            self._shipped.append((view, number, slice_))  # this server enters that view, or one after it
        elif view.founded == self.view.founded:  # else it is void
            self.slices[number] = slice_

    def _settle(self) -> None:
        """Where all slices are there: say so, and do what waited for them."""
        if self.name not in self.view.servers:
            return
        me = self.view.servers.index(self.name)
        if not self.settled and all(n in self.slices for n, of in enumerate(self.view.owner) if of == me):
            self.settled = True
            self._commands.append(Tell(Entered(self.view, 0)))
        pulls, self._pulls = self._pulls, []
        for pull in pulls:
            self._pull(*pull)
        self._apply()

    def _in_view(self, number: int, call: Callable, *arguments: Any) -> None:
        """Call it when the view of this number is the present one, if that will be."""
        if self.view is not None and number == self.view.number:
            call(*arguments)
        elif self.view is None or number > self.view.number:
            self._early.append((number, call, arguments))

    # -- workers ----------------------------------------------------------------------------------------------------

    def join(self, worker: str, number: int) -> list[Command]:
        """A worker has connected for the view of this number."""
        if self.view is None or number >= self.view.number:
            self._joined[number].add(worker)
            view = self._ordered.get(number, self.view)
            if view is not None and view.number == number:
                self._ready(view)
        return self._take()

    def push(self, worker: str, number: int, push: Push) -> list[Command]:
        """A worker's gradient of one piece."""
        self._in_view(number, self._push, worker, push)
        return self._take()

    def _push(self, worker: str, push: Push) -> None:
        self._at(push.clock).pushes[push.piece][worker] = push
        self._apply()

    def _at(self, clock: int) -> _Step:
        if self._step is None or self._step.clock != clock:
            self._step = _Step(clock)
        return self._step

    def _apply(self) -> None:
        """Update the pieces that all workers have pushed, then go over to the next view if all offer it."""
        step = self._step
        if step is None:
            return
        members = self.view.members
        there = {
            piece: [of[worker] for worker in members]
            for piece, of in step.pushes.items()
            if piece not in step.done and len(of) == len(members) and all(number in self.slices for number in piece)
        }
        if any(pushes[0].rules[0].clip_norm is not None for pushes in there.values()):
            total = self._norm(step, there)
            if total is None:
                return
        else:
            total = None
        for piece, pushes in there.items():
            step.done.add(piece)
            for place, number in enumerate(piece):
                slice_ = self.slices[number]
                if slice_.applied == step.clock:
                    continue  # before a worker died: the others repeat the step
                slice_.count, slice_.applied = slice_.count + 1, step.clock
                gradients = [push.gradients[place] for push in pushes]
                self._update(slice_.arrays, gradients, pushes[0].rules[place], slice_.count, total)
            for worker in members:
                self._reply(worker, {"op": "weights", "clock": step.clock}, piece)
        if there and step.done == set(slices.pieces(self.view.owner, self.view.servers.index(self.name))):
            offers = {push.offer for of in step.pushes.values() for push in of.values()}
            step.pushes.clear()
            if offers != {0} and len(offers) == 1:
                self._agreed = self.view.number + offers.pop()
                if self._agreed in self._ordered:
                    self._enter(self._ordered[self._agreed])

    def _reply(self, worker: str, message: dict, piece: Piece | None = None, *, whole: bool = False) -> None:
        """With the weights of a piece, or its `whole` slices."""
        frames: list[Any] = []
        for number in piece or ():
            frames += self.slices[number].arrays if whole else self.slices[number].arrays[:1]
        self._commands.append(Reply(worker, self.view.number, message | {"piece": piece}, frames))

    def _norm(self, step: _Step, there: dict[Piece, list[Push]]) -> float | None:
        """The sum of squares of all slices; None until all servers have said theirs."""
        for piece, pushes in there.items():
            for place, number in enumerate(piece):
                if number not in step.squares:
                    step.squares[number] = self._squares([push.gradients[place] for push in pushes])
        me = self.view.servers.index(self.name)
        mine = [number for number, of in enumerate(self.view.owner) if of == me]
        if not step.summed and all(number in step.squares for number in mine):
            step.summed = True
            squares = {number: step.squares[number] for number in mine}
            for server in self.view.servers:
                if server != self.name:
                    self._commands.append(Norms(server, self.view.number, step.clock, squares))
        if len(step.squares) < len(self.view.owner):
            return None
        return float(sum(step.squares[number] for number in sorted(step.squares)))

    def norms(self, number: int, clock: int, squares: dict[int, float]) -> list[Command]:
        """Another server's part of the gradient's norm."""

        def take() -> None:
            self._at(clock).squares.update(squares)
            self._apply()

        self._in_view(number, take)
        return self._take()

    def add(self, worker: str, number: int, clock: int, values: list[float]) -> list[Command]:
        """A worker's numbers, which are added in the order of the workers."""

        def add_up(said: list[list[float]]) -> list[float]:
            return [sum(each) for each in zip(*said, strict=True)]

        self._in_view(number, self._gather, worker, ("add", clock), values, add_up)
        return self._take()

    def say(self, worker: str, number: int, value: Any) -> list[Command]:
        """What a worker says when it enters the view: all get what all say."""
        self._in_view(number, self._gather, worker, ("say",), value, list)
        return self._take()

    def _gather(self, worker: str, key: tuple, value: Any, result: Callable[[list], list]) -> None:
        said = self._said[key]
        said[worker] = value
        if len(said) == len(self.view.members):
            del self._said[key]
            answer = {
                "op": key[0],
                "clock": key[-1],
                "values": result([said[each] for each in self.view.members]),
            }
            for each in self.view.members:
                self._reply(each, answer)

    def relay(self, number: int, to: str, message: dict, frames: Sequence[Any]) -> list[Command]:
        """What a worker gives to another one."""

        def forward() -> None:
            self._commands.append(Reply(to, number, message, frames))

        self._in_view(number, forward)
        return self._take()

    def seed(self, number: int, piece: Piece, parts: list[Slice]) -> list[Command]:
        """The founder's weights, with the state of their optimizer where it goes on from a checkpoint."""

        def take() -> None:
            self.slices.update(zip(piece, parts, strict=True))
            self._settle()

        self._in_view(number, take)
        return self._take()

    def pull(self, worker: str, number: int, piece: Piece, whole: bool) -> list[Command]:
        """A worker wants the weights of these slices, or the `whole` slices."""
        self._in_view(number, self._pull, worker, piece, whole)
        return self._take()

    def _pull(self, worker: str, piece: Piece, whole: bool) -> None:
        if all(number in self.slices for number in piece):
            message = {"op": "pulled", "counts": [self.slices[number].count for number in piece]}
            self._reply(worker, message, piece, whole=whole)
        else:
            self._pulls.append((worker, piece, whole))
