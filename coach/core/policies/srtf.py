"""Shortest remaining time first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason
from coach.core.policies.api.policy import Policy
from coach.core.policies.sharing.progressive_filling import Filling, Share, one_by_one


@dataclass(frozen=True, slots=True)
class SrtfPolicy(Policy):
    """The job that would end first gets its maximum, then the next one; a longer job is preempted at once.

    DL² (section 6.5) names SRTF and does not define it. Choices: the remaining time is that with the job's maximum, so
    that it does not depend on what the job holds at present; a job of unknown length counts as the median; a job that
    does not fit is passed by longer jobs that do (DL²'s published simulator stops there, and orders by the remaining
    *fraction*).
    """

    cadence: float | None = None
    separable: ClassVar[bool] = True
    registered: ClassVar[str] = "srtf"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        filling = Filling(jobs, cluster)
        line = sorted(filling.shares, key=lambda share: (_seconds(share), share.place))
        filling.fill(lambda filling: one_by_one(line, filling))
        return filling.decision(Reason.SHORTEST, _seconds, "s to its end")


def _seconds(share: Share) -> float:
    return share.seconds(share.job.maximum)
