"""Events: facts from outside, in the past tense. The reducer is their only reader, the journal keeps them all.

Every event has `at`, seconds since 1970 on the handler's own clock (which never goes back), and `job`, the job's
name. `token` names the action an event answers; an answer whose token is no longer open is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coach.core.cluster import Node, PodId
from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason


@dataclass(frozen=True, slots=True)
class HandlerStarted:
    """A handler took over the journal; no function of an earlier one is left.

    `nodes` is the cluster it has; those named in `unavailable` belong to it, but are not there for now
    (`NodesChanged`). `gone_by` is when the last of those functions was surely gone, where the platform can tell: they
    are paid until then, and not until the restart.
    """

    at: float
    nodes: tuple[Node, ...]
    gone_by: float | None = None
    job: str = ""
    unavailable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """From now on the nodes named in `unavailable` are away, and all others are there.

    Nothing is placed on a node that is away. Pods that were lost with it are told one by one (`PodLost`), after this.
    """

    at: float
    unavailable: tuple[str, ...]
    job: str = ""


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job file was accepted.

    `spec` is the job file as JSON; `known_points` are what earlier jobs of the same model and data measured
    on the same kind of cluster, `known_epochs` how many epochs such a job took.
    """

    at: float
    job: str
    spec: dict[str, Any]
    checkpoints: str
    known_points: tuple[KnownSpeed, ...] = ()
    known_epochs: float | None = None


@dataclass(frozen=True, slots=True)
class PodReady:
    """A pod answers; it can take part in a gang. `node`: where it is, if its order named none."""

    at: float
    job: str
    pod: PodId
    address: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class PodLost:
    """A pod is gone that was not released."""

    at: float
    job: str
    pod: PodId
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PodsReleased:
    """Pods are gone as asked for; from `at` on they cost nothing."""

    at: float
    job: str
    pods: tuple[PodId, ...]


@dataclass(frozen=True, slots=True)
class EpochFinished:
    """Answers RunEpoch: the epoch counts. `invocations` is how many calls it took."""

    at: float
    job: str
    token: str
    report: EpochReport
    invocations: int


@dataclass(frozen=True, slots=True)
class EpochFailed:
    """Answers RunEpoch or StopEpoch: the group is stopped and the epoch does not count."""

    at: float
    job: str
    token: str
    reason: Reason
    message: str
    invocations: int


@dataclass(frozen=True, slots=True)
class ModelsFitted:
    """Answers FitModels: the fitted speed and convergence models, as their `to_dict` gives them."""

    at: float
    job: str
    token: str
    speed: dict[str, Any] | None
    convergence: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TimerFired:
    """Answers SetTimer."""

    at: float
    job: str
    token: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The user does not want the job any more."""

    at: float
    job: str


@dataclass(frozen=True, slots=True)
class SuspendRequested:
    """End at the epoch's checkpoint, or at once where `now`. Resumable.

    `by_user` False: only the handler stops, or has died; a service that starts goes on with the job by itself.
    """

    at: float
    job: str
    now: bool
    by_user: bool = True


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """The user goes on with an interrupted or exhausted job, with `added_budget` nano-units more."""

    at: float
    job: str
    added_budget: int = 0


Event = (
    HandlerStarted
    | NodesChanged
    | JobSubmitted
    | PodReady
    | PodLost
    | PodsReleased
    | EpochFinished
    | EpochFailed
    | ModelsFitted
    | TimerFired
    | CancelRequested
    | SuspendRequested
    | ResumeRequested
)
