"""Progressive filling: allocate the cluster grant by grant, as FIFO, SRTF, DRF, Tetris and Optimus do.

They differ in which job is next, and in its grant. Everything else is here: a job's first grant is its minimum (or its
probe), later ones are a worker and a server together (a *bundle*) or one of them. No job gets more than its maximum,
than it can afford, or than fits: in the sum over the nodes, and pod by pod on them.

What a busy job holds is reserved until its boundary, also where it is given less: so the decision fits before and after
it changes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import (
    AllocationDecision,
    ClusterView,
    JobView,
    Reason,
    Step,
    queue_order,
)
from coach.core.policies.sharing.capacity import Claim, Room

BUNDLE = (1, 1)
#: What a job can get next: both, or the one of which it has less than its maximum.
STEPS = (BUNDLE, (1, 0), (0, 1))

#: Refusals because other jobs hold the capacity. (A job that can never run, or cannot pay, blocks no other job.)
SHORT = frozenset({Reason.CPU, Reason.MEMORY, Reason.GPU})

#: How often to go on for the other jobs after a pod fitted on no node.
PACKING_ROUNDS = 16


class Share:
    """One job's growing allocation."""

    __slots__ = ("claim", "closed", "epochs", "given", "job", "place", "refusal")

    def __init__(self, job: JobView, place: int, epochs: float, room: Room) -> None:
        self.job = job
        #: Place in the queue, first is 0.
        self.place = place
        #: Predicted epochs to its end.
        self.epochs = epochs
        self.claim = Claim(job, None, 1.0, room)
        self.given: Allocation | None = None
        #: It gets nothing more in this decision.
        self.closed = False
        #: Why it got nothing more.
        self.refusal: Reason | None = None

    def next(self) -> Allocation | None:
        """Its allocation after one more grant; None where its limits or its money allow no more."""
        if self.given is None:
            return self.job.fixed or self.job.minimum
        for workers, servers in STEPS:
            if (to := self.more(workers, servers)) is not None:
                return to
        return None

    def more(self, workers: int, servers: int) -> Allocation | None:
        """Its allocation with `workers` and `servers` more; None where its limits or its money do not allow that."""
        if self.given is None or self.job.fixed is not None:
            return None
        to = Allocation(self.given.workers + workers, self.given.servers + servers)
        most = self.job.maximum
        if to.workers > most.workers or to.servers > most.servers or not self.job.affordable(to):
            return None
        return to

    def seconds(self, allocation: Allocation) -> float:
        """Predicted time to its end with `allocation`."""
        return self.epochs / self.job.speed(allocation)


