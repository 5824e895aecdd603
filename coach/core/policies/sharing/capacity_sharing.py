"""The second of the two steps: all jobs share one cluster, and pods of the smallest marginal utility are taken back.

Epochs per second of different jobs are not comparable. The utility is therefore the predicted remaining time that a pod
saves, per unit of its dominant resource (its largest share of the whole cluster; Optimus, EuroSys 2018, does the same).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import Objective, Reason, Step, kept
from coach.core.policies.sharing.capacity import RESOURCES, Asks, Claim, Misfits, Room
from coach.core.policies.sharing.hill_climbing import Level, late, within_epoch_budget

SOONEST, CHEAPEST, MEAN_COMPLETION = Objective.SOONEST, Objective.CHEAPEST, Objective.MEAN_COMPLETION

#: (workers, servers) moved by one step. Both at once where neither alone is useful.
MOVES = ((1, 0), (0, 1), (1, 1))

#: The unit of `Step.gain`, by objective.
UNITS = {
    SOONEST: "s for a share of 1",
    CHEAPEST: "money for a share of 1",
    MEAN_COMPLETION: "jobs/s for a share of 1",
}

#: A step up in a heap, best first: (tiers lost, value lost for each share, rank in the queue, index, new allocation).
Entry = tuple[int, float, int, int, Allocation]
#: A step down in a heap, cheapest first: (tiers lost, value lost for each share, index, new allocation).
Fall = tuple[int, float, int, Allocation]

#: The useful ones of `MOVES`.
Moves = tuple[tuple[int, int], ...]
#: A step down: (tiers lost, value lost for each share, not yet times `Together._scale`, new allocation).
Down = tuple[int, float, Allocation]


class Way(NamedTuple):
    """A job's steps down by the allocation at which they begin (None: there is none)."""

    moves: Moves
    steps: dict[Allocation, Down | None]
    #: `Together.worth` of allocations to which a step may lead: each is next to several others.
    worth: dict[Allocation, Level]


#: A pod returned: (index, claim, before, after).
Move = tuple[int, Claim, Allocation | None, Allocation]

#: How often to look for another pod that fits into what is left over.
REFILL_ROUNDS = 8

#: Whether a step of this many workers and servers is useful, for jobs with these requests.
Useful = Callable[[Asks, int, int], bool]
#: Whether it suffices that this many pods, or jobs, were taken back.
Enough = Callable[[int], bool]


