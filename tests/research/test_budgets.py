"""Others' rules for a budget, on a run of which every epoch is known; and what the table counts of them."""

import math

import numpy as np
import pytest

from coach_research.budgets import FixedRun, Outcome, after_the_fact, hourly_cap, oracle, time_limit
from coach_research.experiments import rival_budgets
from coach_research.experiments.rival_budgets import (
    BANDS,
    COACH,
    COUNTS,
    ORACLE,
    OVER,
    ROWS,
    SUMS,
    TOGETHER,
    WITHIN,
)

#: Four epochs of 10 s at a unit of money each; the last one reaches the target.
RUN = FixedRun(np.array([10.0, 20.0, 30.0, 40.0]), np.array([1.0, 2.0, 3.0, 4.0]))


@pytest.mark.parametrize(
    ("budget", "outcome"),
    [
        (2.5, Outcome(30.0, 3.0, False)),  # the epoch that exceeds it is completed
        (3.5, Outcome(40.0, 4.0, True)),  # it may be the last one
        (2.0, Outcome(20.0, 2.0, False)),
        (9.0, Outcome(40.0, 4.0, True)),
    ],
)
def test_paid_after_the_fact_completes_what_exceeds_the_budget(budget: float, outcome: Outcome) -> None:
    assert after_the_fact(RUN, budget) == outcome


def test_an_hourly_cap_ends_nothing() -> None:
    assert hourly_cap(RUN, 0.1) == Outcome(40.0, 4.0, True)


@pytest.mark.parametrize(
    ("budget", "limit", "outcome"),
    [
        (2.5, math.inf, Outcome(25.0, 2.5, False)),  # all the credit, in the middle of an epoch
        (9.0, 35.0, Outcome(35.0, 3.5, False)),  # what the user typed
        (4.0, math.inf, Outcome(40.0, 4.0, True)),
        (9.0, 40.0, Outcome(40.0, 4.0, True)),
    ],
)
def test_a_time_limit_spends_no_more_than_its_credit(budget: float, limit: float, outcome: Outcome) -> None:
    assert time_limit(RUN, budget, limit) == outcome


def test_the_oracle_takes_the_fastest_choice_that_the_money_pays_for() -> None:
    fast = FixedRun(RUN.seconds / 2, RUN.costs * 1.5)
    assert oracle([RUN, fast], 6.0) == Outcome(20.0, 6.0, True)
    assert oracle([RUN, fast], 5.0) == Outcome(40.0, 4.0, True)
    assert oracle([RUN, fast], 3.0) == Outcome(0.0, 0.0, False)


def test_the_table_counts_a_target_reached_above_the_budget_apart() -> None:
    found = {f"{row}, {low:g}: {name}": np.array([2.0, 3.0]) for row in ROWS for low, _ in BANDS for name in COUNTS}
    found |= {f"{row}: {name}": np.array([1.0, 0.0]) for row in ROWS for name in SUMS}
    over = ROWS[1]
    found |= {f"{over}, {low:g}: {WITHIN}": np.array([1.0, 1.0]) for low, _ in BANDS}
    # A target that is reached with less money than any fixed choice needs is none of the oracle's.
    found[f"{ORACLE}, {BANDS[0][0]:g}: {WITHIN}"] = np.array([0.0, 0.0])
    lines = rival_budgets.table(found, {}).splitlines()
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in lines
        if line.startswith("|")
    }
    assert rows[COACH][-1] == rows[ORACLE][-1] == "5 of 5" and rows[over][-1] == "2 of 5"
    first = {line.split("|")[1].strip(): line for line in lines[:12]}
    assert "| 20 | 8 | 40.0 % |" in first[over]
    assert "| 20 | 20 | 100.0 % |" in first[COACH]
    assert {OVER, TOGETHER} < set(SUMS)
