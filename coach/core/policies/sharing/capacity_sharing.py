"""The second of the two steps: all jobs share one cluster, and the least marginal utility is taken back.

Epochs per second of different jobs do not compare. What does: the predicted remaining time that a pod saves, per unit
of its dominant resource (its largest share of the whole cluster; Optimus, EuroSys 2018, does the same).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from coach.core.cluster import Allocation
from coach.core.policies.api.base import Objective, Reason, Step, kept
from coach.core.policies.sharing.capacity import RESOURCES, Asks, Claim, Misfits, Room
from coach.core.policies.sharing.hill_climbing import Level, late, within_epoch_budget

SOONEST, CHEAPEST, MEAN_COMPLETION = Objective.SOONEST, Objective.CHEAPEST, Objective.MEAN_COMPLETION

#: (workers, servers) moved by one step. Both at once where neither is of use without the other.
MOVES = ((1, 0), (0, 1), (1, 1))

#: What `Step.gain` counts, by objective.
UNITS = {
    SOONEST: "s for a share of 1",
    CHEAPEST: "money for a share of 1",
    MEAN_COMPLETION: "jobs/s for a share of 1",
}

#: A step up in a heap, best first: (tiers lost, value lost for each share, order of the queue, index, where it leads).
Entry = tuple[int, float, int, int, Allocation]
#: A step down in a heap, cheapest first: (tiers lost, value lost for each share, index, where it leads).
Fall = tuple[int, float, int, Allocation]

#: Those of `MOVES` that are of use.
Moves = tuple[tuple[int, int], ...]
#: A step down: (tiers lost, value lost for each share and each of what the value grows with, where it leads).
Down = tuple[int, float, Allocation]


class Way(NamedTuple):
    """Steps down of a job by where they begin (None: there is none)."""

    moves: Moves
    steps: dict[Allocation, Down | None]
    #: `Together.worth` of where a step may lead: each is next to several others.
    worth: dict[Allocation, Level]


#: A pod given back: (index, claim, before, after).
Move = tuple[int, Claim, Allocation | None, Allocation]

#: How often to look for another pod that fits into what is left over.
REFILL_ROUNDS = 8

#: Whether a step of so many workers and servers is of use, of jobs that ask for this.
Useful = Callable[[Asks, int, int], bool]
#: Whether it is enough that so many pods, or jobs, were taken back.
Enough = Callable[[int], bool]


@dataclass(slots=True)
class Together:
    """Jobs' claims on one room. Only `movable` claims change; `steps` tells what was done.

    `objective` is what is compared between the jobs. `CHEAPEST`, which counts money, is for jobs that all want that:
    money and seconds do not compare, so among jobs of both kinds those that want to be cheap defend their pods in
    seconds like the others.
    """

    claims: Sequence[Claim]
    room: Room
    objective: Objective
    steps: list[Step]

    def worth(self, claim: Claim, allocation: Allocation) -> Level:
        """How good `allocation` is for the rest of the job, comparable between jobs: (tier, value), larger is better.

        Tier 1 keeps the epoch budget, or for the cheapest the deadline; with fewer workers an epoch can cost more.
        The value, times `_scale`, is the remaining time with its sign turned, in seconds; for `CHEAPEST` the money of
        the rest with its sign turned; for `MEAN_COMPLETION` the rate of completion, 1 / remaining time, which favours
        the job that ends first, as that leaves its room to the others.
        """
        job = claim.job
        speed = job.speed(allocation)
        if self.objective is CHEAPEST or claim.cheapest:
            inside = not late(job, speed)
        else:
            inside = within_epoch_budget(job, allocation)
        if self.objective is CHEAPEST:
            return int(inside), -job.epoch_cost(allocation)
        if self.objective is MEAN_COMPLETION:
            return int(inside), speed
        return int(inside), -1.0 / speed

    def _scale(self, claim: Claim) -> float:
        """What all values of a job grow with as it goes on."""
        mean = self.objective is MEAN_COMPLETION
        return 1.0 / claim.remaining if mean else claim.remaining

    def _by_deadline(self, claim: Claim) -> bool:
        """Whether what is left of the job says what keeps its limits."""
        cheapest = self.objective is CHEAPEST or claim.cheapest
        return cheapest and claim.job.deadline is not None

    def fit(self, movable: Sequence[Claim], held: bool = False) -> None:
        """Take back until the sum fits, and then until the pods fit on the nodes; then give back what is left over.

        Where minimums do not fit either, the last in the queue waits.
        """
        before = len(self.steps)
        for resource in self.room.over():

            def useful(asks: Asks, workers: int, servers: int, r: int = resource) -> bool:
                return workers * asks.parts[0][r] + servers * asks.parts[1][r] > 0

            def uses(claim: Claim, r: int = resource) -> bool:
                return claim.uses[r] > 0

            reason = Reason.HELD if held else RESOURCES[resource]

            def in_room(_: int, r: int = resource) -> bool:
                return not self.room.is_over(r)

            if self.room.is_over(resource):
                self._take_back(movable, useful, in_room, reason)
                self._drop(movable, uses, in_room, reason)
        reason = Reason.HELD if held else Reason.FRAGMENTATION
        while (misfits := self.room.misfits(self.claims)).pods and self._mend(movable, misfits, reason):
            pass
        if len(self.steps) > before:
            self._refill(movable)

    def _mend(self, movable: Sequence[Claim], misfits: Misfits, reason: Reason) -> bool:
        """Take back as many pods as found no node, of those that would make room; whether any was."""
        before = len(self.steps)

        def useful(asks: Asks, workers: int, servers: int) -> bool:
            return (workers == 0 or asks.parts[0] in misfits.helpful) and (
                servers == 0 or asks.parts[1] in misfits.helpful
            )

        def uses(claim: Claim) -> bool:
            return any(part in misfits.helpful for part in claim.parts)

        self._take_back(movable, useful, lambda pods: pods >= misfits.pods, reason)
        if len(self.steps) == before:
            self._drop(movable, uses, lambda dropped: dropped > 0, reason)
        return len(self.steps) > before

    def _take_back(self, movable: Sequence[Claim], useful: Useful, enough: Enough, reason: Reason) -> None:
        """Take back the cheapest useful pod, again and again, until it is `enough` or all are at their floor.

        Among equals the last in the queue, whose order `movable` has, loses first.
        """
        moves = {
            asks: tuple(move for move in MOVES if useful(asks, *move))
            for asks in {claim.asks for claim in movable}
        }
        asked = [
            (claim, self._way_down(claim, moves[claim.asks]))
            for claim in reversed(movable)
            if claim.at is not None and claim.at != claim.floor
        ]
        heap = [entry for i, (claim, way) in enumerate(asked) if (entry := self._cheapest(i, claim, way))]
        heapify(heap)
        unit = UNITS[self.objective]
        pods = 0
        while heap and not enough(pods):
            _, loss, i, to = heap[0]
            claim, way = asked[i]
            self.steps.append(Step(claim.job.id, claim.at, to, reason, loss, unit))
            pods += sum(claim.at or ()) - sum(to)
            self.room.change(claim, to)
            if entry := self._cheapest(i, claim, way):
                heapreplace(heap, entry)
            else:
                heappop(heap)

    def _way_down(self, claim: Claim, moves: Moves) -> Way:
        """The steps down that were found so far.

        Which one is best does not change while a job goes on, and what it loses grows with what is left of the job.
        """
        if self._by_deadline(claim):
            return Way(moves, {}, {})
        key = Way, self.objective, claim.floor, moves, claim.shares
        return kept(claim.job, key, lambda: Way(moves, {}, {}))

    def _cheapest(self, i: int, claim: Claim, way: Way) -> Fall | None:
        """The step down from what `claim` has, if there is one."""
        at = claim.at
        if at is None:
            return None
        if at not in way.steps:
            way.steps[at] = self._step_down(claim, at, way)
        down = way.steps[at]
        return down and (down[0], down[1] * self._scale(claim), i, down[2])

    def _step_down(self, claim: Claim, at: Allocation, way: Way) -> Down | None:
        """The one of the way's moves that loses least for each share."""
        worth, job, (least_workers, least_servers) = way.worth, claim.job, claim.floor
        tier, value = worth.get(at) or self.worth(claim, at)
        best: Down | None = None
        for to, workers, servers in _below(at, way.moves):
            if to[0] >= least_workers and to[1] >= least_servers and job.affordable(to):
                less = worth.get(to)
                if less is None:
                    less = worth[to] = self.worth(claim, to)
                step = tier - less[0], (value - less[1]) / claim.share(workers, servers), to
                if best is None or step < best:
                    best = step
        return best

    def _drop(
        self,
        movable: Sequence[Claim],
        uses: Callable[[Claim], bool],
        enough: Enough,
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
        """Give back, best first, what fits after all: a large pod taken back may leave room for a small one.

        The sum is asked pod by pod, the nodes only for all of them; where those say no, the last ones are undone, and
        the rounds go on without the job whose pod was the first too many.
        """
        wanting = [claim for claim in movable if claim.at != claim.goal]
        # Moves of pods that have no room now have none later: every round begins with what is used now.
        moves = {asks: self._in_room(asks) for asks in {claim.asks for claim in wanting}}
        wanting = [claim for claim in wanting if moves[claim.asks]]
        if not wanting:
            return
        out: set[int] = set()
        for _ in range(REFILL_ROUNDS):
            given = self._give_back(wanting, moves, out)
            if not given or not self.room.misfits(self.claims).pods:
                return
            good = self._undo_what_does_not_pack(given)
            del self.steps[len(self.steps) - (len(given) - good) :]
            out.add(given[good][0])

    def _in_room(self, asks: Asks) -> Moves:
        """Those of `MOVES` whose pods the sum has room for, one by one."""
        worker, server = (self.room.has(part) for part in asks.parts[:2])
        return tuple(move for move in MOVES if (worker or not move[0]) and (server or not move[1]))

    def _give_back(self, movable: Sequence[Claim], moves: dict[Asks, Moves], out: set[int]) -> list[Move]:
        given = []
        heap = [
            entry
            for i, claim in enumerate(movable)
            if i not in out and (entry := self._dearest(i, claim, moves[claim.asks]))
        ]
        heapify(heap)
        while heap:
            _, loss, _, i, to = heappop(heap)
            claim = movable[i]
            if self.room.fits(claim, to):
                given.append((i, claim, claim.at, to))
                self.steps.append(Step(claim.job.id, claim.at, to, Reason.ROOM, -loss, UNITS[self.objective]))
                self.room.change(claim, to)
            if entry := self._dearest(i, claim, moves[claim.asks]):
                heappush(heap, entry)
        return given

    def _undo_what_does_not_pack(self, moves: list[Move]) -> int:
        """Undo the last of `moves` until the pods fit on the nodes, by halving; how many stay."""
        good, bad = 0, len(moves)
        at = bad
        while bad - good > 1:
            middle = (good + bad) // 2
            at = self._replay(moves, at, middle)
            good, bad = (good, middle) if self.room.misfits(self.claims).pods else (middle, bad)
        self._replay(moves, at, good)
        return good

    def promise(self, claims: Sequence[Claim]) -> None:
        """Let `claims` have their goals beside all others, as far as that fits; those who would have less come first.

        What does not fit is not promised: such a claim stays as it is where it may, else nothing is promised to it.
        """
        wishes = [claim for claim in claims if claim.goal != claim.at]
        wishes.sort(key=lambda claim: (not self._is_less(claim), claim.rank))
        moves: list[Move] = []
        for claim in wishes:
            if claim.goal is not None and self.room.fits(claim, claim.goal):
                moves.append((claim.rank, claim, claim.at, claim.goal))
                self.room.change(claim, claim.goal)
        if moves and self.room.misfits(self.claims).pods:
            self._undo_what_does_not_pack(moves)
        for claim in wishes:
            if claim.at != claim.goal:
                at = claim.at if claim.goal is not None and self._may_stay(claim) else None
                self.steps.append(Step(claim.job.id, claim.goal, at, Reason.HELD))
                self.room.change(claim, at)

    @staticmethod
    def _may_stay(claim: Claim) -> bool:
        job, at = claim.job, claim.at
        if at is None or job.fixed is not None:
            return at == job.fixed
        inside = job.minimum.workers <= at.workers <= job.maximum.workers
        return inside and job.minimum.servers <= at.servers <= job.maximum.servers and job.affordable(at)

    @staticmethod
    def _is_less(claim: Claim) -> bool:
        at, goal = claim.at, claim.goal
        return at is not None and goal is not None and goal[0] <= at[0] and goal[1] <= at[1]

    def _replay(self, moves: list[Move], at: int, to: int) -> int:
        for _, claim, _, after in moves[at:to]:
            self.room.change(claim, after)
        for _, claim, before, _ in reversed(moves[to:at]):
            self.room.change(claim, before)
        return to

    def _dearest(self, i: int, claim: Claim, moves: Moves) -> Entry | None:
        """The one of `moves` up towards the goal that fits and gains most for each share, signs turned for the heap.

        Both at once only where neither gains by itself.
        """
        at, goal = claim.at, claim.goal
        if at is None or goal is None or at == goal:
            return None
        best = None
        here: Level | None = None
        for workers, servers in moves:
            to = Allocation(at[0] + workers, at[1] + servers)
            if to[0] > goal[0] or to[1] > goal[1] or not self.room.fits(claim, to):
                continue
            here = here or self.worth(claim, at)
            more = self.worth(claim, to)
            if (
                more <= here
                or not claim.job.affordable(to)
                or (best is not None and (workers, servers) == (1, 1))
            ):
                continue
            gain = (more[1] - here[1]) * self._scale(claim) / claim.share(workers, servers)
            entry = here[0] - more[0], -gain, claim.rank, i, to
            if best is None or entry < best:
                best = entry
        return best


@lru_cache(maxsize=1 << 16)
def _below(at: Allocation, moves: Moves) -> tuple[tuple[Allocation, int, int], ...]:
    """Where `moves` down from an allocation lead, and what they move."""
    return tuple(
        (Allocation(at.workers - workers, at.servers - servers), workers, servers)
        for workers, servers in moves
    )


def admit(claims: Sequence[Claim], room: Room, steps: list[Step]) -> None:
    """Everyone's floor in the order of `claims`; then those who got it claim their goal. Who does not fit waits.

    Demands that are fixed and held already come first. A smaller job may pass one that waits, and in a queue by age
    starves nobody: at the next decision the one that waits is again asked before it.
    """
    settled = any(claim.settled for claim in claims)
    line = sorted(claims, key=lambda claim: (not claim.settled, claim.rank)) if settled else claims
    asking = [claim for claim in line if claim.goal is not None]
    if room.fit_all(asking):
        room.give_goals(asking)
        for claim in asking:
            if claim.fixed is not None:
                steps.append(Step(claim.job.id, claim.job.current, claim.floor, Reason.FIXED))
        return
    for claim in asking:
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
