"""The coordinator's side: which workers are there, which view they train in, which one comes next."""

import itertools
from dataclasses import dataclass

from training.membership import slices
from training.membership.messages import (
    Alive,
    Broken,
    Copied,
    Drop,
    Entered,
    Formed,
    Hello,
    Idle,
    Left,
    Lose,
    Message,
    NotFormed,
    Order,
    Out,
    Ping,
    Send,
    Timer,
    View,
    Waiting,
    is_server,
    worker_of,
)

Command = Send | Timer | Lose

#: The last planned views that members may be in although they were given up.
KEPT = 8
#: How long members may take to form a view.
FORMING_SECONDS = 8.0
#: How long a member may take to answer when its peers wait for it.
HANG_SECONDS = 4.0
#: How long a new coordinator waits for members that others say they trained with.
RECOVERY_SECONDS = 8.0
#: Before a view that could not be formed twice is tried again: it doubles from one to the other.
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.1, 5.0

_WENT_ON = "the group went on without it"


@dataclass
class _Member:
    #: The number of the last forced view that it was sent.
    forced: int = 0
    #: The number of the last view that it was in and gave up.
    broken: int = 0
    #: Whether its worker ever belonged to the group: one may connect before the coordinator hears of it.
    was_wanted: bool = False
    idle: bool = False
    #: The position of its copy of what servers hold.
    copied: int = 0
    #: The last view that it entered. It may say so before the coordinator hears of that view from others.
    view: View | None = None


