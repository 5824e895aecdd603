"""A member's side: which view it is in, what it does in it, and how far it is."""

from typing import NamedTuple

from training.membership.messages import (
    Alive,
    Broken,
    Close,
    Copied,
    Drop,
    End,
    Entered,
    Form,
    Formed,
    Found,
    Give,
    Hello,
    Idle,
    Left,
    Message,
    NotFormed,
    Order,
    Out,
    Ping,
    Take,
    Tell,
    View,
    Waiting,
)

Command = Tell | Form | Close | Give | Take | Found | End

#: Without a view that it could train in.
WAITING = "waiting"
#: Connecting to the members of `view`.
FORMING = "forming"
#: Connected; clocks are to be gathered, and states given.
ENTERING = "entering"
#: Exchanges.
TRAINING = "training"
#: Not a member any more.
OUT = "out"


class Clock(NamedTuple):
    """What each member says when it enters a view."""

    #: Exchanges completed since the group was founded; None for a member without the group's state.
    steps: int | None
    #: Whether it has the result of the last one.
    kept: bool


class Member:
    """One member. One thread exchanges, others may call hear(), formed() and so on: under a lock."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Elements of its weights, where servers are to hold them.
        self.size = 0
        #: The position of its copy of what servers hold; 0 for none.
        self.copied = 0
        self.state = WAITING
        #: The view that it is in, or was last.
        self.view: View | None = None
        #: The planned view that comes next, and whether this member is ready for it.
        self.next: View | None = None
        self._next_ready = False
        #: The view that it offers in the exchange under way: what the sums agree on, even if another was ordered since.
        self.offered: View | None = None
        #: Exchanges completed.
        self.clock: int | None = None
        self.kept = False
        #: Whether it has the state of the members of `view`.
        self._heir = False
        self._seen = 0
        self._idle = False

    @property
    def _participates(self) -> bool:
        """Whether it is in a view, with the group's state."""
        return self._heir and self.state in (FORMING, ENTERING, TRAINING)

    # -- the coordinator --------------------------------------------------------------------------------------------

    def hello(self) -> list[Command]:
        """Connected to a coordinator, the first or the next one. What the former one planned is void."""
        dropped = self._drop()
        if self.state == OUT:
            return []
        if not self._heir:
            return [*dropped, Tell(Hello(seen=self._seen, idle=self._idle, size=self.size, copied=self.copied))]
        intact = self.state in (ENTERING, TRAINING)
        return [*dropped, Tell(Hello(self.view, intact, self._seen, self._idle, self.size, self.copied))]

    def hear(self, message: Message) -> list[Command]:
        """A message of the coordinator's."""
        if self.state == OUT:
            return [End(message.because)] if isinstance(message, Out) else []
        match message:
            case Ping():
                return [Tell(Alive())]
            case Out(because):
                return [*self._close(), *self._leave(), End(because)]
            case Drop(number):
                if self.next is not None and self.next.number == number:
                    return self._drop()
            case Order(view) if view.number > self._seen:
                self._seen = view.number
                return self._planned(view) if view.planned else self._begin(view)
        return []

    def _begin(self, view: View) -> list[Command]:
        """Leave what there is for this view."""
        closed = [*self._close(), *self._drop_all()]
        self.view, self.state = view, FORMING
        self._heir = self.name not in view.newcomers
        return [*closed, Form(view)]

    def _planned(self, view: View) -> list[Command]:
        if not self._participates:
            if self.name not in view.newcomers:
                return []  # an heir that is broken waits for the forced view that will come
            # The others may have agreed on the view that is left here.
            left = [Tell(Broken(self.view.number))] if self.state in (FORMING, ENTERING, TRAINING) else []
            return [*self._begin(view), *left]
        if self.name not in view.members and self._idle:
            return [*self._close(), *self._leave(), Tell(Left())]
        dropped = self._drop()
        self.next, self._next_ready = view, self.name not in view.members
        return dropped if self._next_ready else [*dropped, Form(view)]

    def _close(self) -> list[Command]:
        return [Close(self.view)] if self.state in (FORMING, ENTERING, TRAINING) else []

    def _drop(self) -> list[Command]:
        """Give up the view that was to come next. It is closed: others may have gone over to it."""
        dropped, self.next = self.next, None
        return [Close(dropped)] if dropped is not None and dropped is not self.offered else []

    def _drop_all(self) -> list[Command]:
        """And the one that it offers."""
        offered, self.offered = self.offered, None
        dropped = self._drop()
        return [*dropped, Close(offered)] if offered is not None and Close(offered) not in dropped else dropped

    def _leave(self) -> list[Command]:
        self.state = OUT
        return self._drop_all()

    # -- forming ----------------------------------------------------------------------------------------------------

    def formed(self, number: int) -> list[Command]:
        """All members of that view are connected."""
        if self.state == FORMING and self.view.number == number:
            self.state = ENTERING
        elif self.next is not None and self.next.number == number:
            self._next_ready = True
        else:
            return []
        return [Tell(Formed(number))]

    def not_formed(self, number: int) -> list[Command]:
        """It failed, or took too long."""
        if self.state == FORMING and self.view.number == number:
            closed, self.state = self._close(), WAITING
            return [*closed, Tell(NotFormed(number))]
        if self.next is not None and self.next.number == number:
            self.next = None
            return [Tell(NotFormed(number))]
        return []

    # -- entering ---------------------------------------------------------------------------------------------------

    def enter(self) -> tuple[Clock, list[Command]]:
        """What it says to the others of the view, and what to do before."""
        founds = self.view.newcomers == self.view.members and self.name == self.view.members[0]
        if founds or (self._heir and self.clock is None):
            self.clock, self.kept = 0, False
            return Clock(0, False), [Found()]
        return (Clock(self.clock, self.kept) if self._heir else Clock(None, False)), []

    def gathered(self, clocks: list[Clock]) -> list[Give | Take]:
        """What all said, by rank: who gives what to whom. settled() when it is done."""
        top = max(clock.steps for clock in clocks if clock.steps is not None)
        ranks = range(len(clocks))
        giver = max(ranks, key=lambda rank: (clocks[rank].steps == top, clocks[rank].kept, -rank))
        me = self.view.members.index(self.name)
        behind = {
            rank: clock.steps != top - 1 or not clocks[giver].kept
            for rank, clock in enumerate(clocks)
            if clock.steps != top
        }
        if me == giver:
            return [Give(self.view.members[rank], whole) for rank, whole in behind.items()]
        return [Take(self.view.members[giver], behind[me], top)] if me in behind else []

    def settled(self, number: int, taken: Take | None = None) -> list[Command]:
        """It has the state that all have: `taken` is what it lacked."""
        if taken is not None:
            self.clock, self.kept = taken.clock, not taken.whole
        if self.state != ENTERING or self.view.number != number:
            return []
        self.state, self._heir = TRAINING, True
        return [Tell(Entered(self.view, self.clock))]

    # -- exchanging -------------------------------------------------------------------------------------------------

    def offer(self, *, may_change: bool = True) -> tuple[float, float]:
        """Two elements of its part of the next exchange. All members allow a change after that, or none does."""
        self.offered = self.next if may_change and self.next is not None and self._next_ready else None
        distance = 0 if self.offered is None else self.offered.number - self.view.number
        return float(distance), float(distance**2)

    def completed(self, number: int, offers: tuple[float, float]) -> list[Command]:
        """The exchange's result is there: apply it. `offers` are the sums of what all offered."""
        self.clock, self.kept = self.clock + 1, True
        offered, self.offered = self.offered, None
        if self.state != TRAINING or self.view.number != number or offered is None:
            return []
        dropped = [Close(offered)] if offered is not self.next else []
        # Only where all numbers are the same do their sum and the sum of their squares agree.
        distance, members = offered.number - self.view.number, len(self.view.members)
        if offers != (float(members * distance), float(members * distance**2)):
            return dropped
        if self.name not in offered.members:
            return [*self._leave(), Tell(Left(offered))]
        self.view, self.state = offered, ENTERING
        self._heir = self.name not in offered.newcomers
        if self.next is offered:
            self.next = None
        return []

    def broke(self, number: int) -> list[Command]:
        """An exchange of that view, or entering it, failed."""
        if self.state not in (ENTERING, TRAINING) or self.view.number != number:
            return []  # another view was ordered meanwhile
        closed, broken = self._close(), self.view
        offered, self.offered = self.offered, None
        if offered is not None and offered is not self.next:
            closed.append(Close(offered))
        if self.next is not None and self.name in self.next.newcomers:
            # The group went on without this member, which joins it again.
            self.view, self.next, self._heir = self.next, None, False
            self.state = ENTERING if self._next_ready else FORMING
            return [*closed, Tell(Broken(broken.number))]
        self.state = WAITING
        return [*closed, *self._drop(), Tell(Broken(broken.number))]

    def waits(self) -> list[Command]:
        """Nothing has come from the others for a while."""
        if self.state not in (ENTERING, TRAINING):
            return []
        if self.next is not None and self.name in self.next.newcomers:
            # The group went on without this member. Servers do not break the view that it is in.
            return self.broke(self.view.number)
        return [Tell(Waiting(self.view.number))]

    def copies(self, position: int) -> list[Command]:
        """It has a copy of what servers hold."""
        self.copied = position
        return [Tell(Copied(position))]

    # -- epochs -----------------------------------------------------------------------------------------------------

    def rests(self, idle: bool) -> list[Command]:
        """Whether it waits for its next epoch. One that is to leave does so then: there is no step to agree after."""
        before, self._idle = self._idle, idle
        if idle and self._participates and self.next is not None and self.name not in self.next.members:
            return [*self._close(), *self._leave(), Tell(Left())]
        return [] if before == idle or self.state == OUT else [Tell(Idle(idle))]
