"""What `coach why` says for each reason that there is: pages in `__snapshots__/test_why`."""

from __future__ import annotations

import re

import pytest
from syrupy.assertion import SnapshotAssertion

from coach.core.jobs.reasons import Reason, State
from coach.handler.state.journal import fold
from coach.report.why import why
from tests.core.lifecycle.faulty_cluster import World, nodes, spec
from tests.report.recorded_jobs import BUDGET, half_way
from tests.wording.conftest import CHANGED


@pytest.fixture(scope="module")
def trains() -> World:
    """Two jobs in the middle of training."""
    return half_way()


@pytest.fixture(scope="module")
def waits() -> World:
    """Three jobs on a node for one, digits the last."""
    world = World.of(nodes(1, 1.7))
    for name in ("first", "second", "digits"):
        world.submit(spec(name, budget=BUDGET))
    return world


def lines(world: World, reason: Reason | None) -> str:
    """The words for the job digits with a reason; None: while no handler has it."""
    jobs = fold(world.history)
    if reason is not None:
        job = jobs["digits"]
        job.state, job.reason, job.message = reason.state or State.FAILED, reason, "what exactly"
    said = why(jobs["digits"], jobs, world.reducer.nodes.all, world.history[-1].at, orphan=reason is None).lines
    return "\n  ".join([reason.value if reason else "(no handler)", *said]) + "\n"


def test_a_job_that_waits(waits: World, page: SnapshotAssertion) -> None:
    reasons = [reason for reason in Reason if reason.state in (State.QUEUED, State.WAITING)]
    assert "\n".join(lines(waits, reason) for reason in reasons) == page, CHANGED


def test_a_job_that_has_ended(trains: World, page: SnapshotAssertion) -> None:
    """For each reason of an end or of a failed attempt, as both may be the last."""
    reasons = [reason for reason in Reason if (state := reason.state) is None or state.ended]
    assert "\n".join(lines(trains, reason) for reason in reasons) == page, CHANGED


def test_a_job_that_trains(trains: World, page: SnapshotAssertion) -> None:
    """Numbers follow from estimates, which get better; the words stay."""
    reasons = [Reason.PROBING_SPEED, Reason.TRAINING_EPOCH, None]
    assert re.sub(r"\d+(\.\d+)?", "N", "\n".join(lines(trains, reason) for reason in reasons)) == page, CHANGED
