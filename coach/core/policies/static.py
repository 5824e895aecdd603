"""The baseline: the same workers and servers for every job and every epoch, first come first served."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import (
    AllocationDecision,
    ClusterView,
    JobView,
    Reason,
    Step,
    queue_order,
)
from coach.core.policies.api.policy import Policy
from coach.core.policies.sharing.capacity import Claim, Room


@dataclass(frozen=True, slots=True)
class StaticPolicy(Policy):
    """`allocation` for each job, as far as the job's own limits allow it.

    Running jobs come first; the others follow in queue order, and no job passes one that waits.
    """

    allocation: Allocation
    cadence: float | None = None
    separable: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """`static:<workers>x<servers>`, or `static:<workers>`."""
        return f"static:{self.allocation.cell}"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        steps: list[Step] = []
        room = Room(cluster)
        line = []
        for job in sorted(jobs, key=lambda job: (not job.busy, job.current is None, queue_order(job))):
            claim = Claim(job, job.fixed or self._clip(job), 1.0, room)
            reason = self._refusal(claim, room)
            if reason is not None:
                claim.goal = None
                steps.append(Step(job.id, job.current, None, reason))
            # A busy job holds what it has until its boundary, and what it is given from then on.
            held = job.current if job.busy else None
            claim.at = Allocation(*map(max, claim.goal, held)) if claim.goal and held else claim.goal or held
            if claim.at is not None:
                line.append(claim)
        # The longest prefix of the line that fits; if n jobs fit, so do the first n - 1.
        fit = bisect_left(range(len(line)), True, key=lambda n: room.misfits(line[: n + 1]).pods > 0)
        for place, claim in enumerate(line):
            if claim.goal is not None:
                to, reason = (claim.goal, Reason.FIXED) if place < fit else (None, Reason.QUEUE)
                steps.append(Step(claim.job.id, claim.job.current, to, reason))
        decided = {claim.job.id: claim.goal for claim in line[:fit]}
        return AllocationDecision({job.id: decided.get(job.id) for job in jobs}, tuple(steps))

    def _refusal(self, claim: Claim, room: Room) -> Reason | None:
        """Why the job can never get its allocation; None if it can."""
        if claim.goal is None or (claim.job.fixed is None and not claim.job.affordable(claim.goal)):
            return Reason.UNAFFORDABLE
        return None if room.holds_alone(claim, claim.goal) else Reason.NEVER_FITS

    def _clip(self, job: JobView) -> Allocation:
        return Allocation(
            min(max(self.allocation.workers, job.minimum.workers), job.maximum.workers),
            min(max(self.allocation.servers, job.minimum.servers), job.maximum.servers),
        )
