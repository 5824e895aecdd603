"""The first of the two steps: what one job would like to have, if it were alone.

Thesis section 4.2 with its sign mended: the gain of a worker is f(w+1, s) - f(w, s), that of a server
f(w, s+1) - f(w, s), with f the predicted speed in epochs/s (the thesis prints f(w, s) - f(w+1, s)). The climb
starts at the job's minimum and takes the larger gain, step by step, within what the epoch budget allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from coach.core.cluster import Allocation
from coach.core.policies.base import JobView, Reason, Step


class Objective(StrEnum):
    """What the jobs want."""

    SOONEST = "soonest"  #: the target as soon as the budget allows
    CHEAPEST = "cheapest"  #: the target for the least money, within the deadline where there is one
    MEAN_COMPLETION = "mean-completion"  #: alone as `SOONEST`; together the shortest mean completion time


#: (workers, servers) added by one step: a worker or a server; where neither helps, both; where that does not help
#: either (a plateau, a ripple in the prediction), a step further or back.
STEPS = (
    ((1, 0), (0, 1)),
    ((1, 1),),
    ((2, 0), (0, 2), (2, 1), (1, 2), (2, 2), (1, -1), (-1, 1), (-1, 0), (0, -1)),
)

#: Differences in cost below this part of it are rounding.
ROUNDING = 1e-9

#: (tier, value) of an allocation for a job; larger is better.
Level = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Climb:
    """The climb of one job. Holds what is the same for all jobs."""

    objective: Objective = Objective.SOONEST
    #: A pod that speeds the job up by less than this part of what its pods bring on average is not worth its place:
    #: it bounds the waste, and keeps the climb from chasing noise.
    least_efficiency: float = 0.02

    def level(self, job: JobView, allocation: Allocation) -> Level:
        """How good `allocation` is for `job` alone.

        Tier 1 keeps the limit - the epoch budget, or for `CHEAPEST` the deadline - and is worth its speed, or its
        cost with the sign turned. Tier 0 breaks the limit and is worth what leads back to it: its cost with the
        sign turned, or its speed. Below is what the money left cannot pay.
        """
        if not job.affordable(allocation):
            return -1, -job.epoch_cost(allocation)
        if self.objective is Objective.CHEAPEST:
            speed = job.speed(allocation)
            late = (
                job.deadline is not None
                and job.remaining_epochs is not None
                and job.remaining_epochs.expected > job.deadline * speed
            )
            return (0, speed) if late else (1, -job.epoch_cost(allocation))
        if job.epoch_budget is not None:
            cost = job.epoch_cost(allocation)
            if cost > job.epoch_budget * (1 + ROUNDING):
                return 0, -cost
        return 1, job.speed(allocation)

    def __call__(self, job: JobView, steps: list[Step]) -> Allocation | None:
        """What `job` would like to have; None where not even that can be paid. The way there is added to `steps`."""
        at, here = job.minimum, self.level(job, job.minimum)
        while True:
            found = next((best for moves in STEPS if (best := self._best(job, at, here, moves))), None)
            if found is None:
                return None if here[0] < 0 else at
            there, to = found
            steps.append(self._step(job, (at, here), (to, there)))
            at, here = to, there

    def _best(
        self, job: JobView, at: Allocation, here: Level, moves: tuple[tuple[int, int], ...]
    ) -> tuple[Level, Allocation] | None:
        """The move that gains most for each pod it moves, if any gains enough."""
        least = abs(here[1]) * ROUNDING
        if here[0] == 1 and self.objective is not Objective.CHEAPEST:
            least = here[1] / (at.workers + at.servers) * self.least_efficiency
        (least_workers, least_servers), (most_workers, most_servers) = job.minimum, job.maximum
        best: tuple[Level, Level, Allocation] | None = None
        for workers, servers in moves:
            to = Allocation(at.workers + workers, at.servers + servers)
            if not (
                least_workers <= to.workers <= most_workers and least_servers <= to.servers <= most_servers
            ):
                continue
            there = self.level(job, to)
            if there[0] > here[0]:
                merit = there
            elif there[0] == here[0] and there[1] - here[1] > least * max(workers + servers, 0):
                merit = there[0], (there[1] - here[1]) / (abs(workers) + abs(servers))
            else:
                continue
            if best is None or merit > best[0]:
                best = merit, there, to
        return None if best is None else best[1:]

    def _step(self, job: JobView, before: tuple[Allocation, Level], after: tuple[Allocation, Level]) -> Step:
        (at, here), (to, there) = before, after
        cost = job.epoch_cost(to)
        inside = here[0] == there[0] == 1
        if self.objective is Objective.CHEAPEST and inside:
            return Step(job.id, at, to, Reason.COST, there[1] - here[1], "an epoch", cost)
        if self.objective is Objective.CHEAPEST or inside:
            reason = Reason.SPEED if inside else Reason.DEADLINE
            return Step(job.id, at, to, reason, job.speed(to) - job.speed(at), "epochs/s", cost)
        return Step(job.id, at, to, Reason.EPOCH_BUDGET, job.epoch_cost(at) - cost, "an epoch", cost)


def allocations(job: JobView) -> Iterator[Allocation]:
    """All allocations within the job's limits."""
    for workers in range(job.minimum.workers, job.maximum.workers + 1):
        for servers in range(job.minimum.servers, job.maximum.servers + 1):
            yield Allocation(workers, servers)
