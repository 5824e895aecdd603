"""Exchanges of an elastic group's workers: each is completed once, whatever happens to the group."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from training.elastic.line import Left, Line, Replaced, Transport
from training.errors import TrainingError
from training.membership import member as machine
from training.membership.member import Clock
from training.membership.messages import Found, Give, View
from training.request import StartRequest


class ElasticGroup(ABC):
    """One worker's side. All but what Line's threads do runs in the main thread. `owner` is the ElasticWorker.

    How members exchange is a subclass's: by all-reduce (training.pytorch.elastic), or by servers (training.servers).
    """

    #: What an exchange raises in a view that is closed.
    failures: tuple[type[Exception], ...] = ()

    def __init__(
        self, request: StartRequest, owner: Any, fail: Callable[[BaseException], None], transport: Transport
    ) -> None:
        self._owner = owner
        self.line = Line(request, transport, fail)
        #: What the last exchange gave, for a member that was lost in it.
        self._last: Any = None
        self._replaced = False

    def ready(self, learner: Any) -> None:
        """This worker can train from now on."""
        del learner
        self.line.ready()

    # -- of a subclass ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _gather(self, view: View, group: Any, clock: Clock) -> list[Clock]:
        """What all members of a view say when they enter it, in the order of their ranks."""

    def _founded(self, view: View, group: Any) -> None:  # noqa: B027 - of servers alone
        """The owner has made the initial state, and all are in the view."""

    @abstractmethod
    def _give(self, group: Any, rank: int, *, whole: bool) -> None:
        """Send a member the whole state, or the last result."""

    @abstractmethod
    def _receive(self, group: Any, rank: int, *, whole: bool) -> Any:
        """Take what a member gives: a function that installs the whole state, or the last result."""

    @abstractmethod
    def _add_up(self, group: Any, view: View, given: Any, offer: tuple[float, float]) -> tuple[Any, tuple]:
        """The sums over all members of what each gives, and of what each offers."""

    # -- views ------------------------------------------------------------------------------------------------------

    def settle(self, until: Callable[[], bool] = lambda: False) -> Any:
        """Do what a change of the group wants of this worker, until it can train, or `until` is true.

        Returns what the exchange under way gave, if another member had completed it. Raises Left.
        """
        line, member = self.line, self.line.member
        while True:
            with line.waiting(), line.changed:
                line.changed.wait_for(
                    lambda: until() or self._over() or member.state in (machine.ENTERING, machine.TRAINING)
                )
                if self._over():
                    if line.ended is not None and line.ended.because is not None:
                        raise TrainingError("PeerLost", line.ended.because)
                    raise Left
                if until() or member.state == machine.TRAINING:
                    return None
            given = self._enter()
            if given is not None:
                return given

    def rest(self, until: Callable[[], bool]) -> None:
        """Between epochs: do what a change of the group wants of this worker. Raises Left."""
        line, member = self.line, self.line.member
        line.rests(True)
        while True:
            with line.changed:
                line.changed.wait_for(lambda: until() or self._over() or member.state == machine.ENTERING)
            if until():
                break
            if self._over():
                raise Left
            self._enter()
        line.rests(False)

    def _over(self) -> bool:
        return self.line.ended is not None or self.line.member.state == machine.OUT

    @property
    def trains(self) -> bool:
        """Whether it has the group's state, and is in a view."""
        return self.line.member.state == machine.TRAINING

    @property
    def rank(self) -> int:
        """In the present view."""
        view = self.line.member.view
        return view.members.index(self.line.member.name)

    @property
    def size(self) -> int:
        """Workers that train together at present."""
        return len(self.line.member.view.members) if self.trains else 0

    def has(self, workers: int, servers: int) -> bool:
        """Whether so many train together at present, with so many servers, or one for each slice."""
        view = self.line.member.view
        return self.size >= workers and len(view.servers) >= min(servers, len(view.owner))

    def _enter(self) -> Any:
        """Bring all members of a new view to the same state."""
        line, member = self.line, self.line.member
        with line.changed:
            if member.state != machine.ENTERING:
                return None
            if line.entered is not None:
                line.begin_pause()
            view = member.view
            group = line.groups[view.number]
            clock, commands = member.enter()
        taken, received = None, None
        founds = any(isinstance(each, Found) for each in commands)
        if founds:
            self._owner.found()
            self._replaced = True
        try:
            with line.waiting():
                clocks = self._gather(view, group, clock)
                with line.changed:
                    if member.view is not view or member.state != machine.ENTERING:
                        return None
                    orders = member.gathered(clocks)
                if founds:
                    self._founded(view, group)
                for order in orders:
                    rank = view.members.index(order.member)
                    if isinstance(order, Give):
                        self._give(group, rank, whole=order.whole)
                    else:
                        taken = order
                        received = self._receive(group, rank, whole=order.whole)
        except self.failures:
            self._broke(view)
            return None
        if taken is not None and taken.whole:
            received()
            self._replaced = True
        elif taken is not None:
            self._last = received
        with line.changed:
            line.do(member.settled(view.number, taken), pause=line.take_pause())
            line.entered = view.number
        return received if taken is not None and not taken.whole else None

    # -- exchanges --------------------------------------------------------------------------------------------------

    def exchange(self, contribute: Callable[[int, int], Any], *, step: bool = False) -> Any:
        """The sums over all members of what each contributes. The group can change after a `step`.

        `contribute(rank, members)` is called again when the group changed before the sums were known. Raises Left, or
        Replaced.
        """
        line, member = self.line, self.line.member
        while True:
            given, view, group = self._in_view()
            if given is not None:
                return given
            contributed = contribute(view.members.index(member.name), len(view.members))
            with line.changed:
                if member.view is not view or not self.trains:
                    continue
                offer = member.offer(may_change=step)
            try:
                with line.waiting():
                    sums, offers = self._add_up(group, view, contributed, offer)
            except self.failures:
                self._broke(view)
                continue
            with line.changed:
                self._last = sums
                line.do(member.completed(view.number, offers))
                if member.view is not view and member.view.planned:
                    line.went_over(view)
            return sums

    def _in_view(self) -> tuple[Any, View, Any]:
        """When this worker trains: what settle() gave, the view, and what connects it. Raises Left, or Replaced."""
        while True:
            self._replaced = False
            given = self.settle()
            if self._replaced:
                raise Replaced
            with self.line.changed:
                if given is not None or self.trains:
                    view = self.line.member.view
                    return given, view, self.line.groups.get(view.number)

    def _broke(self, view: View) -> None:
        with self.line.changed:
            self.line.do(self.line.member.broke(view.number))

    # -- what the worker exchanges ----------------------------------------------------------------------------------

    @abstractmethod
    def step(self, learner: Any, compute: Callable[[int, int], tuple[bool, list[float]]]) -> list[float]:
        """One training step; the group can change after it.

        `compute(rank, members)` leaves this worker's gradients in the learner: whether it had samples, and numbers.
        Returns the sums of the numbers.
        """

    @abstractmethod
    def average_buffers(self, learner: Any) -> None:
        """What layers measured becomes the mean over the workers, as they saw equal shares."""

    @abstractmethod
    def total(self, compute: Callable[[int, int], list[float]]) -> list[float]:
        """The sums of what `compute(rank, members)` returns over all workers."""

    def loaded(self, learner: Any) -> None:  # noqa: B027 - of servers alone
        """All members have loaded the same checkpoint."""

    def collect(self, learner: Any) -> None:  # noqa: B027 - of servers alone
        """Give the learner what it lacks of its optimizer's state, before that is stored."""

    @property
    def may_copy(self) -> bool:
        """Whether this worker is the one to have a copy of what servers hold, because a server may die alone."""
        return False

    def copy(self, learner: Any, position: int) -> Callable[[Any], None]:
        """Have that copy: a function that gives a learner the present state, servers' part included."""
        raise NotImplementedError
