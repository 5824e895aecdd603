"""The capacity for all jobs together: the sum over the nodes, and whether the pods fit on them one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from coach.core.cluster import Allocation, Node, Resources, Role
from coach.core.policies.api.allocation import ClusterView, JobView, Objective, Reason, kept

#: The reason when a resource is short, in the order cpu, memory, gpu.
RESOURCES = (Reason.CPU, Reason.MEMORY, Reason.GPU)
RANGE = range(3)

#: Tolerance for rounding in sums.
ROUNDING = 1e-9

#: For this many of the smallest misfits `Room.misfits` looks for pods whose removal would let them fit.
MISFITS_LOOKED_AT = 4

#: Cores, GiB, devices.
Vector = tuple[float, float, float]
NOTHING: Vector = (0.0, 0.0, 0.0)


class Asks:
    """The requests of a job's pods. Jobs with equal requests share one instance, so identity is equality."""

    __slots__ = ("_needs", "parts")

    def __init__(self, parts: tuple[Vector, Vector, Vector]) -> None:
        #: Requests (cpu, memory, gpu) of a worker, a server and the scheduler.
        self.parts = parts
        self._needs: dict[Allocation, Vector] = {}

    def needs(self, allocation: Allocation | None) -> Vector:
        """What `allocation` uses, its scheduler included."""
        if allocation is None:
            return NOTHING
        found = self._needs.get(allocation)
        if found is None:
            workers, servers = allocation
            worker, server, scheduler = self.parts
            cpu, memory, gpu = (workers * worker[i] + servers * server[i] + scheduler[i] for i in range(3))
            found = self._needs[allocation] = (cpu, memory, gpu)
        return found


#: The `Asks` of these requests.
_asks = lru_cache(maxsize=1 << 12)(Asks)


class Claim:
    """One job in a decision; only `at` changes during it.

    A claim is cached until its job changes (`kept`), and reset at each decision (`begin`).
    """

    __slots__ = (
        "asks", "at", "cheapest", "fixed", "floor", "goal", "job", "least", "rank", "remaining", "settled",
        "shares", "uses", "wish",
    )  # fmt: skip

    def __init__(self, job: JobView, goal: Allocation | None, remaining: float, room: Room) -> None:
        #: An allocation that the policy must not change.
        self.fixed = job.fixed
        lasting = kept(job, (Claim, goal), lambda: _lasting(job, goal))
        #: Its objective is the lowest cost.
        self.cheapest: bool = lasting[0]
        #: Its smallest usable allocation.
        self.floor: Allocation = lasting[1]
        self.asks: Asks = lasting[2]
        #: Key by which `Room.fit_all` counts equal floors.
        self.least = self.asks, self.floor
        self.wish = goal  #: `goal` when a decision begins
        self.begin(job, remaining, 0, room)

    def begin(self, job: JobView, remaining: float, rank: int, room: Room) -> None:
        """Reset: no allocation, `remaining` epochs before the end, `rank` in the queue (the first is 0)."""
        self.job = job
        #: The allocation that it should get; None where it can afford none.
        self.goal = self.wish
        #: Its present allocation in this decision; None: it waits.
        self.at: Allocation | None = None
        #: What `at` needs: updated by `Room.change`.
        self.uses = NOTHING
        #: Predicted epochs to the target.
        self.remaining = remaining
        self.rank = rank
        #: It holds its fixed allocation: nothing of it can be taken back now.
        self.settled = self.fixed is not None and self.fixed == job.current
        #: The dominant shares of a worker and of a server in the cluster.
        self.shares = room.shares(self.asks)

    @property
    def parts(self) -> tuple[Vector, Vector, Vector]:
        """Requests (cpu, memory, gpu) of a worker, a server and the scheduler."""
        return self.asks.parts

    def share(self, workers: int, servers: int) -> float:
        """The sum of the dominant shares of `workers` and `servers`; above zero."""
        return (workers * self.shares[0] + servers * self.shares[1]) or ROUNDING

    def seconds(self, allocation: Allocation) -> float:
        """Predicted time to the target with `allocation`."""
        return self.remaining / self.job.speed(allocation)


def _lasting(job: JobView, goal: Allocation | None) -> tuple[bool, Allocation, Asks]:
    """What is constant until the job changes: `Claim.cheapest`, `floor` and `asks`."""
    floor = job.fixed or job.minimum
    if goal is not None and job.fixed is None and not job.affordable(floor):
        # The smallest allocation may cost more an epoch than a larger one.
        floor = goal
    worker, server, scheduler = (_vector(job.requests[role]) for role in (Role.WORKER, Role.SERVER, Role.SCHEDULER))
    return job.objective is Objective.CHEAPEST, floor, _asks((worker, server, scheduler))


