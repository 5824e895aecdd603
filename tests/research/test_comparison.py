"""What counts, and when two policies stand to each other as in the paper."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coach_research import scenario
from coach_research.comparison import Comparison, counts, direction, ends, order, tells
from coach_research.experiment import Outcome

ROW = Comparison(
    "one", "m", "", 10.0, 11.0, 0.5, 10.0, 12.0, 5, 0.1, 0.05, 0.15, "R", True, "", "", "judged", "table 1"
)


@pytest.mark.parametrize(
    ("ours", "half_width", "equal", "found"),
    [
        (-20.0, 5.0, 0.0, "yes"),
        (20.0, 5.0, 0.0, "no"),
        (-4.0, 5.0, 0.0, "open"),
        (-4.0, math.nan, 0.0, "yes"),
        (0.0, math.nan, 0.0, "open"),
        (1.2, 0.1, 1.0, "no"),
        (-20.0, 5.0, None, ""),
    ],
)
def test_a_direction_agrees_where_equality_is_outside_our_interval(
    ours: float, half_width: float, equal: float | None, found: str
) -> None:
    paper = 0.7 if equal == 1.0 else -30.0
    assert direction(paper, ours, half_width, equal) == found


@pytest.mark.parametrize(
    ("relative", "half_width", "found"),
    [(0.05, 0.04, True), (0.05, 0.06, False), (-0.05, 0.06, False), (0.3, 0.1, True), (0.3, math.nan, True)],
)
def test_a_row_is_judged_where_its_interval_tells_a_hit_from_a_miss(
    relative: float, half_width: float, found: bool
) -> None:
    assert tells(relative, half_width, 0.1) == found


def test_a_run_shorter_than_the_papers_is_no_evidence() -> None:
    short = Outcome(scenario.load("dl2-published"), {}, [1, 2], {"as published: drf": np.array([1.0, 2.0])})
    roles = {row.measure: row.role for row in short.comparisons()}
    assert roles["as published: drf"] == "open" and roles["as published: mean"] == "calibrated"


def test_an_order_is_of_pairs_of_one_group_that_differ_in_the_paper() -> None:
    values = [(1.0, 5.0), (2.0, 4.0), (3.0, 6.0), (3.0, 7.0)]
    rows = [replace(ROW, paper=paper, ours=ours, group="g") for paper, ours in values]
    assert order(rows) == (4, 5)  # the first two are the other way round, and the last two are alike
    assert order([replace(rows[0], group=""), replace(rows[1], group="")]) == (0, 0)
    assert order([rows[0], replace(rows[2], scenario="two")]) == (0, 0)


def test_only_judged_rows_count() -> None:
    rows = [
        ROW,
        replace(ROW, within=False, relative=-0.9, direction="no"),
        replace(ROW, within=False, relative=5.0, role="calibrated"),
        replace(ROW, relative=0.0, role="variant", direction="yes"),
        replace(ROW, relative=-3.5, role="open", direction="no"),
    ]
    assert list(counts(rows).values()) == ["1 of 2", "0 of 1", "", "0 of 1", "1", "1"]
    assert [(which, row.relative) for which, row in ends(rows)] == [("best", 0.1), ("worst", -0.9)]
    assert ends(rows[2:]) == []


def test_a_variant_names_the_scenario_that_judges_and_tolerances_have_their_reasons() -> None:
    every = {name: scenario.load(name) for name in scenario.names()}
    for name, one in every.items():
        if one.variant_of:
            primary = {target.measure for target in every[one.variant_of].targets}
            assert primary, name
            assert not every[one.variant_of].variant_of, name
        for target in one.targets:
            assert target.reason, (name, target.measure)


@pytest.mark.parametrize("name", scenario.names())
def test_every_target_states_its_tolerance_and_why(name: str) -> None:
    for target in scenario.load(name).targets:
        assert {"tolerance", "reason"} <= target.model_fields_set, target.measure
