"""The baseline: the same workers and servers for every job and every epoch, first come first served."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from coach.core.cluster import Allocation
from coach.core.policies.base import AllocationDecision, ClusterView, JobView, Reason, Step, queue_order
from coach.core.policies.room import Claim, Room


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """`allocation` for each job, as far as the job's own limits allow it.

    Jobs that run keep their place; the others follow in queue order, and while one waits nobody passes it.
    """

    allocation: Allocation
    cadence: float | None = None

    @property
    def name(self) -> str:
        """`static:<workers>x<servers>`."""
        return f"static:{self.allocation}"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `AllocationPolicy.allocate`."""
        steps: list[Step] = []
        room = Room(cluster.nodes)
        line = []
        for job in sorted(jobs, key=lambda job: (job.current is None, queue_order(job))):
            wish = job.fixed or self._clip(job)
            if not job.affordable(wish):
                steps.append(Step(job.id, job.current, None, Reason.UNAFFORDABLE))
                continue
            claim = Claim(job, wish, 1.0, room)
            claim.at = wish
            if job.busy and job.current is not None:
                # Until its boundary it holds what it has, and from there on what it is given.
                claim.at = Allocation(*map(max, wish, job.current))
            if room.holds_alone(claim, claim.at):
                line.append(claim)
            else:
                steps.append(Step(job.id, job.current, None, Reason.NEVER_FITS))
        # The longest part of the line that fits; if n jobs fit, so do the first n - 1.
        fit = bisect_left(range(len(line)), True, key=lambda n: bool(room.misfits(line[: n + 1])))
        steps += [Step(claim.job.id, claim.job.current, claim.goal, Reason.FIXED) for claim in line[:fit]]
        steps += [Step(claim.job.id, claim.job.current, None, Reason.QUEUE) for claim in line[fit:]]
        decided = {claim.job.id: claim.goal for claim in line[:fit]}
        return AllocationDecision({job.id: decided.get(job.id) for job in jobs}, tuple(steps))

    def _clip(self, job: JobView) -> Allocation:
        return Allocation(
            min(max(self.allocation.workers, job.minimum.workers), job.maximum.workers),
            min(max(self.allocation.servers, job.minimum.servers), job.maximum.servers),
        )
