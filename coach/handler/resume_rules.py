"""When a job can be resumed."""

from __future__ import annotations

from coach.core.errors import UserError
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason, State
from coach.core.money import Money


class NotNowError(UserError):
    """The request is not possible in the job's current state."""


#: Reasons for which a resumed job would end again at once.
_FINAL = {
    Reason.TARGET_REACHED: "there is nothing left to do",
    Reason.TIME_LIMIT: "give it a new name and another spec.timeLimit, and submit it",
    Reason.EPOCH_LIMIT: "give it a new name and another spec.maxEpochs, and submit it",
}


def refuse_resume(job: Job, added: Money, *, orphan: bool = False) -> None:
    """Raises NotNowError, with what to do instead, if the job cannot be resumed with `added` nano-units.

    `orphan`: it has not ended, but no handler has its journal.
    """
    if added and job.money.ledger.budget is None:
        raise NotNowError(f"{job.name} has no budget, so none can be added; resume it without --add-budget")
    if job.ended and job.reason in _FINAL:
        words = job.reason.words
        raise NotNowError(f"{job.name} has ended ({words}): {_FINAL[job.reason]}")
    if job.state is State.BUDGET_EXHAUSTED and not added:
        raise NotNowError(
            f"{job.name} has used up its budget ({job.message}); go on with more: "
            f"coach resume {job.name} --add-budget AMOUNT"
        )
    if not (job.ended or job.stop.suspend or orphan or added):
        raise NotNowError(f"{job.name} was not stopped: {job.reason.words}")
