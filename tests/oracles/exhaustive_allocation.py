"""The best answer to Coach's two steps, by looking at all of them: for small instances, to judge the greedy by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import ClusterView, JobView
from coach.core.policies.sharing.capacity import Claim, Room
from coach.core.policies.sharing.hill_climbing import Climb

#: More combinations than this are refused.
MAX_COMBINATIONS = 1_000_000


def allocations(job: JobView) -> Iterator[Allocation]:
    """All allocations within the job's limits."""
    for workers in range(job.minimum.workers, job.maximum.workers + 1):
        for servers in range(job.minimum.servers, job.maximum.servers + 1):
            yield Allocation(workers, servers)


def best_alone(job: JobView, climb: Climb) -> Allocation | None:
    """The allocation with the best level for `job`; among equals the one with the fewest pods.

    None where the money left pays for none. The oracle of step 1, with `least_efficiency` 0.
    """
    best = max(allocations(job), key=lambda a: (climb.level(job, a), -sum(a), a))
    return best if climb.level(job, best)[0] >= 0 else None


def best_together(jobs: Sequence[JobView], cluster: ClusterView, climb: Climb) -> dict[str, Allocation] | None:
    """Allocations of all `jobs` that fit: as few jobs as possible break their epoch budget (tier 0 of `climb.level`),
    and among those the least sum of predicted remaining times.

    The oracle of step 2 for `Objective.SOONEST`; None where not all jobs can have anything. Raises ValueError when
    there are too many combinations.
    """
    room = Room(cluster)
    claims = []
    for job in jobs:
        remaining = job.remaining_epochs.expected if job.remaining_epochs is not None else 1.0
        claims.append(Claim(job, None, max(remaining, 1.0), room))
    # Best first, so that the first full answer is a good bound.
    choices = [sorted(_choices(claim, climb)) for claim in claims]
    if not all(choices):
        return None
    if math.prod(map(len, choices)) > MAX_COMBINATIONS:
        raise ValueError(f"{math.prod(map(len, choices))} combinations, at most {MAX_COMBINATIONS}")
    best_sum: tuple[int, float] = (len(claims) + 1, 0.0)
    best: dict[str, Allocation] | None = None
    broken_least = [choice[0][0] for choice in choices]
    seconds_least = [min(seconds for _, seconds, _ in choice) for choice in choices]

    def descend(depth: int, broken: int, seconds: float) -> None:
        nonlocal best_sum, best
        if (broken + sum(broken_least[depth:]), seconds + sum(seconds_least[depth:])) >= best_sum:
            return
        if depth == len(claims):
            if not room.misfits(claims).pods:
                best_sum = broken, seconds
                best = {claim.job.id: claim.at for claim in claims if claim.at is not None}
            return
        for breaks, takes, allocation in choices[depth]:
            if room.fits(claims[depth], allocation):
                room.change(claims[depth], allocation)
                descend(depth + 1, broken + breaks, seconds + takes)
                room.change(claims[depth], None)

    descend(0, 0, 0.0)
    return best


def _choices(claim: Claim, climb: Climb) -> Iterator[tuple[int, float, Allocation]]:
    """(1 where it breaks the epoch budget, remaining seconds, allocation), of those that the money can pay."""
    for allocation in allocations(claim.job):
        tier, _ = climb.level(claim.job, allocation)
        if tier >= 0:
            yield 1 - tier, claim.seconds(allocation), allocation
