"""When a program's number of workers changes: what is worth measuring, and what a change does to its batch.

A change starts the program again, from its newest checkpoint, or it forms its group anew in the same process
(`Job.elastic`). It costs `Job.change_seconds`. A program has no mini-epochs. Its first
intervals between two reports, with each number of workers, measure its speed, and they train as all others do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from coach.core.cluster import Allocation
from coach.core.jobs.decision import DecisionStep, StepKind
from coach.core.jobs.job import Job
from coach.core.lifecycle import forecast, probing

#: Intervals after which a number of workers is measured: its start is in the first.
INTERVALS = 2


def stays(job: Job) -> DecisionStep:
    """Why a program's workers stay as they are (`Job.stays`)."""
    program = job.spec.program
    resumes = program is not None and program.resumes
    held = job.gang.held
    reason = f"{held} until a report measures their speed" if resumes else "it cannot resume, so it is not restarted"
    return DecisionStep(StepKind.FIXED, None, held, reason)


def worth_measuring(job: Job, left: forecast.Remaining) -> Iterator[probing.Probe]:
    """The numbers of workers whose measurement is expected to save more than it costs, the largest gain first.

    The gain is that of `probing.worth_measuring`. The cost: a change there and one back, and a slower speed meanwhile.
    All changes together take at most PROBE_SHARE of the predicted time of the job.
    """
    model, change = job.speed, job.change_seconds
    if model is None or job.minimum == job.maximum or not job.epochs:
        return
    share = probing.PROBE_SHARE * whole_seconds(job, left) - changes(job) * job.times.restart
    if share < 2 * change:
        return
    interval = job.epochs_trained / len(job.epochs)
    yield from probing.worthwhile(job, left, model, INTERVALS * interval, 2 * change)


def whole_seconds(job: Job, left: forecast.Remaining) -> float:
    """The predicted seconds of the whole job, if it goes on with the fastest number of workers measured."""
    assert job.speed is not None
    measured = {(point.workers, point.servers) for point in job.speed_points()}
    fastest = max(job.speed.predict(*at) for at in {job.minimum, *measured})
    return job.progress.run_seconds + left.epochs.expected / fastest


def changes(job: Job) -> int:
    """How often its number of workers has changed."""
    used = [epoch.allocation for epoch in job.epochs]
    return sum(before != after for before, after in itertools.pairwise(used))


def smaller(job: Job) -> Allocation | None:
    """What starts in place of workers that find no room: as many as before, then the fewest; None: there are none."""
    assert job.decision.desired is not None
    before = job.epochs[-1].allocation if job.epochs else job.minimum
    fixed = job.spec.policy.allocation is not None
    if job.spec.program is None or fixed or job.decision.desired == job.minimum:
        return None
    return before if before < job.decision.desired else job.minimum


def batch_words(job: Job, before: Allocation, after: Allocation) -> str:
    """What a change of workers does to a program's batch: `2 times as many samples a step as with 1 worker`."""
    program = job.spec.program
    if program is not None and program.batch == "per-job":
        return f"the batch is divided: as many samples a step as with {before}"
    return f"a batch a worker: {after.workers / before.workers:.3g} times as many samples a step as with {before}"
