"""Which actions are valid for a job: in which phases, with how many workers and servers; the same in every driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from coach.core.cluster import Allocation
from coach_research.scheduling.api import (
    JobState,
    Kill,
    Migrate,
    Phase,
    PolicyError,
    Preempt,
    Reserve,
    Resize,
    SchedulingAction,
    Start,
)
from coach_research.workload import totals

AnyJob = TypeVar("AnyJob", bound=JobState)

#: Phases in which an action is valid.
POSSIBLE: Mapping[type, frozenset[Phase]] = {
    Start: frozenset((Phase.WAITING, Phase.HOLDING)),
    Reserve: frozenset((Phase.WAITING, Phase.HOLDING)),
    Resize: frozenset((Phase.RUNNING,)),
    Migrate: frozenset((Phase.RUNNING,)),
    Preempt: frozenset((Phase.RUNNING,)),
    Kill: frozenset(Phase),
}


#: Actions that give a job a plan within its limits.
WITH_PLAN = (Start, Resize, Migrate)


def check(action: SchedulingAction, job: AnyJob | None, now: float) -> AnyJob:
    """The job of `action`, if the action is valid for it. Raises PolicyError with the action and the job's state."""
    if job is None:
        raise PolicyError(f"{action}: there is no such job at {now} s")
    if job.phase not in POSSIBLE[type(action)]:
        raise PolicyError(f"{action}: job {job.id} is {job.phase} at {now} s and holds {job.plan}")
    if isinstance(action, WITH_PLAN):
        plan, low, high = action.plan, job.minimum, job.maximum
        workers, servers = totals(plan) if len(plan) != 1 else plan[0][1:]
        if not (low.workers <= workers <= high.workers and low.servers <= servers <= high.servers):
            given = Allocation(workers, servers)
            raise PolicyError(f"{action}: {given} is not within {low}..{high} of job {job.id}")
    return job
