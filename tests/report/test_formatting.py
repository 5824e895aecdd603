"""Quantities read the same everywhere."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from coach.core.estimation.interval import Interval
from coach.core.jobs.events import JobSubmitted
from coach.core.jobs.fold import submitted
from coach.core.money import to_money
from coach.report import formatting
from tests.core.lifecycle.faulty_cluster import spec


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0.00s"),
        (0.128, "0.13s"),
        (0.996, "1.0s"),
        (3.44, "3.4s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (192, "3m12s"),
        (3599.6, "1h00m"),
        (7500, "2h05m"),
        (86399, "1d00h"),
        (277200, "3d05h"),
        (-5, "-5.0s"),
        (math.inf, "forever"),
        (math.nan, "-"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float | None, text: str) -> None:
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00021, "0.00021"),
        (0.000000001, "0.000000001"),
        (0.5, "0.50"),
        (0.0999, "0.100"),
        (1.0, "1.00"),
        (12.5, "12.50"),
        (12345.678, "12345.68"),
        (None, "-"),
    ],
)
def test_amounts_never_become_zero_by_rounding(value: float | None, text: str) -> None:
    assert formatting.amount(value) == text


def test_money_says_its_currency_and_a_missing_budget_aloud() -> None:
    assert formatting.money(to_money(0.00021), "USD") == "0.00021 USD"
    assert formatting.money(None, "USD") == "none"
    assert formatting.spent_of(to_money(0.0021), to_money(0.05), "EUR") == "0.0021 / 0.05 EUR"
    assert formatting.spent_of(to_money(0.0021), to_money(5), "EUR") == "0.0021 / 5.00 EUR"
    assert formatting.spent_of(to_money(0.0021), None, "EUR") == "0.0021 EUR / none"


def test_what_is_left_shows_that_something_was_spent() -> None:
    assert formatting.left(0.05, 0.00021) == "0.04979"
    assert formatting.left(5, 0.0021) == "4.9979"
    assert formatting.left(20, 12.5) == "7.50"
    assert formatting.left(0.02, 0) == "0.02"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0931, "0.0931"),
        (1.25, "1.25"),
        (431.0, "431"),
        (43100.0, "43100"),
        (0.0, "0"),
        (2.0, "2"),
        (None, "-"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


def test_what_is_no_number_is_said() -> None:
    assert formatting.number(math.inf) == "infinite"
    assert formatting.score(math.nan) == "not a number"


def test_losses_line_up() -> None:
    assert [formatting.score(v) for v in (2.3, 0.0931, 0.00042)] == ["2.3000", "0.0931", "0.00042"]


def test_shares_and_changes() -> None:
    assert formatting.percent(0.183) == "18 %"
    assert formatting.percent(0.018) == "1.8 %"
    assert formatting.percent(0.183, signed=True) == "+18 %"
    assert formatting.percent(-0.5, signed=True) == "-50 %"


def test_counts_agree_with_their_noun() -> None:
    assert formatting.count(1, "epoch") == "1 epoch"
    assert formatting.count(1200, "epoch") == "1,200 epochs"


def test_an_interval_shows_its_bounds() -> None:
    assert formatting.duration_interval(Interval(50, 80, 130)) == "1m20s (50s-2m10s)"


@pytest.mark.parametrize(
    ("program", "epochs", "where"),
    [
        (None, 3, "the checkpoint of epoch 3"),
        (None, 0, "the start"),
        ({"command": ["x"]}, 3, "the start"),
        ({"command": ["x"], "resumes": True}, 3, "its newest checkpoint"),
    ],
)
def test_a_job_that_is_resumed_goes_on_where_it_can(program: Any, epochs: int, where: str) -> None:
    document = spec()
    if program is not None:
        common = {key: document["spec"][key] for key in ("target", "budget")}
        document["spec"] = {"program": program, **common}
    job = submitted(JobSubmitted(0.0, "job", document, "file:///c"))
    job.epochs = [SimpleNamespace(name="epoch 3")] * epochs  # type: ignore[list-item]
    assert formatting.resumes_from(job) == where


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("1 functions for 1 worker", "1 worker"),
        ("4 functions for 2 workers, 1 server", "2 workers, 1 server"),
        ("2 of 3 functions have no node", "2 of 3 functions have no node"),
        ("ImportError: no functions for rank 1", "ImportError: no functions for rank 1"),
        ("", ""),
    ],
)
def test_what_starts_is_said_and_no_programs_own_words_are_cut(message: str, shown: str) -> None:
    assert formatting.starting(message) == shown
