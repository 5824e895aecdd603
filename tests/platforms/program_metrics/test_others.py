"""What is said of a program whose metric is not found, and that its advice works."""

from __future__ import annotations

import shlex

import pytest

from coach.core.spec.metric_source import MetricSource
from coach.platforms.program_metrics.base import Wanted
from coach.platforms.program_metrics.reader import Reader


def hints(metric: str, lines: list[str]) -> list[str]:
    """What is said while a program prints these lines."""
    reader = Reader(Wanted(metric))
    return [one.hint for line in lines for one in reader.line(line) if one.hint]


PRINTED = [
    ("val_loss", "validation_loss", [f"epoch {n} validation_loss={1 / n:.4f}" for n in range(1, 9)], 0.125),
    ("loss", "Loss (train)", [f"Train Epoch: {n} [0/100 (0%)]\tLoss: {1 / n:.4f}" for n in range(1, 9)], 0.125),
    ("accuracy", "valid_acc", ["epoch  train  valid_acc", *(f"{n}  0.5  0.{n}" for n in range(1, 9))], 0.8),
    ("accuracy", "valid_acc", ["| epoch | valid_acc |", *(f"| {n} | 0.{n} |" for n in range(1, 9))], 0.8),
    ("val_acc", "valid acc", [f'{{"valid acc": 0.{n}, "step": {n}}}' for n in range(1, 9)], 0.8),
    ("ppl", "test perplexity", [f"test perplexity of {30 - n} after {n} h" for n in range(1, 9)], 22),
]


@pytest.mark.parametrize(("metric", "name", "lines", "value"), PRINTED)
def test_after_a_few_lines_it_is_said_what_there_is_and_the_advice_works(
    metric: str, name: str, lines: list[str], value: float
) -> None:
    [hint] = hints(metric, lines)
    assert hint.startswith(f"no {metric} in 5 lines with numbers; there is {name}")
    option = shlex.split(hint.partition("; to take one of them: ")[2])
    assert option[0] == "--metric"
    reader = Reader(Wanted(metric, (MetricSource.read(metric, option[1]),)))
    last = [one for line in lines for one in reader.line(line) if metric in one.values][-1]
    assert (last.values[metric], last.guessed) == (pytest.approx(value), False)


def test_where_two_are_left_both_are_named() -> None:
    [hint] = hints("rmse", [f"[{n}]\tvalid_1's rmse: {n}\tvalid_2's rmse: 4" for n in range(1, 9)])
    assert hint.startswith("rmse may be valid_1's rmse or valid_2's rmse, so none counts; to take the first: --metric ")


def test_nothing_is_said_of_a_metric_that_is_found() -> None:
    assert hints("val_loss", [f"epoch {n} train_loss 0.1 val_loss {1 / n}" for n in range(1, 99)]) == []


def test_it_is_said_again_ever_less_often() -> None:
    said = hints("val_loss", [f"epoch {n} loss {1 / n}" for n in range(1, 6000)])
    assert [hint.split()[3] for hint in said] == ["5", "50", "500", "5000"]
