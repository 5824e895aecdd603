"""ElasticFlow (Gu et al., ASPLOS 2023, section 4): jobs with deadlines, admitted only where all can be met."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason, Step
from coach.core.policies.api.policy import Policy
from coach.core.policies.sharing.capacity import ROUNDING, Vector
from coach.core.policies.sharing.progressive_filling import Filling, Share

#: What each job may have, smallest first.
Steps = Mapping[str, Sequence[Allocation]]


@dataclass
class ElasticFlow(Policy):
    """Each admitted job gets its minimum satisfactory share; what is left over goes where it saves most GPU time.

    The minimum satisfactory share of a job is the smallest allocation with which it ends by its deadline, in the time
    and room that jobs with earlier deadlines leave (algorithm 1: where less is free, it takes less). A new job is
    admitted if every admitted job and this one get theirs; that is decided once. What is left over now goes, a step at
    a time, to the job whose next step saves most of `allocation times seconds to the end` for its size; first one step
    each to jobs that have nothing.

    Choices: allocations double from the minimum to the maximum, and those that are no faster than a smaller one are
    left out. A job without a deadline, or that was not admitted, takes part in what is left over alone; with `drop` one
    that was not admitted waits, as the paper declines it. A step's saving is counted as if it were kept to the end.
    """

    drop: bool = False
    cadence: float | None = None
    registered: ClassVar[str] = "elasticflow"

    _admitted: dict[str, bool] = field(default_factory=dict, init=False, repr=False)
    #: Whether any job had a deadline: a late one keeps others from being admitted.
    _deadlines: bool = field(default=False, init=False, repr=False)

    @property
    def separable(self) -> bool:  # type: ignore[override]
        """See `Policy`."""
        return not self._deadlines

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        self._deadlines = self._deadlines or any(job.deadline is not None for job in jobs)
        declined = [job for job in jobs if self.drop and self._known(job) is False]
        filling = Filling([job for job in jobs if job not in declined], cluster)
        steps = {share.job.id: levels(share.job) for share in filling.shares}
        now = self._satisfactory([share for share in filling.shares if not share.closed], filling, steps)
        self._admitted |= {job.id: False for job in declined}
        saved: dict[str, float] = {}

        def hand_out(filling: Filling) -> None:
            for share in sorted(filling.open(), key=lambda share: (share.job.id not in now, share.place)):
                if share.given is None and (to := share.job.fixed or now.get(share.job.id)):
                    filling.give(share, to)
                elif self.drop and self._admitted.get(share.job.id) is False:
                    filling.close(share, Reason.DEADLINE)
            heap = [step for share in filling.open() if (step := _next(share, steps[share.job.id]))]
            heapify(heap)
            while heap:
                less, _, to, share = heappop(heap)
                if filling.give(share, to):
                    saved[share.job.id] = -less
                    if not share.closed and (step := _next(share, steps[share.job.id])):
                        heappush(heap, step)

        filling.fill(hand_out)
        decision = filling.decision(
            Reason.DEADLINE, lambda share: saved.get(share.job.id, 0.0), "s for a share of 1 by its last step"
        )
        return AllocationDecision(
            {**decision.allocations, **{job.id: None for job in declined}},
            (*decision.steps, *(Step(job.id, job.current, None, Reason.DEADLINE) for job in declined)),
        )

    def memory(self, job: str) -> dict[str, Any]:
        """See `Policy`: whether it was admitted."""
        return {"admitted": self._admitted[job]} if job in self._admitted else {}

    def _known(self, job: JobView) -> bool | None:
        """Whether a job was admitted; None: that is not decided yet."""
        return self._admitted.get(job.id, getattr(job, "policy_state", {}).get("admitted"))

    def _satisfactory(self, shares: Sequence[Share], filling: Filling, steps: Steps) -> dict[str, Allocation | None]:
        """What each admitted job should have now, by the earliest deadline; new ones are admitted, or not."""
        known = {share.job.id: self._known(share.job) for share in shares}
        kept = [share for share in shares if known[share.job.id] and share.job.deadline is not None]
        for share in shares:
            if known[share.job.id] is None and share.job.deadline is not None:
                known[share.job.id] = _fill([*kept, share], filling, steps) is not None
                kept += [share] if known[share.job.id] else []
        self._admitted = {job: admitted for job, admitted in known.items() if admitted is not None}
        return _fill(kept, filling, steps, late=True) or {}


class _Time:
    """What is free from each of `starts` on; the last is for ever."""

    def __init__(self, total: Sequence[float]) -> None:
        cpu, memory, gpu = total
        self.starts = [0.0]
        self.free: list[Vector] = [(cpu + ROUNDING, memory + ROUNDING, gpu + ROUNDING)]

    def take(self, start: float, end: float, need: Vector) -> None:
        """Somebody has `need` from `start` to `end`."""
        first, last = self._cut(start), self._cut(end)
        for at in range(first, last):
            cpu, memory, gpu = self.free[at]
            self.free[at] = cpu - need[0], memory - need[1], gpu - need[2]

    def _cut(self, at: float) -> int:
        place = bisect_right(self.starts, at)
        if self.starts[place - 1] == at:
            return place - 1
        self.starts.insert(place, at)
        self.free.insert(place, self.free[place - 1])
        return place


def _fill(
    shares: Sequence[Share], filling: Filling, steps: Steps, late: bool = False
) -> dict[str, Allocation | None] | None:
    """What each job has first under its minimum satisfactory share; None where one would be late.

    `late`: a job that would be takes the most instead.
    """
    time, found = _Time(filling.room.total), dict[str, Allocation | None]()
    for share in sorted(shares, key=lambda share: (share.job.deadline, share.place)):
        mine = [(step, share.claim.asks.needs(step), share.job.speed(step)) for step in steps[share.job.id]]
        for most in range(1, len(mine) + 1):
            taken, end = _progress(share.epochs, mine[:most][::-1], time)
            if end <= (share.job.deadline or 0.0):
                break
        else:
            if not late:
                return None
        found[share.job.id] = taken[0][2] if taken and taken[0][0] == 0.0 else None
        for start, until, _, need in taken:
            time.take(start, until, need)
    return found


def _progress(
    left: float, steps: Sequence[tuple[Allocation, Vector, float]], time: _Time
) -> tuple[list[tuple[float, float, Allocation, Vector]], float]:
    """What a job with `left` epochs takes, (from, to, allocation, its needs), and when it ends.

    It always takes the first of `steps` (allocation, needs, epochs/s), the largest first, that is free.
    """
    taken = []
    for at, (start, (cpu, memory, gpu)) in enumerate(zip(time.starts, time.free, strict=True)):
        end = time.starts[at + 1] if at + 1 < len(time.starts) else math.inf
        for step, need, speed in steps:
            if need[0] <= cpu and need[1] <= memory and need[2] <= gpu:
                until = min(end, start + left / speed)
                taken.append((start, until, step, need))
                left -= speed * (until - start)
                if until < end or left <= 0:
                    return taken, until
                break
    return taken, math.inf


def levels(job: JobView) -> list[Allocation]:
    """Allocations from the minimum to the maximum, each double the one before and faster than all before."""
    found, at, fastest = [], job.minimum, 0.0
    while True:
        if (speed := job.speed(at)) > fastest and job.affordable(at):
            found.append(at)
            fastest = speed
        more = Allocation(min(2 * at.workers, job.maximum.workers), min(2 * at.servers, job.maximum.servers))
        if more == at:
            return found or [job.minimum]
        at = more


def _next(share: Share, steps: Sequence[Allocation]) -> tuple[float, int, Allocation, Share] | None:
    """A job's next step: (what it saves, negated for the heap; place; allocation; share)."""
    if share.job.fixed is not None:
        return None
    if share.given is None:
        return -math.inf, share.place, steps[0], share
    for to in steps:
        if to.workers > share.given.workers or to.servers > share.given.servers:
            size, more = share.claim.share(*share.given), share.claim.share(*to)
            saved = share.seconds(share.given) * size - share.seconds(to) * more
            return -saved / ((more - size) or ROUNDING), share.place, to, share
    return None
