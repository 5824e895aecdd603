"""Coach's own policy: the thesis's two steps (sections 4.1 and 4.2), with its sign corrected.

1. *Alone* (`hill_climbing`): each job climbs to the allocation that its epoch budget allows, without the cluster.
2. *Together* (`capacity_sharing`): all jobs' minimums first, in queue order; then, while more is requested than there
   is, the worker or server with the smallest marginal utility is taken back.

In addition, a change that gains less than its own restart costs is not made, and what jobs in the middle of an epoch
still hold is not promised to others before their boundary.

Step 1 reads O(pods of a job) speeds for each job, step 2 O(1) for each pod taken back.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from coach.core.cluster import Allocation
from coach.core.estimation.speed import MIN_EFFICIENCY
from coach.core.policies.api.allocation import (
    AllocationDecision,
    ClusterView,
    JobView,
    Objective,
    Reason,
    Step,
    kept,
    queue_order,
)
from coach.core.policies.api.policy import Policy
from coach.core.policies.sharing.capacity import Claim, Room
from coach.core.policies.sharing.capacity_sharing import Together, admit
from coach.core.policies.sharing.hill_climbing import Climb, climber


@dataclass(frozen=True, slots=True)
class CoachPolicy(Policy):
    """The thesis's policy, with its objective."""

    objective: Objective = Objective.SOONEST
    #: See `Climb.least_efficiency`.
    least_efficiency: float = MIN_EFFICIENCY
    cadence: float | None = None
    separable: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """`coach`, or `coach:<objective>`."""
        return "coach" if self.objective is Objective.SOONEST else f"coach:{self.objective}"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        steps: list[Step] = []
        room = Room(cluster)
        claims = self._alone(sorted(jobs, key=queue_order), room, steps)
        shared = self._shared(jobs)
        together = Together(claims, room, shared, steps)
        movable = [claim for claim in claims if not claim.settled]
        admit(claims, room, steps)
        together.fit(movable)
        if self._keep(movable, together):
            together.fit(movable)
        if any(claim.job.busy for claim in claims):
            self._hold(together)
        decided: dict[str, Allocation | None] = dict.fromkeys(job.id for job in jobs)
        for claim in claims:
            decided[claim.job.id] = claim.at
            del claim.job  # which keeps this claim: a cycle would keep both
        return AllocationDecision(decided, tuple(steps))

    @property
    def _climb(self) -> Climb:
        return climber(self.objective, self.least_efficiency)

    def _shared(self, jobs: Sequence[JobView]) -> Objective:
        """What is compared between the jobs: money if all of them have the objective `CHEAPEST`, else time."""
        if jobs and all(job.objective is Objective.CHEAPEST for job in jobs):
            return Objective.CHEAPEST
        return self.objective

    def _alone(self, jobs: Sequence[JobView], room: Room, steps: list[Step]) -> list[Claim]:
        """Each job's goal if it were alone, in queue order."""
        epochs = [math.inf if (one := job.remaining_epochs) is None else one.expected for job in jobs]
        if not all(map(math.isfinite, epochs)):
            typical = statistics.median([one for one in epochs if math.isfinite(one)] or [1.0])
            epochs = [one if math.isfinite(one) else typical for one in epochs]
        climb = self._climb
        claims: list[Claim] = []
        for job, remaining in zip(jobs, epochs, strict=True):
            claim, way = kept(job, (CoachPolicy, climb, job.fixed), partial(_claim, job, climb, room))
            steps += way
            if claim.wish is None:
                steps.append(Step(job.id, job.current, None, Reason.UNAFFORDABLE))
            # A job that is about to end still has an epoch to run.
            claim.begin(job, max(remaining, 1.0), len(claims), room)
            claims.append(claim)
        if self.objective is Objective.MEAN_COMPLETION:
            # The job that ends first releases its pods first (shortest remaining time).
            seconds = _shortest(claims)
            claims.sort(key=lambda claim: (-claim.job.priority, seconds[claim.job.id]))
            for rank, claim in enumerate(claims):
                claim.rank = rank
        return claims

    def _keep(self, claims: Sequence[Claim], together: Together) -> bool:
        """Keep what jobs hold where it fits and a change gains less than its restart costs; whether any was kept.

        Jobs that would hold less than decided come first: they leave capacity to the others.
        """
        changing = [
            (claim, claim.at, current)
            for claim in claims
            if claim.at is not None
            and (current := claim.job.current) is not None
            and current != claim.at
            and claim.fixed is None
            and self._allowed(claim, current)
        ]
        changing.sort(key=lambda change: change[0].share(*change[2]) - change[0].share(*change[1]))
        kept = len(together.steps)
        for claim, at, current in changing:
            saved, price, unit = self._worth(claim, current, at)
            if saved <= price and together.room.fits(claim, current):
                together.room.change(claim, current)
                together.steps.append(Step(claim.job.id, at, current, Reason.RESTART, saved, unit, restart=price))
        return len(together.steps) > kept

    def _worth(self, claim: Claim, current: Allocation, to: Allocation) -> tuple[float, float, str]:
        """What a change from `current` `to` saves over the rest of the job, what its restart costs, and the unit."""
        job = claim.job
        climb = self._climb
        # Where even the decided allocation exceeds the limit, the scale is what is short: money, or for cheapest, time.
        within = climb.tier(job, to) == 1
        if climb.cheapest(job) == within:
            rate = job.epoch_cost(to) * job.speed(to)
            saved = claim.remaining * (job.epoch_cost(current) - job.epoch_cost(to))
            return saved, job.restart_seconds * rate, "money saved"
        return claim.seconds(current) - claim.seconds(to), job.restart_seconds, "s saved"

    def _allowed(self, claim: Claim, current: Allocation) -> bool:
        """Whether `current` keeps the job's limits, or breaks them no more than the decided allocation does."""
        job, at = claim.job, claim.at
        if at is None or not current.within(job.minimum, job.maximum):
            return False
        tier = self._climb.tier(job, current)
        return tier == 1 or tier >= self._climb.tier(job, at)

    def _hold(self, together: Together) -> None:
        """Limit the jobs that are not busy to what fits in addition to what the busy ones hold."""
        busy = [claim for claim in together.claims if claim.job.busy]
        movable = [claim for claim in together.claims if not claim.job.busy]
        for claim in together.claims:
            claim.goal = claim.at
        for claim in busy:
            if (current := claim.job.current) != claim.at:
                together.room.change(claim, current)
        together.fit(movable, held=True)
        # The rest of a change may gain too little now; it can wait for the next boundary.
        if self._keep(movable, together):
            together.fit(movable, held=True)
        together.promise(busy)


