"""Dominant resource fairness (Ghodsi et al., NSDI 2011): the baseline of DL² (section 6.2), and its first teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason
from coach.core.policies.api.policy import Policy
from coach.core.policies.sharing.progressive_filling import Filling, Share, least_first


@dataclass(frozen=True, slots=True)
class DrfPolicy(Policy):
    """Algorithm 1 of the DRF paper: the next task goes to the job with the smallest dominant share `s_i`.

    `s_i = max_j (u_ij / r_j)`: over all resources j the largest share of the cluster's r_j that job i uses. A task is a
    bundle of one worker and one server (as in DL²'s published simulator); where a job has its maximum of one of them,
    the other alone. Choices: a user is a job, all weights are equal; a job's first task is its minimum, its scheduler
    counts; equal shares go in queue order; a job whose task does not fit is passed (the paper's algorithm does not say,
    and assumes tasks that are small compared with the nodes).
    """

    cadence: float | None = None
    separable: ClassVar[bool] = True
    registered: ClassVar[str] = "drf"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        filling = Filling(jobs, cluster)

        def dominant_share(share: Share) -> float:
            return filling.room.share(share.claim.asks.needs(share.given))

        filling.fill(lambda filling: least_first(dominant_share, filling))
        return filling.decision(Reason.FAIR, dominant_share, "of the cluster")
