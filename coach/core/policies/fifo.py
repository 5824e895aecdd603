"""First come, first served: as an allocation policy, and as the strict queue of tasks that FitGpp is built on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coach.core.policies.base import AllocationDecision, ClusterView, JobView, Reason
from coach.core.policies.filling import Filling, Share, one_by_one
from coach.core.policies.spelling import spelled


@dataclass(frozen=True, slots=True)
class FifoPolicy:
    """Each job in its turn gets all it asks for, its maximum; behind the first that gets less nobody gets anything.

    DL² (section 1) on FIFO schedulers: they "allocate resources according to user specification". Where the papers are
    silent: jobs that hold something keep their turn before those that wait; the last one served takes what there is,
    its minimum at least, and the rest when that comes free (as DL²'s published simulator does).
    """

    cadence: float | None = None

    @property
    def name(self) -> str:
        """As the registry reads it."""
        return spelled("fifo", self)

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `AllocationPolicy.allocate`."""
        filling = Filling(jobs, cluster)
        line = sorted(filling.shares, key=_turn)
        filling.fill(lambda filling: one_by_one(line, filling, in_line=True), in_line=True)
        place = {id(share): n for n, share in enumerate(line, 1)}
        return filling.decision(Reason.QUEUE, lambda share: place[id(share)], "in line")


def _turn(share: Share) -> tuple[bool, bool, int]:
    return not share.job.busy, share.job.current is None, share.place
