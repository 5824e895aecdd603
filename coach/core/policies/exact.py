"""The best answer to Coach's two steps, by looking at all of them: for small instances, to judge the greedy by."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coach.core.cluster import Allocation
from coach.core.policies.base import ClusterView, JobView
from coach.core.policies.climb import Climb, allocations
from coach.core.policies.room import Claim, Room

#: More combinations than this are refused.
MOST_COMBINATIONS = 1_000_000


def best_alone(job: JobView, climb: Climb) -> Allocation | None:
    """The allocation with the best level for `job`; among equals the one with the fewest pods.

    None where the money left pays for none. The oracle of step 1, with `least_efficiency` 0.
    """
    best = max(allocations(job), key=lambda a: (climb.level(job, a), -sum(a), a))
    return best if climb.level(job, best)[0] >= 0 else None


def best_together(
    jobs: Sequence[JobView], cluster: ClusterView, climb: Climb
) -> dict[str, Allocation] | None:
    """Allocations of all `jobs` that fit and have the least sum of predicted remaining times.

    Each job's allocation keeps its epoch budget (tier 1 of `climb.level`), or is its minimum. The oracle of step 2
    for `Objective.SOONEST` where all minimums fit; None where they do not. Raises ValueError when there are too many
    combinations.
    """
    room = Room(cluster.nodes)
    claims = []
    for job in jobs:
        remaining = job.remaining_epochs.expected if job.remaining_epochs is not None else 1.0
        claims.append(Claim(job, None, max(remaining, 1.0), room))
    # Best first, so that the first full answer is a good bound.
    choices = [
        sorted(
            ((claim.seconds(a), a) for a in allocations(claim.job) if _open(claim.job, a, climb)),
        )
        for claim in claims
    ]
    if math.prod(map(len, choices)) > MOST_COMBINATIONS:
        raise ValueError(f"{math.prod(map(len, choices))} combinations, at most {MOST_COMBINATIONS}")
    least = [choice[0][0] for choice in choices]
    best_sum, best = math.inf, None

    def descend(depth: int, so_far: float) -> None:
        nonlocal best_sum, best
        if depth == len(claims):
            if not room.misfits(claims):
                best_sum, best = so_far, {claim.job.id: claim.at for claim in claims if claim.at is not None}
            return
        for seconds, allocation in choices[depth]:
            if so_far + seconds + sum(least[depth + 1 :]) >= best_sum:
                break
            if room.fits(claims[depth], allocation):
                room.change(claims[depth], allocation)
                descend(depth + 1, so_far + seconds)
                room.change(claims[depth], None)

    descend(0, 0.0)
    return best


def _open(job: JobView, allocation: Allocation, climb: Climb) -> bool:
    return allocation == job.minimum or climb.level(job, allocation)[0] == 1
