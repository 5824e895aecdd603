"""A decision's steps are data, and their text is what people read."""

import math

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs.decision import DecisionStep, StepKind

ONE, TWO = Allocation(1, 1), Allocation(2, 1)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            DecisionStep(StepKind.TAKEN, ONE, TWO, "speed", 0.0041, "epochs/s", 0.0123),
            "job a 1x1 -> 2x1: speed, 0.0041 epochs/s, an epoch costs 0.0123",
        ),
        (
            DecisionStep(StepKind.TAKEN, TWO, ONE, "restart", 1.2, "s saved", restart=2.5),
            "job a 2x1 -> 1x1: restart, 1.2 s saved by changing, and a restart costs 2.5",
        ),
        (DecisionStep(StepKind.TAKEN, None, None, "cpu", 0.0), "job a nothing -> waits: cpu"),
        (
            DecisionStep(StepKind.REFUSED, ONE, TWO, "too-little", 1e-4, "epochs/s"),
            "job a 1x1, not 2x1: too-little, 0.0001 epochs/s",
        ),
        (
            DecisionStep(StepKind.PROBE, after=TWO, gain=120.4, unit="s", cost=1.234, fraction=0.05),
            "probe 2x1: expected to save 120 s, takes 1.23 s; at most 5.0% of the data",
        ),
        (
            DecisionStep(StepKind.PROBE, after=ONE, fraction=0.1),
            "probe 1x1: no speed is known yet; at most 10.0% of the data",
        ),
        (DecisionStep(StepKind.FIXED, after=ONE), "as its file says"),
        (DecisionStep(StepKind.ALONE, after=ONE), "no other job holds pods: 1x1"),
        (
            DecisionStep(StepKind.DEGRADED, TWO, ONE, "1 of 4 functions were not ready in time"),
            "1 of 4 functions were not ready in time; 1x1 instead of 2x1",
        ),
        (
            DecisionStep(StepKind.UNCOVERED, TWO, ONE),
            "2x1 is not covered by the budget any more: 1x1 instead",
        ),
    ],
)
def test_each_kind_of_step_has_a_text(step: DecisionStep, text: str) -> None:
    assert step.text("a") == text


def test_numbers_that_json_does_not_have_are_left_out() -> None:
    step = DecisionStep(StepKind.TAKEN, ONE, TWO, "speed", math.inf, "epochs/s", math.nan)
    assert (step.gain, step.cost) == (None, None)
    assert step.text("a") == "job a 1x1 -> 2x1: speed"
