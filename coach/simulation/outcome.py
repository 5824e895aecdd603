"""The outcome of a simulated job, from submission to end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from coach.core.cluster import Resources
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason, State
from coach.core.money import to_amount


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that ended. Seconds on the run's clock; `held` in resource-seconds, `spent` in the job's currency."""

    job: str
    submitted: float
    started: float
    ended: float
    state: State
    reason: Reason
    epochs: int
    probes: int
    attempts: int
    #: How often an epoch had another allocation than the one before.
    changes: int
    #: Seconds of the epochs that counted.
    trained: float
    spent: float
    overshoot: float
    held: Resources
    epochs_trained: float
    final: Job = field(repr=False)

    @classmethod
    def of(cls, job: Job, at: float, held: Resources) -> Ended:
        """The outcome of a job that ended at `at` seconds."""
        spent, budget = job.money.ledger.spent, job.money.ledger.budget
        return cls(
            job.name,
            job.progress.submitted_at,
            math.nan if job.progress.started_at is None else job.progress.started_at,
            at,
            job.state,
            job.reason,
            job.full_epoch_count,
            len(job.epochs) - job.full_epoch_count,
            job.attempts.count,
            sum(one.allocation != next_.allocation for one, next_ in pairwise(job.epochs)),
            sum(epoch.seconds for epoch in job.epochs),
            to_amount(spent),
            to_amount(max(0, spent - budget)) if budget is not None else 0.0,
            held,
            job.epochs_trained,
            job,
        )
