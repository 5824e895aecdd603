"""Histories of a group with parameter servers: the shipped coordinator, members and servers in a simulated world.

    python -m tests.functions.servers.histories 1000000

runs that many of them, as tests.functions.membership.histories does, and keeps the count in
results/elastic/histories.json.

A slice's weights are the exchanges that made them. A gradient knows the weights that it was computed with: where they
are not those of the server, an update was lost or doubled.
"""

import heapq
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.functions.membership.histories import ROOT, WAITS, Group, Plan, Process, Violation, World, main

# isort: split
from training.membership import member as machine
from training.membership import slices
from training.membership.coordinator import KEPT, Coordinator
from training.membership.messages import Copied, Found, Give, Hello, Send, Take, Tell, View, is_server
from training.membership.slices import Piece
from training.servers.server import End, Norms, Push, Reply, Server, Ship, Slice

RECORD = ROOT / "results" / "elastic" / "histories.json"
FAULTS = ("kill", "freeze", "resize", "resize", "cut", "scheduler", "stuck", "replace", "pair")
SERVER_FAULTS = (
    "servers",
    "servers",
    "servers",
    "replace servers",
    "kill server",
    "freeze server",
    "cut server",
)


class Gradient(NamedTuple):
    """Of one slice."""

    weights: tuple[int, ...]
    step: int


class Rule(NamedTuple):
    """The part of an optimizer that a server's decisions depend on."""

    clip_norm: float | None


def update(arrays: list, gradients: Sequence[Gradient], rule: Rule, count: int, total: float | None) -> None:
    if len(set(gradients)) != 1 or gradients[0].weights != arrays[0]:
        raise Violation(f"gradients {gradients} are applied to {arrays[0]}")
    if (total is None) != (rule.clip_norm is None):
        raise Violation("the norm of all gradients is not known")
    arrays[0] = (*arrays[0], gradients[0].step)
    if count != len(arrays[0]):
        raise Violation(f"update {count} gave {arrays[0]}")


@dataclass
class Link:
    """A worker's connections to the servers of one view."""

    view: View
    open: bool = True
    formed: bool = False
    ready: int = 0
    inbox: list[tuple] = field(default_factory=list)


class ServerProcess(Process):
    """One server's process: as a worker's for the coordinator."""

    def __init__(self, name: str, make: Callable[[], Server]) -> None:
        self.name = name
        self.member = make(name)
        self.loaded = True
        self.frozen_until = 0.0
        self.dead = self.over_ = False
        self.connection = 0
        self.heard_at = self.said_at = 0.0

    @property
    def over(self) -> bool:
        return self.dead or self.over_


def drawn(seed: int) -> Plan:
    """The plan with this number: the same everywhere."""
    draws = random.Random(seed * 31 + 7)
    faults = []
    for _ in range(draws.choice((1, 1, 2, 2, 3, 4))):
        when = draws.uniform(0, 3)
        for _ in range(1 + (draws.random() < 0.3)):  # sometimes two at once
            kind = draws.choice(FAULTS if draws.random() < 0.5 else SERVER_FAULTS)
            faults.append((when, kind, draws.randrange(1 << 16)))
            when += draws.choice((0, 0.001, 0.02))
    return Plan(seed, draws.randint(1, 3), draws.choice((3, 8)), draws.randint(1, 2), tuple(sorted(faults)))


