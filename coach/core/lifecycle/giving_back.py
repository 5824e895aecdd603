"""Whether an elastic group gives workers and servers to a job that waits before its epoch ends."""

from __future__ import annotations

from coach.core.cluster import Allocation
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.lifecycle import forecast


def rest(job: Job, at: float) -> float:
    """Seconds that others wait for its epoch's end; 0 where its group may not change before, or none is predicted."""
    order = job.attempts.running
    if order is None or order.kind is not EpochKind.FULL or not job.spec.elastic or order.predicted_seconds is None:
        return 0.0
    if job.stop.cancel or job.stop.suspend or job.attempts.stopping == order.token:
        return 0.0
    return order.predicted_seconds[1] - (at - order.at)


def may_shrink(job: Job, decided: Allocation | None, at: float) -> bool:
    """Whether the `decided` allocation is less than it holds, and its epoch can end with that.

    With fewer workers the rest of the epoch takes longer. All of it, at worst, has to be over before the deadline, as
    the reservation pays until then.
    """
    order, held = job.attempts.running, job.gang.held
    if order is None or decided is None or decided == held or bool(decided.servers) != bool(held.servers):
        return False
    if decided.workers > held.workers or decided.servers > held.servers:
        return False
    whole, price = forecast.predicted_seconds(job, decided, order.fraction), job.times.restart
    if whole is None or order.predicted_seconds is None:
        return False
    done = min(1.0, (at - order.at) / order.predicted_seconds[2])
    return price + (1.0 - done) * whole.high <= order.at + order.deadline - at
