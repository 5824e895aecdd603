"""Histories of a group: the shipped coordinator and members in a simulated world of delays, deaths and hangs.

    python -m tests.functions.membership.histories 1000000

runs that many of them, goes on where it was stopped, and keeps the count in results/pytorch/histories.json.
"""

import hashlib
import heapq
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "functions"))

from training.membership import member as machine
from training.membership.coordinator import Coordinator
from training.membership.member import Member
from training.membership.messages import (
    Close,
    End,
    Form,
    Found,
    Give,
    Lose,
    Send,
    Take,
    Tell,
    Timer,
    View,
    worker_of,
)

ROOT = Path(__file__).resolve().parents[3]
RECORD = ROOT / "results" / "pytorch" / "histories.json"
#: Seconds of the simulated world after which a history counts as one that does not end.
LONGEST = 600.0


class Violation(AssertionError):
    """What must never happen."""


@dataclass(frozen=True)
class Plan:
    """What happens to a group. Times are seconds; workers are drawn when the fault comes."""

    seed: int
    workers: int
    #: Steps of an epoch. Epochs are trained until all workers train, this many at least.
    epoch: int
    epochs: int
    #: (when, what, a number that says to whom or how long).
    faults: tuple[tuple[float, str, int], ...]


FAULTS = ("kill", "freeze", "resize", "resize", "cut", "scheduler", "stuck", "replace", "pair")


def drawn(seed: int) -> Plan:
    """The plan with this number: the same everywhere."""
    draws = random.Random(seed)
    faults = []
    for _ in range(draws.choice((1, 1, 2, 2, 3, 4, 6))):
        when = draws.uniform(0, 4)
        faults.append((when, draws.choice(FAULTS), draws.randrange(1 << 16)))
        if draws.random() < 0.3:  # two at once
            faults.append((when + draws.choice((0, 0.001, 0.02)), draws.choice(FAULTS), draws.randrange(1 << 16)))
    return Plan(seed, draws.randint(1, 4), draws.choice((3, 8, 15)), draws.randint(1, 3), tuple(sorted(faults)))


@dataclass
class Group:
    """One process group: who is connected, and the exchanges."""

    view: View
    started: set[str] = field(default_factory=set)
    formed: bool = False
    stuck: bool = False
    closed: set[str] = field(default_factory=set)
    #: By number of the exchange, what each member put in.
    exchanges: list[dict[str, Any]] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    #: What was sent from one member to another: (from, to) -> content.
    sent: dict[tuple[str, str], Any] = field(default_factory=dict)


#: What a process does in which it waits for others.
WAITS = ("exchange", "enter", "transfer", "copy")


class Process:
    """One worker's process."""

    def __init__(self, name: str, make: Callable[[str], Member]) -> None:
        self.name = name
        self.member = make(name)
        #: The exchanges applied, by (step, view): what the weights come from.
        self.chain: tuple[tuple[int, str], ...] = ()
        self.last: tuple[int, str] | None = None
        #: What it would found the group from.
        self.copy: tuple[tuple[int, str], ...] = ()
        self.loaded = False
        self.doing: str | None = None
        self.turn = 0
        self.started_epochs = 0
        self.frozen_until = 0.0
        self.dead = False
        self.connection = 0
        self.heard_at = self.said_at = 0.0
        self.group: Group | None = None
        self.transfer: tuple[Group, Take] | None = None

    @property
    def over(self) -> bool:
        return self.dead or self.member.state == machine.OUT


