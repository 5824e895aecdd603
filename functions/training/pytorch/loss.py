"""The loss of a model file: a criterion, a function, or what the network's outputs have."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from training.errors import TrainingError
from training.measures import check_labels

#: Keys of a batch, when it is a mapping, that have the labels.
LABELS = ("labels", "label", "y", "target", "targets")
#: The label that PyTorch's criteria leave out by default.
IGNORED = -100
#: Relative differences up to which the loss of a batch is its halves' mean, and their sum, in which there may be noise.
MEAN, SUM = 1e-3, 2e-2


class Loss:
    """Applies the net to a batch: its loss, and the outputs where they are known.

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
        self.adds = False  #: whether a batch's loss is the sum of its samples' losses, not their mean
        self.note = ""  #: what `measure` found that a user should know
        if own is None:
            return
        if isinstance(own, type) and issubclass(own, torch.nn.Module):
            own = own()
        if not callable(own):
            raise TrainingError("ModelInvalid", f"{uri}: loss is {type(own).__name__}, no function and no module")
        names = [] if isinstance(own, torch.nn.Module) else _required(own)
        if not isinstance(own, torch.nn.Module) and not names:
            own = own()
        if len(names) == 2 and names[1] == "batch":
            self._whole = own
            return
        self._criterion = own.to(device) if isinstance(own, torch.nn.Module) else own

    def forward(self, batch: Any) -> Any:
        """The net's outputs for a batch: (inputs, labels), a mapping of arguments, or inputs alone."""
        if isinstance(batch, Mapping):
            # A model with a loss of its own takes the labels too.
            passed = {key: each for key, each in batch.items() if self._criterion is None or key not in LABELS}
            return self._net(**passed)
        if isinstance(batch, tuple | list) and len(batch) > 1:
            return self._net(*batch[:-1])
        return self._net(batch[0] if isinstance(batch, tuple | list) else batch)

    def __call__(self, batch: Any) -> tuple[torch.Tensor, Any]:
        """The loss, one number, and the outputs. Raises TrainingError ModelInvalid where it is none."""
        outputs = None
        if self._whole is not None:
            loss = self._whole(self._net, batch)
            if isinstance(loss, tuple):
                loss, outputs = loss
        else:
            outputs = self.forward(batch)
            if self._criterion is not None:
                loss = self._of_labels(main_output(outputs), labels_of(batch))
            else:
                loss = _own_loss(outputs)
        return self._one_number(loss, outputs), outputs

    def _of_labels(self, outputs: Any, labels: Any) -> Any:
        """The criterion's loss; what it says of a label that the outputs do not have names neither range."""
        try:
            return self._criterion(outputs, labels)
        except IndexError as error:
            counted = isinstance(labels, torch.Tensor) and not labels.is_floating_point()
            if counted and isinstance(outputs, torch.Tensor) and outputs.ndim > 1 and "out of bounds" in str(error):
                asked = labels[labels != self.ignored]
                check_labels(int(asked.min()), int(asked.max()), outputs.shape[1], self._uri)
            raise

    def _one_number(self, loss: Any, outputs: Any) -> torch.Tensor:
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            return loss.reshape(())
        if self._whole is None and self._criterion is None:
            found = f"the outputs are {shown(outputs)}, and none of them is the loss"
            right = "define loss(net, batch), which returns it, or loss(outputs, labels)"
        else:
            found = f"the loss is {shown(loss)}"
            right = "it has to be one number: the mean over the batch"
        raise TrainingError("ModelInvalid", f"{self._uri}: {found}; {right}")

    @property
    def ignored(self) -> int:
        """The label of what is not to be answered."""
        return getattr(self._criterion, "ignore_index", IGNORED)

    def measure(self, loss: torch.Tensor, batch: Any, count: int, tolerance: float = MEAN) -> None:
        """See whether `loss`, of a batch of `count` samples, is the mean or the sum of the losses of its halves.

        A sum is trained as one: the workers' shares are added, not averaged. Anything else is taken as a mean, with a
        note: it depends on who trains which samples.
        """
        if count % 2 or getattr(self._criterion, "reduction", "") == "mean":
            return
        try:
            halves = [float(self(part(batch, count, half))[0]) for half in (0, 1)]
        except Exception as error:
            self.note = f"the loss of half a batch cannot be computed ({type(error).__name__}: {error})"
            return
        whole, total = float(loss), sum(halves)
        close = max(abs(whole), *map(abs, halves))
        if abs(whole - total / 2) <= tolerance * close:
            return
        if abs(whole - total) <= SUM * close:
            self.adds = True
            self.note = (
                "the loss is a sum over the samples, so gradients are too, and grow with batchSize; workers add theirs "
                "up; the losses shown are means over the samples"
            )
            return
        self.note = (
            f"the loss of {count} samples, {whole:.6g}, is neither the mean nor the sum of the losses of its halves, "
            f"{halves[0]:.6g} and {halves[1]:.6g}: it is random, or samples weigh differently or depend on each other; "
            "several workers then train differently from one"
        )


def main_output(outputs: Any) -> Any:
    """What a criterion takes: `logits` of a mapping or a ModelOutput, the first of a tuple that is no number."""
    if isinstance(outputs, Mapping):
        return outputs["logits"] if "logits" in outputs else next(iter(outputs.values()))
    if isinstance(outputs, tuple | list):
        return next((each for each in outputs if not _is_number(each)), None)
    return outputs


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0


def _own_loss(outputs: Any) -> Any:
    """`loss` of a mapping or an object, the only number of a tuple, or a number; None where there is none."""
    if _is_number(outputs):
        return outputs
    if isinstance(outputs, Mapping):
        return outputs.get("loss")
    found = getattr(outputs, "loss", None)
    if found is None and isinstance(outputs, tuple | list):
        numbers = [each for each in outputs if _is_number(each)]
        return numbers[0] if len(numbers) == 1 else None
    return found


def labels_of(batch: Any) -> Any:
    """The labels of a batch; None where it has none."""
    if isinstance(batch, Mapping):
        return next((batch[key] for key in LABELS if key in batch), None)
    return batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None


def _required(function: Any) -> list[str]:
    """Names of the positional parameters that have no default."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in kinds and each.default is inspect.Parameter.empty]


def shown(value: Any) -> str:
    """A value as messages show it: `(float32 (64, 10), float32 ())`."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(shown, value)) + ")"
    return "None" if value is None else f"a {type(value).__name__}"


def part(batch: Any, count: int, half: int) -> Any:
    """The first or second half of a collated batch of `count` samples.

    What has as many rows as the batch has samples, or a multiple of it, such as one for each token, is divided.
    """

    def divided(value: Any, rows: int) -> Any:
        return value[rows // 2 :] if half else value[: rows // 2]

    if isinstance(batch, torch.Tensor):
        rows = batch.shape[0] if batch.ndim else 0
        return divided(batch, rows) if rows and rows % count == 0 else batch
    if isinstance(batch, Mapping):
        return {key: part(value, count, half) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        if any(isinstance(each, torch.Tensor | Mapping | tuple | list) for each in batch):
            return type(batch)(part(each, count, half) for each in batch)
        return divided(batch, count) if len(batch) == count else batch
    return batch
