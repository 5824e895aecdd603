"""How long the functions of an epoch may show no progress before they count as hanging.

An epoch's deadline limits all of it. A stopped process or a lost message is noticed much sooner, because progress
stops. The timeouts are derived from the job's earlier epochs; for its first epoch they are constants.
"""

from __future__ import annotations

from coach.core.jobs.actions import StallTimeouts
from coach.core.jobs.job import Job
from coach.core.spec.program import Program
from coach.core.spec.training import DataFormat

#: Seconds without progress that are always allowed (a busy machine, a slow disk) ...
STALL_SECONDS = 8.0
#: ... in addition to this many times the longest duration so far.
STALL_FACTOR = 5.0
#: All processes of a program may be idle for this many times its longest interval, in addition to UNKNOWN_SECONDS.
IDLE_FACTOR = 2.0
#: Seconds allowed for what was never measured: the first step, the first evaluation.
UNKNOWN_SECONDS = 60.0
#: Seconds allowed for forming a job's first group, whose members have loaded model and data. Of 887 groups that formed
#: on a machine with too few cores, one in a hundred took more than 2.2 s, none more than 12.2 s.
UNKNOWN_FORMING_SECONDS = 30.0
#: Seconds allowed for the first loading of model and data.
UNKNOWN_LOADING_SECONDS = 300.0
#: Too short a timeout would end every attempt alike: each attempt has this many times the previous one's.
LONGER = 4.0


def stall_timeouts(job: Job) -> StallTimeouts:
    """The stall timeouts of the next epoch of `job`."""
    longer = LONGER**job.attempts.failures
    if job.spec.program is not None:
        return _of_program(job.spec.program, job, longer)
    reports = [epoch.report for epoch in job.epochs]
    if not reports:
        data = job.spec.data
        own_data = data is None or data.format is DataFormat.CUSTOM  # the members read it while the group forms
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
    starting, *others = (STALL_SECONDS + STALL_FACTOR * seconds for seconds in (loading, forming, step, closing))
    if not all(held.warm for held in job.gang.pods.values()):
        starting += UNKNOWN_SECONDS  # a new pod imports the framework first
    return StallTimeouts(*(seconds * longer for seconds in (starting, *others)))


def _of_program(program: Program, job: Job, longer: float) -> StallTimeouts:
    """How long all of a program's processes may be idle; or, where its file says it, how long no report may come."""
    if program.stall_timeout is not None:
        return StallTimeouts(*[program.stall_timeout] * 4)
    longest = max((epoch.report.train_seconds for epoch in job.epochs), default=0.0)
    between = (UNKNOWN_SECONDS + IDLE_FACTOR * longest) * longer
    starting = max(UNKNOWN_LOADING_SECONDS * longer, between)
    return StallTimeouts(starting, starting, between, between)
