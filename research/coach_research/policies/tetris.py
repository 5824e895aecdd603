"""Tetris (Grandl et al., SIGCOMM 2014), as DL² (sections 6.2 and 6.3) compares with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason
from coach.core.policies.api.policy import Policy
from coach.core.policies.sharing.progressive_filling import Filling, Share, one_by_one
from coach_research.workload import FloatArray


@dataclass(frozen=True, slots=True)
class TetrisPolicy(Policy):
    """Repeatedly, the job whose demand fits best into what is free, and that has little work left, gets its maximum.

    Tetris sections 3.2 and 3.3.2: the score of a job is `a - e p`. Its alignment `a` is the dot product of what its
    task demands and what is available; its remaining work `p` is its remaining time times what it uses; `e = mean a
    / mean p` over the jobs. "Once it selects a job with the highest score, it always adds tasks to the job until
    the number of tasks reaches a user-defined threshold" (DL² section 6.3): the job's maximum.

    Choices: amounts are shares of the cluster's total; the alignment is with what the whole cluster has free, as
    nodes are chosen later, and a task is a worker and a server; the remaining time is that with the maximum; a
    job of unknown length counts as the median. (DL²'s published simulator *adds* the remaining work, and so
    prefers long jobs; its paper says shortest.)
    """

    #: Weight of the remaining work: 1 is the paper's e.
    weight: float = 1.0
    cadence: float | None = None
    separable: ClassVar[bool] = True
    registered: ClassVar[str] = "tetris"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        filling = Filling(jobs, cluster)
        scores: dict[str, float] = {}

        def hand_out(filling: Filling) -> None:
            left = list(filling.open())
            demand, work = _demand_and_work(left, filling)
            while left:
                score = self._scores(demand, work, filling)
                best = int(score.argmax())  # the first of equals: queue order
                scores[left[best].job.id] = float(score[best])
                one_by_one(left[best : best + 1], filling)
                del left[best]
                demand, work = np.delete(demand, best, 0), np.delete(work, best)

        filling.fill(hand_out)
        return filling.decision(Reason.PACKING, lambda share: scores.get(share.job.id, 0.0), "score")

    def _scores(self, demand: FloatArray, work: FloatArray, filling: Filling) -> FloatArray:
        total = np.array(filling.room.total)
        free = np.maximum(total - np.array(filling.room.used), 0.0) / np.where(total > 0, total, 1.0)
        alignment: FloatArray = demand @ free
        mean_work = work.mean()
        scale = self.weight * alignment.mean() / mean_work if mean_work > 0 else 0.0
        score: FloatArray = alignment - scale * work
        return score


def _demand_and_work(shares: Sequence[Share], filling: Filling) -> tuple[FloatArray, FloatArray]:
    """The demand of each job's worker and server (if it has any), as shares of the cluster, and its remaining work."""
    total = np.array(filling.room.total)
    part = np.where(total > 0, 1.0 / np.where(total > 0, total, 1.0), 0.0)
    demand = np.array([_task(share) for share in shares]).reshape(-1, 3) * part
    used = np.array([share.claim.asks.needs(share.job.maximum) for share in shares]).reshape(-1, 3)
    seconds = np.array([share.seconds(share.job.maximum) for share in shares])
    work = seconds * (used * part).sum(axis=1)
    return demand, work


def _task(share: Share) -> FloatArray:
    worker, server, _ = share.claim.parts
    return np.add(worker, server) if share.job.maximum.servers else np.array(worker)
