"""States of a job and the reasons for them, with total mappings to state, retry class, words and exit code.

Coach decides only a reason; what a person or a script reads is derived from it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """State of a job (`docs/explanation/architecture.md` has the diagram)."""

    QUEUED = "Queued"
    PROBING = "Probing"
    TRAINING = "Training"
    WAITING = "Waiting"
    SUCCEEDED = "Succeeded"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    TARGET_UNREACHABLE = "TargetUnreachable"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to a job in this state."""
        return self in ENDED


ENDED = frozenset({State.SUCCEEDED, State.BUDGET_EXHAUSTED, State.TARGET_UNREACHABLE, State.FAILED, State.CANCELLED})


class Retry(StrEnum):
    """How a failed epoch is retried."""

    NEVER = "never"  #: the user's mistake, or a failure that another attempt cannot change
    BOUNDED = "bounded"  #: from the last checkpoint, a bounded number of times, with growing pauses
    FREE = "free"  #: without counting the attempt: Coach itself or the cluster ended it
    LATER = "later"  #: the cluster makes no pods now: the job holds none, and tries again with growing pauses


class Reason(StrEnum):
    """Why a job waits, why an epoch failed, or how a job ended."""

    # waits
    SUBMITTED = "Submitted"
    STARTING_FUNCTIONS = "StartingFunctions"
    MISCONFIGURED = "Misconfigured"
    NEVER_FITS = "NeverFits"
    WAITING_MEMBERS = "WaitingMembers"
    WAITING_CAPACITY = "WaitingCapacity"
    SHADOW_RESERVED = "ShadowReserved"
    NODES_UNAVAILABLE = "NodesUnavailable"
    DRAINING = "Draining"
    PLACING = "Placing"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_DELAYED = "PodsDelayed"
    ACCOUNT_SPENT = "AccountSpent"
    WAITING_SPOT = "WaitingSpot"
    BACKING_OFF = "BackingOff"
    SUSPENDED = "Suspended"
    HANDLER_STOPPED = "HandlerStopped"
    # running
    PROBING_SPEED = "ProbingSpeed"
    TRAINING_EPOCH = "TrainingEpoch"
    # an epoch failed
    BAD_REQUEST = "BadRequest"
    BUSY = "Busy"
    MODEL_INVALID = "ModelInvalid"
    MODEL_TIMEOUT = "ModelTimeout"
    DATA_MISSING = "DataMissing"
    DATA_INVALID = "DataInvalid"
    LOSS_NOT_FINITE = "LossNotFinite"
    CHECKPOINT_MISSING = "CheckpointMissing"
    CHECKPOINT_INVALID = "CheckpointInvalid"
    STORAGE_FAILED = "StorageFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    POD_REFUSED = "PodRefused"
    PEER_LOST = "PeerLost"
    FUNCTION_LOST = "FunctionLost"
    START_TIMED_OUT = "StartTimedOut"
    STALLED = "Stalled"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    PROGRAM_FAILED = "ProgramFailed"
    HANDLER_RESTARTED = "HandlerRestarted"
    DISRUPTED = "Disrupted"
    INTERNAL = "Internal"
    # ends
    TARGET_REACHED = "TargetReached"
    BUDGET_USED = "BudgetUsed"
    LIMIT_REACHED = "LimitReached"
    NO_GAIN_EXPECTED = "NoGainExpected"
    PROGRAM_ENDED = "ProgramEnded"
    TARGET_MISSED = "TargetMissed"
    BUDGET_SPENT = "BudgetSpent"
    BUDGET_TOO_SMALL = "BudgetTooSmall"
    TARGET_BELOW_ASYMPTOTE = "TargetBelowAsymptote"
    TIME_LIMIT = "TimeLimit"
    EPOCH_LIMIT = "EpochLimit"
    CANCELLED_BY_USER = "CancelledByUser"


#: Reasons of a job that was suspended and can be resumed.
RESUMABLE = frozenset({Reason.SUSPENDED, Reason.HANDLER_STOPPED})


@dataclass(frozen=True, slots=True)
class ReasonInfo:
    """Consequences of a reason. `state` None: an attempt failed for this reason, and the job goes on."""

    words: str
    state: State | None = None
    retry: Retry = Retry.NEVER


