"""What the table of coach-budget says: misses first, then means of the others, beside the goals."""

import math

import numpy as np
import pytest

from coach_research.experiments import coach_budget
from coach_research.experiments.coach_budget import EPOCHS, KINDS, LATER, OVERSHOOT, SPENT
from coach_research.measured_curves import MeasuredCurve, shipped_curves

PARAMETERS = {"budgets": [1.2, 2.0]}


def results(later: list[float], spent: float = 90.0, overshoot: float = 0.0) -> dict[str, np.ndarray]:
    """The same `later`, one a seed, for every kind and budget; NaN in `spent` where no static choice ended."""
    count = len(later)
    columns = {LATER: later, SPENT: [spent] * count, OVERSHOOT: [overshoot] * count, EPOCHS: [20.0] * count}
    return {
        f"dssm, {kind}, {factor}: {measure}": np.array(values)
        for kind in ("hyperbola", "known", "measured 1")
        for factor in PARAMETERS["budgets"]
        for measure, values in columns.items()
    }


def rows(found: dict[str, np.ndarray]) -> list[list[str]]:
    lines = coach_budget.table(found, PARAMETERS).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_misses_are_counted_before_the_others_are_averaged() -> None:
    first, *_ = rows(results([4.0, 6.0, math.nan, 8.0]))
    assert first[:4] == ["hyperbola", "1.2", "4", "1"]
    assert first[4].startswith("25.0 % (") and first[5] == "+6.0 %"


def test_a_share_of_misses_above_the_stated_chance_misses_its_goal() -> None:
    lucky = rows(results([4.0] * 40))
    assert [row[-1] for row in lucky] == ["yes"] * 6
    unlucky = rows(results([4.0] * 30 + [math.nan] * 10))
    assert [row[-1] for row in unlucky] == ["no", "yes"] * 3
    slow = rows(results([30.0] * 40))
    assert [row[-1] for row in slow] == ["yes", "no"] * 3


def test_what_no_static_choice_ends_is_no_case() -> None:
    found = results([4.0, 6.0])
    for name, values in found.items():
        found[name] = np.append(values, math.nan)
    assert {row[2] for row in rows(found)} == {"2"}


def test_money_spent_above_the_budget_is_counted() -> None:
    assert {row[8] for row in rows(results([4.0, 5.0], overshoot=1e-6))} == {"2"}


def test_both_figures_have_a_part_for_each_kind() -> None:
    figures = coach_budget.figures(results([4.0, math.nan]), PARAMETERS)
    assert {len(figure.axes) for figure in figures.values()} == {len(KINDS)}


def test_a_measured_curve_goes_through_its_values() -> None:
    curve = MeasuredCurve("one", "loss", (3.0, 2.0, 1.0))
    assert [curve(x) for x in (0.5, 1.0, 1.5, 3.0, 9.0)] == [3.0, 3.0, 2.5, 1.0, 1.0]
    shipped = shipped_curves()
    assert len(shipped) == 108 and {one.metric for one in shipped} == {"loss", "accuracy"}
    assert all(len(one.values) == 80 for one in shipped)


@pytest.mark.standard
def test_every_seed_has_cases_of_its_own_and_at_least_two_hundred_in_all() -> None:
    parameters = {"epochs": [12, 25, 50], "epoch_seconds": 60, "measured": 3}
    targets = [
        str(case.target) + str(case.dynamics.loss) + str(case.dynamics.accuracy)
        for seed in range(1, 11)
        for number, model in enumerate(coach_budget.shipped())
        for kind, case in coach_budget.cases(parameters, number, model, seed).items()
        if kind.startswith("measured")
    ]
    assert len(set(targets)) == len(targets) >= 200
