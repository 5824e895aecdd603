"""Measured curves that rest at their start and then drop: no job of one is thrown away while it has money."""

from __future__ import annotations

import pytest

from benchmarks.decisions.early_ends import Case, ends, of_plateaus

pytestmark = pytest.mark.standard

#: The first run of each kind.
CASES = {case.family: case for case in reversed(list(of_plateaus()))}


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.family)
def test_a_curve_that_rests_first_reaches_its_target(case: Case) -> None:
    found = ends(case)
    assert case.reached is not None and found.now == {100: None, 200: None, 500: None, None: None}


def test_the_rule_before_ended_most_of_them() -> None:
    assert sum(ends(case).before is not None for case in CASES.values()) >= 4