class Coordinator:
    """One coordinator. `token` is of this one only; so many workers and servers found the group.

    Servers are registered, not asked: what they hold follows from the view. A group that began without them has none.
    """

    def __init__(self, token: str, workers: int, servers: int = 0) -> None:
        self._token = token
        self._has_servers = servers > 0
        #: Ranks of the servers that belong to the group, and of those of them that were lost.
        self.wanted_servers = set(range(servers))
        self._lost_servers: set[int] = set()
        #: Servers that are there, in the order in which they came, with the last view whose slices they held; and all
        #: that a view has had.
        self._servers: dict[str, View | None] = {}
        self._used_servers: set[str] = set()
        #: The number of the view that founded the group, and of that which servers have had the state of.
        self._founded = self._seeded = 0
        #: The number of a view whose servers may wait for slices that are lost; 0 for none.
        self._watched = 0
        #: Planned views with servers, the last ones: members may be in one that was given up.
        self._planned: dict[int, View] = {}
        self._size = 0
        #: Ranks of the workers that belong to the group.
        self.wanted = set(range(workers))
        self._knows_wanted = False
        #: The newest view that members are in.
        self.current: View | None = None
        #: The planned one after it.
        self.pending: View | None = None
        #: Members of the current view that have the group's state, those that train in it, those that are connected.
        self._holders: set[str] = set()
        self.entered: set[str] = set()
        self._formed: set[str] = set()
        #: All that are there, in the order in which they came.
        self._members: dict[str, _Member] = {}
        #: Members whose time is over, and those of them that wait to be released.
        self._gone: set[str] = set()
        self._leaving: set[str] = set()
        self._reports: dict[str, Hello] = {}
        self._recovered = False
        self._number = 0
        self._pings = 0
        #: The number of the ping that a member or server has not answered.
        self._pinged: dict[str, int] = {}
        self._failures = 0
        self._paused = False
        self._pauses = 0
        self._commands: list[Command] = []

    # -- events -----------------------------------------------------------------------------------------------------

    def hear(self, member: str, message: Message) -> list[Command]:
        """A message of a member's."""
        known = self._members.get(member)
        if is_server(member):
            self._hear_server(member, message)
        elif isinstance(message, Hello):
            self._welcome(member, message)
        elif known is None:
            if not isinstance(message, Left | Alive) and member not in self._leaving:
                self._commands.append(Send(member, Out(_WENT_ON)))
        else:
            match message:
                case Alive():
                    self._pinged.pop(member, None)
                case Idle(idle):
                    known.idle = idle
                case Copied(position):
                    known.copied = position
                case Formed(number):
                    if number in (view.number for view in (self.pending or self.current,) if view):
                        self._formed.add(member)
                case NotFormed(number):
                    self._not_formed(member, number)
                case Entered(view):
                    self._entered(member, view)
                case Left(view):
                    if view is not None:
                        self._advance(view, member)
                    self._leaving.add(member)
                    self._remove(member)
                case Broken(number):
                    self._broken(member, number)
                case Waiting(number):
                    agreed = self._planned.get(number)
                    if agreed is not None and self.current is not None and member not in agreed.newcomers:
                        self._advance(agreed, member)  # servers do not break a view that a newcomer has left
                    if self.current is not None and self.current.number == number:
                        self._waited_for(member)
        return self._settle()

    def lost(self, member: str, because: str) -> list[Command]:
        """Its connection ended."""
        if member in self._members:
            self._commands.append(Lose(member, because))
            self._remove(member)
        elif member in self._servers:
            self._commands.append(Lose(member, because))
            self._remove_server(member)
        self._leaving.discard(member)
        return self._settle()

    def resize(self, workers: set[int], servers: set[int] | None = None) -> list[Command]:
        """These workers, and servers, belong to the group from now on."""
        self.wanted, self._knows_wanted = set(workers), True
        if servers is not None:
            self.wanted_servers, self._lost_servers = set(servers), set()
        return self._settle()

    def timed_out(self, key: tuple) -> list[Command]:
        """A timer has run out."""
        match key:
            case ("forming", number):
                for view in (self.pending, self.current):
                    late = view is not None and view.number == number and not self._formed >= set(view.members)
                    if late and (view is self.pending or not self.entered):
                        self._suspect(set(view.members) - self._formed | set(view.servers))
                        self._fail(view)
            case ("retry", pause) if pause == self._pauses:
                self._paused = False
            case ("force", number) if self.current is not None and self.current.number == number:
                if not self.entered:
                    self._force()
            case ("silent", member, ping):
                if self._pinged.get(member) == ping:
                    because = f"it hung: no answer for {HANG_SECONDS:g} s while others waited for it"
                    self._commands += [Lose(member, because), Send(member, Out(because))]
                    self._remove_server(member) if is_server(member) else self._remove(member)
            case ("slices", number) if number == self._watched and self.current is not None:
                self._found_again()
            case ("recovery",):
                self._recovered = True
        return self._settle()

    # -- members ----------------------------------------------------------------------------------------------------

    def _welcome(self, member: str, hello: Hello) -> None:
        self._number = max(self._number, hello.seen)
        if member in self._members:
            self._remove(member)  # it connects again, before its lost connection was noticed
        if member in self._gone:
            self._commands.append(Send(member, Out(_WENT_ON)))
            return
        for other in [each for each in self._members if worker_of(each) == worker_of(member)]:
            self._commands.append(Lose(other, "its worker was started again"))
            self._remove(other)
        if hello.view is not None and self.current is not None:
            self._expel(member)
            return
        self._members[member] = _Member(idle=hello.idle, copied=hello.copied)
        self._size = self._size or hello.size
        if hello.view is not None:
            if not self._reports:
                self._commands.append(Timer(("recovery",), RECOVERY_SECONDS))
            self._reports[member] = hello

    def _remove(self, member: str) -> None:
        """It is gone: what it was part of changes."""
        self._members.pop(member, None)
        self._pinged.pop(member, None)
        self._reports.pop(member, None)
        self._gone.add(member)
        if self.pending is not None and member in self.pending.members:
            self._abandon()
        self._holders.discard(member)
        if self.current is not None and member in self.current.members:
            self._force()

    def _expel(self, member: str, because: str | None = _WENT_ON) -> None:
        self._members.pop(member, None)
        self._gone.add(member)
        self._commands.append(Send(member, Out(because)))

    def _waited_for(self, member: str) -> None:
        """A member waits for the others of the current view."""
        resting = [
            each
            for each, known in self._members.items()
            if each in self.current.members and known.idle and worker_of(each) not in self.wanted
        ]
        if resting and self.pending is not None:
            self._force(
                self.pending.newcomers, list(self.pending.servers)
            )  # they get no epoch any more, so no step comes to agree after
        else:
            self._suspect({*self.current.members, *self.current.servers} - {member})

    def _suspect(self, members: set[str]) -> None:
        """Ask for a sign of life, and wait for it."""
        for member in sorted(members & {*self._members, *self._servers}):
            if member not in self._pinged:
                self._pings += 1
                self._pinged[member] = self._pings
                self._commands += [Send(member, Ping()), Timer(("silent", member, self._pings), HANG_SECONDS)]

    def _broken(self, member: str, number: int) -> None:
        self._members[member].broken = max(self._members[member].broken, number)
        if self._members[member].forced > number:
            return  # it was sent another view meanwhile
        if member in self._reports:
            self._reports[member] = Hello(self._reports[member].view, False, 0)
        elif self.current is None:
            return
        elif member in self.current.members:
            self._force()
        elif self.pending is not None and number == self.pending.number:
            self._fail(self.pending)
        elif worker_of(member) not in self.wanted:
            self._expel(member)

    # -- servers ----------------------------------------------------------------------------------------------------

    def _hear_server(self, server: str, message: Message) -> None:
        match message:
            case Hello(view, intact, seen):
                self._register(server, view if intact else None, seen)
            case Alive():
                self._pinged.pop(server, None)
            case Entered(view) if server in self._servers:
                self._servers[server] = view

    def _register(self, server: str, view: View | None, seen: int) -> None:
        """A server says hello, to this coordinator for the first time."""
        self._number = max(self._number, seen)
        if server in self._gone:
            self._commands.append(Send(server, Out(_WENT_ON)))
            return
        for other in [each for each in self._servers if worker_of(each) == worker_of(server)]:
            self._commands.append(Lose(other, "its server was started again"))
            self._remove_server(other)
        self._servers[server] = view
        if worker_of(server) in self._lost_servers:
            self._lost_servers.discard(worker_of(server))
            self.wanted_servers.add(worker_of(server))
        if self.current is not None:
            self._commands.append(Send(server, Order(self.current)))

    def _remove_server(self, server: str) -> None:
        """It is gone, and with it the state of its slices: the others found the group anew, from the last copy."""
        self._servers.pop(server)
        self._pinged.pop(server, None)
        self._gone.add(server)
        if len(self.wanted_servers) > 1 and worker_of(server) in self.wanted_servers:
            self.wanted_servers.discard(worker_of(server))
            self._lost_servers.add(worker_of(server))
        if self.pending is not None and server in self.pending.servers:
            self._abandon()
        if self.current is not None:
            had_slices = server in self._used_servers and self._seeded == self.current.founded
            if server in self.current.servers or (had_slices and not self._served):
                self._found_again()

    def _found_again(self) -> None:
        if self.pending is not None:
            self._abandon()
        self.current, self.entered, self._holders = None, set(), set()

    def _servers_of(self, wanted: set[int]) -> list[str]:
        """Those that are there of these ranks: as many as there are slices, at most."""
        found = sorted((each for each in self._servers if worker_of(each) in wanted), key=worker_of)
        return found[: len(slices.bounds(self._size)) - 1]

    def _assign(self, servers: list[str]) -> tuple[int, ...]:
        """Who owns which slice, so that few of them move."""
        if not servers:
            return ()
        starts = slices.bounds(self._size)
        sizes = [stop - start for start, stop in itertools.pairwise(starts)]
        owner: list[int | None] = [None] * len(sizes)
        if self.current is not None:
            place = {server: number for number, server in enumerate(servers)}
            owner = [place.get(self.current.servers[of]) for of in self.current.owner]
        return slices.assign(sizes, owner, len(servers))

    @property
    def settled(self) -> bool:
        """Whether all members train in the current view, and servers hold what it gives them."""
        return self.current is not None and self.entered >= set(self.current.members) and self._served

    @property
    def _served(self) -> bool:
        """Whether servers hold what the current view gives them."""
        return all(self._servers.get(each) == self.current for each in self.current.servers)

    def _watch(self, before: int = 0) -> None:
        """Slices may be lost with a server of a view that members went to after `before`: do not wait for ever."""
        planned = [view for view in self._planned.values() if view.number > before]
        lost = any(not self._servers.keys() >= set(view.servers) for view in planned)
        if not self._served and (lost or not before):
            self._watched = self.current.number
            self._commands.append(Timer(("slices", self._watched), RECOVERY_SECONDS))

    # -- views ------------------------------------------------------------------------------------------------------

    def _issue(
        self, members: list[str], newcomers: list[str], servers: list[str] | None = None, *, planned: bool
    ) -> View:
        """A view of these; without `servers`, of the current ones."""
        self._number += 1
        self._formed = set()
        if self.current is None:
            self._founded, self._watched = self._number, 0
        if servers is None:
            servers, owner = list(self.current.servers), self.current.owner
        else:
            owner = self._assign(servers)
        self._used_servers |= set(servers)
        prefix = f"{self._token}/{self._number}"
        view = View(
            self._number,
            prefix,
            tuple(members),
            tuple(newcomers),
            planned,
            tuple(servers),
            owner,
            self._founded,
        )
        if planned and servers:
            self._planned = {number: each for number, each in self._planned.items() if number > self._number - KEPT}
            self._planned[view.number] = view
        return view

    def _send(self, view: View, members: list[str]) -> None:
        for member in members:
            if member in self._members:
                self._commands.append(Send(member, Order(view)))
                if not view.planned:
                    self._members[member].forced = view.number
        # All servers: one that is in no view any more may still hold what this one gives to others.
        self._commands += [Send(server, Order(view)) for server in self._servers]
        self._commands.append(Timer(("forming", view.number), FORMING_SECONDS))

    def _abandon(self) -> None:
        """The planned view will not be, unless all had agreed on it already."""
        view, self.pending = self.pending, None
        for member in self.current.members:
            if member in self._members:
                self._commands.append(Send(member, Drop(view.number)))

    def _entered(self, member: str, view: View) -> None:
        current = self.current
        if (
            current is not None
            and view.number < current.number
            and member not in current.members
            and not view.prefix.startswith(f"{self._token}/")
        ):
            self._expel(member)  # a former coordinator's view, formed after this one had founded its own
            return
        self._members[member].view = view
        if member in self._reports:
            self._reports[member] = Hello(view, True)
        self._advance(view, member)
        if view == self.current:
            self._holders.add(member)
            self.entered.add(member)

    def _advance(self, view: View, member: str) -> None:
        """Members have agreed on this planned view; this one said so."""
        if self.current is None or view.number <= self.current.number:
            return
        heirs = set(view.members) - set(view.newcomers) | {member}
        before = self.current.number
        self.current, self.entered = view, self._inside(view)
        self._founded = view.founded
        self._holders = (heirs & set(self._members)) | self.entered
        if self.pending is not None and self.pending.number <= view.number:
            self.pending = None
        if not self._servers.keys() >= set(view.servers):
            self._found_again()  # one of them was lost before
            return
        self._watch(before)
        if any(each not in self._members or self._members[each].broken >= view.number for each in view.members):
            self._force()

    def _inside(self, view: View) -> set[str]:
        """Members that said that they entered this view, and not that it broke."""
        known = {each: self._members[each] for each in view.members if each in self._members}
        return {each for each, of in known.items() if of.view == view and of.broken < view.number}

    def _not_formed(self, member: str, number: int) -> None:
        if self.pending is not None and number == self.pending.number:
            self._fail(self.pending)
        elif self.current is not None and number == self.current.number and member not in self.entered:
            self._fail(self.current)

    def _fail(self, view: View) -> None:
        """That view could not be formed: another prefix, at once the first time."""
        self._failures += 1
        seconds = min(RETRY_SECONDS * 2**self._failures, LONGEST_RETRY_SECONDS)
        if view.planned or view.newcomers:
            self._paused = self._failures > 1
            if self._paused:
                self._pauses += 1
                self._commands.append(Timer(("retry", self._pauses), seconds))
        if view is self.pending:
            self._abandon()
        elif view.newcomers or self._failures == 1:
            self._force()
        else:
            self._commands.append(Timer(("force", view.number), seconds))

    def _force(self, newcomers: tuple[str, ...] = (), servers: list[str] | None = None) -> None:
        """A view of the survivors, and of these, at once."""
        if self.current.servers and self._seeded != self.current.founded:
            self._found_again()  # its founder had not given the servers the state yet
            return
        if self.pending is not None:
            self._abandon()
        survivors = [each for each in self.current.members if each in self._members and each in self._holders]
        kept = [each for each in survivors if worker_of(each) in self.wanted] or survivors[:1]
        for member in set(survivors) - set(kept):
            self._expel(member, None)
        self.entered = set()
        if not kept:
            self.current, self._holders = None, set()  # no member has the group's state: it is founded anew
            return
        members, before = [*kept, *newcomers], self.current.number
        self.current = self._issue(members, list(newcomers), servers, planned=False)
        self._holders = set(kept)
        self._send(self.current, members)
        self._watch(before)

    # -- what follows -----------------------------------------------------------------------------------------------

    def _settle(self) -> list[Command]:
        if self.current is None:
            self._recover() if self._reports else self._found()
        elif self.settled:
            self._seeded, self._watched = self.current.founded, 0
            for member in sorted(self._leaving):
                self._commands.append(Send(member, Out()))
            self._leaving.clear()
            self._plan()
        self._dismiss()
        commands, self._commands = self._commands, []
        return commands

    def _dismiss(self) -> None:
        """Let go of those that belonged to the group and are in no view."""
        used = {each for view in (self.current, self.pending) if view for each in view.members}
        for member, known in list(self._members.items()):
            if worker_of(member) in self.wanted:
                known.was_wanted = True
            elif known.was_wanted and member not in used and member not in self._reports:
                self._expel(member, None)
        if self.pending is None and self.settled:
            for server in [each for each in self._servers if worker_of(each) not in self.wanted_servers]:
                if server in self._used_servers and server not in self.current.servers:
                    self._servers.pop(server)
                    self._pinged.pop(server, None)
                    self._gone.add(server)
                    self._commands.append(Send(server, Out()))

    def _found(self) -> None:
        """When all that belong to the group are there, the state of one becomes that of all: it has the last copy."""
        members = sorted((each for each in self._members if worker_of(each) in self.wanted), key=self._by_copy)
        if not members or {worker_of(each) for each in members} != self.wanted:
            return
        if not self.wanted_servers <= {worker_of(each) for each in self._servers}:
            return
        servers = self._servers_of(self.wanted_servers) if self._has_servers else []
        if self._has_servers and not servers:
            return  # their state is to be held by one at least
        self.current, self._knows_wanted = self._issue(members, members, servers, planned=False), True
        self._holders, self.entered = {members[0]}, set()
        self._send(self.current, members)

    def _by_copy(self, member: str) -> tuple[int, int]:
        return -self._members[member].copied, worker_of(member)

    def _recover(self) -> None:
        """Go on with the newest view that a member is in."""
        newest = max((hello.view for hello in self._reports.values()), key=lambda view: view.number)
        expected = {each for each in (*newest.members, *newest.servers) if each not in self._gone}
        if not self._recovered and not expected <= {*self._members, *self._servers}:
            return
        reports, self._reports = self._reports, {}
        for member in [each for each in reports if each not in newest.members]:
            self._expel(member)
        if not self._knows_wanted:
            self.wanted = {worker_of(each) for each in newest.members}
        held = [self._servers[each] for each in newest.servers if each in self._servers]
        if len(held) < len(newest.servers) or (newest.number == newest.founded and None in held):
            self._found()  # the state of the slices is lost, or was not given yet
            return
        self._founded = self._seeded = newest.founded
        self._used_servers = set(newest.servers)
        self._commands += [Send(server, Order(newest)) for server in self._servers]
        self.current = newest
        self._watch()
        self._holders = {
            each
            for each, hello in reports.items()
            if each in newest.members and (each not in newest.newcomers or hello.view == newest)
        } | self._inside(newest)
        intact = {each for each, hello in reports.items() if hello.view == newest and hello.intact}
        if intact | self._inside(newest) >= set(newest.members):
            self.entered = set(newest.members)
        else:
            self._force()

    def _plan(self) -> None:
        """The view that the workers wanted would make of those that are there."""
        if self._paused:
            return
        kept = [each for each in self.current.members if worker_of(each) in self.wanted]
        joined = [each for each in self._members if each not in self.current.members and worker_of(each) in self.wanted]
        if not kept:
            kept = [self.current.members[0]]  # until the newcomers have the state from it
        servers = self._servers_of(self.wanted_servers) or list(self.current.servers)
        target = {*kept, *joined}
        if target == set(self.current.members) and servers == list(self.current.servers):
            self._failures = 0
            if self.pending is not None:
                self._abandon()
        elif all(self._members[each].idle for each in self.current.members):
            self._force(tuple(joined), servers)  # there is no step to agree after
        elif self.pending is None or (set(self.pending.members), list(self.pending.servers)) != (
            target,
            servers,
        ):
            if self.pending is not None:
                self._abandon()
            self.pending = self._issue([*kept, *joined], joined, servers, planned=True)
            self._send(self.pending, [*self.current.members, *joined])
