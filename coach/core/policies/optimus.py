"""Optimus (Peng et al., EuroSys 2018), as DL² (section 6.2) compares with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import ClassVar

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason
from coach.core.policies.api.policy import Policy
from coach.core.policies.sharing.progressive_filling import Filling, Share


@dataclass(frozen=True, slots=True)
class OptimusPolicy(Policy):
    """One worker or server at a time goes to the job whose remaining time it shortens most for its size.

    Optimus section 4.1: with Q epochs to go and f(p, w) epochs/s with p servers and w workers, the marginal gain of
    a worker is `(Q / f(p, w) - Q / f(p, w+1)) / O`, O the amount of the job's dominant resource in a worker; that
    of a server likewise. Each job first gets one worker and one server (here: its minimum); then the largest gain
    is taken repeatedly, until nothing fits or no gain is above 0.

    The driver decides whether f is true or fitted (`Knowledge`): "Optimus with estimated speeds" is this policy
    with fitted ones. Choices: O is a share of the whole cluster; minimums go in queue order; a job of unknown length
    counts as the median; a job whose pod does not fit gets nothing more, and the others go on.
    """

    cadence: float | None = None
    separable: ClassVar[bool] = True
    registered: ClassVar[str] = "optimus"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        filling = Filling(jobs, cluster)
        gains: dict[str, float] = {}

        def hand_out(filling: Filling) -> None:
            for share in filling.open():
                if share.given is None:
                    filling.give(share, share.next())
            heap = [entry for share in filling.open() if (entry := _best(share))]
            heapify(heap)
            while heap:
                gain, _, to, share = heappop(heap)
                if filling.give(share, to):
                    gains[share.job.id] = -gain
                    if entry := _best(share):
                        heappush(heap, entry)

        filling.fill(hand_out)
        return filling.decision(
            Reason.UTILITY, lambda share: gains.get(share.job.id, 0.0), "s for a share of 1 by its last pod"
        )


def _best(share: Share) -> tuple[float, int, Allocation, Share] | None:
    """The larger gain of a worker and of a server, negated for the heap; None where neither is above 0.

    (gain, place in the queue, new allocation, share): places differ, so nothing beyond them is ever compared.
    """
    at = share.given
    if at is None or share.closed:
        return None
    best = None
    for (workers, servers), size in zip(((1, 0), (0, 1)), share.claim.shares, strict=True):
        to = share.more(workers, servers)
        if to is None:
            continue
        saved = share.seconds(at) - share.seconds(to)
        gain = saved / size if size > 0 else saved / 1e-9
        if gain > 0 and (best is None or -gain < best[0]):
            best = -gain, share.place, to, share
    return best
