"""What a model reports, checked against what it can be: an accuracy is a share, a loss is one number."""

import math
from typing import Any, NamedTuple

from training.errors import TrainingError

#: Samples that a new learner measures its loss with before the first step. With four, a loss that compares the samples
#: of a batch with each other can look like a sum: log 4 is 2 log 2.
MEASURED = 8


class Measured(NamedTuple):
    """Sums over samples, which add up over workers."""

    loss: float  #: of the samples' losses
    right: float  #: right answers; NaN where that is not known
    answered: float  #: answers that could be right: one for each sample, or more, such as one for each token


def accuracy(measured: Measured) -> float | None:
    """The share of right answers; None where it is not known. Raises TrainingError ModelInvalid for no share."""
    if math.isnan(measured.right) or not measured.answered:
        return None
    share = measured.right / measured.answered
    return checked_accuracy(share, f"{measured.right:g} of {measured.answered:g} answers are right")


def checked_accuracy(value: Any, found: str) -> float:
    """An accuracy of 0 to 1 as a number. Raises TrainingError ModelInvalid, which says what was `found`."""
    try:
        share = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        message = (
            f"{found}: the accuracy is a {type(value).__name__}{shape}; it has to be one number of 0 to 1"
        )
        raise TrainingError("ModelInvalid", message) from error
    if not -1e-6 <= share <= 1 + 1e-6:  # also what is not a number
        message = f"{found}: an accuracy of {share:.6g}; it has to be the share of right answers, 0 to 1"
        raise TrainingError("ModelInvalid", message)
    return min(max(share, 0.0), 1.0)


def check_answers(answers: int, labels: int, samples: int, found: str) -> None:
    """Raise TrainingError ModelInvalid unless there is an answer for each label, and as many for each sample."""
    if answers == labels and answers % samples == 0:
        return
    message = (
        f"{found}: {answers} outputs and {labels} labels for {samples} samples; for the accuracy each label needs an "
        "output, and each sample equally many: return such outputs, or define metrics(outputs, batch)"
    )
    raise TrainingError("ModelInvalid", message)


def checked_loss(measured: Measured, samples: int) -> float:
    """The mean loss of the samples of the test split. Raises TrainingError LossNotFinite."""
    loss = measured.loss / samples
    if not math.isfinite(loss):
        raise TrainingError("LossNotFinite", f"the test loss is {loss}")
    return loss