def _vector(amount: Resources) -> Vector:
    return amount.cpu, amount.memory, amount.gpu


class Misfits(NamedTuple):
    """How many pods fit on no node, and the requests of pods whose removal would help."""

    pods: int
    helpful: frozenset[Vector]


class Run(NamedTuple):
    """Consecutive nodes with the same free capacity, and the requests of the pods placed on each of them."""

    nodes: int
    free: Vector
    holds: frozenset[Vector] = frozenset()


class Ground:
    """The nodes' capacities, and what follows from them alone: the same at every decision on these nodes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        ordered = sorted(nodes, key=lambda node: node.name)
        rows = [(n.capacity.cpu, n.capacity.memory, n.capacity.gpu) for n in ordered]
        #: In the order of the nodes' names.
        self.runs = [Run(len(list(equal)), row) for row, equal in groupby(rows)]
        self.total = [float(sum(row[i] for row in rows)) for i in range(3)]
        self.largest = [float(max((row[i] for row in rows), default=0.0)) for i in range(3)]
        self.shares: dict[Asks, tuple[float, float]] = {}
        #: Whether an allocation fits on the empty nodes.
        self.alone: dict[tuple[Asks, Allocation], bool] = {}

    def spread(self, pods: Mapping[Vector, int]) -> tuple[list[Run], Counter[Vector]]:
        """Place `pods` (how many, by their requests) on the empty nodes, largest first, each on the first that fits.

        The nodes after that, and the pods that fit on none.
        """
        runs, left = self.runs, Counter[Vector]()
        for shape in sorted(pods, key=lambda pod: (-self.size(pod), pod)):
            if any(shape):
                runs, rest = _spread(runs, shape, pods[shape])
                if rest:
                    left[shape] = rest
        return runs, left

    def size(self, pod: Vector) -> float:
        """The largest share that a pod takes of what a node has."""
        return max(need / most if most > 0 else float(need > 0) for need, most in zip(pod, self.largest, strict=True))


class Room:
    """The cluster's sum of resources, and what the claims use of it."""

    def __init__(self, cluster: ClusterView) -> None:
        self._ground: Ground = kept(cluster, Ground, lambda: Ground(cluster.nodes))
        self.total = self._ground.total
        self.largest = self._ground.largest
        self.used = [0.0, 0.0, 0.0]

    def shares(self, asks: Asks) -> tuple[float, float]:
        """The dominant shares of the whole cluster of a worker and of a server."""
        known = self._ground.shares
        found = known.get(asks)
        if found is None:
            found = known[asks] = self.share(asks.parts[0]), self.share(asks.parts[1])
        return found

    def share(self, amount: Vector) -> float:
        """The dominant share of `amount` in the whole cluster (1 for a resource that the cluster does not have)."""
        return max(need / have if have > 0 else float(need > 0) for need, have in zip(amount, self.total, strict=True))

    def change(self, claim: Claim, to: Allocation | None) -> None:
        """Change the allocation of `claim` to `to`."""
        before, after, used = claim.uses, claim.asks.needs(to), self.used
        used[0] += after[0] - before[0]
        used[1] += after[1] - before[1]
        used[2] += after[2] - before[2]
        claim.at, claim.uses = to, after

    def give_goals(self, claims: Iterable[Claim]) -> None:
        """Give each of `claims`, which have nothing yet, its goal."""
        cpu, memory, gpu = self.used
        for claim in claims:
            claim.at = goal = claim.goal
            claim.uses = needs = claim.asks.needs(goal)
            cpu += needs[0]
            memory += needs[1]
            gpu += needs[2]
        self.used = [cpu, memory, gpu]

    def fit_all(self, claims: Iterable[Claim]) -> bool:
        """Whether the floors of `claims`, which have nothing yet, fit: each alone on the nodes, and all in sum."""
        used = list(self.used)
        counts = Counter(map(attrgetter("least"), claims))
        for (asks, floor), count in counts.items():
            needs = asks.needs(floor)
            if not self._ground.alone.get((asks, floor)):
                return False
            for i in RANGE:
                used[i] += count * needs[i]
        return all(used[i] <= self.total[i] for i in RANGE)

    def has(self, amount: Vector) -> bool:
        """Whether the sum of free capacity holds `amount`."""
        return all(
            not need or used + need <= total * (1 + ROUNDING) + ROUNDING
            for need, used, total in zip(amount, self.used, self.total, strict=True)
        )

    def fits(self, claim: Claim, to: Allocation | None) -> bool:
        """Whether the sum would still fit if `claim` had `to`."""
        before, after, used, total = claim.uses, claim.asks.needs(to), self.used, self.total
        for i in RANGE:
            more = after[i] - before[i]
            if more > 0 and used[i] + more > total[i] * (1 + ROUNDING) + ROUNDING:
                return False
        return True

    def over(self) -> list[int]:
        """The over-committed resources (0 cpu, 1 memory, 2 gpu), the most over-committed first."""
        excess = [self.used[i] / max(self.total[i], 1e-300) for i in range(3)]
        return sorted(filter(self.is_over, range(3)), key=lambda i: -excess[i])

    def is_over(self, resource: int) -> bool:
        """Whether a resource is over-committed."""
        return self.used[resource] > self.limit(resource)

    def limit(self, resource: int) -> float:
        """How much of a resource may be used: the total and the tolerance."""
        return self.total[resource] * (1 + ROUNDING) + ROUNDING

    def short_of(self, claim: Claim, to: Allocation) -> Reason:
        """The resource that `claim` lacks most for `to`."""
        before, after = claim.uses, claim.asks.needs(to)
        lacks = [
            (self.used[i] + after[i] - before[i]) / max(self.total[i], 1e-300) if after[i] > before[i] else 0.0
            for i in range(3)
        ]
        return RESOURCES[lacks.index(max(lacks))]

    def holds_alone(self, claim: Claim, allocation: Allocation) -> bool:
        """Whether the pods of `allocation` fit on the nodes of the empty cluster."""
        known = self._ground.alone
        key = claim.asks, allocation
        found = known.get(key)
        if found is None:
            needs = claim.asks.needs(allocation)
            on_one_node = any(_fit_in(needs, run.free) for run in self._ground.runs)
            if not on_one_node:
                other = Claim(claim.job, None, claim.remaining, self)
                other.at = allocation
                on_one_node = not self.misfits([other]).pods
            found = known[key] = on_one_node
        return found

    def misfits(self, claims: Iterable[Claim]) -> Misfits:
        """Place all pods on the empty nodes, largest first, each on the first node on which it fits.

        No misfits prove that the pods can be placed; a misfit may be due to the heuristic. Consecutive nodes with the
        same free capacity are handled as one, so equal nodes cost almost nothing.
        """
        pods: Counter[Vector] = Counter()
        for (asks, at), count in Counter(map(attrgetter("asks", "at"), claims)).items():
            if at is not None:
                for shape, number in zip(asks.parts, (*at, 1), strict=True):
                    pods[shape] += count * number
        runs, left = self._ground.spread(pods)
        helpful = set(left)
        for misfit in sorted(left, key=self._ground.size)[:MISFITS_LOOKED_AT]:
            for run in runs:
                for shape in run.holds - helpful:
                    if _fit_in(misfit, _plus(run.free, shape)):
                        helpful.add(shape)
        return Misfits(left.total(), frozenset(helpful))

    def undo_misfits(self, claims: Sequence[Claim], changes: int, replay: Callable[[int, int], object]) -> int:
        """Undo the last of so many changes until the pods of `claims` fit on the nodes, by bisection; how many remain.

        `replay(a, b)`: with the first a of them made, undo or make those up to b.
        """
        good, bad, at = 0, changes, changes
        while bad - good > 1:
            middle = (good + bad) // 2
            replay(at, middle)
            at = middle
            good, bad = (good, middle) if self.misfits(claims).pods else (middle, bad)
        replay(at, good)
        return good


def _spread(runs: Iterable[Run], shape: Vector, count: int) -> tuple[list[Run], int]:
    """Place `count` pods, as many as fit on each node before the next: the runs after that, and the pods left over."""
    after: list[Run] = []
    for run in runs:
        slots = min(int((run.free[i] + ROUNDING) / shape[i]) for i in RANGE if shape[i] > 0)
        if slots <= 0 or not count:
            after.append(run)
            continue
        full = min(run.nodes, count // slots)
        count -= full * slots
        last, count = (min(count, slots), 0) if full < run.nodes else (0, count)
        for nodes, pods in ((full, slots), (int(last > 0), last), (run.nodes - full - int(last > 0), 0)):
            if nodes:
                free = _plus(run.free, shape, -pods) if pods else run.free
                after.append(Run(nodes, free, run.holds | {shape} if pods else run.holds))
    return after, count


def _plus(amount: Vector, more: Vector, times: int = 1) -> Vector:
    return amount[0] + times * more[0], amount[1] + times * more[1], amount[2] + times * more[2]


def _fit_in(need: Vector, room: Vector) -> bool:
    return all(need[i] <= room[i] + ROUNDING for i in RANGE)
