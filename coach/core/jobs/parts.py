"""The parts of the state of a `coach.core.jobs.job.Job`: money, models, decision, gang, attempts, progress, stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coach.core.cluster import NOTHING, Allocation, CapacityType, Pod, PodId, Resources
from coach.core.estimation.convergence import ConvergenceModel
from coach.core.estimation.observations import KnownCurve, KnownSpeed
from coach.core.jobs import actions as act
from coach.core.jobs.decision import DecisionStep
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.fitted_models import FittedCurve, FittedSpeed
from coach.core.jobs.reasons import Reason
from coach.core.money import Ledger, Money, PriceBook


class AccountMoney(NamedTuple):
    """What a job has of its accounts: `now`, its own reservation included, and at most some day."""

    now: Money
    ever: Money


@dataclass(slots=True)
class JobMoney:
    """What a job may spend, what it has paid, and the bill of the pods that it holds."""

    ledger: Ledger
    charges: dict[str, Money] = field(default_factory=dict)  #: token -> paid; sums to `ledger.spent`
    ahead: Money = 0  #: reserved for the gang that is queued ahead (`JobGang.ahead`)
    #: as of the job's last decision; follows from the records of all jobs (`coach.core.jobs.accounts`)
    accounts: AccountMoney | None = field(default=None, init=False, repr=False, compare=False)

    #: the pods that are paid for, since `billed_until`, at most until `lease_until`
    billed_pods: tuple[Pod, ...] = ()
    billed_until: float = 0.0
    lease_until: float = 0.0
    unbilled_invocations: int = 0
    billed_book: PriceBook | None = None  #: the prices of what is reserved, and paid out of it
    machines_paid: dict[str, float] = field(default_factory=dict)  #: by the hour: until when each is paid
    #: the prices of nodes now, of a job that is billed by them
    node_prices: PriceBook | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def available(self) -> Money | None:
        """What its gang may spend from now on, its reservation included, by its budget and accounts; None: no limit."""
        limits = [] if self.ledger.budget is None else [self.ledger.budget - self.ledger.spent]
        if self.accounts is not None:
            limits.append(self.accounts.now)
        return min(limits) - self.ahead if limits else None

    @property
    def reserved(self) -> Money:
        """What is reserved for the gang that it has."""
        return self.ledger.reserved - self.ahead

    @property
    def billed_resources(self) -> Resources:
        """What is paid for now."""
        return sum((pod.requests for pod in self.billed_pods), NOTHING)


@dataclass(slots=True)
class JobModels:
    """The speed and the learning curve fitted to a job's epochs, and what earlier jobs like it showed."""

    known_points: tuple[KnownSpeed, ...] = ()
    known_epochs: float | None = None
    known_curves: tuple[KnownCurve, ...] = ()

    surface: FittedSpeed | None = None
    curve: FittedCurve | None = None
    full_epoch_curves: tuple[FittedCurve, ...] = ()  #: those after the last full epochs, the newest last
    fit_token: str = ""  #: token of the fit under way
    fitted: int = -1  #: number of epochs in the last fit; -1: there was none

    @property
    def convergence(self) -> ConvergenceModel | None:
        """The learning curve as last fitted."""
        return None if self.curve is None else self.curve.model


@dataclass(slots=True)
class JobDecision:
    """What was last decided about a job."""

    desired: Allocation | None = None
    kind: EpochKind = EpochKind.PROBE  #: of the next epoch
    reasons: tuple[DecisionStep, ...] = ()
    missed: tuple[Allocation, ...] = ()  #: probes decided that could not begin; numbers of workers that found no room
    missed_at: float = 0.0  #: when the last of them was given up
    #: of a job with `spec.spot`: the nodes that it takes, and with how many workers
    on: CapacityType | None = None
    on_allocation: Allocation | None = None
    policy_state: dict[str, Any] = field(default_factory=dict)  #: the policy's state about it
    ending: tuple[Reason, str] | None = None  #: why it ends, once that is decided


@dataclass(slots=True)
class Held:
    """A pod that the job holds."""

    pod: Pod
    ready: bool = False
    releasing: bool = False
    address: str = ""
    devices: tuple[str, ...] = ()  #: its GPUs, where Coach gives them
    warm: bool = False  #: it has finished an epoch: framework, model and data are loaded


@dataclass(slots=True)
class JobGang:
    """The pods that a job holds, the group that they form, and the larger gang that is queued meanwhile."""

    pods: dict[PodId, Held] = field(default_factory=dict)
    group: str = ""  #: name of the group that is still formed; "" when none is
    groups: int = 0  #: how many groups were formed so far
    members: tuple[PodId, ...] = ()  #: the pods of that group
    #: a larger gang that is queued while this one trains, and since when it costs
    ahead: Allocation | None = None
    ahead_since: float | None = None
    #: seconds for which the cluster's queue is expected to let another worker wait; None: it has no queue
    queue_wait: float | None = None
    #: nodes that it may not take now, by `JobDecision.on`
    barred: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    #: how fast the nodes of its last epoch were (`Job.pace`); and the kinds of all nodes now, where that matters
    last_pace: float = 1.0
    node_kinds: Mapping[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def held(self) -> Allocation:
        """Workers and servers that it holds, ready or not, without those being released."""
        return Allocation.of(pod for pod, held in self.pods.items() if not held.releasing)


@dataclass(slots=True)
class JobAttempts:
    """The attempts at a job's epochs: the one that runs, how the last ones failed, and the timer of the next."""

    running: act.RunEpoch | None = None
    stopping: str = ""  #: token of the last epoch that was to end early
    count: int = 0  #: attempts started, over all epochs
    failures: int = 0  #: failed attempts in a row that count
    refusals: int = 0  #: how often in a row the cluster made not all of its pods
    last_failure: tuple[Reason, str] | None = None
    last_token: str = ""  #: the last epoch attempt: charges after it belong to it
    timer: str = ""  #: token of the current timer; earlier ones are ignored
    timers: int = 0  #: how many were set so far
    #: when its program got a signal: what it holds from then on is its grace period's
    terminated_at: float | None = None


@dataclass(slots=True)
class JobProgress:
    """How far a job's training has come, since when, and where its checkpoints are."""

    submitted_at: float
    checkpoints: str  #: URI of the folder that holds its checkpoints
    initial: str | None = None  #: URI of the checkpoint that training begins with
    weights: str | None = None  #: URI of the last checkpoint
    position: int = 0  #: samples seen
    started_at: float | None = None  #: first epoch ordered
    ended_at: float | None = None
    run_seconds: float = 0.0  #: seconds that a gang was held; counts towards the time limit
    spot_seconds: float = 0.0  #: those of them on spot nodes


@dataclass(slots=True)
class JobStop:
    """What users, and handlers that stop, asked of a job: to end, or to pause."""

    cancel: bool = False
    suspend: bool = False
    by_user: bool = False  #: `suspend` was requested by the user, not only by a handler that stopped or died
    why: str = ""  #: in words, where a search paused it
    overruled: bool = False  #: resumed after an early end: nothing ends it early again
