"""When a metric that nobody has named is sure, and when it is asked."""

from __future__ import annotations

import re

from coach.core.spec.metric_source import MetricSource
from coach.platforms.program_metrics.base import Wanted
from coach.platforms.program_metrics.reader import Reader


def guesses(*lines: str, metric: str = "val_loss") -> list[tuple[float, bool]]:
    """The values of a metric in these lines, and whether each is a guess."""
    reader = Reader(Wanted(metric))
    return [(one.values[metric], one.guessed) for line in lines for one in reader.line(line) if metric in one.values]


def test_a_metric_is_a_guess_until_it_was_seen_in_two_epochs() -> None:
    assert guesses("epoch 1: val_loss 0.9", "epoch 2: val_loss 0.3") == [(0.9, True), (0.3, False)]
    assert guesses("epoch 1: val_loss 0.9", "epoch 1: val_loss 0.3") == [(0.9, True), (0.3, True)]
    assert guesses("val_loss 0.9", "val_loss 0.3") == [(0.9, True), (0.3, False)]


def test_a_setting_that_is_printed_again_stays_a_guess() -> None:
    echoed = ["val_loss: 0.3", "{'val_loss': 0.3, 'lr': 0.1}", "val_loss: 0.3"]
    assert all(guess for _, guess in guesses(*echoed))
    assert all(guess for _, guess in guesses(*echoed, "epoch 1: val_loss 0.9"))


def test_what_repeats_one_value_or_one_epoch_is_sure_after_ten_times() -> None:
    assert [guess for _, guess in guesses(*["accuracy: 1.0"] * 11, metric="accuracy")] == [True] * 9 + [False] * 2
    within = [f"epoch 1 step {step} val_loss {1 / step}" for step in range(1, 12)]
    assert [guess for _, guess in guesses(*within)] == [True] * 9 + [False] * 2


def test_a_loss_that_is_no_number_is_believed_once_the_metric_is_sure() -> None:
    assert guesses("val_loss: nan") == []
    assert [guess for _, guess in guesses("epoch 1 val_loss 0.9", "epoch 2 val_loss nan")] == [True, False]


def test_names_that_fit_equally_well_are_asked_about_and_none_counts() -> None:
    reader = Reader(Wanted("rmse"))
    for epoch in range(3):
        assert reader.line(f"[{epoch}] valid_1's rmse: 3.5 valid_2's rmse: 4.5") == []
    assert reader.undecided == ["valid_1's rmse", "valid_2's rmse"]
    # In lines of their own, too.
    two = [line for n in range(9) for line in (f"epoch {n} actor loss {1 / (n + 1)}", f"epoch {n} critic loss 0.5")]
    assert all(guess for _, guess in guesses(*two, metric="loss"))


def test_a_name_that_comes_once_between_many_others_is_no_question() -> None:
    lines = [f"epoch {n} val_loss {1 / (n + 1):.3f}" for n in range(12)]
    lines += ["smoke val_loss 7", "epoch 13 val_loss 0.01"]
    assert guesses(*lines)[-2:] == [(round(1 / 12, 3), False), (0.01, False)]


def test_an_evaluation_replaces_what_says_not_what_it_is() -> None:
    lines = ["loss 0.9", "loss 0.8", "eval: loss 0.7", "loss 0.1", "eval: loss 0.6"]
    assert guesses(*lines, metric="loss") == [(0.9, True), (0.8, False), (0.7, True), (0.6, False)]


def test_values_are_in_the_unit_of_their_target() -> None:
    lines = ["accuracy: 58.24%", "accuracy: 0.61", "accuracy: 63.5", "accuracy: 7000/10000"]
    fraction, percent = Wanted("accuracy", bounded=True), Wanted("accuracy", bounded=True, percent=True)
    for wanted, expected in (fraction, [0.5824, 0.61, 0.635, 0.7]), (percent, [58.24, 0.61, 63.5, 70]):
        reader = Reader(wanted)
        assert [one.values["accuracy"] for line in lines for one in reader.line(line)] == expected
    error = Reader(Wanted("error", percent=True))
    assert [one.values["error"] for one in error.line("error: 80%")] == [80]


def test_a_name_that_says_per_cent_is_asked_about_where_the_target_may_be_meant_so_or_not() -> None:
    lines = [f"epoch {epoch} WER (%): {20 / epoch:g}" for epoch in range(1, 7)]
    reader = Reader(Wanted("wer"))
    [hint] = [one.hint for line in lines for one in reader.line(line)]
    source = re.search(r"there is WER \(%\), .*--metric '(.*)'", hint)
    assert source is not None and [re.findall(source[1], line) for line in lines[:2]] == [["20"], ["10"]]
    for wanted in Wanted("wer", percent=True), Wanted("wer", (MetricSource.read("wer", source[1]),)):
        reader = Reader(wanted)
        assert [one.values["wer"] for line in lines for one in reader.line(line)][:2] == [20, 10]
