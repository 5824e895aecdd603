"""The policy of the thesis (paper 001, sections 4.1 and 4.2), as far as it was printed.

1. Every job trains mini-epochs at the same four allocations (`MINI_EPOCHS`), and then waits until all jobs that have
   not begun to train have theirs (the barrier).
2. Its speed is the quadratic through these four points (`fit_thesis_quadratic`).
3. It climbs by marginal utility within its epoch budget; where the cluster is too small for all, the worker or server
   with the smallest marginal utility is taken back.

Step 3 is `CoachPolicy`'s, on the quadratic. Departures: the printed sign of the utility is turned round (see
`hill_climbing`); a job that waits at the barrier holds no pods, since with them every placement deadlocks where not
all jobs have room; a worker's smallest share of the data is the job file's `workers.max`, 1 / share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, cast

from coach.core.cluster import Allocation
from coach.core.estimation.observations import SpeedPoint
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason, Step, kept
from coach.core.policies.api.policy import Policy
from coach.core.policies.coach import CoachPolicy
from coach.core.policies.sharing.capacity import Claim, Room
from coach_research.estimators.quadratic import fit_thesis_quadratic

#: The allocations of the four mini-epochs, in their order (section 4.1).
MINI_EPOCHS = tuple(Allocation(*at) for at in ((1, 1), (1, 2), (2, 1), (2, 2)))
#: The quadratic falls below zero; a prediction is at least this part of the slowest of the four speeds.
LOWEST = 0.01

_CLIMB = CoachPolicy(least_efficiency=0.0)


@dataclass(frozen=True, slots=True)
class ThesisPolicy(Policy):
    """Four mini-epochs, a barrier, a quadratic, marginal utility."""

    cadence: float | None = None
    #: Each epoch has pods of its own. The thesis leaves open whether pods are kept; its author's code keeps them.
    remakes_pods: bool = False
    #: After the mini-epochs.
    separable: ClassVar[bool] = True
    registered: ClassVar[str] = "thesis"
    mini_epochs: ClassVar[tuple[Allocation, ...]] = MINI_EPOCHS

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        probing = any(not job.begun and _probing(job, cluster) for job in jobs)
        held_back = [
            job for job in jobs if probing and not (job.begun or job.busy or job.fixed or _probing(job, cluster))
        ]
        # A job that waits at the barrier is not among the jobs that share the cluster.
        others = [job for job in jobs if job not in held_back]
        decision = _CLIMB.allocate([_on_quadratic(job) for job in others], cluster)
        waiting: Mapping[str, Allocation | None] = {job.id: None for job in held_back}
        steps = tuple(Step(job.id, job.current, None, Reason.BARRIER) for job in held_back)
        return AllocationDecision({**decision.allocations, **waiting}, (*decision.steps, *steps))


def _probing(job: JobView, cluster: ClusterView) -> bool:
    """Whether the job has mini-epochs left that fit on the empty cluster."""
    left = [at for at in within(job.minimum, MINI_EPOCHS, job.maximum) if at not in job.measured]
    room = Room(cluster)
    return any(room.holds_alone(Claim(job, at, 1.0, room), at) for at in left)


def within(low: Allocation, points: Sequence[Allocation], high: Allocation) -> list[Allocation]:
    """The points that a job's limits allow."""
    return [
        at for at in points
        if low.workers <= at.workers <= high.workers and low.servers <= at.servers <= high.servers
    ]  # fmt: skip


#: Many jobs have the same speeds.
_fit = lru_cache(fit_thesis_quadratic)


def _on_quadratic(job: JobView) -> JobView:
    return kept(job, ThesisPolicy, lambda: cast(JobView, _OnQuadratic(job)))


class _OnQuadratic:
    """A job whose speeds are those of the quadratic; a restart costs nothing, as in the thesis."""

    restart_seconds = 0.0

    def __init__(self, job: JobView) -> None:
        self._job = job
        self.memory: dict[Any, Any] = {}
        points = within(job.minimum, MINI_EPOCHS, job.maximum) or [job.minimum]
        speeds = [job.speed(at) for at in points]
        self._surface = _fit(tuple(SpeedPoint(*at, speed) for at, speed in zip(points, speeds, strict=True)))
        self._lowest = LOWEST * min(speeds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def speed(self, allocation: Allocation, kind: str | None = None, /) -> float:
        """Epochs/s; it knows no kinds."""
        del kind
        return max(self._lowest, self._surface.predict(*allocation))

    def epoch_cost(self, allocation: Allocation, /) -> float:
        """Currency units of an epoch at that speed."""
        return self._job.epoch_cost(allocation) * self._job.speed(allocation) / self.speed(allocation)
