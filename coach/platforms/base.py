"""What the handler needs of a platform: start pods, end pods, run an epoch on a gang of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from coach.core.cluster import Allocation, Node, Pod, PodId, Taken
from coach.core.errors import CoachError
from coach.core.jobs.actions import RunEpoch
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob


class PodError(CoachError):
    """A pod did not start, with the reason."""

    exit_code = 5

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EpochError(CoachError):
    """An epoch did not count, with the reason; its group is stopped. `invocations` were made for it."""

    exit_code = 5

    def __init__(self, reason: Reason, message: str, invocations: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.invocations = invocations


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running epoch is: `samples` of `total` trained; `state` as the functions name it."""

    token: str
    state: str
    samples: int
    total: int


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """A RunEpoch action, and what the functions need to know in addition. `due` is on the handler's clock."""

    action: RunEpoch
    spec: TrainingJob
    addresses: Mapping[PodId, str]
    due: float
    #: URIs of earlier checkpoints, which the functions delete.
    obsolete: Sequence[str] = ()
    #: Of a program that runs already: `EpochReport.mark` of its last report.
    mark: int = 0


@dataclass(frozen=True, slots=True)
class GangSize:
    """How many workers and servers a job needs to start at all, and how many it can use; a program has no scheduler."""

    job: str
    required: Allocation
    desired: Allocation
    schedulers: int = 1


class Deployed(NamedTuple):
    """A pod that is ready: its HTTP address (host:port), or, of a program, its identity; and the node that it is on.

    `devices`: the GPUs that it was given, by index, model and UUID.
    """

    address: str
    node: str
    devices: tuple[str, ...] = ()


class Cluster(NamedTuple):
    """All nodes, the names of those on which nothing can be placed now, and what others hold on them."""

    nodes: tuple[Node, ...]
    unavailable: tuple[str, ...] = ()
    taken: tuple[Taken, ...] = ()


class PlatformEvents(Protocol):
    """What a platform reports by itself."""

    def pod_lost(self, pod: PodId, reason: Reason, message: str) -> None:
        """A pod that was ready has ended without being released."""

    def pod_pending(self, pod: PodId, reason: Reason, message: str) -> None:
        """A pod that is being deployed waits for something, or now for something else."""

    def program_signalled(self, job: str, signal: str, grace: float) -> None:
        """A job's program got SIGTERM, after which it has `grace` seconds to end, or SIGKILL."""

    def metric_not_found(self, job: str, message: str) -> None:
        """A job's program prints numbers, but not its metric: what there is instead."""

    def wait_expected(self, job: str, seconds: float) -> None:
        """The cluster's queue is expected to let a job wait so long for one more worker."""

    def ahead_started(self, job: str) -> None:
        """All of the gang that was to be queued ahead is there."""

    def ahead_lost(self, job: str, message: str) -> None:
        """The gang that was to be queued ahead does not come, or is gone again."""

    def takes_over(self, programs: Mapping[PodId, str]) -> Collection[PodId]:
        """Which of the pods with programs, by identity, that an earlier handler left, go on; the others are ended."""

    def nodes_changed(self, cluster: Cluster) -> None:
        """A node came or went, or became available or unavailable, or others hold more or less there."""


class Platform(Protocol):
    """Every coroutine may be cancelled; cancelling run_epoch stops its group."""

    #: Seconds that functions may go on running after their handler died ...
    linger_seconds: float
    #: ... and whether programs go on until the end of what is reserved for them.
    programs_outlive: bool
    #: Whether the platform chooses the nodes of pods: then a pod to deploy names none, and waits until it fits.
    places_pods: bool

    @property
    def checkpoints(self) -> str | None:
        """URI of the folder for checkpoints where the functions do not see the handler's disk; None where they do."""

    def refusal(self, spec: TrainingJob) -> str:
        """Why a job can never start here, as far as is known before it is submitted; else empty."""

    async def open(self, events: PlatformEvents) -> Cluster:
        """Get ready, with no pod of an earlier handler left but what `events.takes_over`; returns the cluster."""

    async def close(self) -> None:
        """End everything that this platform started, but what it was to `leave`."""

    def leave(self, jobs: Collection[str]) -> Collection[str]:
        """Let the programs of these jobs go on after `close`, for the next handler; those that do."""

    async def gang(self, size: GangSize, spec: TrainingJob) -> None:
        """Say which pods of a job start together, and prepare what they share.

        Called before pods are deployed, and before some of a job's pods are released while it goes on with the others.

        Raises PodError where they cannot be deployed as the job describes them.
        """

    async def forget(self, job: str) -> None:
        """The job holds no pod, and none will be deployed for it soon."""

    async def deploy(self, pod: Pod, spec: TrainingJob) -> Deployed:
        """Start a pod; returns when it is ready. Raises PodError."""

    async def release(self, pods: Sequence[PodId]) -> None:
        """End pods; returns when they hold nothing any more. Unknown pods are ignored.

        Those of an elastic group that is in the middle of an epoch leave it first, in good order.
        """

    async def run_epoch(self, order: EpochOrder, progress: Callable[[Progress], None]) -> tuple[EpochReport, int]:
        """Run one epoch; returns its report and the number of invocations. Raises EpochError."""

    async def extend_epoch(self, token: str, due: float) -> None:
        """Let the running epoch of a program go on until `due`, on the handler's clock."""

    async def kill_program(self, job: str) -> None:
        """End a job's program that has begun to end, without what is left of its grace period."""

    async def stop_epoch(self, token: str, reason: Reason) -> None:
        """Make the running epoch end now: its run_epoch raises EpochError with `reason`.

        An elastic group whose capacity others get (DISRUPTED) ends it after the present step, and run_epoch returns.
        """


@runtime_checkable
class QueuesAhead(Protocol):
    """A platform with a queue, which says how long a job would wait there (`PlatformEvents.wait_expected`)."""

    async def queue_ahead(self, spec: TrainingJob, workers: int, seconds: float) -> None:
        """Queue a larger gang of a program that trains, or, with no `workers`, no longer.

        It ends by itself `seconds` after its start, unless it is deployed before.
        """
