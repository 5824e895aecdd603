"""What follows from a TrainingJob and its job, state by state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coach.controller.reconcile import FINALIZER, Resource, Step, StepKind, next_step
from coach.core.jobs import events as ev
from coach.core.jobs import fold
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.parts import JobStop
from coach.core.jobs.reasons import Reason, State
from coach.core.money import to_money
from tests.core.lifecycle.faulty_cluster import spec as job_file
from tests.core.lifecycle.faulty_cluster import usd


def resource(**changes: Any) -> Resource:
    return Resource(**{"deleting": False, "finalizer": True, "suspend": False, "budget": to_money(1.0), **changes})


def job(**changes: Any) -> Job:
    """A job that was submitted with a budget of 1 USD."""
    made = fold.submitted(ev.JobSubmitted(0.0, "job", job_file("job", budget=usd(1.0)), "file:///checkpoints"))
    return replace(made, **changes)


ENDED = {"phase": Phase.ENDED, "state": State.SUCCEEDED}
BROKE = {"phase": Phase.ENDED, "state": State.BUDGET_EXHAUSTED}
PAUSED = {"phase": Phase.PAUSED, "stop": JobStop(suspend=True), "reason": Reason.SUSPENDED}


@pytest.mark.parametrize(
    ("found", "there", "expected"),
    [
        (resource(finalizer=False), None, Step(StepKind.ADD_FINALIZER)),
        (resource(), None, Step(StepKind.SUBMIT)),
        (resource(suspend=True), None, None),
        (resource(), {}, None),
        (resource(suspend=True), {}, Step(StepKind.SUSPEND)),
        (resource(suspend=True), {"stop": JobStop(suspend=True)}, None),
        (resource(), PAUSED, Step(StepKind.RESUME)),
        (resource(budget=to_money(3.0)), {}, Step(StepKind.RESUME, to_money(3.0))),
        (resource(budget=to_money(0.5)), {}, None),
        (resource(budget=None), {}, None),
        (resource(priority=5), {}, Step(StepKind.SET_PRIORITY)),
        (resource(priority=5), PAUSED, Step(StepKind.SET_PRIORITY)),
        (resource(priority=5), ENDED, None),
        (resource(), ENDED, None),
        (resource(budget=to_money(3.0)), ENDED, None),
        (resource(), BROKE, None),
        (resource(budget=to_money(3.0)), BROKE, Step(StepKind.RESUME, to_money(3.0))),
        (resource(budget=to_money(3.0), suspend=True), BROKE, None),
        (resource(deleting=True), {}, Step(StepKind.CANCEL)),
        (resource(deleting=True), {"stop": JobStop(cancel=True)}, None),
        (resource(deleting=True), ENDED, Step(StepKind.REMOVE_FINALIZER)),
        (resource(deleting=True), None, Step(StepKind.REMOVE_FINALIZER)),
        (resource(deleting=True, finalizer=False), None, None),
    ],
)
def test_next_step(found: Resource, there: dict[str, Any] | None, expected: Step | None) -> None:
    assert next_step(found, None if there is None else job(**there)) == expected


def test_an_object_is_read() -> None:
    found = {
        "metadata": {"name": "a", "finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"budget": {"amount": 2.5, "currency": "USD"}, "suspend": True},
    }
    assert Resource.of(found) == Resource(True, True, True, to_money(2.5))
    assert Resource.of({"metadata": {}, "spec": {"budget": {"unlimited": True}}}) == Resource(False, False, False, None)
