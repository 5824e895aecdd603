"""Events: facts from outside, in the past tense. Only the reducer reads them; the journal keeps all of them.

Every event has `at`, seconds since 1970 on the handler's clock (which never goes back), and `job`, the job's name.
`token` names the action that an event answers; an answer whose token is no longer open is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coach.core.cluster import Node, PodId, Taken
from coach.core.estimation.observations import KnownCurve, KnownSpeed
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Of one job."""

    at: float
    job: str


@dataclass(frozen=True, slots=True)
class HandlerStarted:
    """A handler took over the journal; no function of an earlier handler runs any more, but pods in `kept` do.

    `nodes` are all nodes of the cluster; those named in `unavailable` cannot be used now (`NodesChanged`). `gone_by` is
    the time by which the last of those functions had surely ended, if the platform knows it: they are paid until then,
    and not until the restart. `taken` is what pods that are not Coach's hold. `kept` are pods of programs that go on,
    and their running epochs with them. `programs_outlive`: the others ran as long as their reservations may have paid.
    """

    at: float
    nodes: tuple[Node, ...]
    gone_by: float | None = None
    job: str = ""
    unavailable: tuple[str, ...] = ()
    taken: tuple[Taken, ...] = ()
    kept: tuple[PodId, ...] = ()
    programs_outlive: bool = False


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """From now on the nodes named in `unavailable` are unavailable, and all others are available.

    Nothing is placed on an unavailable node. A `PodLost` for each pod that was lost with it follows. `nodes` are all
    nodes, where some came or went, and `taken` is what pods that are not Coach's hold; None: the same as before.
    """

    at: float
    unavailable: tuple[str, ...]
    job: str = ""
    nodes: tuple[Node, ...] | None = None
    taken: tuple[Taken, ...] | None = None


@dataclass(frozen=True, slots=True)
class PolicySlow:
    """Decisions of `policy` took too long, the last `seconds` of a core: until the handler starts again its `fallback`
    decides.
    """

    at: float
    policy: str
    seconds: float
    job: str = ""


@dataclass(frozen=True, slots=True)
class JobSubmitted(JobEvent):
    """A job file was accepted.

    `spec` is the job file as JSON. `known_points` are speeds that earlier jobs of the same model and data measured on
    the same kind of cluster; `known_epochs` is the number of epochs that such a job took. `request` identifies the
    caller's request, so that a retry of it is known; empty for one without an identity. `weights`: URI of the
    checkpoint that training begins with. `known_curves` are those of earlier jobs with the same program or model file.
    """

    spec: dict[str, Any]
    checkpoints: str
    known_points: tuple[KnownSpeed, ...] = ()
    known_epochs: float | None = None
    request: str = ""
    weights: str | None = None
    known_curves: tuple[KnownCurve, ...] = ()


@dataclass(frozen=True, slots=True)
class PodReady(JobEvent):
    """A pod responds and can join a gang. `node` is its node, if its DeployPods named none.

    `devices`: the GPUs that it was given, by index, model and UUID, where Coach gives them.
    """

    pod: PodId
    address: str
    node: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodPending(JobEvent):
    """A pod that was deployed is not ready yet, for this reason."""

    pod: PodId
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PodLost(JobEvent):
    """A pod that was not released is gone."""

    pod: PodId
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PodsReleased(JobEvent):
    """Released pods are gone; from `at` on they cost nothing."""

    pods: tuple[PodId, ...]


@dataclass(frozen=True, slots=True)
class EpochFinished(JobEvent):
    """Answers RunEpoch: the epoch counts. `invocations` is the number of calls."""

    token: str
    report: EpochReport
    invocations: int


@dataclass(frozen=True, slots=True)
class EpochFailed(JobEvent):
    """Answers RunEpoch or StopEpoch: the group is stopped and the epoch does not count."""

    token: str
    reason: Reason
    message: str
    invocations: int


@dataclass(frozen=True, slots=True)
class ModelsFitted(JobEvent):
    """Answers FitModels: the fitted speed and convergence models, as their `to_dict` gives them."""

    token: str
    speed: dict[str, Any] | None
    convergence: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TimerFired(JobEvent):
    """Answers SetTimer."""

    token: str


@dataclass(frozen=True, slots=True)
class ProgramSignalled(JobEvent):
    """The job's program got `signal`: SIGTERM or a yes to `should_stop()`, after which it has `grace` seconds, or
    SIGKILL, which ends all of it.
    """

    signal: str
    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class MetricNotFound(JobEvent):
    """The job's program prints numbers, but not its metric: what there is instead, in words."""

    message: str


@dataclass(frozen=True, slots=True)
class WaitExpected(JobEvent):
    """The cluster's queue is expected to let the job wait so many seconds for one more worker."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AheadStarted(JobEvent):
    """Answers QueueAhead: all of the larger gang is there, and costs from `at` on. It waits for the smaller one."""


@dataclass(frozen=True, slots=True)
class AheadLost(JobEvent):
    """Answers QueueAhead: the larger gang does not come, or is gone again."""

    message: str


@dataclass(frozen=True, slots=True)
class CancelRequested(JobEvent):
    """The user cancels the job."""


@dataclass(frozen=True, slots=True)
class SuspendRequested(JobEvent):
    """Suspend the job at the epoch's checkpoint, or at once if `now`. It can be resumed.

    `by_user` False: only the handler stops or has died; a service resumes the job by itself when it starts.
    `why`: in words, where a search pauses it.
    """

    now: bool
    by_user: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class ResumeRequested(JobEvent):
    """The user resumes a suspended or ended job, with `added_budget` nano-units more. `request`: see JobSubmitted.

    `budget`: its whole budget from now on, unless that is larger already: asked for twice, it is given once.
    """

    added_budget: int = 0
    request: str = ""
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class ModelAccepted(JobEvent):
    """From now on the job trains its model file with this SHA-256, which was `before`, and these files next to it."""

    before: str
    sha256: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class PriorityChanged(JobEvent):
    """From now on the job has this priority: among those that wait, and from its next decision on."""

    priority: int


@dataclass(frozen=True, slots=True)
class PricesChanged(JobEvent):
    """From its next reservation on the job is billed by `prices`, as a job file has them; `why`: a reason for people.

    What is reserved stays reserved, and is paid, at the prices that it was reserved by.
    """

    prices: dict[str, Any]
    why: str = ""


@dataclass(frozen=True, slots=True)
class AccountSet:
    """A user set the budget over the jobs of `account`: `amount` nano-units of `currency` in each `period`.

    `period` and `zone`: see `coach.core.periods.Period`. `parent`: the account that pays too; empty for none. Jobs that
    have all of `labels` are its jobs too; it has none without labels. `removed`: no job may have it from now on.
    """

    at: float
    account: str
    amount: int
    currency: str
    period: str
    zone: str = "UTC"
    parent: str = ""
    job: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    removed: bool = False


Event = JobEvent | HandlerStarted | NodesChanged | PolicySlow | AccountSet
