"""How much room there is for all jobs together: in sum, and in pieces on the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coach.core.cluster import Allocation, Node, Resources, Role
from coach.core.policies.base import JobView, Objective, Reason, kept

#: What to say when this resource is short, in the order cpu, memory, gpu.
RESOURCES = (Reason.CPU, Reason.MEMORY, Reason.GPU)

#: Forgiven in sums of decimal fractions.
ROUNDING = 1e-9

#: For so many of the smallest misfits `Room.misfits` looks for whoever could make room.
MISFITS_LOOKED_AT = 4

#: Cores, GiB, devices.
Vector = tuple[float, float, float]
BoolArray = NDArray[np.bool_]


class Claim:
    """What one job asks for while a decision is made; `at` moves, the rest stays."""

    __slots__ = ("at", "cheapest", "floor", "goal", "job", "parts", "rank", "remaining", "shares")

    def __init__(self, job: JobView, goal: Allocation | None, remaining: float, room: Room) -> None:
        self.job = job
        #: It asks for its target for the least money.
        self.cheapest = job.objective is Objective.CHEAPEST
        #: What it would like to have; None where it cannot pay for anything.
        self.goal = goal
        #: The least it can do with. The smallest allocation may cost more an epoch than a larger one.
        self.floor = job.fixed or job.minimum
        if goal is not None and job.fixed is None and not job.affordable(self.floor):
            self.floor = goal
        #: What it gets as things stand; None: it waits.
        self.at: Allocation | None = None
        #: Epochs to go, predicted.
        self.remaining = remaining
        #: Place in the queue, first is 0.
        self.rank = 0
        #: Requests (cpu, memory, gpu) of a worker, a server and the scheduler.
        self.parts: tuple[Vector, Vector, Vector] = kept(job, "parts", lambda: _parts(job))
        #: Dominant shares of the cluster of a worker and a server.
        self.shares = room.share(self.parts[0]), room.share(self.parts[1])

    @property
    def settled(self) -> bool:
        """It holds what it is fixed to: nothing of it can be taken back now."""
        return self.job.fixed is not None and self.job.fixed == self.job.current

    def share(self, workers: int, servers: int) -> float:
        """Dominant shares of so many pods together; above zero."""
        return (workers * self.shares[0] + servers * self.shares[1]) or ROUNDING

    def seconds(self, allocation: Allocation) -> float:
        """Predicted time to the target with `allocation`."""
        return self.remaining / self.job.speed(allocation)


def _parts(job: JobView) -> tuple[Vector, Vector, Vector]:
    requests = job.requests
    return _vector(requests[Role.WORKER]), _vector(requests[Role.SERVER]), _vector(requests[Role.SCHEDULER])


def _vector(amount: Resources) -> Vector:
    return amount.cpu, amount.memory, amount.gpu


class Misfits(NamedTuple):
    """Pods that found no node: how many, and which pods (by what they request) would make room if they went."""

    pods: int
    helpful: frozenset[Vector]


class Room:
    """The cluster's sum of resources, and what the claims use of it."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        ordered = sorted(nodes, key=lambda node: node.name)
        self.nodes = np.array(
            [(n.capacity.cpu, n.capacity.memory, n.capacity.gpu) for n in ordered], dtype=float
        ).reshape(-1, 3)
        self.total: list[float] = self.nodes.sum(axis=0).tolist()
        self.largest: list[float] = self.nodes.max(axis=0, initial=0.0).tolist()
        self.used = [0.0, 0.0, 0.0]
        self._shares: dict[Vector, float] = {}
        self._alone: dict[tuple[tuple[Vector, Vector, Vector], Allocation], bool] = {}

    def share(self, amount: Vector) -> float:
        """The dominant share of `amount` in the whole cluster (1 where there is nothing of it at all)."""
        if amount not in self._shares:
            self._shares[amount] = max(
                need / have if have > 0 else float(need > 0)
                for need, have in zip(amount, self.total, strict=True)
            )
        return self._shares[amount]

    def needs(self, claim: Claim, allocation: Allocation | None) -> Vector:
        """What `allocation` of the claim's job uses, its scheduler included."""
        if allocation is None:
            return 0.0, 0.0, 0.0
        (wc, wm, wg), (sc, sm, sg), (c, m, g) = claim.parts
        workers, servers = allocation
        return (
            workers * wc + servers * sc + c,
            workers * wm + servers * sm + m,
            workers * wg + servers * sg + g,
        )

    def change(self, claim: Claim, to: Allocation | None) -> None:
        """Let `claim` have `to` instead of what it has."""
        cpu, memory, gpu = self.needs(claim, to)
        less_cpu, less_memory, less_gpu = self.needs(claim, claim.at)
        self.used[0] += cpu - less_cpu
        self.used[1] += memory - less_memory
        self.used[2] += gpu - less_gpu
        claim.at = to

    def has(self, amount: Vector) -> bool:
        """Whether the sum has room for `amount` beside what is used."""
        return all(
            not need or used + need <= total * (1 + ROUNDING) + ROUNDING
            for need, used, total in zip(amount, self.used, self.total, strict=True)
        )

    def fits(self, claim: Claim, to: Allocation | None) -> bool:
        """Whether the sum would still fit if `claim` had `to`."""
        before, after = self.needs(claim, claim.at), self.needs(claim, to)
        return all(
            after[i] <= before[i]
            or self.used[i] + after[i] - before[i] <= self.total[i] * (1 + ROUNDING) + ROUNDING
            for i in range(3)
        )

    def over(self) -> list[int]:
        """The resources (0 cpu, 1 memory, 2 gpu) of which more is used than there is, worst first."""
        excess = [self.used[i] / max(self.total[i], 1e-300) for i in range(3)]
        return sorted(filter(self.is_over, range(3)), key=lambda i: -excess[i])

    def is_over(self, resource: int) -> bool:
        """Whether more of a resource is used than there is."""
        return self.used[resource] > self.total[resource] * (1 + ROUNDING) + ROUNDING

    def short_of(self, claim: Claim, to: Allocation) -> Reason:
        """The resource that keeps `claim` from having `to`."""
        before, after = self.needs(claim, claim.at), self.needs(claim, to)
        lacks = [
            (self.used[i] + after[i] - before[i]) / max(self.total[i], 1e-300)
            if after[i] > before[i]
            else 0.0
            for i in range(3)
        ]
        return RESOURCES[lacks.index(max(lacks))]

    def holds_alone(self, claim: Claim, allocation: Allocation) -> bool:
        """Whether the empty cluster has room, in pieces, for `allocation` of this claim alone."""
        key = claim.parts, allocation
        if key not in self._alone:
            other = Claim(claim.job, None, claim.remaining, self)
            other.at = allocation
            needs = np.array(self.needs(other, allocation))
            on_one_node = bool((self.nodes + ROUNDING >= needs).all(axis=1).any())
            self._alone[key] = on_one_node or not self.misfits([other]).pods
        return self._alone[key]

    def misfits(self, claims: Iterable[Claim]) -> Misfits:
        """Place all pods on the empty nodes, largest first, each on the first node that has room.

        No misfits prove that the pods can be placed; a misfit may be the fault of the heuristic.
        """
        pods: Counter[Vector] = Counter()
        for claim in claims:
            if claim.at is not None:
                worker, server, scheduler = claim.parts
                pods[worker] += claim.at.workers
                pods[server] += claim.at.servers
                pods[scheduler] += 1
        free = self.nodes.copy()
        placed: dict[Vector, BoolArray] = {}
        left: Counter[Vector] = Counter()
        for shape in sorted(pods, key=lambda pod: (-self._size(pod), pod)):
            request = np.array(shape)
            uses = request > 0
            count = pods[shape]
            if not uses.any():
                continue
            slots = ((free[:, uses] + ROUNDING) / request[uses]).min(axis=1, initial=float(count))
            slots = np.maximum(slots, 0.0).astype(np.int64)
            takes = np.diff(np.minimum(slots.cumsum(), count), prepend=0)
            free -= takes[:, None] * request
            placed[shape] = takes > 0
            if (rest := count - int(takes.sum())) > 0:
                left[shape] = rest
        helpful = set(left)
        for misfit in sorted(left, key=self._size)[:MISFITS_LOOKED_AT]:
            need = np.array(misfit) - ROUNDING
            helpful.update(
                shape
                for shape, at in placed.items()
                if shape not in helpful and (free[at] + np.array(shape) >= need).all(axis=1).any()
            )
        return Misfits(left.total(), frozenset(helpful))

    def _size(self, pod: Vector) -> float:
        return max(
            need / most if most > 0 else float(need > 0) for need, most in zip(pod, self.largest, strict=True)
        )
