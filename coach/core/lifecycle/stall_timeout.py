"""How long the functions of an epoch may show no progress before they are taken to hang.

The deadline of an epoch says when it must be over; a stopped process or a lost message is noticed much sooner, by what
does not happen any more. What is expected comes from the job's earlier epochs; nothing is known for its first.
"""

from __future__ import annotations

from coach.core.jobs.actions import StallTimeouts
from coach.core.jobs.job import Job
from coach.core.spec.training import DataFormat

#: Seconds without any sign of progress that are always borne: a busy machine, a slow disk ...
STALL_SECONDS = 8.0
#: ... beside this many times what was the longest so far.
STALL_FACTOR = 5.0
#: Seconds borne for what was never measured: the first step, the first evaluation.
UNKNOWN_SECONDS = 60.0
#: Seconds borne for a job's first group, whose members have loaded all there is: of 887 that formed on a machine
#: with too few cores, one in a hundred took more than 2.2 s, none more than 12.2 s.
UNKNOWN_FORMING_SECONDS = 30.0
#: Seconds borne for the first loading of model and data.
UNKNOWN_LOADING_SECONDS = 300.0
#: Too short a guess would end every attempt alike: each may take so many times as long as the one before.
LONGER = 4.0


def stall_timeouts(job: Job) -> StallTimeouts:
    """For the next epoch of `job`."""
    longer = LONGER**job.failures
    reports = [epoch.report for epoch in job.epochs]
    if not reports:
        own_data = job.spec.data.format is DataFormat.CUSTOM  # is read by the members, while they form
        forming = UNKNOWN_LOADING_SECONDS if own_data else UNKNOWN_FORMING_SECONDS
        return StallTimeouts(
            UNKNOWN_LOADING_SECONDS * longer,
            forming * longer,
            UNKNOWN_SECONDS * longer,
            UNKNOWN_SECONDS * longer,
        )
    loading = max(report.load_seconds for report in reports)
    forming = loading + max(report.form_seconds for report in reports)
    step = max(report.train_seconds * job.spec.batch_size / report.samples for report in reports)
    closing = max(report.evaluate_seconds + report.checkpoint_seconds for report in reports)
    borne = (STALL_SECONDS + STALL_FACTOR * seconds for seconds in (loading, forming, step, closing))
    return StallTimeouts(*(seconds * longer for seconds in borne))
