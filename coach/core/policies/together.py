"""The second of the two steps: all jobs share one cluster, and the least marginal utility is taken back.

Epochs per second of different jobs do not compare. What does: the predicted remaining time that a pod saves, per unit
of its dominant resource (its largest share of the whole cluster; Optimus, EuroSys 2018, does the same).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from coach.core.cluster import Allocation
from coach.core.policies.base import Reason, Step
from coach.core.policies.climb import Objective
from coach.core.policies.room import RESOURCES, Claim, Room, Vector

#: (workers, servers) moved by one step. Both at once where neither is of use without the other.
MOVES = ((1, 0), (0, 1), (1, 1))

#: What `Step.gain` counts, by objective.
UNITS = {
    Objective.SOONEST: "s for a share of 1",
    Objective.CHEAPEST: "money for a share of 1",
    Objective.MEAN_COMPLETION: "jobs/s for a share of 1",
}

#: Whether a step of so many workers and servers of a claim is of use.
Useful = Callable[[Claim, int, int], bool]


@dataclass(slots=True)
class Together:
    """Jobs' claims on one room. Only `movable` claims change; `steps` tells what was done."""

    claims: Sequence[Claim]
    room: Room
    objective: Objective
    steps: list[Step]

    def loss(self, claim: Claim, small: Allocation, large: Allocation) -> float:
        """What the job loses with `small` in place of `large`; negative where fewer pods are predicted to be better.

        Seconds of remaining time; for `CHEAPEST` the money of the rest, and infinite where the deadline is lost;
        for `MEAN_COMPLETION` the rate of completion, 1 / remaining time: it favours the job that ends first, which
        then leaves its room to the others.
        """
        job, remaining = claim.job, claim.remaining
        slow, fast = job.speed(small), job.speed(large)
        if self.objective is Objective.SOONEST:
            return remaining / slow - remaining / fast
        if self.objective is Objective.MEAN_COMPLETION:
            return (fast - slow) / remaining
        if job.deadline is not None and remaining / fast <= job.deadline < remaining / slow:
            return math.inf
        return remaining * (job.epoch_cost(small) - job.epoch_cost(large))

    def fit(self, movable: Sequence[Claim], held: bool = False) -> None:
        """Take back until the sum fits, and then until the pods fit on the nodes; then give back what is left over.

        Where minimums do not fit either, the last in the queue waits.
        """
        before = len(self.steps)
        for resource in self.room.over():

            def useful(claim: Claim, workers: int, servers: int, r: int = resource) -> bool:
                return workers * claim.parts[0][r] + servers * claim.parts[1][r] > 0

            def enough(_: int, r: int = resource) -> bool:
                return not self.room.is_over(r)

            def uses(claim: Claim, r: int = resource) -> bool:
                return self.room.needs(claim, claim.at)[r] > 0

            reason = Reason.HELD if held else RESOURCES[resource]
            self._take_back(movable, useful, enough, reason)
            self._drop(movable, uses, enough, reason)
        while (misfits := self.room.misfits(self.claims)) and self._mend(
            movable, misfits, Reason.HELD if held else Reason.FRAGMENTATION
        ):
            pass
        if len(self.steps) > before:
            self._refill(movable)

    def _mend(self, movable: Sequence[Claim], misfits: Counter[Vector], reason: Reason) -> bool:
        """Take back as many pods as found no node, each at least as large as one of them; whether any was."""
        before = len(self.steps)

        def large(part: Vector) -> bool:
            return any(all(a <= b for a, b in zip(shape, part, strict=True)) for shape in misfits)

        def useful(claim: Claim, workers: int, servers: int) -> bool:
            return (workers == 0 or large(claim.parts[0])) and (servers == 0 or large(claim.parts[1]))

        self._take_back(movable, useful, lambda taken: taken >= misfits.total(), reason)
        if len(self.steps) == before:
            self._drop(
                movable, lambda claim: any(map(large, claim.parts)), lambda dropped: dropped > 0, reason
            )
        return len(self.steps) > before

    def _take_back(
        self, movable: Sequence[Claim], useful: Useful, enough: Callable[[int], bool], reason: Reason
    ) -> None:
        """Take back the cheapest useful pod, again and again, until `enough(pods taken)` or all are at their floor."""
        if enough(0):
            return
        heap = [entry for i, claim in enumerate(movable) if (entry := self._cheapest(i, claim, useful))]
        heapify(heap)
        taken = 0
        while heap and not enough(taken):
            loss, _, i, workers, servers = heappop(heap)
            claim = movable[i]
            assert claim.at is not None
            at = claim.at
            to = Allocation(at.workers - workers, at.servers - servers)
            self.room.change(claim, to)
            self.steps.append(Step(claim.job.id, at, to, reason, loss, UNITS[self.objective]))
            taken += workers + servers
            if entry := self._cheapest(i, claim, useful):
                heappush(heap, entry)

    def _cheapest(self, i: int, claim: Claim, useful: Useful) -> tuple[float, int, int, int, int] | None:
        """The step down that loses least for each share: (loss, -rank, i, workers, servers)."""
        at = claim.at
        if at is None:
            return None
        best = None
        for workers, servers in MOVES:
            to = Allocation(at.workers - workers, at.servers - servers)
            if to.workers < claim.floor.workers or to.servers < claim.floor.servers:
                continue
            if useful(claim, workers, servers):
                entry = (
                    self.loss(claim, to, at) / claim.share(workers, servers),
                    -claim.rank,
                    i,
                    workers,
                    servers,
                )
                if best is None or entry < best:
                    best = entry
        return best

    def _drop(
        self,
        movable: Sequence[Claim],
        uses: Callable[[Claim], bool],
        enough: Callable[[int], bool],
        reason: Reason,
    ) -> None:
        """Let the last in the queue wait, until `enough(jobs dropped)`."""
        dropped = 0
        for claim in sorted(movable, key=lambda claim: -claim.rank):
            if enough(dropped):
                return
            if claim.at is not None and uses(claim):
                self.steps.append(Step(claim.job.id, claim.at, None, reason))
                self.room.change(claim, None)
                dropped += 1

    def _refill(self, movable: Sequence[Claim]) -> None:
        """Give back, best first, what fits after all: a large pod taken back may leave room for a small one."""
        before = len(self.steps)
        was = [claim.at for claim in movable]
        heap = [entry for i, claim in enumerate(movable) if (entry := self._dearest(i, claim))]
        heapify(heap)
        while heap:
            gain, _, i, workers, servers = heappop(heap)
            claim = movable[i]
            assert claim.at is not None
            at = claim.at
            to = Allocation(at.workers + workers, at.servers + servers)
            if self.room.fits(claim, to):
                self.room.change(claim, to)
                self.steps.append(Step(claim.job.id, at, to, Reason.ROOM, -gain, UNITS[self.objective]))
            if entry := self._dearest(i, claim):
                heappush(heap, entry)
        if len(self.steps) > before and self.room.misfits(self.claims):
            del self.steps[before:]
            for claim, at_first in zip(movable, was, strict=True):
                self.room.change(claim, at_first)

    def _dearest(self, i: int, claim: Claim) -> tuple[float, int, int, int, int] | None:
        """The step up towards the goal that fits and gains most for each share: (-gain, rank, i, workers, servers)."""
        at = claim.at
        if at is None or claim.goal is None or at == claim.goal:
            return None
        best = None
        for workers, servers in MOVES:
            to = Allocation(at.workers + workers, at.servers + servers)
            if to.workers > claim.goal.workers or to.servers > claim.goal.servers:
                continue
            if self.room.fits(claim, to):
                gain = self.loss(claim, at, to) / claim.share(workers, servers)
                entry = (-gain, claim.rank, i, workers, servers)
                if gain > 0 and (best is None or entry < best):
                    best = entry
        return best


def admit(claims: Iterable[Claim], room: Room, steps: list[Step]) -> None:
    """Everyone's floor in queue order; then those who got it claim their goal. Who does not fit waits.

    Demands that are fixed and held already come first. A smaller job may pass one that waits, and starves nobody:
    at the next decision the one that waits is again asked before it.
    """
    for claim in sorted(claims, key=lambda claim: (not claim.settled, claim.rank)):
        if claim.goal is None:
            continue
        if not room.holds_alone(claim, claim.floor):
            steps.append(Step(claim.job.id, claim.job.current, None, Reason.NEVER_FITS))
        elif room.fits(claim, claim.floor):
            room.change(claim, claim.floor)
            if claim.job.fixed is not None:
                steps.append(Step(claim.job.id, claim.job.current, claim.floor, Reason.FIXED))
        else:
            reason = room.short_of(claim, claim.floor)
            steps.append(Step(claim.job.id, claim.job.current, None, reason))
    for claim in claims:
        if claim.at is not None:
            room.change(claim, claim.goal)
