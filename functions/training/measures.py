"""What a model reports, checked against what it can be: an accuracy is a share, a loss and a metric are one number."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from training.errors import TrainingError

#: Samples that a new learner measures its loss with before the first step. With four, a loss that compares the samples
#: of a batch with each other can look like a sum: log 4 is 2 log 2.
MEASURED = 8

#: Metrics that a model file may have.
MOST = 32
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.@/-]{0,63}")


@dataclass(frozen=True)
class Measured:
    """Sums over samples, which add up over workers."""

    loss: float  #: of the samples' losses
    right: float  #: right answers; NaN where that is not known
    answered: float  #: answers that could be right: one for each sample, or more, such as one for each token
    metrics: Mapping[str, float] = field(default_factory=dict)  #: of the model file's own metrics

    def sums(self) -> list[float]:
        """The numbers alone."""
        return [self.loss, self.right, self.answered, *self.metrics.values()]

    @classmethod
    def of(cls, sums: list[float], names: tuple[str, ...]) -> "Measured":
        """The inverse of sums(), with the names of the metrics."""
        loss, right, answered, *others = sums
        return cls(loss, right, answered, dict(zip(names, others, strict=True)))


class Evaluation(NamedTuple):
    """What the test split gave, if anything was measured."""

    loss: float | None = None
    accuracy: float | None = None
    metrics: Mapping[str, float] = {}


class Metrics:
    """A model file's `metrics`: a function of (outputs, batch) that returns means over the batch by name, or such
    functions by name; and its `final_metrics(means)`, which makes of the means over the split what is no mean itself.

    `names` are those other than accuracy, the same on all workers: of the first batch that was measured.
    """

    def __init__(self, model: ModuleType, uri: str) -> None:
        self._uri = uri
        self._own = getattr(model, "metrics", None)
        self._final: Callable[[dict[str, float]], Any] | None = getattr(model, "final_metrics", None)
        by_name = isinstance(self._own, Mapping) and all(callable(each) for each in self._own.values())
        if self._own is not None and not by_name and not callable(self._own):
            kind = type(self._own).__name__
            right = "a function of (outputs, batch) that returns a mapping, or a mapping of such functions"
            raise TrainingError("ModelInvalid", f"{uri}: metrics is a {kind}; it has to be {right}")
        self.given = self._own is not None  #: whether the model file has any
        self._seen: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """See the class."""
        return self._seen or ()

    def measure(self, outputs: Any, batch: Any) -> tuple[float | None, dict[str, float]]:
        """The accuracy of a batch, where it is among them, and the others. Raises TrainingError ModelInvalid."""
        if self._own is None:
            return None, {}
        if isinstance(self._own, Mapping):
            found = {name: each(outputs, batch) for name, each in self._own.items()}
        else:
            found = self._own(outputs, batch)
        numbers = self._checked(found, "metrics", "mean over the batch")
        accuracy = numbers.pop("accuracy", None)
        if self._seen is None:
            self._seen = tuple(numbers)
        if set(numbers) != set(self._seen):
            message = f"{self._uri}: metrics returned {_listed(numbers)}, and {_listed(self._seen)} at first"
            raise TrainingError("ModelInvalid", f"{message}; each batch has to have the same")
        if accuracy is not None:
            accuracy = checked_accuracy(accuracy, f"{self._uri}: metrics(outputs, batch)")
        return accuracy, {name: numbers[name] for name in self._seen}

    def of_split(self, measured: Measured, samples: int) -> Evaluation:
        """What the sums of a split of so many samples give. Raises TrainingError LossNotFinite or ModelInvalid."""
        loss, share = measured.loss / samples, accuracy(measured)
        if not math.isfinite(loss):
            raise TrainingError("LossNotFinite", f"the test loss is {loss}")
        metrics = {name: total / samples for name, total in measured.metrics.items()}
        if self._final is not None:
            means = {"loss": loss} | ({} if share is None else {"accuracy": share}) | metrics
            made = self._final(means)
            if isinstance(made, Mapping):  # it may be the means with more: {**means, "f1": ...}
                made = {name: value for name, value in made.items() if name != "loss"}
            metrics = self._checked(made, "final_metrics", "value over the test split")
            if "accuracy" in metrics:
                share = checked_accuracy(metrics.pop("accuracy"), f"{self._uri}: final_metrics(means)")
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise TrainingError("LossNotFinite", f"the metric {name} is {value} on the test split")
        return Evaluation(loss, share, metrics)

    def _checked(self, found: Any, function: str, what: str) -> dict[str, float]:
        where = f"{self._uri}: {function}"
        if not isinstance(found, Mapping):
            kind = type(found).__name__
            raise TrainingError("ModelInvalid", f'{where} returned {kind}, not {{"a name": the {what}}}')
        if len(found) > MOST:
            raise TrainingError("ModelInvalid", f"{where} returned {len(found)} metrics; at most {MOST}")
        numbers = {}
        for name, value in found.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "loss":
                right = "a letter, then at most 63 letters, digits and _.@/-; `loss` is what the model file's loss is"
                raise TrainingError("ModelInvalid", f"{where} returned a metric named {name!r}; right: {right}")
            numbers[name] = _number(value, name, where)
        return numbers


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"


def _number(value: Any, name: str, where: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        message = f"{where}: the {name} is a {type(value).__name__}{shape}; it has to be one number"
        raise TrainingError("ModelInvalid", message + " of 0 to 1" * (name == "accuracy")) from error


def accuracy(measured: Measured) -> float | None:
    """The share of right answers; None where it is not known. Raises TrainingError ModelInvalid for no share."""
    if math.isnan(measured.right) or not measured.answered:
        return None
    share = measured.right / measured.answered
    return checked_accuracy(share, f"{measured.right:g} of {measured.answered:g} answers are right")


def checked_accuracy(share: float, found: str) -> float:
    """An accuracy of 0 to 1. Raises TrainingError ModelInvalid, which says what was `found`."""
    if not -1e-6 <= share <= 1 + 1e-6:  # also what is not a number
        message = f"{found}: an accuracy of {share:.6g}; it has to be the share of right answers, 0 to 1"
        raise TrainingError("ModelInvalid", message)
    return min(max(share, 0.0), 1.0)


def check_labels(lowest: float, highest: float, outputs: int, uri: str) -> None:
    """Raise TrainingError ModelInvalid where the labels of a classification do not fit the network's `outputs`.

    gluon's SoftmaxCrossEntropyLoss takes such a label for the nearest one that fits, and says nothing.
    """
    if lowest < 0 or highest >= outputs:
        fits = "outputs, which fit" if outputs != 1 else "output, which fits"
        found = f"{uri}: labels go from {lowest:g} to {highest:g}, but the network has {outputs} {fits}"
        raise TrainingError("ModelInvalid", f"{found} labels from 0 to {outputs - 1}")


def check_answers(answers: int, labels: int, samples: int, found: str) -> None:
    """Raise TrainingError ModelInvalid unless there is an answer for each label, and as many for each sample."""
    if answers == labels and answers % samples == 0:
        return
    message = (
        f"{found}: {answers} outputs and {labels} labels for {samples} samples; for the accuracy each label needs an "
        "output, and each sample equally many: return such outputs, or define metrics(outputs, batch)"
    )
    raise TrainingError("ModelInvalid", message)
