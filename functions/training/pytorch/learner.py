"""The user's torch.nn.Module with its loss and its optimizer."""

import contextlib
import inspect
import random
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from training import model_file
from training.errors import TrainingError
from training.pytorch import optimizers
from training.pytorch.errors import failure
from training.request import StartRequest

#: Keys of a batch, when it is a mapping, that have the labels.
LABELS = ("labels", "label", "y", "target", "targets")


class TorchLearner:
    """See training.backend.Learner."""

    def __init__(self, request: StartRequest, model: ModuleType, sample: Any) -> None:
        self._uri = model_file.shown(request.model["uri"])
        self._batch_size = request.batch_size
        self._device = device(request)
        self._autocast = request.autocast and getattr(torch, request.autocast)
        self._metrics = getattr(model, "metrics", None)
        _seed(request.seed)
        with self._users_code():
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
                raise TrainingError(
                    "ModelInvalid", f"{self._uri}: {request.net} made {kind}, no torch.nn.Module"
                )
            self.net.to(self._device)
            self._loss = _Loss(getattr(model, "loss", None), self.net, self._uri, self._device)
            if any(isinstance(each, torch.nn.UninitializedParameter) for each in self.net.parameters()):
                with torch.no_grad():  # lazy layers get their shapes
                    self._loss.forward(self._tensors(sample))
        #: In one order on all workers. Tied weights are one parameter.
        self.parameters = [each for each in self.net.parameters() if each.requires_grad]
        if not self.parameters:
            raise TrainingError("ModelInvalid", f"{self._uri}: the net has no parameter to train")
        self.optimizer, self._schedule = optimizers.create(request.optimizer, self.net, model, self._uri)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self._counted = 0

    @property
    def buffers(self) -> list[torch.Tensor]:
        """What layers measure rather than learn: batch normalisation's running mean and variance."""
        return list(self.net.buffers())

    @contextlib.contextmanager
    def _users_code(self) -> Iterator[None]:
        """What is raised in here comes from the model file."""
        try:
            yield
        except Exception as error:
            known = failure(error)
            if known is not None:
                raise TrainingError(*known) from error
            raise model_file.invalid(self._uri, error) from error

    def _casting(self) -> contextlib.AbstractContextManager:
        """Forward passes in here run in the number type that was asked for."""
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast)

    def _tensors(self, batch: Any) -> Any:
        """The batch on the device; arrays as tensors, whole-number labels as the int64 that losses take."""
        if isinstance(batch, torch.Tensor):
            return batch.to(self._device)
        if isinstance(batch, np.ndarray):
            tensor = torch.from_numpy(batch if batch.flags.writeable else batch.copy())
            if batch.dtype.kind in "ui":
                tensor = tensor.long()
            elif batch.dtype == np.float64:
                tensor = tensor.float()
            return tensor.to(self._device)
        if isinstance(batch, Mapping):
            return {key: self._tensors(value) for key, value in batch.items()}
        if isinstance(batch, tuple | list):
            return type(batch)(self._tensors(each) for each in batch)
        return batch

    def step(self, batch: Any, count: int, seed: int) -> None:
        """See training.backend.Learner. The gradients are this worker's share of the batch's mean loss."""
        _seed(seed)
        self.net.train()
        for parameter in self.parameters:
            parameter.grad = None
        with self._users_code():
            with self._casting():
                loss, _ = self._loss(self._tensors(batch))
            share = count / self._batch_size
            (loss if share == 1 else loss * share).backward()
        self._loss_sum += loss.detach().double() * count
        self._counted += count

    def update(self, batch_size: int) -> None:
        """See training.backend.Learner: the gradients are of the mean loss already."""
        del batch_size
        self.optimizer.step()
        if self._schedule is not None:
            self._schedule.step()

    def wait(self) -> None:
        """See training.backend.Learner."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def take_loss(self) -> tuple[float, int]:
        """See training.backend.Learner."""
        loss, count = float(self._loss_sum), self._counted
        self._loss_sum, self._counted = torch.zeros_like(self._loss_sum), 0
        return loss, count

    def evaluate(self, batches: Iterable[tuple[Any, int]]) -> tuple[float, float]:
        """See training.backend.Learner."""
        loss_sum = right_sum = 0.0
        self.net.eval()
        with torch.no_grad(), self._users_code():
            for batch, count in batches:
                tensors = self._tensors(batch)
                with self._casting():
                    loss, outputs = self._loss(tensors)
                loss_sum += float(loss) * count
                right_sum += self._right(outputs, tensors, count)
        return loss_sum, right_sum

    def _right(self, outputs: Any, batch: Any, count: int) -> float:
        """How many samples of the batch are answered right; NaN where that is not known."""
        if callable(self._metrics):
            measured = self._metrics(outputs, batch)
            if not isinstance(measured, Mapping):
                kind = type(measured).__name__
                message = f'{self._uri}: metrics returned {kind}, not {{"accuracy": the mean over the batch}}'
                raise TrainingError("ModelInvalid", message)
            accuracy = measured.get("accuracy")
            return float("nan") if accuracy is None else float(accuracy) * count
        scores, labels = main_output(outputs), _labels(batch)
        if not isinstance(scores, torch.Tensor) or not isinstance(labels, torch.Tensor):
            return float("nan")
        if scores.ndim != 2 or scores.shape[1] < 2 or labels.ndim != 1 or labels.is_floating_point():
            return float("nan")
        return float((scores.argmax(dim=1) == labels).sum())

    def arrays(self) -> dict[str, torch.Tensor]:
        """The net's state_dict, copied: training may go on while it is written."""
        return {
            name: value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
            for name, value in self.net.state_dict().items()
        }

    def settings(self) -> dict:
        """See training.backend.Learner."""
        return optimizers.state(self.optimizer, self._schedule)

    def schedule_state(self) -> dict | None:
        """Of the learning-rate schedule."""
        return optimizers.schedule_state(self._schedule)

    def restore_schedule(self, saved: dict | None) -> None:
        """Undo schedule_state."""
        optimizers.restore_schedule(self._schedule, saved)

    def restore(self, arrays: dict[str, torch.Tensor], settings: dict | None) -> None:
        """See training.backend.Learner."""
        try:
            self.net.load_state_dict(arrays)
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise TrainingError("CheckpointInvalid", f"the checkpoint is of another net: {text}") from error
        if settings is not None:
            optimizers.restore(self.optimizer, self._schedule, settings)


