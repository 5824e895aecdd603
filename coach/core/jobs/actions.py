"""Actions: orders to the world, in the imperative, and decisions worth remembering.

The reducer applies each action to its state when it takes it; the driver journals it and only then carries it
out. Whatever an action starts ends in an event with the same token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coach.core.cluster import Allocation, Pod, PodId
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import Reason
from coach.core.money import Charge, Money


@dataclass(frozen=True, slots=True)
class SetAllocation:
    """The allocation a job is to have next, and the steps that led to it (one line each, for people)."""

    at: float
    job: str
    allocation: Allocation
    kind: EpochKind
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SavePolicyState:
    """What the policy knows of the job, for the policy of the handler's next life (`policies.base.Remembers`)."""

    at: float
    job: str
    known: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeployPods:
    """Start these pods on their nodes, or wherever they find room; answered by PodReady or PodLost, one a pod."""

    at: float
    job: str
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class ReleasePods:
    """End these pods; answered by PodsReleased."""

    at: float
    job: str
    pods: tuple[PodId, ...]


@dataclass(frozen=True, slots=True)
class StallTimeouts:
    """Seconds that a worker may show no progress in, by the state it is in (`docs/reference/functions.md`).

    `training` is the time between two signs of progress, not of the whole training.
    """

    starting: float
    forming: float
    training: float
    evaluating: float


@dataclass(frozen=True, slots=True)
class RunEpoch:
    """Run one epoch on `pods`; answered by EpochFinished or EpochFailed.

    `fraction` of the data set is trained, from sample `position` on; with `seconds`, until that time has passed.
    `group` names the parameter-server group: the same name as last time means the same members, still formed.
    `deadline` (seconds) is when the functions stop themselves; `reservation` pays until then. With `stall_timeouts` a
    gang that makes no progress is stopped sooner. Without `evaluate` only the speed is wanted: the report has no loss.
    """

    at: float
    job: str
    token: str
    kind: EpochKind
    number: int
    attempt: int
    allocation: Allocation
    pods: tuple[PodId, ...]
    group: str
    fraction: float
    seconds: float | None
    position: int
    weights_in: str | None
    weights_out: str
    deadline: float
    budget_bound: bool
    reservation: Money
    predicted_seconds: tuple[float, float, float] | None
    stall_timeouts: StallTimeouts | None = None
    evaluate: bool = True


@dataclass(frozen=True, slots=True)
class StopEpoch:
    """End the running epoch now; answered by EpochFailed."""

    at: float
    job: str
    token: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class RollBack:
    """From here on only the first `epochs` epochs count: the last one's checkpoint is lost, so it is run again.

    What was paid for it stays paid, and its speed is measured anew.
    """

    at: float
    job: str
    epochs: int
    message: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Pay `amount` for the time up to `until`; it belongs to the epoch attempt `token`."""

    at: float
    job: str
    token: str
    charge: Charge
    amount: Money
    until: float


@dataclass(frozen=True, slots=True)
class FitModels:
    """Fit speed and convergence to what was measured; answered by ModelsFitted."""

    at: float
    job: str
    token: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send TimerFired at `due`. A later timer with the same purpose replaces it by its token."""

    at: float
    job: str
    token: str
    due: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The job's end is decided; its pods are given back, paid for, and then it enters its final state."""

    at: float
    job: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """The job enters the state that `reason` stands for, with a message that has the numbers."""

    at: float
    job: str
    reason: Reason
    message: str


Action = (
    SetAllocation
    | SavePolicyState
    | DeployPods
    | ReleasePods
    | RunEpoch
    | StopEpoch
    | RollBack
    | Settle
    | FitModels
    | SetTimer
    | Finish
    | SetStatus
)
