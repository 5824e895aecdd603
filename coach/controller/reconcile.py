"""What follows for one TrainingJob from the object as it is and the job as it is. Decided anew each time: by level."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.money import Money, to_money
from coach.handler.interactive_run import over

#: Keeps a TrainingJob from vanishing while its job holds pods.
FINALIZER = "coach.dev/job"


@dataclass(frozen=True, slots=True)
class Resource:
    """What counts of a TrainingJob. `budget` None: unlimited."""

    deleting: bool
    finalizer: bool
    suspend: bool
    budget: Money | None
    priority: int = 0

    @classmethod
    def of(cls, found: dict) -> Resource:  # type: ignore[type-arg]
        """Of an object as the API server has it."""
        metadata, spec = found["metadata"], found["spec"]
        amount = spec.get("budget", {}).get("amount")
        return cls(
            deleting="deletionTimestamp" in metadata,
            finalizer=FINALIZER in (metadata.get("finalizers") or ()),
            suspend=bool(spec.get("suspend")),
            budget=None if amount is None else to_money(float(amount)),
            priority=int(spec.get("priority", 0)),
        )


class StepKind(Enum):
    """What the controller does with an object or its job."""

    ADD_FINALIZER = auto()
    SUBMIT = auto()
    SUSPEND = auto()
    RESUME = auto()
    SET_PRIORITY = auto()
    CANCEL = auto()
    REMOVE_FINALIZER = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do now. `budget`: nano-units that RESUME gives the job, all in all."""

    kind: StepKind
    budget: Money | None = None


def next_step(resource: Resource, job: Job | None) -> Step | None:
    """What to do next; None where nothing is left to do until something changes."""
    if resource.deleting:
        return _leaving(resource, job)
    if not resource.finalizer:
        return Step(StepKind.ADD_FINALIZER)
    if job is None:
        return None if resource.suspend else Step(StepKind.SUBMIT)
    more = _more(resource, job)
    if job.ended:
        out_of_money = job.state is State.BUDGET_EXHAUSTED
        return Step(StepKind.RESUME, more) if more and out_of_money and not resource.suspend else None
    if resource.priority != job.spec.priority:
        return Step(StepKind.SET_PRIORITY)
    if resource.suspend:
        return None if job.stop.suspend else Step(StepKind.SUSPEND)
    if more or (job.stop.suspend and over(job)):
        return Step(StepKind.RESUME, more)
    return None


def _leaving(resource: Resource, job: Job | None) -> Step | None:
    """An object that is being deleted: its job ends first, and gives everything back."""
    if not resource.finalizer:
        return None
    if job is None or (job.ended and not job.gang.pods):
        return Step(StepKind.REMOVE_FINALIZER)
    return None if job.stop.cancel or job.ended else Step(StepKind.CANCEL)


def _more(resource: Resource, job: Job) -> Money | None:
    """The object's budget where it is larger than the job's. A budget never becomes smaller."""
    if resource.budget is None or job.money.ledger.budget is None or resource.budget <= job.money.ledger.budget:
        return None
    return resource.budget
