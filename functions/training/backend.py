"""The interface of a training framework. MXNet, in training/mxnet, is the first; nothing else here names it."""

from collections.abc import Iterable
from types import ModuleType
from typing import Protocol

import numpy as np

from training.request import StartRequest


class Learner(Protocol):
    """One worker's copy of the model: its weights, its gradients, its optimizer."""

    def step(self, x: np.ndarray, y: np.ndarray, seed: int) -> None:
        """Forward and backward on this worker's share of one batch; gradients are summed over the share's samples.

        Random layers depend on `seed` alone. Returns before the step is computed.
        """

    def update(self, batch_size: int) -> None:
        """Let the optimizer apply the gradients, divided by `batch_size`, to the weights."""

    def wait(self) -> None:
        """Wait for all earlier calls: steps, their exchange with the group, updates."""

    def take_loss(self) -> tuple[float, int]:
        """Sum of the sample losses, and samples, of the steps since the last call. Waits for them."""

    def evaluate(self, batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
        """Sum of the sample losses, and right answers, over these batches. NaN right answers: not a classifier."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Weights, and optimizer state, by name."""

    def settings(self) -> dict:
        """The rest of the optimizer's state: counts and schedule, as JSON."""

    def restore(self, arrays: dict[str, np.ndarray], settings: dict | None) -> None:
        """Undo arrays() and settings(); without settings only the weights are taken. Raises CheckpointInvalid."""


class Group(Protocol):
    """One member's side of a parameter-server group: form, step, leave, and the weights in and out."""

    def form(self) -> None:
        """Join; returns when all members are there."""

    def serve(self) -> None:
        """Scheduler and servers: do the group's work until the workers have left."""

    def share(self, learner: Learner) -> None:
        """Give all workers the same weights at an epoch's start."""

    def step(self, learner: Learner, batch_size: int) -> None:
        """Gradients in, updated weights out. Does not wait for the result."""

    def settle(self, learner: Learner) -> None:
        """At an epoch's end: let the learner hold exactly what the group agreed on. Waits for it."""

    can_add: bool  #: whether total() works

    def total(self, values: list[float]) -> list[float]:
        """The sum of these, four at most, over all workers; the same on each."""

    def leave(self) -> None:
        """Leave in good order, so that servers and scheduler end as well."""


def warm_up() -> None:
    """Import the framework and our modules that use it, so that no child has to import them.

    Starts no thread and runs no operation, so that the process can still be forked.
    """
    import training.mxnet.learner
    import training.mxnet.pslite  # noqa: F401


def limit_threads(threads: int) -> None:
    """Set the number of threads for operations of this process."""
    from training.mxnet import limit_threads as limit

    limit(threads)


def make_group(request: StartRequest) -> Group:
    """The member that a start message describes, not yet in its group."""
    from training.mxnet.pslite import PsLiteGroup

    return PsLiteGroup(request)


def make_learner(request: StartRequest, model: ModuleType, sample: np.ndarray) -> Learner:
    """The user's model with initial weights from the job's seed. `sample` is one input, for its shape."""
    from training.mxnet.learner import MxnetLearner

    return MxnetLearner(request, model, sample)


def failure(error: Exception) -> tuple[str, str] | None:
    """The reason and message behind an exception of the framework; None when it is not one."""
    from training.mxnet import failure as of_mxnet

    return of_mxnet(error)
