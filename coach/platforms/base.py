"""What the handler needs of a platform: start pods, end pods, run an epoch on a gang of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coach.core.cluster import Node, Pod, PodId
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
    """A RunEpoch action with what the functions need to know beside it. `due` is on the handler's clock."""

    action: RunEpoch
    spec: TrainingJob
    addresses: Mapping[PodId, str]
    due: float


class Platform(Protocol):
    """Every coroutine may be cancelled; cancelling run_epoch stops its group."""

    #: Seconds that functions may live on after their handler died.
    linger_seconds: float

    async def open(self, pod_lost: Callable[[PodId, Reason, str], None]) -> tuple[Node, ...]:
        """Get ready; returns the cluster. `pod_lost` is called for pods that end without being released."""

    async def close(self) -> None:
        """End everything that this platform started."""

    async def deploy(self, pod: Pod, spec: TrainingJob) -> str:
        """Start a pod; returns its HTTP address when it is ready. Raises PodError."""

    async def release(self, pods: Sequence[PodId]) -> None:
        """End pods; returns when they hold nothing any more. Unknown pods are ignored."""

    async def run_epoch(
        self, order: EpochOrder, progress: Callable[[Progress], None]
    ) -> tuple[EpochReport, int]:
        """Run one epoch; returns its report and the number of invocations. Raises EpochError."""

    async def stop_epoch(self, token: str, reason: Reason) -> None:
        """Make the running epoch end now: its run_epoch raises EpochError with `reason`."""
