"""The interface of a training framework; training/mxnet and training/pytorch implement it, nothing else here names one.

COACH_FRAMEWORK says which one this process is for: only that one is imported.
"""

import functools
import importlib
import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, BinaryIO, Protocol

from training.data.dataset import DataSet, Samples
from training.data.reading import Reader
from training.measures import Measured, Metrics
from training.request import StartRequest

#: The environment variable that names the framework of a function.
VARIABLE = "COACH_FRAMEWORK"
FRAMEWORKS = ("mxnet", "pytorch")


class Learner(Protocol):
    """One worker's copy of the model: its weights, its gradients, its optimizer."""

    def step(self, batches: Iterable[tuple[Any, int]], seed: int) -> None:
        """Forward and backward on this worker's share of one batch: micro-batches with their numbers of samples.

        Their gradients add up. Random layers depend on `seed` alone. May return before the step is computed.
        """

    def update(self, batch_size: int) -> None:
        """Let the optimizer apply the gradients, divided by `batch_size` and clipped, to the weights."""

    def wait(self) -> None:
        """Wait for all earlier calls: steps, their exchange with the group, updates."""

    def take_loss(self) -> tuple[float, int]:
        """Sum of the sample losses, and samples, of the steps since the last call. Waits for them."""

    def evaluate(self, batches: Iterable[tuple[Any, int]]) -> Measured:
        """The sums over batches with their numbers of samples. Raises TrainingError ModelInvalid for what cannot be."""

    metrics: Metrics  #: of the model file

    notes: list[str]  #: what `coach try` says of the loss

    def arrays(self) -> dict[str, Any]:
        """The framework's own arrays of the weights by name, and of the optimizer's state where they have names."""

    def settings(self) -> dict:
        """The rest of the optimizer's state, such as counts and schedule."""

    def restore(self, arrays: dict[str, Any], settings: dict | None) -> None:
        """Undo arrays() and settings(); without settings only the weights are taken. Raises CheckpointInvalid."""


class Framework(Protocol):
    """The module `backend` of a framework's package."""

    def warm_up(self) -> None:
        """Import the framework and our modules that use it, so that no child has to import them.

        Starts no thread and runs no operation, so that the process can still be forked.
        """

    def limit_threads(self, threads: int) -> None:
        """Set the number of threads for operations of this process."""

    def require(self, model: ModuleType, uri: str, net: str) -> None:
        """Raise TrainingError ModelInvalid where a model file lacks what the framework needs of it."""

    def samples(self, made: Any, model: ModuleType, split: str) -> Samples:
        """What the model file's data(split) returned, as samples. Raises TrainingError DataInvalid."""

    software: str  #: the framework and its version
    stops_threads: bool  #: whether it stops its own threads before a fork
    groups: tuple[str, ...]  #: "fixed", "elastic" for groups that change while they train, or both

    def make_group(self, request: StartRequest) -> Any:
        """The member of a fixed group, not yet in it: training.mxnet.pslite. Only where groups can be fixed."""

    def make_elastic_group(self, request: StartRequest, owner: Any, fail: Callable[[BaseException], None]) -> Any:
        """A worker's side of a group that changes while it trains. Only where groups can be elastic."""

    def make_learner(self, request: StartRequest, model: ModuleType, sample: tuple[Any, int]) -> Learner:
        """The user's model with initial weights from the job's seed. `sample`: a batch, and how many samples it has.

        Raises TrainingError ModelInvalid where the model cannot be trained, or reports what cannot be.
        """

    def make_reader(self, dataset: DataSet, processes: int, uri: str) -> Reader:
        """What reads batches of a data set; with `processes`, ahead of time in so many."""

    def catalogue(self) -> dict:
        """Its optimizers and schedules: see training.model.catalogue."""

    def failure(self, error: Exception) -> tuple[str, str] | None:
        """The reason and message behind an exception of the framework; None when it is not one."""

    def write_checkpoint(self, file: BinaryIO, state: Any) -> None:
        """Write a training.checkpoint.Checkpoint."""

    def read_checkpoint(self, file: BinaryIO) -> Any:
        """The inverse of write_checkpoint. Raises ValueError and what a broken file makes the framework raise."""


@functools.cache
def current() -> Framework:
    """The framework of this process."""
    name = os.environ.get(VARIABLE, FRAMEWORKS[0])
    if name not in FRAMEWORKS:
        raise SystemExit(f"{VARIABLE} is {name}; it must be one of {', '.join(FRAMEWORKS)}")
    return importlib.import_module(f"training.{name}.backend")  # type: ignore[return-value]