class ServedWorld(World):
    """One history."""

    #: Steps between two copies.
    COPY = 2

    def __init__(
        self, plan: Plan, make: Callable[[str], Server] | None = None, coordinator: type[Coordinator] = Coordinator
    ) -> None:
        super().__init__(plan)
        self._make_coordinator = coordinator
        #: The positions of the copies that the coordinator has heard of.
        self._copied: dict[str, int] = {}
        #: Steps that the group had when it was founded from a copy.
        self.survived = 0
        self._make_server = make or (lambda name: Server(name, update, lambda gradients: 1.0))
        self.wanted_servers = set(range(self._draws.randint(1, 3)))
        self.size = self._draws.choice((1, 4, 4, 12))
        self._rule = Rule(self._draws.choice((None, None, 1.0)))
        self.servers: dict[str, ServerProcess] = {}
        self._channels: dict[tuple, float] = defaultdict(float)
        self.moved = 0

    def run(self) -> None:
        for rank in self.wanted_servers:
            self._spawn_server(rank)
        super().run()

    def counts(self) -> dict[str, int]:
        return {"slices moved": self.moved, "steps kept by copies": self.survived}

    # -- what the job's handler does --------------------------------------------------------------------------------

    def _start_coordinator(self) -> None:
        self._coordinators += 1
        self._copied.clear()
        token = f"c{self._coordinators}"
        self.coordinator = self._make_coordinator(token, len(self.wanted), len(self.wanted_servers))
        if self._coordinators > 1 or self.wanted_servers != set(range(len(self.wanted_servers))):
            self.at(self.delay(0.05), self._resize)
        for process in [*self.processes.values(), *self.servers.values()]:
            if process.loaded and not process.over:
                self.on(process, self.delay(0.05), self._connect)

    def _spawn(self, rank: int) -> None:
        super()._spawn(rank)
        process = self.processes[rank]
        process.member.size = self.size
        process.links, process.weights, process.founds, process.taking = {}, [()] * self.size, False, None
        process.base, process.stepped = 0, False

    def _spawn_server(self, rank: int) -> None:
        number = 1 + sum(name.startswith(f"{rank}.") for name in self.servers)
        process = ServerProcess(f"{rank}.s{number}@host:{rank}", self._make_server)
        self.servers[process.name] = process
        self.on(process, 0.05 + self.delay(0.1), self._connect)

    def _ranks(self) -> set[int]:
        return {int(name.partition(".")[0]) for name, each in self.servers.items() if not each.over}

    def _resize(self) -> None:
        if self.coordinator is not None:
            self._obey(self.coordinator.resize(set(self.wanted), set(self.wanted_servers)))

    def _handle(self) -> None:
        for rank in sorted(self.wanted_servers - self._ranks()):
            self._spawn_server(rank)
        super()._handle()

    def _finished(self) -> bool:
        return super()._finished() and self.coordinator.settled

    def _check_end(self) -> None:
        super()._check_end()
        whole = tuple(range(len(self.processes[min(self.wanted)].chain)))
        for rank in self.wanted:
            if any(weights != whole for weights in self.processes[rank].weights):
                raise Violation(f"worker {rank} has {self.processes[rank].weights} after {whole}")
        view = self.coordinator.current
        for number, of in enumerate(view.owner):
            held = self.servers[view.servers[of]].member.slices.get(number)
            if held is None or held.arrays != [whole]:
                raise Violation(f"slice {number} is {held} after {whole}")
        for name in view.servers:
            server = self.servers[name].member
            kept = {*server._ordered, *server._joined, *(each[0] for each in server._early)}
            if len(kept) > KEPT or len(server._shipped) > 8:
                raise Violation(f"server {name} keeps {len(server._shipped)} slices, and views {sorted(kept)}")

    # -- faults -----------------------------------------------------------------------------------------------------

    def _fault(self, what: str, number: int) -> None:
        live = [each for _, each in sorted(self.servers.items()) if not each.over]
        victim = live[number % len(live)] if live else None
        if what in ("servers", "replace servers"):
            first = number // 5 % 3 if what == "replace servers" else 0
            self.wanted_servers = set(range(first, first + number % 3 + 1))
            for rank in sorted(self.wanted_servers - self._ranks()):
                self._spawn_server(rank)
            self.at(self.delay(0.05), self._resize)
        elif what == "kill server" and victim:
            self._kill(victim)
        elif what == "freeze server" and victim:
            victim.frozen_until = self.now + (0.3, 2.0, 6.0)[number // 7 % 3]
        elif what == "cut server" and victim and victim.connection:
            self._disconnect(victim)
            self.on(victim, self.delay(0.05), self._connect)
        elif what == "scheduler":
            for process in self.servers.values():
                process.connection = 0 if self.coordinator is not None else process.connection
            super()._fault(what, number)
        else:
            super()._fault(what, number)

    def _obey(self, commands: list) -> None:
        for command in commands:
            if isinstance(command, Send) and is_server(command.member):
                process = self.servers[command.member]
                if process.connection:
                    process.heard_at = max(process.heard_at, self.now + self.delay(0.005))
                    delay = process.heard_at - self.now
                    self.on(process, delay, self._hear, process.connection, command.message)
            elif getattr(command, "member", None) and is_server(command.member):
                if "hung" in command.because or "again" in command.because:
                    self.at(self.delay(0.2), self._kill, self.servers[command.member])
            else:
                super()._obey([command])
        self._check_coordinator()

    # -- messages ---------------------------------------------------------------------------------------------------

    def _send(self, to: Process, key: tuple, call: Callable, *arguments: Any) -> None:
        """What is sent on a channel arrives in the order in which it was sent."""
        self._channels[key] = max(self._channels[key], self.now + self.delay(0.008))
        self._at(self._channels[key], to, call, arguments)

    def _at(self, when: float, process: Process, call: Callable, arguments: tuple) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (when, self._serial, self._run_on, (process, call, arguments)))

    def _run_on(self, process: Process, call: Callable, arguments: tuple) -> None:
        if process.frozen_until > self.now and not process.dead:
            self._at(process.frozen_until, process, call, arguments)
        else:
            super()._run_on(process, call, arguments)

    def _to_server(self, process: Process, link: Link, name: str, call: str, *arguments: Any) -> None:
        def arrive(server: ServerProcess) -> None:
            self._note("%s/%s to %s: %s %s", process.name, link.view.number, name, call, arguments)
            self._do(server, getattr(server.member, call)(*arguments))

        if link.open and not self.servers[name].dead:
            self._send(self.servers[name], (process.name, link.view.number, name), arrive)

    def _to_worker(self, server: ServerProcess, name: str, view: int, what: tuple) -> None:
        found = [each for each in [*self.processes.values(), *self._old] if each.name == name]
        if found:
            self._send(found[0], (server.name, name, view), self._arrived, view, what)

    def _arrived(self, process: Process, view: int, what: tuple) -> None:
        link = process.links.get(view)
        if link is None or not link.open:
            return
        self._note("%s/%s gets %s", process.name, view, what)
        if what[0]["op"] == "ready":
            link.ready += 1
            if link.ready == len(link.view.servers):
                link.formed = True
                self._do(process, process.member.formed(view))
            return
        link.inbox.append(what)
        if process.doing in WAITS and process.group.view.number == view:
            self._advance(process, link)

    def _do(self, process: Process, commands: list) -> None:
        if isinstance(process, ServerProcess):
            self._serve(process, commands)
            return
        if any(isinstance(each, Found) for each in commands):
            self._founds(process)
        super()._do(process, commands)

    def _founds(self, process: Process) -> None:
        heard = max(self._copied.get(each, 0) for each in process.member.view.members)
        process.base, process.stepped = len(process.copy), False
        if process.base < heard:
            raise Violation(f"{process.name} founds the group with {process.base} steps, where a copy has {heard}")
        self.survived += process.base
        process.weights, process.founds = [tuple(range(process.base))] * self.size, True

    def _told(self, coordinator: Coordinator, name: str, message: Any) -> None:
        if coordinator is self.coordinator and isinstance(message, Hello | Copied) and not is_server(name):
            self._copied[name] = message.copied if isinstance(message, Hello) else message.position
        super()._told(coordinator, name, message)

    def _serve(self, server: ServerProcess, commands: list) -> None:
        for command in commands:
            match command:
                case Tell(message):
                    self._tell(server, message)
                case Reply(worker, view, message, weights):
                    self._to_worker(server, worker, view, (message, message.get("piece"), weights))
                case Ship(name, view, number, slice_):
                    self.moved += 1
                    self._to_peer(server, name, "shipped", view, number, slice_)
                case Norms(name, view, clock, squares):
                    self._to_peer(server, name, "norms", view, clock, squares)
                case End():
                    server.over_ = True

    def _to_peer(self, server: ServerProcess, name: str, call: str, *arguments: Any) -> None:
        def arrive(peer: ServerProcess) -> None:
            self._note("%s to %s: %s %s", server.name, name, call, arguments)
            if not peer.over:  # a slice that is lost shows later
                self._do(peer, getattr(peer.member, call)(*arguments))

        self._send(self.servers[name], (server.name, name), arrive)

    # -- a worker ---------------------------------------------------------------------------------------------------

    def _form(self, process: Process, view: View) -> None:
        self._groups.setdefault(view.prefix, Group(view))
        link = process.links[view.number] = Link(view)
        if self._stuck:
            self._stuck -= 1
            return
        for name in view.servers:
            self._to_server(process, link, name, "join", process.name, view.number)

    def _closed(self, group: Group, name: str) -> None:
        everyone = [*self.processes.values(), *self._old]
        process = next((each for each in everyone if each.name == name), None)
        link = process.links.get(group.view.number) if process else None
        if link is None or not link.open:
            return
        link.open = False
        if not link.formed:
            self.on(process, self.delay(0.02), self._unformed, group.view.number)
        elif process.doing in WAITS and process.group is group:
            self.on(process, self.delay(0.02), self._broke, process.turn, group)

    def _unformed(self, process: Process, number: int) -> None:
        self._do(process, process.member.not_formed(number))

    def _go_on(self, process: Process) -> None:
        """After a step, in whatever view, the first worker has a copy before it computes: no server can go on."""
        member = process.member
        if process.stepped and process.doing is None and member.state == machine.TRAINING:
            is_due = len(process.chain) >= len(process.copy) + self.COPY
            if is_due and member.view.members[0] == process.name and len(member.view.servers) > 1:
                process.doing, process.group = "copy", self._groups[member.view.prefix]
                self._contribute(process, ("copy",))
                return
            process.stepped = False
        super()._go_on(process)

    def _contribute(self, process: Process, what: tuple) -> None:
        link, name, number = process.links[process.group.view.number], process.name, process.group.view.number
        process.turn += 1
        self.on(process, 1.0, self._waits, process.turn)
        if not link.open:
            self.on(process, self.delay(0.01), self._broke, process.turn, process.group)
            return
        first = link.view.servers[0]
        if what[0] == "enter":
            self._to_server(process, link, first, "say", name, number, tuple(what[1]))
            return
        if what[0] == "copy":
            for piece, server in self._pieces(link.view):
                self._to_server(process, link, server, "pull", name, number, piece, True)
            return
        clock = process.member.clock
        if process.base + clock != len(process.chain):
            raise Violation(f"{name} has trained {process.chain} at clock {clock}")
        self._to_server(process, link, first, "add", name, number, clock, list(what[2]))
        for piece, server in self._pieces(link.view):
            gradients = [Gradient(process.weights[number_], len(process.chain)) for number_ in piece]
            push = Push(piece, clock, gradients, int(what[2][0]), [self._rule] * len(piece))
            self._to_server(process, link, server, "push", name, number, push)

    @staticmethod
    def _pieces(view: View) -> list[tuple[Piece, str]]:
        return [(piece, name) for of, name in enumerate(view.servers) for piece in slices.pieces(view.owner, of)]

    def _advance(self, process: Process, link: Link) -> None:
        """What came may be all that it waits for."""
        ops = [message["op"] for message, _, _ in link.inbox]
        if process.doing == "enter" and "say" in ops:
            values = link.inbox.pop(ops.index("say"))[0]["values"]
            self._said(process, link, [machine.Clock(*each) for each in values])
        elif process.doing == "transfer" and process.taking is not None:
            take, chain = process.taking
            if chain is None and "given" in ops:
                given = link.inbox.pop(ops.index("given"))[0]
                chain = given["chain"] if take.whole else (*process.chain, given["chain"])
                process.base = given["base"]
                process.taking = (take, chain)
                if given["weights"] is not None:
                    link.inbox.append(({"op": "relayed"}, range(self.size), given["weights"]))
                    self._advance(process, link)
                    return
                for piece, server in self._pieces(link.view):
                    self._to_server(process, link, server, "pull", process.name, link.view.number, piece, False)
            elif "relayed" in ops or (chain is not None and ops.count("pulled") == len(self._pieces(link.view))):
                self._write(process, link, len(chain))
                process.chain, process.last = chain, None if take.whole else chain[-1]
                process.stepped = not take.whole
                process.taking = None
                self._settled(process, process.turn, process.group, take)
        elif process.doing == "copy" and ops.count("pulled") == len(self._pieces(link.view)):
            self._copies(process, link)
        elif process.doing == "exchange" and "add" in ops and ops.count("weights") == len(self._pieces(link.view)):
            offers = next(message["values"] for message, _, _ in link.inbox if message["op"] == "add")
            process.turn += 1
            process.doing = None
            process.last = (len(process.chain), link.view.prefix)
            process.chain, process.stepped = (*process.chain, process.last), True
            self._write(process, link, len(process.chain))
            self._do(process, process.member.completed(link.view.number, tuple(offers)))

    def _copies(self, process: Process, link: Link) -> None:
        """What servers hold, whole: the state after this worker's last step, also where views changed meanwhile."""
        self._write(process, link, len(process.chain))
        process.turn += 1
        process.doing, process.copy, process.stepped = None, process.chain, False
        self._do(process, process.member.copies(len(process.copy)))

    def _write(self, process: Process, link: Link, steps: int) -> None:
        for _, piece, weights in link.inbox:
            for number, each in zip(piece or (), weights, strict=True):
                process.weights[number] = each
        link.inbox.clear()
        if any(weights != tuple(range(steps)) for weights in process.weights):
            raise Violation(f"{process.name} has {process.weights} after {steps} steps")

    def _said(self, process: Process, link: Link, clocks: list) -> None:
        process.turn += 1
        process.doing = "transfer"
        self.on(process, 1.0, self._waits, process.turn)
        group, founds, process.founds = process.group, process.founds, False
        if not self._still(process, group) or process.member.state != machine.ENTERING:
            self._broke(process, process.turn, group)
            return
        orders = process.member.gathered(clocks)
        if founds:
            for piece, server in self._pieces(link.view):
                parts = [Slice([process.weights[number]], process.base) for number in piece]
                self._to_server(process, link, server, "seed", link.view.number, piece, parts)
        for order in orders:
            if isinstance(order, Give):
                message = {"op": "given", "chain": process.chain if order.whole else process.last}
                message["base"] = process.base
                relays = order.whole and not link.view.planned and link.view.newcomers != link.view.members
                message["weights"] = list(process.weights) if relays else None
                to = (link.view.number, order.member, message, [])
                self._to_server(process, link, link.view.servers[0], "relay", *to)
        takes = [order for order in orders if isinstance(order, Take)]
        if takes:
            process.taking = (takes[0], None)
            self._advance(process, link)
        else:
            self.on(process, self.delay(0.01), self._settled, process.turn, group, None)

    def _broke(self, process: Process, turn: int, group: Group) -> None:
        if turn == process.turn:
            process.taking, process.founds = None, False
        super()._broke(process, turn, group)


if __name__ == "__main__":
    sources = [*(ROOT / "functions/training/servers").glob("*.py"), Path(__file__)]
    sys.exit(1 if main(int(sys.argv[1]), RECORD, lambda seed: ServedWorld(drawn(seed)), sources) else 0)