def _claim(job: JobView, climb: Climb, room: Room) -> tuple[Claim, list[Step]]:
    """A job's goal, and the steps that led to it."""
    goal, way = (job.fixed, []) if job.fixed else climb(job)
    return Claim(job, goal, 1.0, room), way


def _shortest(claims: Sequence[Claim]) -> dict[str, float]:
    """Seconds to each job's target with its smallest allocation; a job of unknown speed has the median epoch.

    A job that holds a gang counts its expected epochs, any other job its upper bound: only a job that is surely shorter
    passes one that has begun. (Short curves predict too few epochs: jobs that took turns by expected epochs ended later
    than one after the other, and each turn costs a restart.)

    A job's allocation is fixed while its speed is unknown. With a constant number of seconds new jobs would pass all
    others, or none, depending on the unit of an epoch.
    """
    epochs = {claim.job.id: 1.0 / claim.job.speed(claim.floor) for claim in claims if claim.job.fixed is None}
    typical = statistics.median(epochs.values()) if epochs else 1.0
    return {claim.job.id: _to_go(claim) * epochs.get(claim.job.id, typical) for claim in claims}


def _to_go(claim: Claim) -> float:
    """The epochs that rank a job among the shortest."""
    left = claim.job.remaining_epochs
    if claim.job.current is not None or left is None or not math.isfinite(left.high):
        return claim.remaining
    return max(left.high, claim.remaining)
