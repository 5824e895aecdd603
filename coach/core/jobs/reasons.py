"""States of a job and the reasons for them, with state, retry class, words and exit code.

Coach decides only a reason; what a person or a script reads is derived from it here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class State(StrEnum):
    """State of a job (`docs/project/architecture.md` has the diagram)."""

    exit_code: int  #: of a command about it; before its end 130, as after an interrupt

    def __new__(cls, value: str, exit_code: int = 130) -> Self:
        """See the class."""
        self = str.__new__(cls, value)
        self._value_, self.exit_code = value, exit_code
        return self

    QUEUED = "Queued"
    PROBING = "Probing"
    TRAINING = "Training"
    WAITING = "Waiting"
    SUCCEEDED = "Succeeded", 0
    BUDGET_EXHAUSTED = "BudgetExhausted", 3
    TARGET_UNREACHABLE = "TargetUnreachable", 4
    FAILED = "Failed", 1
    CANCELLED = "Cancelled", 1

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to a job in this state."""
        return self.exit_code != 130


class Retry(StrEnum):
    """How a failed epoch is retried."""

    NEVER = "never"  #: the user's mistake, or a failure that another attempt cannot change
    BOUNDED = "bounded"  #: from the last checkpoint, a bounded number of times, with growing pauses
    FREE = "free"  #: without counting the attempt: Coach itself or the cluster ended it
    LATER = "later"  #: the cluster makes no pods now: the job holds none, and tries again with growing pauses


