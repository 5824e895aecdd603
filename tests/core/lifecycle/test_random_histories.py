"""Whatever happens to any jobs on any cluster: the rules of `faulty_cluster` hold after every event."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coach.core.jobs.reasons import State
from tests.core.lifecycle.random_histories import Scenario, SeededDraws, draw, draw_elastic, draw_programs, main, play

pytestmark = pytest.mark.standard

ROOT = Path(__file__).parents[3]

#: Prints a digest of all records of some histories.
DIGEST = """
import hashlib
from tests.core.lifecycle.random_histories import SeededDraws, draw, play
said = hashlib.sha256()
for number in range(3):
    said.update(repr(play(draw(SeededDraws(f"digest {number}")), shadow=False).history).encode())
print(said.hexdigest())
"""


class DrawnDice:
    """Dice that hypothesis throws."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def whole(self, low: int, high: int) -> int:
        return int(self._draw(st.integers(low, high)))

    def pick(self, *choices: Any) -> Any:
        return choices[self._draw(st.integers(0, len(choices) - 1))]


@st.composite
def histories(draw_from: Any) -> Scenario:
    dice = DrawnDice(draw_from)
    return dice.pick(draw, draw_elastic)(dice)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_every_job_ends_and_no_rule_is_broken_on_the_way(scenario: Scenario) -> None:
    """Never overspent, no partial gang, no node over-committed, nothing twice, nothing lost, and fold == state."""
    world = play(scenario, shadow=True)
    assert {job.name for job in world.reducer.jobs.values()} == set(scenario.dynamics)


def test_forty_histories_from_two_seeds_break_no_rule(capsys: Any) -> None:
    """In seed 8's, a job with `spot` that fitted no node waited for ever once it was resumed."""
    assert main(20, 8) == 0, capsys.readouterr().out
    assert main(20, 5) == 0, capsys.readouterr().out
    table = capsys.readouterr().out
    assert "| overshoots | 0 |" in table and "| broken rules | 0 |" in table
    assert all(f"| ended {state.value} |" in table for state in State if state.ended), "every end is reached"


def test_twelve_histories_of_programs_break_no_rule(capsys: Any) -> None:
    assert main(12, 7, draw_programs) == 0, capsys.readouterr().out
    assert "| overshoots | 0 |" in capsys.readouterr().out


def test_seven_histories_of_elastic_groups_break_no_rule(capsys: Any) -> None:
    assert main(7, 2, draw_elastic) == 0, capsys.readouterr().out
    table = capsys.readouterr().out
    assert "| overshoots | 0 |" in table and "gifts within an epoch | 0 |" not in table


def test_the_same_events_lead_to_the_same_actions() -> None:
    for number in range(5):
        one, other = (play(draw(SeededDraws(f"same {number}")), shadow=False) for _ in range(2))
        assert one.history == other.history


def test_no_action_depends_on_the_order_of_hashes() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", DIGEST],
            env={**environment, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1")
    ]
    said = {run.communicate()[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0] and len(said) == 1
