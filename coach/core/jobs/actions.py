"""Actions: commands to the platform, in the imperative, and decisions that the journal keeps.

The reducer applies each action to its state at once. The driver journals the action and then carries it out. What an
action starts ends in an event with the same token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from coach.core.cluster import Allocation, CapacityType, Instance, Pod, PodId
from coach.core.jobs.decision import DecisionStep
from coach.core.jobs.epoch import EpochKind, JobForecast
from coach.core.jobs.reasons import Reason
from coach.core.money import Charge, Money


@dataclass(frozen=True, slots=True)
class Action:
    """At `at` seconds, about `job`."""

    at: float
    job: str


@dataclass(frozen=True, slots=True)
class SetAllocation(Action):
    """The job's next allocation, and the steps that led to it."""

    allocation: Allocation
    kind: EpochKind
    why: tuple[DecisionStep, ...]


@dataclass(frozen=True, slots=True)
class ChooseNodes(Action):
    """The nodes of a job with `spec.spot` from its next epoch on, with this allocation once its speed is known."""

    kind: CapacityType
    allocation: Allocation | None
    message: str


@dataclass(frozen=True, slots=True)
class SavePolicyState(Action):
    """The policy's state about the job, which the policy gets back after the handler restarts (`Remembers`)."""

    known: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeployPods(Action):
    """Start these pods on their nodes, or on any node if they name none; PodReady or PodLost answers for each pod."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class ReleasePods(Action):
    """End these pods; answered by PodsReleased. In the middle of an epoch they leave the elastic group first."""

    pods: tuple[PodId, ...]


@dataclass(frozen=True, slots=True)
class StallTimeouts:
    """Seconds without progress after which a worker is stopped, by its state (`docs/project/worker-protocol.md`).

    `training` is the time between two signs of progress, not of the whole training.
    """

    starting: float
    forming: float
    training: float
    evaluating: float


@dataclass(frozen=True, slots=True)
class RunEpoch(Action):
    """Run one epoch on `pods`; answered by EpochFinished or EpochFailed.

    `fraction` of the data set, or of `epoch_samples`, is trained, from sample `position` on; with `seconds`, training
    ends after that time.
    `group` names the parameter-server group: the same name as last time means the same members, still formed.
    The functions stop themselves after `deadline` seconds; `reservation` pays until then. With `stall_timeouts`, a
    gang without progress is stopped sooner. Without `evaluate` only the speed is measured: the report has no loss.
    `after_epoch` is what a program said at its last report, see `last_epoch`. `nodes`: of a job that is billed by
    nodes, the prices of its own. `pace`: how fast its nodes are, as the job's file says of their kinds.
    """

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
    epoch_samples: int | None = None
    job_forecast: JobForecast | None = None
    after_epoch: float | None = None
    nodes: tuple[tuple[str, Instance], ...] = ()
    pace: float = 1.0

    def extended(self, by: ExtendEpoch) -> RunEpoch:
        """The same until a later deadline."""
        return replace(self, deadline=by.deadline, budget_bound=by.budget_bound, reservation=by.reservation)


@dataclass(frozen=True, slots=True)
class ExtendEpoch(Action):
    """The running epoch may go on until `deadline` seconds after it began; `reservation` pays until then.

    Only epochs of programs are extended: when a program reports next is not known.
    """

    token: str
    deadline: float
    budget_bound: bool
    reservation: Money
    nodes: tuple[tuple[str, Instance], ...] = ()


@dataclass(frozen=True, slots=True)
class StopEpoch(Action):
    """End the running epoch now; answered by EpochFailed.

    If others get the capacity of an elastic group (DISRUPTED), after its present step: answered by EpochFinished.
    """

    token: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class KillProgram(Action):
    """End the job's program now, which has begun to end: what is left of its grace period is not waited for."""


@dataclass(frozen=True, slots=True)
class QueueAhead(Action):
    """Queue a larger gang for the job while the one that it has trains on; None: no longer.

    `reservation` pays it for `seconds`, in addition to what is reserved for the other one; then it ends by itself.
    """

    allocation: Allocation | None
    seconds: float = 0.0
    reservation: Money = 0


@dataclass(frozen=True, slots=True)
class RollBack(Action):
    """Keep only the first `epochs` epochs: the last one's checkpoint is lost, so that epoch runs again.

    Its cost stays paid, and its speed is measured again.
    """

    epochs: int
    message: str


@dataclass(frozen=True, slots=True)
class Settle(Action):
    """Pay `amount` for the time up to `until`, for the epoch attempt `token`."""

    token: str
    charge: Charge
    amount: Money
    until: float


@dataclass(frozen=True, slots=True)
class FitModels(Action):
    """Fit speed and convergence to the measurements; answered by ModelsFitted."""

    token: str


@dataclass(frozen=True, slots=True)
class SetTimer(Action):
    """Send TimerFired at `due`. A later timer with the same purpose replaces it by its token."""

    token: str
    due: float


@dataclass(frozen=True, slots=True)
class Finish(Action):
    """End the job: its pods are released and paid for, then it enters its final state."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class SetStatus(Action):
    """Put the job into the state that belongs to `reason`, with a message that has the numbers."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class NoticeAccount(Action):
    """Say that `percent` of an account's amount is spent; at 100, that it covers no further epoch of `job`."""

    account: str
    percent: int
    spent: Money
    amount: Money
