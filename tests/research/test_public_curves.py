"""benchmarks/curves.py and knowledge.py against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.curves import Prediction, power_law, table
from benchmarks.knowledge import EPOCHS, Run, Task, _learned, earlier, scheduled, seldom, trained


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


def test_x_is_the_sum_of_the_learning_rates_where_the_schedule_is_known() -> None:
    assert _learned(0.0, 0.0) == pytest.approx(EPOCHS)
    assert _learned(1 / 10_200, 0.0)[-1] == pytest.approx(51 / 2, abs=0.01), "down to zero, linearly"
    assert _learned(0.0, 1e-3)[-1] == pytest.approx(5.0, abs=0.01), "1 / (200 · 1e-3) epochs in all"
    points, last, _ = scheduled(Task([Run(EPOCHS, EPOCHS, 2 * EPOCHS)], 1.0), 0, 5)
    assert [(p.x, p.value) for p in points] == [(2 * x, x) for x in range(1, 6)] and last == 102


def test_the_training_loss_fills_in_what_lies_between_evaluations() -> None:
    gap = np.repeat(np.arange(11.0), 5)[:51]  # of epoch 5: 0, of epoch 10: 1
    task = Task([Run(EPOCHS + gap, EPOCHS, EPOCHS)], 1.0)
    assert [p.x for p in seldom(task, 0, 10)[0]] == [5.0, 10.0]
    assert [p.value for p in trained(task, 0, 12)[0]] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13]


def test_a_run_is_not_among_its_own_earlier_runs() -> None:
    task = Task([Run(2.0 + rate * np.exp(-EPOCHS / 9), EPOCHS, EPOCHS) for rate in (1.0, 2.0)], 1.0)
    for at, other in ((0, 2.0), (1, 1.0)):
        points, _, known = earlier(10)(task, at, 5)
        assert len(points) == 5 and [one.fall for one in known] == [pytest.approx(other, rel=0.3)]