REASON_INFO: dict[Reason, ReasonInfo] = {
    Reason.SUBMITTED: ReasonInfo("accepted, not started yet", State.QUEUED),
    Reason.STARTING_FUNCTIONS: ReasonInfo("its functions are starting", State.WAITING),
    Reason.MISCONFIGURED: ReasonInfo("its functions cannot be scheduled as they are described", State.WAITING),
    Reason.NEVER_FITS: ReasonInfo("this cluster can never hold its smallest gang", State.FAILED),
    Reason.WAITING_MEMBERS: ReasonInfo("not all types of its functions are there yet", State.WAITING),
    Reason.WAITING_CAPACITY: ReasonInfo("waits for capacity in the cluster", State.WAITING),
    Reason.SHADOW_RESERVED: ReasonInfo("the capacity is reserved for an earlier job", State.WAITING),
    Reason.NODES_UNAVAILABLE: ReasonInfo("waits for unavailable nodes", State.WAITING),
    Reason.DRAINING: ReasonInfo("waits for another job to release its capacity", State.WAITING),
    Reason.PLACING: ReasonInfo("its functions are being placed", State.WAITING),
    Reason.IMAGE_UNAVAILABLE: ReasonInfo("the image of its functions cannot be pulled", State.WAITING),
    Reason.QUOTA_EXCEEDED: ReasonInfo("waits for room in a quota", State.WAITING, Retry.LATER),
    Reason.PODS_DELAYED: ReasonInfo("the cluster cannot create its pods now", State.WAITING, Retry.LATER),
    Reason.ACCOUNT_SPENT: ReasonInfo("waits for money of its account", State.WAITING),
    Reason.WAITING_SPOT: ReasonInfo("waits for spot nodes", State.WAITING),
    Reason.BACKING_OFF: ReasonInfo("pauses after a failed attempt", State.WAITING),
    Reason.SUSPENDED: ReasonInfo("stopped; it can be resumed", State.WAITING, Retry.FREE),
    Reason.HANDLER_STOPPED: ReasonInfo("its handler stopped; it can be resumed", State.WAITING, Retry.FREE),
    Reason.PROBING_SPEED: ReasonInfo("measures its speed with a mini-epoch", State.PROBING),
    Reason.TRAINING_EPOCH: ReasonInfo("trains", State.TRAINING),
    Reason.BAD_REQUEST: ReasonInfo("a function refused its order"),
    Reason.BUSY: ReasonInfo("a function was still running another epoch", retry=Retry.BOUNDED),
    Reason.MODEL_INVALID: ReasonInfo("the model file cannot be used"),
    Reason.MODEL_TIMEOUT: ReasonInfo("the model file did not return in time"),
    Reason.DATA_MISSING: ReasonInfo("the data set is not there"),
    Reason.DATA_INVALID: ReasonInfo("the data set cannot be read"),
    Reason.LOSS_NOT_FINITE: ReasonInfo("the loss is no longer a number"),
    Reason.CHECKPOINT_MISSING: ReasonInfo("the last checkpoint is not there", retry=Retry.BOUNDED),
    Reason.CHECKPOINT_INVALID: ReasonInfo("the last checkpoint cannot be read", retry=Retry.BOUNDED),
    Reason.STORAGE_FAILED: ReasonInfo("storage failed", retry=Retry.BOUNDED),
    Reason.OUT_OF_MEMORY: ReasonInfo("a function needed more memory than it requested"),
    Reason.POD_REFUSED: ReasonInfo("the cluster refuses its pods as they are described"),
    Reason.PEER_LOST: ReasonInfo("a function's training process died", retry=Retry.BOUNDED),
    Reason.FUNCTION_LOST: ReasonInfo("a function died", retry=Retry.BOUNDED),
    Reason.START_TIMED_OUT: ReasonInfo("the functions did not start in time", retry=Retry.BOUNDED),
    Reason.STALLED: ReasonInfo("its functions made no progress", retry=Retry.BOUNDED),
    Reason.DEADLINE_EXCEEDED: ReasonInfo("the epoch did not end by its deadline", retry=Retry.BOUNDED),
    Reason.PROGRAM_FAILED: ReasonInfo("the program failed"),
    Reason.HANDLER_RESTARTED: ReasonInfo("the handler restarted", retry=Retry.FREE),
    Reason.DISRUPTED: ReasonInfo("the cluster took a function away", retry=Retry.FREE),
    Reason.INTERNAL: ReasonInfo("an error inside a function", retry=Retry.BOUNDED),
    Reason.TARGET_REACHED: ReasonInfo("the target held", State.SUCCEEDED),
    Reason.BUDGET_USED: ReasonInfo("the budget was used for the best model", State.SUCCEEDED),
    Reason.LIMIT_REACHED: ReasonInfo("the best model within its limit is there", State.SUCCEEDED),
    Reason.NO_GAIN_EXPECTED: ReasonInfo("no better model is to be expected", State.SUCCEEDED),
    Reason.PROGRAM_ENDED: ReasonInfo("the program ended by itself", State.SUCCEEDED),
    Reason.TARGET_MISSED: ReasonInfo("the program ended before its target", State.FAILED),
    Reason.BUDGET_SPENT: ReasonInfo("the rest of the budget does not cover another epoch", State.BUDGET_EXHAUSTED),
    Reason.BUDGET_TOO_SMALL: ReasonInfo("its budget cannot reach its target", State.BUDGET_EXHAUSTED),
    Reason.TARGET_BELOW_ASYMPTOTE: ReasonInfo(
        "the learning curve levels off before the target", State.TARGET_UNREACHABLE
    ),
    Reason.TIME_LIMIT: ReasonInfo("the time limit was reached", State.FAILED),
    Reason.EPOCH_LIMIT: ReasonInfo("the last allowed epoch ended before the target", State.FAILED),
    Reason.CANCELLED_BY_USER: ReasonInfo("cancelled", State.CANCELLED),
}

#: Reasons of a job whose pods the cluster does not make now.
REFUSED = frozenset(reason for reason, info in REASON_INFO.items() if info.retry is Retry.LATER)

EXIT_CODE: dict[State, int] = {
    State.QUEUED: 130,
    State.PROBING: 130,
    State.TRAINING: 130,
    State.WAITING: 130,
    State.SUCCEEDED: 0,
    State.FAILED: 1,
    State.CANCELLED: 1,
    State.BUDGET_EXHAUSTED: 3,
    State.TARGET_UNREACHABLE: 4,
}