@dataclass(slots=True)
class Together:
    """The claims of all jobs on one cluster. Only `movable` claims change; `steps` records what was done.

    `objective` is what is compared between the jobs. `CHEAPEST`, which counts money, applies only where all jobs have
    it: money and seconds are not comparable, so among jobs of both objectives all count seconds.
    """

    claims: Sequence[Claim]
    room: Room
    objective: Objective
    steps: list[Step]

    def worth(self, claim: Claim, allocation: Allocation) -> Level:
        """How good `allocation` is for the rest of the job, comparable between jobs: (tier, value), larger is better.

        Tier 1 keeps the epoch budget, or for the cheapest the deadline; with fewer workers an epoch can cost more.
        The value, times `_scale`, is the negated remaining time in seconds; for `CHEAPEST` the negated cost of the
        rest; for `MEAN_COMPLETION` the rate of completion, 1 / remaining time, which favours the job that ends first,
        as it then releases its pods to the others.
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
        """The factor of all values of a job, which changes as it goes on."""
        mean = self.objective is MEAN_COMPLETION
        return 1.0 / claim.remaining if mean else claim.remaining

    def _by_deadline(self, claim: Claim) -> bool:
        """Whether the remaining epochs decide which allocations keep the job's limits."""
        cheapest = self.objective is CHEAPEST or claim.cheapest
        return cheapest and claim.job.deadline is not None

    def fit(self, movable: Sequence[Claim], held: bool = False) -> None:
        """Take back until the sum fits, then until the pods fit on the nodes; then return what is left over.

        Where the minimums do not fit either, the last job in the queue waits.
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
        """Take back as many pods as fit on no node, of those whose removal helps; whether any was."""
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
        """Take back the cheapest useful pod repeatedly, until that is `enough` or all jobs are at their floor.

        Of equal ones the job that is last in the queue (the order of `movable`) loses first.
        """
        moves = {
            asks: tuple(move for move in MOVES if useful(asks, *move)) for asks in {claim.asks for claim in movable}
        }
        reducible = [
            (claim, self._way_down(claim, moves[claim.asks]))
            for claim in reversed(movable)
            if claim.at is not None and claim.at != claim.floor
        ]
        heap = [entry for i, (claim, way) in enumerate(reducible) if (entry := self._cheapest(i, claim, way))]
        heapify(heap)
        unit = UNITS[self.objective]
        pods = 0
        while heap and not enough(pods):
            _, loss, i, to = heap[0]
            claim, way = reducible[i]
            self.steps.append(Step(claim.job.id, claim.at, to, reason, loss, unit))
            pods += sum(claim.at or ()) - sum(to)
            self.room.change(claim, to)
            if entry := self._cheapest(i, claim, way):
                heapreplace(heap, entry)
            else:
                heappop(heap)

    def _way_down(self, claim: Claim, moves: Moves) -> Way:
        """The cached steps down of a job.

        The best one does not change while a job goes on; its loss is proportional to `_scale`.
        """
        if self._by_deadline(claim):
            return Way(moves, {}, {})
        key = Way, self.objective, claim.floor, moves, claim.shares
        return kept(claim.job, key, lambda: Way(moves, {}, {}))

    def _cheapest(self, i: int, claim: Claim, way: Way) -> Fall | None:
        """The step down from the present allocation of `claim`, if there is one."""
        at = claim.at
        if at is None:
            return None
        if at not in way.steps:
            way.steps[at] = self._step_down(claim, at, way)
        down = way.steps[at]
        return down and (down[0], down[1] * self._scale(claim), i, down[2])

    def _step_down(self, claim: Claim, at: Allocation, way: Way) -> Down | None:
        """The one of the way's moves that loses the least for each share."""
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
        """Make the last jobs in the queue wait, until `enough(jobs dropped)`."""
        dropped = 0
        for claim in sorted(movable, key=lambda claim: -claim.rank):
            if enough(dropped):
                return
            if claim.at is not None and uses(claim):
                self.steps.append(Step(claim.job.id, claim.at, None, reason))
                self.room.change(claim, None)
                dropped += 1

    def _refill(self, movable: Sequence[Claim]) -> None:
        """Return, best first, pods that fit after all: a small pod may fit where a large one was taken back.

        The sum is checked pod by pod, the nodes only for all of them together. Where they do not fit on the nodes, the
        last ones are undone, and the rounds go on without the job whose pod was the first too many.
        """
        below_goal = [claim for claim in movable if claim.at != claim.goal]
        # Pods that do not fit now do not fit later: every round begins with what is used now.
        moves = {asks: self._in_room(asks) for asks in {claim.asks for claim in below_goal}}
        below_goal = [claim for claim in below_goal if moves[claim.asks]]
        if not below_goal:
            return
        out: set[int] = set()
        for _ in range(REFILL_ROUNDS):
            given = self._give_back(below_goal, moves, out)
            if not given or not self.room.misfits(self.claims).pods:
                return
            good = self.room.undo_misfits(self.claims, len(given), partial(self._replay, given))
            del self.steps[len(self.steps) - (len(given) - good) :]
            out.add(given[good][0])

    def _in_room(self, asks: Asks) -> Moves:
        """Those of `MOVES` whose pods each fit into the sum."""
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

    def promise(self, claims: Sequence[Claim]) -> None:
        """Give `claims` their goals where they fit in addition to all others; those that shrink come first.

        A claim whose goal does not fit keeps its allocation where that is valid, else it waits.
        """
        wishes = [claim for claim in claims if claim.goal != claim.at]
        wishes.sort(key=lambda claim: (not self._is_less(claim), claim.rank))
        moves: list[Move] = []
        for claim in wishes:
            if claim.goal is not None and self.room.fits(claim, claim.goal):
                moves.append((claim.rank, claim, claim.at, claim.goal))
                self.room.change(claim, claim.goal)
        if moves and self.room.misfits(self.claims).pods:
            self.room.undo_misfits(self.claims, len(moves), partial(self._replay, moves))
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
        return at.within(job.minimum, job.maximum) and job.affordable(at)

    @staticmethod
    def _is_less(claim: Claim) -> bool:
        at, goal = claim.at, claim.goal
        return at is not None and goal is not None and goal[0] <= at[0] and goal[1] <= at[1]

    def _replay(self, moves: list[Move], at: int, to: int) -> None:
        for _, claim, _, after in moves[at:to]:
            self.room.change(claim, after)
        for _, claim, before, _ in reversed(moves[to:at]):
            self.room.change(claim, before)

    def _dearest(self, i: int, claim: Claim, moves: Moves) -> Entry | None:
        """The one of `moves` up to the goal that fits and gains most for each share, negated for the heap.

        A worker and a server at once only where neither gains by itself.
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
            if more <= here or not claim.job.affordable(to) or (best is not None and (workers, servers) == (1, 1)):
                continue
            gain = (more[1] - here[1]) * self._scale(claim) / claim.share(workers, servers)
            entry = here[0] - more[0], -gain, claim.rank, i, to
            if best is None or entry < best:
                best = entry
        return best


@lru_cache(maxsize=1 << 16)
def _below(at: Allocation, moves: Moves) -> tuple[tuple[Allocation, int, int], ...]:
    """The allocations to which `moves` down from `at` lead, and what each moves."""
    return tuple(
        (Allocation(at.workers - workers, at.servers - servers), workers, servers) for workers, servers in moves
    )


def admit(claims: Sequence[Claim], room: Room, steps: list[Step]) -> None:
    """Admit each claim's floor in the order of `claims`, then set the admitted ones to their goals. The others wait.

    Fixed allocations that are held already come first. A smaller job may pass one that waits. In a queue by age no job
    starves: at the next decision the waiting one comes before it again.
    """
    settled = any(claim.settled for claim in claims)
    line = sorted(claims, key=lambda claim: (not claim.settled, claim.rank)) if settled else claims
    payable = [claim for claim in line if claim.goal is not None]
    if room.fit_all(payable):
        room.give_goals(payable)
        for claim in payable:
            if claim.fixed is not None:
                steps.append(Step(claim.job.id, claim.job.current, claim.floor, Reason.FIXED))
        return
    for claim in payable:
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