class Filling:
    """The shares of all jobs in one cluster, in queue order."""

    def __init__(self, jobs: Sequence[JobView], cluster: ClusterView) -> None:
        self.room = Room(cluster)
        epochs = _epochs(jobs)
        self.shares = [
            Share(job, place, epochs[job.id], self.room) for place, job in enumerate(sorted(jobs, key=queue_order))
        ]
        #: (share, before, after) in order; `_pack` takes the last ones back where the pods do not fit on the nodes.
        self._grants: list[tuple[Share, Allocation | None, Allocation]] = []
        for share in self.shares:
            if share.job.busy and share.job.current is not None:
                self.room.change(share.claim, share.job.current)
        for share in self.shares:
            floor = share.job.fixed or share.job.minimum
            if share.job.fixed is None and not share.job.affordable(floor):
                self.close(share, Reason.UNAFFORDABLE)
            elif not self.room.holds_alone(share.claim, floor):
                self.close(share, Reason.NEVER_FITS)
        # A probe under way is fixed, so it comes before all others.
        for share in self.shares:
            if share.job.fixed is not None and share.job.fixed == share.job.current and not share.closed:
                self.give(share, share.job.fixed)

    def open(self) -> Iterator[Share]:
        """The shares that may get more, in queue order."""
        return (share for share in self.shares if not share.closed)

    def close(self, share: Share, reason: Reason | None = None) -> None:
        """Give `share` nothing more."""
        share.closed = True
        share.refusal = reason

    def fits(self, share: Share, to: Allocation) -> bool:
        """Whether the sum holds `to` for `share`."""
        return self.room.fits(share.claim, self._reserved(share, to))

    def give(self, share: Share, to: Allocation | None) -> bool:
        """Give `share` the allocation `to` if the sum holds it; else, or where `to` is None, close it."""
        if to is None:
            self.close(share)
            return False
        reserved = self._reserved(share, to)
        if not self.fits(share, to):
            self.close(share, self.room.short_of(share.claim, reserved))
            return False
        self._grants.append((share, share.given, to))
        self.room.change(share.claim, reserved)
        share.given = to
        if to == share.job.maximum:
            self.close(share)
        return True

    def fill(self, hand_out: Callable[[Filling], None], in_line: bool = False) -> None:
        """Let `hand_out` give until it gives nothing more, and take back what does not fit on the nodes.

        After that the others may get more: `hand_out` is called again without the job of the first pod too many.
        `in_line`: it is not called again, as no job may pass another.
        """
        for _ in range(PACKING_ROUNDS):
            hand_out(self)
            misfit = self._pack()
            if misfit is None:
                return
            for share in self.shares:
                if share.refusal is None or share.refusal in SHORT:
                    share.closed, share.refusal = False, None
            self.close(misfit, Reason.FRAGMENTATION)
            if in_line:
                return

    def decision(self, reason: Reason, gain: Callable[[Share], float], unit: str) -> AllocationDecision:
        """The allocation of every job with its reason: `reason` where a job has one, with its final `gain`."""
        steps = []
        for share in self.shares:
            job = share.job
            if share.given is None:
                steps.append(Step(job.id, job.current, None, share.refusal or Reason.QUEUE))
            elif job.fixed is not None:
                steps.append(Step(job.id, job.current, share.given, Reason.FIXED))
            else:
                cost = job.epoch_cost(share.given)
                steps.append(Step(job.id, job.current, share.given, reason, gain(share), unit, cost))
        return AllocationDecision({share.job.id: share.given for share in self.shares}, tuple(steps))

    def _reserved(self, share: Share, to: Allocation) -> Allocation:
        held = share.job.current if share.job.busy else None
        return Allocation(max(to.workers, held.workers), max(to.servers, held.servers)) if held else to

    def _pack(self) -> Share | None:
        """Take back grants, the last first, until the rest fits on the nodes; the share of the first pod too many."""
        claims = [share.claim for share in self.shares]
        if not self.room.misfits(claims).pods:
            return None
        packs = self.room.undo_misfits(claims, len(self._grants), self._replay)
        if not self._grants:
            return None
        misfit = self._grants[packs][0]
        del self._grants[packs:]
        return misfit

    def _replay(self, at: int, to: int) -> None:
        for share, _, after in self._grants[at:to]:
            self.room.change(share.claim, self._reserved(share, after))
            share.given = after
        for share, before, _ in reversed(self._grants[to:at]):
            held = share.job.current if share.job.busy else None
            self.room.change(share.claim, self._reserved(share, before) if before else held)
            share.given = before


def _epochs(jobs: Sequence[JobView]) -> dict[str, float]:
    """Predicted epochs to the end by job; a job of unknown length counts as the median of the others."""
    known = {
        job.id: remaining.expected
        for job in jobs
        if (remaining := job.remaining_epochs) is not None and math.isfinite(remaining.expected)
    }
    typical = statistics.median(known.values()) if known else 1.0
    return {job.id: known.get(job.id, typical) for job in jobs}


def one_by_one(order: Iterable[Share], filling: Filling, in_line: bool = False) -> None:
    """Give each in `order` all it may have before the next; `in_line`: stop at the first that lacks capacity."""
    for share in order:
        while not share.closed and filling.give(share, share.next()):
            pass
        if in_line and share.refusal in SHORT:
            return


def least_first(rank: Callable[[Share], Hashable], filling: Filling) -> None:
    """One grant after another, each to the open share with the lowest `rank`, which is updated after each grant."""
    heap: list[tuple[Any, int, Share]] = [(rank(share), share.place, share) for share in filling.open()]
    heapify(heap)
    while heap:
        _, _, share = heappop(heap)
        if filling.give(share, share.next()) and not share.closed:
            heappush(heap, (rank(share), share.place, share))
