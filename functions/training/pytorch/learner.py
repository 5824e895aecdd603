"""The user's torch.nn.Module with its loss and its optimizer."""

import contextlib
import random
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from training import measures
from training.errors import TrainingError
from training.measures import Evaluation, Measured, Metrics
from training.model import model_file
from training.pytorch import optimizers
from training.pytorch.loss import MEAN, Loss, labels_of, main_output, shown
from training.request import StartRequest


class TorchLearner:
    """See training.backend.Learner."""

    def __init__(self, request: StartRequest, model: ModuleType, sample: tuple[Any, int]) -> None:
        self._uri = model_file.shown(request.model["uri"])
        self._batch_size = request.batch_size
        self.device = device(request)
        self._autocast = request.autocast and getattr(torch, request.autocast)
        self._clip = request.clip or {}
        self.clips = bool(self._clip)  #: whether `update` changes the gradients that it is given
        self.metrics = Metrics(model, self._uri)
        _seed(request.seed)
        with model_file.users_code(self._uri):
            made = getattr(model, request.net)
            if isinstance(made, torch.nn.Module):
                raise TrainingError(
                    "ModelInvalid",
                    f"{self._uri}: {request.net} is a {type(made).__name__} that was made when the file was read; "
                    "write a function that makes it, or name its class after the file: model.py:Net",
                )
            self.net = made()
            if not isinstance(self.net, torch.nn.Module):
                kind = type(self.net).__name__
                raise TrainingError("ModelInvalid", f"{self._uri}: {request.net} made {kind}, no torch.nn.Module")
            self.net.to(self.device)
            self._loss = Loss(getattr(model, "loss", None), self.net, self._uri, self.device)
            if any(isinstance(each, torch.nn.UninitializedParameter) for each in self.net.parameters()):
                with torch.no_grad():  # lazy layers get their shapes
                    self._loss.forward(self._tensors(sample[0]))
        #: In one order on all workers. Tied weights are one parameter.
        self.parameters = [each for each in self.net.parameters() if each.requires_grad]
        if not self.parameters:
            raise TrainingError("ModelInvalid", f"{self._uri}: the net has no parameter to train")
        self.optimizer, self.schedule, self._interval = optimizers.create(request.optimizer, self.net, model, self._uri)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self._counted = 0
        self._measure(*sample)
        self.notes = [self._loss.note] if self._loss.note else []

    def _measure(self, batch: Any, count: int) -> None:
        """Compute the loss and the accuracy of a batch once, to see what they are."""
        tensors = self._tensors(batch)
        self.net.eval()
        with torch.no_grad(), model_file.users_code(self._uri), self._casting():
            loss, outputs = self._loss(tensors)
            self._right(outputs, tensors, count)
            self._loss.measure(loss, tensors, count, 1e-2 if self._autocast else MEAN)
        self.net.train()

    @property
    def buffers(self) -> list[torch.Tensor]:
        """What layers measure rather than learn: batch normalisation's running mean and variance."""
        return list(self.net.buffers())

    @property
    def measured(self) -> list[torch.Tensor]:
        """Copies of the buffers; to be set."""
        return [each.clone() for each in self.buffers]

    @measured.setter
    def measured(self, values: list[torch.Tensor]) -> None:
        for buffer, value in zip(self.buffers, values, strict=True):
            buffer.copy_(value)

    def _casting(self) -> contextlib.AbstractContextManager:
        """Forward passes in here run in the number type that was asked for."""
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._autocast)

    def _tensors(self, batch: Any) -> Any:
        """The batch on the device; arrays as tensors, whole-number labels as the int64 that losses take."""
        if isinstance(batch, torch.Tensor):
            return batch.to(self.device)
        if isinstance(batch, np.ndarray):
            tensor = torch.from_numpy(batch if batch.flags.writeable else batch.copy())
            if batch.dtype.kind in "ui":
                tensor = tensor.long()
            elif batch.dtype == np.float64:
                tensor = tensor.float()
            return tensor.to(self.device)
        if isinstance(batch, Mapping):
            return {key: self._tensors(value) for key, value in batch.items()}
        if isinstance(batch, tuple | list):
            return type(batch)(self._tensors(each) for each in batch)
        return batch

    def step(self, batches: Iterable[tuple[Any, int]], seed: int) -> None:
        """See training.backend.Learner. The gradients are this worker's share of the batch's loss."""
        self.net.train()
        for parameter in self.parameters:
            parameter.grad = None
        with model_file.users_code(self._uri):
            for number, (batch, count) in enumerate(batches):
                _seed((seed + number) % 2**63)  # reading may have drawn random numbers
                with self._casting():
                    loss, _ = self._loss(self._tensors(batch))
                share = 1 if self._loss.adds else count / self._batch_size
                (loss if share == 1 else loss * share).backward()
                self._loss_sum += loss.detach().double() * (1 if self._loss.adds else count)
                self._counted += count

    def update(self, batch_size: int) -> None:
        """See training.backend.Learner: the gradients are of the batch's loss already."""
        del batch_size
        if (norm := self._clip.get("norm")) is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, norm)
        if (value := self._clip.get("value")) is not None:
            torch.nn.utils.clip_grad_value_(self.parameters, value)
        self.optimizer.step()
        if self.schedule is not None and self._interval == "step":
            self.schedule.step()

    def end_pass(self) -> None:
        """A pass over the training data is over: step a schedule of epochs."""
        if self.schedule is not None and self._interval == "epoch":
            self.schedule.step()

    @property
    def follows(self) -> bool:
        """Whether `follow` changes what a checkpoint has."""
        return self._interval.startswith(optimizers.FOLLOWS)

    def follow(self, evaluation: Evaluation) -> None:
        """Step a schedule that follows a metric. Raises TrainingError ModelInvalid where it was not measured."""
        found = {"loss": evaluation.loss, "accuracy": evaluation.accuracy, **evaluation.metrics}
        measured = {name: value for name, value in found.items() if value is not None}
        metric = self._interval.removeprefix(optimizers.FOLLOWS)
        if metric not in measured:
            message = f"schedule() follows {metric}; an evaluation has {', '.join(measured)}"
            raise TrainingError("ModelInvalid", f"{self._uri}: {message}")
        self.schedule.step(measured[metric])

    def wait(self) -> None:
        """See training.backend.Learner."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def take_loss(self) -> tuple[float, int]:
        """See training.backend.Learner."""
        loss, count = float(self._loss_sum), self._counted
        self._loss_sum, self._counted = torch.zeros_like(self._loss_sum), 0
        return loss, count

    def evaluate(self, batches: Iterable[tuple[Any, int]]) -> Measured:
        """See training.backend.Learner."""
        loss_sum = right_sum = answered_sum = 0.0
        sums = dict.fromkeys(self.metrics.names, 0.0)
        self.net.eval()
        with torch.no_grad(), model_file.users_code(self._uri):
            for batch, count in batches:
                tensors = self._tensors(batch)
                with self._casting():
                    loss, outputs = self._loss(tensors)
                loss_sum += float(loss) * (1 if self._loss.adds else count)
                right, answered, metrics = self._right(outputs, tensors, count)
                right_sum, answered_sum = right_sum + right, answered_sum + answered
                sums = {name: sums[name] + value * count for name, value in metrics.items()}
        return Measured(loss_sum, right_sum, answered_sum, sums)

    def _right(self, outputs: Any, batch: Any, count: int) -> tuple[float, float, dict[str, float]]:
        """How many answers of the batch are right, NaN where that is not known, how many there are; other metrics."""
        if self.metrics.given:
            accuracy, others = self.metrics.measure(outputs, batch)
            return float("nan") if accuracy is None else accuracy * count, count, others
        scores, labels = main_output(outputs), labels_of(batch)
        if not isinstance(scores, torch.Tensor) or not isinstance(labels, torch.Tensor):
            return float("nan"), count, {}
        if scores.ndim != 2 or scores.shape[1] < 2 or labels.ndim != 1 or labels.is_floating_point():
            return float("nan"), count, {}
        found = f"{self._uri}: outputs {shown(scores)}, labels {shown(labels)}"
        measures.check_answers(len(scores), len(labels), count, found)
        asked = labels != self._loss.ignored
        return float(((scores.argmax(dim=1) == labels) & asked).sum()), float(asked.sum()), {}

    def arrays(self) -> dict[str, torch.Tensor]:
        """The net's state_dict, copied: training may go on while it is written."""
        return {
            name: value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
            for name, value in self.net.state_dict().items()
        }

    def settings(self) -> dict:
        """See training.backend.Learner."""
        return optimizers.state(self.optimizer, self.schedule)

    def restore(self, arrays: dict[str, torch.Tensor], settings: dict | None) -> None:
        """See training.backend.Learner."""
        try:
            self.net.load_state_dict(arrays)
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise TrainingError("CheckpointInvalid", f"the checkpoint is of another net: {text}") from error
        if settings is not None:
            optimizers.restore(self.optimizer, self.schedule, settings)


def device(request: StartRequest) -> torch.device:
    """Where the worker computes: one of the GPUs that it sees, by its rank, or the CPU. In a forked child alone.

    A GPU's context does not survive a fork, so nothing may ask for GPUs before.
    """
    if not request.gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        message = f"a worker requests a GPU, and PyTorch {torch.__version__}, {built}, sees none on this machine"
        raise TrainingError("ModelInvalid", message)
    return torch.device("cuda", request.rank % torch.cuda.device_count())


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