class Reason(StrEnum):
    """Why a job waits, why an epoch failed, or how a job ended: its words, and what follows.

    `state` None: an attempt failed for this reason, and the job goes on.
    """

    words: str
    state: State | None
    retry: Retry

    def __new__(cls, value: str, words: str = "", state: State | None = None, retry: Retry = Retry.NEVER) -> Self:
        """See the class."""
        self = str.__new__(cls, value)
        self._value_, self.words, self.state, self.retry = value, words, state, retry
        return self

    # waits
    SUBMITTED = "Submitted", "accepted, not started yet", State.QUEUED
    STARTING_FUNCTIONS = "StartingFunctions", "starting", State.WAITING
    MISCONFIGURED = "Misconfigured", "its functions cannot be scheduled as they are described", State.WAITING
    NEVER_FITS = "NeverFits", "this cluster can never hold its smallest gang", State.FAILED
    WAITING_MEMBERS = "WaitingMembers", "not all types of its functions are there yet", State.WAITING
    WAITING_CAPACITY = "WaitingCapacity", "waits for capacity in the cluster", State.WAITING
    SHADOW_RESERVED = "ShadowReserved", "the capacity is reserved for an earlier job", State.WAITING
    NODES_UNAVAILABLE = "NodesUnavailable", "waits for unavailable nodes", State.WAITING
    DRAINING = "Draining", "waits for another job to release its capacity", State.WAITING
    PLACING = "Placing", "its functions are being placed", State.WAITING
    IMAGE_UNAVAILABLE = "ImageUnavailable", "the image of its functions cannot be pulled", State.WAITING
    QUOTA_EXCEEDED = "QuotaExceeded", "waits for room in a quota", State.WAITING, Retry.LATER
    PODS_DELAYED = "PodsDelayed", "the cluster cannot create its pods now", State.WAITING, Retry.LATER
    DEVICES_TAKEN = "DevicesTaken", "others have taken its GPUs", State.WAITING, Retry.LATER
    ACCOUNT_SPENT = "AccountSpent", "waits for money of its account", State.WAITING
    WAITING_SPOT = "WaitingSpot", "waits for spot nodes", State.WAITING
    BACKING_OFF = "BackingOff", "pauses after a failed attempt", State.WAITING
    SUSPENDED = "Suspended", "stopped; it can be resumed", State.WAITING, Retry.FREE
    HANDLER_STOPPED = "HandlerStopped", "its handler stopped; it can be resumed", State.WAITING, Retry.FREE
    # running
    PROBING_SPEED = "ProbingSpeed", "measures its speed with a mini-epoch", State.PROBING
    TRAINING_EPOCH = "TrainingEpoch", "trains", State.TRAINING
    METRIC_NOT_FOUND = "MetricNotFound", "runs, and its metric is not found", State.TRAINING
    # an epoch failed
    BAD_REQUEST = "BadRequest", "a function refused its order"
    BUSY = "Busy", "a function was still running another epoch", None, Retry.BOUNDED
    MODEL_INVALID = "ModelInvalid", "the model file cannot be used"
    MODEL_TIMEOUT = "ModelTimeout", "the model file did not return in time"
    DATA_MISSING = "DataMissing", "the data set is not there"
    DATA_INVALID = "DataInvalid", "the data set cannot be read"
    LOSS_NOT_FINITE = "LossNotFinite", "the loss is no longer a number"
    CHECKPOINT_MISSING = "CheckpointMissing", "the last checkpoint is not there", None, Retry.BOUNDED
    CHECKPOINT_INVALID = "CheckpointInvalid", "the last checkpoint cannot be read", None, Retry.BOUNDED
    STORAGE_FAILED = "StorageFailed", "storage failed", None, Retry.BOUNDED
    OUT_OF_MEMORY = "OutOfMemory", "a function needed more memory than it requested"
    DEVICE_MEMORY = "DeviceMemory", "a GPU's memory did not suffice"
    POD_REFUSED = "PodRefused", "the cluster refuses its pods as they are described"
    PEER_LOST = "PeerLost", "a function's training process died", None, Retry.BOUNDED
    FUNCTION_LOST = "FunctionLost", "a function died", None, Retry.BOUNDED
    DEVICE_LOST = "DeviceLost", "a GPU stopped working", None, Retry.BOUNDED
    START_TIMED_OUT = "StartTimedOut", "the functions did not start in time", None, Retry.BOUNDED
    STALLED = "Stalled", "its functions made no progress", None, Retry.BOUNDED
    DEADLINE_EXCEEDED = "DeadlineExceeded", "the epoch did not end by its deadline", None, Retry.BOUNDED
    PROGRAM_FAILED = "ProgramFailed", "the program failed"
    CANCELLED_OUTSIDE = "CancelledOutside", "cancelled by another than Coach; it can be resumed"
    HANDLER_RESTARTED = "HandlerRestarted", "the handler restarted", None, Retry.FREE
    DISRUPTED = "Disrupted", "the cluster took a function away", None, Retry.FREE
    INTERNAL = "Internal", "an error inside a function", None, Retry.BOUNDED
    # ends
    TARGET_REACHED = "TargetReached", "the target held", State.SUCCEEDED
    BUDGET_USED = "BudgetUsed", "the budget was used for the best model", State.SUCCEEDED
    LIMIT_REACHED = "LimitReached", "the best model within its limit is there", State.SUCCEEDED
    NO_GAIN_EXPECTED = "NoGainExpected", "no better model is to be expected", State.SUCCEEDED
    PROGRAM_ENDED = "ProgramEnded", "the program ended by itself", State.SUCCEEDED
    TARGET_MISSED = "TargetMissed", "the program ended before its target", State.FAILED
    BUDGET_SPENT = "BudgetSpent", "the rest of the budget does not cover another epoch", State.BUDGET_EXHAUSTED
    BUDGET_TOO_SMALL = "BudgetTooSmall", "its budget cannot reach its target", State.BUDGET_EXHAUSTED
    TARGET_BELOW_ASYMPTOTE = (
        "TargetBelowAsymptote",
        "the learning curve levels off before the target",
        State.TARGET_UNREACHABLE,
    )
    TIME_LIMIT = "TimeLimit", "the time limit was reached", State.FAILED
    EPOCH_LIMIT = "EpochLimit", "the last allowed epoch ended before the target", State.FAILED
    CANCELLED_BY_USER = "CancelledByUser", "cancelled", State.CANCELLED


#: Reasons of a job that was suspended and can be resumed.
RESUMABLE = frozenset({Reason.SUSPENDED, Reason.HANDLER_STOPPED})
#: Ends before a job's limits, which a resumed job does not meet again.
EARLY_ENDS = frozenset({Reason.TARGET_BELOW_ASYMPTOTE, Reason.NO_GAIN_EXPECTED})
#: The status of a job that goes on all the same, though its target looks out of reach, has these words.
OUT_OF_REACH = "its target looks out of reach"
#: Reasons of a job whose pods the cluster does not make now.
REFUSED = frozenset(reason for reason in Reason if reason.retry is Retry.LATER)


def doubt(message: str) -> str:
    """That a target looks out of reach, where a status says so; else nothing."""
    _, words, why = message.partition(OUT_OF_REACH)
    return words + why
