"""The published simulator's rules, on cases that can be counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from coach_research.dl2.released import RULES, Slot, run
from coach_research.dl2.slots import Case
from coach_research.scenario import load

GPU, CPU = (4, 4), (4, 0)


def given(rule: str, pairs: list[tuple[int, int]], left: list[float], nodes: int = 2, most: int = 16) -> list[int]:
    slot = Slot(nodes, most, np.array(pairs), np.array(left))
    RULES[rule](slot)
    assert (slot.used <= 8).all()
    found: list[int] = slot.given.tolist()
    return found


@pytest.mark.parametrize(
    ("rule", "left", "expected"),
    [
        ("DRF", [1.0, 0.5], [2, 2]),
        ("FIFO", [1.0, 0.5], [3, 1]),
        ("SRTF", [1.0, 0.5], [1, 3]),
        ("Tetris", [1.0, 0.5], [3, 1]),
        ("Tetris", [0.5, 1.0], [1, 3]),
    ],
)
def test_four_places_go_to_whom_the_rule_prefers(rule: str, left: list[float], expected: list[int]) -> None:
    assert given(rule, [GPU, GPU], left, most=3) == expected


@pytest.mark.parametrize("rule", list(RULES))
def test_no_rule_gives_more_than_the_most_or_than_there_is(rule: str) -> None:
    assert given(rule, [GPU], [1.0], nodes=3, most=5) == [5]
    assert sum(given(rule, [GPU, CPU, GPU], [0.3, 0.2, 1.0], nodes=3)) == 6


@pytest.mark.parametrize("rule", RULES.values())
def test_a_job_alone_takes_as_long_as_its_speed_says(rule: Callable[[Slot], None]) -> None:
    case = Case.of({**load("dl2-released").parameters, "jobs": 1})
    _, kinds = case.trace(np.random.default_rng([1, 0]))
    mean, makespan = run(case, 48, 1, rule)
    assert mean == makespan
    assert mean == pytest.approx(1 / case.progress[kinds[0], 16, 16])