class _Loss:
    """Applies the net to a batch: the mean loss of its samples, and the outputs where they are known.

    The model file's `loss` is one of: a function of (net, batch) that returns the loss, or the loss and the outputs; a
    criterion on outputs and labels (a module, its class, a function of two that is not of (model, batch), or a function
    without parameters that returns one); or nothing, when the net's outputs have a loss of their own, as Hugging Face's
    models do.
    """

    def __init__(self, own: Any, net: torch.nn.Module, uri: str, device: torch.device) -> None:
        self._net = net
        self._uri = uri
        self._whole: Any = None
        self._criterion: Any = None
        if own is None:
            return
        if isinstance(own, type) and issubclass(own, torch.nn.Module):
            own = own()
        if not callable(own):
            raise TrainingError(
                "ModelInvalid", f"{uri}: loss is {type(own).__name__}, no function and no module"
            )
        names = [] if isinstance(own, torch.nn.Module) else _required(own)
        if not isinstance(own, torch.nn.Module) and not names:
            own = own()
        if len(names) == 2 and names[1] == "batch":
            self._whole = own
            return
        if getattr(own, "reduction", "mean") == "sum":
            message = (
                f"{uri}: the loss has reduction='sum'; take 'mean', so that it does not grow with the batch"
            )
            raise TrainingError("ModelInvalid", message)
        self._criterion = own.to(device) if isinstance(own, torch.nn.Module) else own

    def forward(self, batch: Any) -> Any:
        """The net's outputs for a batch: (inputs, labels), a mapping of arguments, or inputs alone."""
        if isinstance(batch, Mapping):
            # A model with a loss of its own takes the labels too.
            passed = {
                key: each for key, each in batch.items() if self._criterion is None or key not in LABELS
            }
            return self._net(**passed)
        if isinstance(batch, tuple | list) and len(batch) > 1:
            return self._net(*batch[:-1])
        return self._net(batch[0] if isinstance(batch, tuple | list) else batch)

    def __call__(self, batch: Any) -> tuple[torch.Tensor, Any]:
        outputs = None
        if self._whole is not None:
            loss = self._whole(self._net, batch)
            if isinstance(loss, tuple):
                loss, outputs = loss
        else:
            outputs = self.forward(batch)
            if self._criterion is not None:
                loss = self._criterion(main_output(outputs), _labels(batch))
            else:
                loss = _own_loss(outputs)
        if not isinstance(loss, torch.Tensor):
            kind = type(loss).__name__
            raise TrainingError(
                "ModelInvalid", f"{self._uri}: the loss is {kind}, no tensor; define loss(net, batch)"
            )
        return (loss.mean() if loss.ndim else loss), outputs


def device(request: StartRequest) -> torch.device:
    """Where the worker computes: one of the GPUs that it sees, by its rank, or the CPU. In a forked child alone.

    A GPU's context does not survive a fork, so nothing may ask for GPUs before.
    """
    if not request.gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        message = (
            f"a worker requests a GPU, and PyTorch {torch.__version__}, {built}, sees none on this machine"
        )
        raise TrainingError("ModelInvalid", message)
    return torch.device("cuda", request.rank % torch.cuda.device_count())


def main_output(outputs: Any) -> Any:
    """The tensor that a criterion takes: `logits` of a mapping or a ModelOutput, the first of a tuple."""
    if isinstance(outputs, Mapping):
        return outputs["logits"] if "logits" in outputs else next(iter(outputs.values()))
    return outputs[0] if isinstance(outputs, tuple | list) else outputs


def _own_loss(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return outputs.get("loss")
    found = getattr(outputs, "loss", None)
    return outputs[0] if found is None and isinstance(outputs, tuple) else found


def _labels(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return next((batch[key] for key in LABELS if key in batch), None)
    return batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None


def _required(function: Any) -> list[str]:
    """Names of the positional parameters that have no default."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        each.name for each in parameters if each.kind in kinds and each.default is inspect.Parameter.empty
    ]


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
