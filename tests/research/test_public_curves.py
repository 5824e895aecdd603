"""benchmarks/curves.py against numbers worked by hand."""

from __future__ import annotations

import pytest

from benchmarks.curves import Prediction, power_law, table


def test_the_interval_score_is_the_width_and_ten_times_what_lies_outside() -> None:
    assert Prediction(0.5, 0.4, 0.6, truth=0.45).score == pytest.approx(0.2)
    assert Prediction(0.5, 0.4, 0.6, truth=0.7).score == pytest.approx(0.2 + 10 * 0.1)
    assert Prediction(0.5, 0.4, 0.6, truth=0.1).score == pytest.approx(0.2 + 10 * 0.3)


def test_a_row_has_the_means_of_all_tasks_and_the_worst_of_them() -> None:
    good, bad = Prediction(0.5, 0.4, 0.6, truth=0.45), Prediction(0.5, 0.4, 0.6, truth=0.71)
    found = {
        (task, prefix): rows for prefix in (5, 10, 20, 40) for task, rows in (("a", [good, good]), ("b", [good, bad]))
    }
    row = next(line for line in table(("a", "b"), {"Coach": found}) if line.startswith("| 5 "))
    assert row == "| 5 | Coach | 0.090 | -0.015 | 75 % | 50 % | 0.475 |"


def test_the_power_law_finds_a_power_law() -> None:
    values = [0.3 + 2.0 * (x + 1.0) ** -0.5 for x in range(1, 51)]
    assert power_law(values[:20], 50)[0] == pytest.approx(values[-1], abs=1e-3)
