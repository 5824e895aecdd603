"""What is shown of a job's end, from its first epochs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coach.core.estimation.calibration import FACTORS, calibrated, calibrated_all
from coach.core.estimation.convergence import TAIL, CurvePoint, fit_convergence
from coach.core.estimation.interval import Interval

#: Written by `python -m benchmarks.estimation.young_curves`.
RESULT = Path(__file__).parents[3] / "results/estimators/young-curves.md"
LEFT = Interval(4.0, 8.0, 16.0)


def test_the_factors_are_those_of_the_table_that_says_how_good_they_are() -> None:
    _, _, table = RESULT.read_text(encoding="utf-8").partition("| values seen |")
    rows = [[float(cell) for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    assert {int(seen): tuple(factors) for seen, *factors in rows} == FACTORS


@pytest.mark.parametrize(
    "row",
    [
        *(f"{seen} values seen" for seen in (3, 4, 6, 8, 12, 20, 40)),
        *(f"at {share}% of a job" for share in (10, 25, 50)),
        "at 90%, 5 epochs or more left",
    ],
)
def test_tasks_that_the_factors_never_saw_are_inside_as_often_as_is_said(row: str) -> None:
    """75 to 88 % for an interval of 80 %, and an end that is right in the median from the sixth value on."""
    lines = [line.strip("| ").split(" | ") for line in RESULT.read_text(encoding="utf-8").splitlines()]
    names, cells = lines[4], next(line for line in lines if line[0] == row)
    assert 75 <= float(cells[names.index("left out: inside, %")]) <= 88
    if not row.startswith(("3 ", "4 ", "at 10%")):
        assert 0.8 <= float(cells[-1]) <= 1.25


def test_an_interval_is_widened_never_narrowed() -> None:
    for seen in range(1, 200):
        shown = calibrated(LEFT, seen)
        assert shown.low <= LEFT.low and shown.high >= LEFT.high
        assert shown.expected >= LEFT.expected, "a young curve predicts too early an end"


def test_between_two_numbers_of_values_factors_change_evenly() -> None:
    assert calibrated(LEFT, 8).high < calibrated(LEFT, 7).high < calibrated(LEFT, 6).high
    assert calibrated(LEFT, 1) == calibrated(LEFT, 3) and calibrated(LEFT, 400) == calibrated(LEFT, 40)


@pytest.mark.parametrize("seen", [3, 6, 14, 50])
def test_all_numbers_of_epochs_are_calibrated_as_the_bounds_between_which_they_lie(seen: int) -> None:
    left, chance = np.linspace(1.0, 100.0, 1000), np.full(1000, 1e-3)
    found = calibrated_all(left, chance, seen)
    assert (np.diff(found) > 0.0).all()
    bounds = [round(1000 * share) for share in (TAIL, 0.5, 1.0 - TAIL)]
    shown = calibrated(Interval(*(float(left[bound]) for bound in bounds)), seen)
    assert [float(found[bound]) for bound in bounds] == pytest.approx(list(shown), rel=0.01)


def test_earlier_runs_of_the_program_take_the_place_of_the_factors() -> None:
    none, some, many = (calibrated(LEFT, 3, known).expected for known in (0, 5, 1000))
    assert none > some > many and many == pytest.approx(LEFT.expected, rel=0.01)


def test_a_plain_program_is_inside_from_the_third_epoch_on() -> None:
    """0.2 + 2 / epoch^0.8, of which the curve alone predicts 4.3 s (3.1 s to 10 s) of 21 s."""
    values = [0.2 + 2.0 / epoch**0.8 for epoch in range(1, 60)]
    for last in (20, 25, 30):
        for seen in range(3, last):
            points = [CurvePoint(float(x), value) for x, value in enumerate(values[:seen], 1)]
            end = fit_convergence(points, "loss").epochs_to(values[last - 1], 1, float(seen))
            assert end is not None and calibrated(end + -float(seen), seen).holds(float(last - seen)), (last, seen)


@pytest.mark.parametrize("step", [5.0, 20.0])
def test_a_program_that_reports_each_fifth_epoch_is_predicted_by_its_reports(step: float) -> None:
    """A target holds at a report: three in a row are three reports, not three epochs."""
    values = [0.2 + 2.0 * np.exp(-report / 6.0) for report in range(1, 30)]
    points = [CurvePoint(step * x, value) for x, value in enumerate(values[:10], 1)]
    once, thrice = (fit_convergence(points, "loss").epochs_to(values[14], hits, 10 * step) for hits in (1, 3))
    one = fit_convergence([CurvePoint(p.x / step, p.value) for p in points], "loss").epochs_to(values[14], 3, 10.0)
    assert once is not None and thrice is not None and one is not None
    assert thrice.expected - once.expected == 2 * step
    assert list(thrice) == pytest.approx([step * x for x in one])