class World:
    """One history."""

    def __init__(self, plan: Plan, make: Callable[[str], Member] = Member) -> None:
        self.plan = plan
        self._make = make
        self._draws = random.Random(plan.seed * 7919 + 1)
        self._queue: list[tuple[float, int, Callable, tuple]] = []
        self._serial = 0
        self.now = 0.0
        self.coordinator: Coordinator | None = None
        self._coordinators = 0
        self._connections = 0
        self.wanted = set(range(plan.workers))
        self.processes: dict[int, Process] = {}
        self._old: list[Process] = []
        self._incarnations: dict[int, int] = {}
        self._groups: dict[str, Group] = {}
        self._stuck = 0
        self._log: list[str] = []
        self.speed = self._draws.choice((0.2, 1, 1, 5))
        self.founded = 0
        self._ended = False

    # -- time -------------------------------------------------------------------------------------------------------

    def at(self, delay: float, call: Callable, *arguments: Any) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (self.now + delay, self._serial, call, arguments))

    def delay(self, scale: float) -> float:
        """Mostly short, sometimes ten times as long."""
        drawn = self._draws.random()
        return scale * self.speed * (drawn if drawn < 0.9 else 10 * self._draws.random())

    def on(self, process: Process, delay: float, call: Callable, *arguments: Any) -> None:
        """Later, in a process: when it is stopped then, after it goes on; when it is dead, never."""
        self.at(delay, self._run_on, process, call, arguments)

    def _run_on(self, process: Process, call: Callable, arguments: tuple) -> None:
        if process.dead:
            return
        if process.frozen_until > self.now:
            self.at(process.frozen_until - self.now, self._run_on, process, call, arguments)
            return
        call(process, *arguments)

    def run(self) -> None:
        """To its end. Raises Violation."""
        self._start_coordinator()
        for rank in self.wanted:
            self._spawn(rank)
        for when, what, number in self.plan.faults:
            self.at(when, self._fault, what, number)
        self.at(0.5, self._handle)
        while not self._ended:
            self.now, _, call, arguments = heapq.heappop(self._queue)
            if self.now > LONGEST:
                raise Violation("it does not end")
            call(*arguments)

    def counts(self) -> dict[str, int]:
        """What happened in it that is worth a sum over histories."""
        return {}

    def _finished(self) -> bool:
        lengths = {len(self.processes[rank].chain) for rank in self.wanted if rank in self.processes}
        return (
            self.coordinator is not None
            and len(lengths) == 1
            and all(
                rank in self.processes
                and not self.processes[rank].over
                and self.processes[rank].member.state == machine.TRAINING
                and self.processes[rank].doing == "idle"
                # One that is stopped and cut off says the same of itself as those that trained without it.
                and self.processes[rank].name in self.coordinator.entered
                and len(self.processes[rank].chain) >= self.plan.epoch * self.plan.epochs
                for rank in self.wanted
            )
        )

    def _check_end(self) -> None:
        chains = {self.processes[rank].chain for rank in self.wanted}
        if len(chains) != 1:
            raise Violation(f"members differ at the end: {chains}")
        (chain,) = chains
        if [step for step, _ in chain] != list(range(len(chain))):
            raise Violation(f"steps were left out or applied twice: {chain}")

    # -- what the job's handler does --------------------------------------------------------------------------------

    def _start_coordinator(self) -> None:
        self._coordinators += 1
        self.coordinator = Coordinator(f"c{self._coordinators}", len(self.wanted))
        if self._coordinators > 1:
            self.at(self.delay(0.05), self._resize)
        for process in self.processes.values():
            if process.loaded and not process.over:
                self.on(process, self.delay(0.05), self._connect)

    def _spawn(self, rank: int) -> None:
        self._incarnations[rank] = self._incarnations.get(rank, 0) + 1
        process = Process(f"{rank}.{self._incarnations[rank]}", self._make)
        if rank in self.processes:
            self._old.append(self.processes[rank])
        self.processes[rank] = process
        process.started_epochs = max((each.started_epochs for each in self.processes.values()), default=0) or 1
        self.on(process, 0.05 + self.delay(0.1), self._load)

    def _load(self, process: Process) -> None:
        process.loaded = True
        self._connect(process)

    def _resize(self) -> None:
        if self.coordinator is not None:
            self._obey(self.coordinator.resize(set(self.wanted)))

    def _handle(self) -> None:
        """Replace what is gone, start the next epoch where the last one has ended, until all is done."""
        if all(self.now > when for when, _, _ in self.plan.faults) and self._finished():
            self._check_end()
            self._ended = True
            return
        for rank in sorted(self.wanted):
            process = self.processes.get(rank)
            if process is None or process.over:
                self._spawn(rank)
            elif process.doing == "idle":
                self.on(process, self.delay(0.02), self._next_epoch, len(process.chain) // self.plan.epoch + 1)
        self.at(0.2 + self.delay(0.1), self._handle)

    def _next_epoch(self, process: Process, number: int) -> None:
        if process.doing == "idle" and number > process.started_epochs:
            process.started_epochs = number
            process.doing = None
            self._do(process, process.member.rests(False))

    # -- faults -----------------------------------------------------------------------------------------------------

    def _fault(self, what: str, number: int) -> None:
        live = sorted((rank for rank, each in self.processes.items() if not each.over))
        victim = self.processes[live[number % len(live)]] if live else None
        if what == "pair":  # two die at once
            for each in live[:2]:
                self._kill(self.processes[each])
        elif what == "kill" and victim:
            self._kill(victim)
        elif what == "freeze" and victim:
            victim.frozen_until = self.now + (0.3, 2.0, 6.0, 15.0)[number // 7 % 4]
        elif what == "cut" and victim and victim.connection:
            self._disconnect(victim)
            self.on(victim, self.delay(0.05), self._connect)
        elif what in ("resize", "replace"):
            count = number % 4 + 1
            first = number // 5 % 3 if what == "replace" else 0
            self.wanted = set(range(first, first + count))
            for rank in sorted(self.wanted):
                if rank not in self.processes or self.processes[rank].over:
                    self._spawn(rank)
            self.at(self.delay(0.05), self._resize)
        elif what == "scheduler" and self.coordinator is not None:
            self.coordinator = None
            for process in [*self.processes.values(), *self._old]:
                process.connection = 0
            self.at((0.01, 0.5, 3.0, 10.0)[number % 4], self._start_coordinator)
        elif what == "stuck":
            self._stuck += 1 + number % 2

    def _kill(self, process: Process) -> None:
        if process.dead:
            return
        process.dead = True
        self._disconnect(process)
        for group in self._groups.values():
            if process.name in group.view.members:
                self._closed(group, process.name)

    # -- connections to the coordinator -----------------------------------------------------------------------------

    def _connect(self, process: Process) -> None:
        if self.coordinator is None or process.over or process.connection:
            return
        self._connections += 1
        process.connection = self._connections
        process.heard_at = process.said_at = self.now
        self._do(process, process.member.hello())

    def _disconnect(self, process: Process) -> None:
        if process.connection and self.coordinator is not None:
            process.said_at = max(process.said_at, self.now + self.delay(0.01))
            self.at(process.said_at - self.now, self._lost, self.coordinator, process.name)
        process.connection = 0

    def _lost(self, coordinator: Coordinator, name: str) -> None:
        if coordinator is self.coordinator:
            self._obey(coordinator.lost(name, "its process ended"))

    def _tell(self, process: Process, message: Any) -> None:
        if process.connection and self.coordinator is not None:
            process.said_at = max(process.said_at, self.now + self.delay(0.005))
            self.at(process.said_at - self.now, self._told, self.coordinator, process.name, message)

    def _told(self, coordinator: Coordinator, name: str, message: Any) -> None:
        if coordinator is self.coordinator:
            self._note("%s: %s", name, message)
            self._obey(coordinator.hear(name, message))

    def _obey(self, commands: list) -> None:
        for command in commands:
            match command:
                case Send(name, message):
                    process = self.processes.get(worker_of(name))
                    if process is not None and process.name != name:
                        process = next((each for each in self._old if each.name == name), None)
                    if process is not None and process.connection:
                        process.heard_at = max(process.heard_at, self.now + self.delay(0.005))
                        self.on(process, process.heard_at - self.now, self._hear, process.connection, message)
                case Timer(key, seconds):
                    self.at(seconds, self._timed_out, self.coordinator, key)
                case Lose(name, because) if "hung" in because or "again" in because:
                    process = self.processes.get(worker_of(name))
                    if process is not None and process.name == name:
                        self.at(self.delay(0.2), self._kill, process)
        self._check_coordinator()

    def _check_coordinator(self) -> None:
        coordinator = self.coordinator
        if coordinator is not None and coordinator.pending is not None and coordinator.current is None:
            raise Violation("a view is planned after none")

    def _timed_out(self, coordinator: Coordinator, key: tuple) -> None:
        if coordinator is self.coordinator:
            self._obey(coordinator.timed_out(key))

    def _hear(self, process: Process, connection: int, message: Any) -> None:
        if connection == process.connection:
            self._note("to %s: %s", process.name, message)
            self._do(process, process.member.hear(message))

    # -- a member ---------------------------------------------------------------------------------------------------

    def _do(self, process: Process, commands: list) -> None:
        for command in commands:
            match command:
                case Tell(message):
                    self._tell(process, message)
                case Form(view):
                    self._form(process, view)
                case Close(view):
                    if view.prefix in self._groups:
                        self._closed(self._groups[view.prefix], process.name)
                case Found():
                    process.chain, process.last = process.copy, None
                    self.founded += 1
                case End():
                    pass
        self._go_on(process)

    def _form(self, process: Process, view: View) -> None:
        group = self._groups.get(view.prefix)
        if group is None:
            group = self._groups[view.prefix] = Group(view)
            if self._stuck and len(view.members) > 1:
                self._stuck -= 1
                group.stuck = True
        group.started.add(process.name)
        if (len(view.members) > 1 and self.coordinator is None) or group.closed:
            self.on(process, self.delay(0.05), self._formed, group, False)
        elif group.started == set(view.members) and not group.stuck:
            group.formed = True
            for each in self._of(group):
                self.on(each, self.delay(0.02), self._formed, group, None)

    def _of(self, group: Group) -> list[Process]:
        everyone = {each.name: each for each in [*self._old, *self.processes.values()]}
        return [everyone[name] for name in group.view.members if name in everyone and not everyone[name].dead]

    def _formed(self, process: Process, group: Group, success: bool | None) -> None:
        if process.name in group.closed:
            return
        if success is None:
            success = not group.closed or self._draws.random() < 0.5
        number = group.view.number
        self._do(process, process.member.formed(number) if success else process.member.not_formed(number))

    def _closed(self, group: Group, name: str) -> None:
        """A member's connections are closed: those that wait for it get an error, or what had come before."""
        if name in group.closed:
            return
        group.closed.add(name)
        for process in self._of(group):
            if not group.formed:
                if process.name in group.started and process.name != name:
                    self.on(process, self.delay(0.02), self._formed, group, False)
            elif process.doing in WAITS and process.group is group:
                lacks = process.doing == "transfer" or (
                    len(group.exchanges[group.done.get(process.name, 0)]) < len(group.view.members)
                )
                if lacks or self._draws.random() < 0.5:
                    self.on(process, self.delay(0.02), self._broke, process.turn, group)

    def _go_on(self, process: Process) -> None:
        """What its main thread does next, when it has nothing to do."""
        member = process.member
        if process.doing not in (None, "idle") or process.over:
            return
        if member.state == machine.ENTERING:
            clock, commands = member.enter()
            process.doing = "enter"
            process.group = self._groups[member.view.prefix]
            self._do(process, commands)
            self._contribute(process, ("enter", clock))
        elif member.state == machine.TRAINING and process.doing is None:
            if len(process.chain) >= process.started_epochs * self.plan.epoch:
                process.doing = "idle"
                self._do(process, member.rests(True))
                return
            process.doing = "compute"
            process.turn += 1
            self.on(process, 0.02 + self.delay(0.06), self._computed, process.turn, member.view.number)

    def _computed(self, process: Process, turn: int, number: int) -> None:
        if turn != process.turn:
            return
        process.doing = None
        member = process.member
        if member.state != machine.TRAINING or member.view.number != number:
            self._go_on(process)
            return
        process.doing = "exchange"
        process.group = self._groups[member.view.prefix]
        self._contribute(process, ("step", process.chain, member.offer()))

    def _contribute(self, process: Process, what: tuple) -> None:
        group = process.group
        process.turn += 1
        number = group.done.get(process.name, 0)
        while len(group.exchanges) <= number:
            group.exchanges.append({})
        exchange = group.exchanges[number]
        exchange[process.name] = what
        if len({each[0] for each in exchange.values()}) > 1:
            raise Violation(f"members of {group.view} do different things: {exchange}")
        if what[0] == "step" and len({each[1] for each in exchange.values()}) > 1:
            raise Violation(f"gradients of different states are added in {group.view}: {exchange}")
        self.on(process, 1.0, self._waits, process.turn)
        if group.closed:
            self.on(process, self.delay(0.01), self._broke, process.turn, group)
        elif len(exchange) == len(group.view.members):
            for each in self._of(group):
                self.on(each, self.delay(0.01), self._exchanged, each.turn, group, number)

    def _waits(self, process: Process, turn: int) -> None:
        if turn == process.turn and process.doing in WAITS:
            self._do(process, process.member.waits())
            self.on(process, 1.0, self._waits, turn)

    def _exchanged(self, process: Process, turn: int, group: Group, number: int) -> None:
        if turn != process.turn or process.doing not in ("exchange", "enter"):
            return
        process.turn += 1
        group.done[process.name] = number + 1
        said = [group.exchanges[number][name] for name in group.view.members]
        if process.doing == "exchange":
            process.doing = None
            process.last = (len(process.chain), group.view.prefix)
            process.chain = (*process.chain, process.last)
            offers = tuple(sum(each[2][index] for each in said) for index in (0, 1))
            self._do(process, process.member.completed(group.view.number, offers))
            return
        process.doing = "transfer"
        self.on(process, 1.0, self._waits, process.turn)
        orders = process.member.gathered([each[1] for each in said]) if self._still(process, group) else None
        if orders is None:
            self._broke(process, process.turn, group)
            return
        for order in orders:
            if isinstance(order, Give):
                group.sent[process.name, order.member] = process.chain if order.whole else process.last
                taker = next((each for each in self._of(group) if each.name == order.member), None)
                if taker is not None and taker.transfer is not None:
                    self.on(taker, self.delay(0.02), self._taken, taker.turn)
        takes = [order for order in orders if isinstance(order, Take)]
        if takes:
            process.transfer = (group, takes[0])
            if (takes[0].member, process.name) in group.sent:
                self.on(process, self.delay(0.02), self._taken, process.turn)
            elif takes[0].member in group.closed:
                self.on(process, self.delay(0.02), self._broke, process.turn, group)
        else:
            self.on(process, self.delay(0.01), self._settled, process.turn, group, None)

    def _still(self, process: Process, group: Group) -> bool:
        return process.member.view is group.view or process.member.view == group.view

    def _taken(self, process: Process, turn: int) -> None:
        if turn != process.turn or process.transfer is None:
            return
        group, take = process.transfer
        content = group.sent[take.member, process.name]
        if take.whole:
            process.chain, process.last = content, None
        else:
            process.last = content
            process.chain = (*process.chain, content)
        self._settled(process, turn, group, take)

    def _settled(self, process: Process, turn: int, group: Group, take: Take | None) -> None:
        if turn != process.turn:
            return
        process.turn += 1
        process.transfer = None
        process.doing = None
        self._do(process, process.member.settled(group.view.number, take))

    def _broke(self, process: Process, turn: int, group: Group) -> None:
        if turn != process.turn or process.doing not in WAITS:
            return
        process.turn += 1
        process.transfer = None
        process.doing = None
        self._do(process, process.member.broke(group.view.number))

    def _note(self, text: str, *arguments: Any) -> None:
        if self.logs:
            self._log.append(f"{self.now:8.4f} " + text % arguments)

    logs = False


def story(plan: Plan, make: Callable[[str], Member] = Member) -> list[str]:
    """The messages of a history, to look at one that fails."""
    world = World(plan, make)
    world.logs = True
    try:
        world.run()
    except Violation as violation:
        world._log.append(f"VIOLATION {violation}")
    return world._log


def _digest(sources: Iterable[Path]) -> str:
    sources = [
        *sorted((ROOT / "functions/training/membership").glob("*.py")),
        Path(__file__),
        *sorted(sources),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def main(
    count: int,
    kept_in: Path = RECORD,
    world: Callable[[int], World] = lambda seed: World(drawn(seed)),
    sources: Iterable[Path] = (),
) -> int:
    """Run histories 0 to count - 1, those that this code has not run yet. How many failed."""
    record: dict[str, Any] = {"code": _digest(sources), "histories": 0, "failed": []}
    if kept_in.exists() and (kept := json.loads(kept_in.read_text()))["code"] == record["code"]:
        record = kept
    blocks = [(first, min(first + 1000, count)) for first in range(record["histories"], count, 1000)]
    # A process that is forked has what cannot be pickled.
    with ProcessPoolExecutor(mp_context=get_context("fork"), initializer=_WORLDS.append, initargs=(world,)) as pool:
        for (_, stop), (failed, counts) in zip(blocks, pool.map(_run_block, blocks), strict=True):
            for seed, why in failed.items():
                print(f"history {seed}: {why}", flush=True)
            record |= {"histories": stop, "failed": [*record["failed"], *failed]}
            record |= {name: record.get(name, 0) + value for name, value in counts.items()}
            kept_in.parent.mkdir(parents=True, exist_ok=True)
            kept_in.write_text(json.dumps(record) + "\n")
    print(json.dumps(record))
    return len(record["failed"])


_WORLDS: list[Callable[[int], World]] = []


def _run_block(block: tuple[int, int]) -> tuple[dict[int, str], Counter[str]]:
    """Why which of these histories failed, and the sums of their counts."""
    failed: dict[int, str] = {}
    counts: Counter[str] = Counter()
    for seed in range(*block):
        world = _WORLDS[-1](seed)
        try:
            world.run()
        except Exception as error:
            failed[seed] = f"{type(error).__name__}: {str(error)[:300]}"
        counts.update(world.counts())
    return failed, counts


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1])) else 0)
