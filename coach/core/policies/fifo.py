"""First come, first served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason
from coach.core.policies.api.policy import Policy
from coach.core.policies.sharing.progressive_filling import Filling, Share, one_by_one


@dataclass
class FifoPolicy(Policy):
    """Each job in its turn gets its maximum; behind the first job that gets less, no job gets anything.

    DL² (section 1) on FIFO schedulers: they "allocate resources according to user specification". FitGpp (section
    3) compares with "(non-preemptive) vanilla FIFO". Where the papers say nothing: jobs that hold pods keep their turn
    before those that wait; the last one served takes what is free, at least its minimum, and the rest when it becomes
    free (as DL²'s published simulator does); single tasks go to the node with the least left over, others to few nodes.
    """

    cadence: float | None = None
    registered: ClassVar[str] = "fifo"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        filling = Filling(jobs, cluster)
        line = sorted(filling.shares, key=_turn)
        filling.fill(lambda filling: one_by_one(line, filling, in_line=True), in_line=True)
        place = {id(share): n for n, share in enumerate(line, 1)}
        return filling.decision(Reason.QUEUE, lambda share: place[id(share)], "in line")


def _turn(share: Share) -> tuple[bool, bool, int]:
    return not share.job.busy, share.job.current is None, share.place
