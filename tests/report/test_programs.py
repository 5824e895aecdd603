"""What is said of programs whose workers change: before they start, why they have what they have, and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Node, Resources
from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from coach.handler.state.journal import fold
from coach.handler.state.state_directory import StoredJob
from coach.report.figures.job import Story, one_figure
from coach.report.history import history
from coach.report.plan import plan
from coach.report.why import why
from tests.simulation.test_programs import document, dynamics, run

pytestmark = pytest.mark.standard
NODES = (Node("node", Resources(4, 8)),)
SHA = "a" * 64


def trained(**changes: Any) -> tuple[Job, list[Any]]:
    """A simulated program that went from one worker to four, and the records of its journal."""
    program = {"command": ["train"], "resumes": True, "sha256": SHA, **changes.pop("program", {})}
    _, records = run((0.0, document(program=program, **changes), dynamics()))
    return fold(records)["own"], records


def test_a_plan_knows_what_a_change_took_of_an_earlier_job_and_what_it_reached() -> None:
    job, _ = trained()
    missed = {"metric": "eval_loss", "value": 0.01, "epochsInARow": 1}
    program = {"command": ["train"], "resumes": True, "sha256": SHA}
    for target, words in (
        (None, "own reached this target after 16 passes"),
        (missed, "best eval_loss 0.1449"),
    ):
        file = document("next", program=program, **({} if target is None else {"target": target}))
        found = plan(
            TrainingJob.from_json(file),
            {"own": StoredJob(job, Path("journal.db"), False, frozenset({NODES}))},
            NODES,
        )
        assert any("a start with other workers: 10" in known for known in found.known), found.known
        assert any(words in known for known in found.known), found.known
        assert [row.workers for row in found.rows if row.measured] == [1, 4] and not found.probes
        for row in (row for row in found.rows if row.measured and row.job_seconds and row.seconds and row.job_cost):
            assert row.job_seconds == pytest.approx(found.epochs * row.seconds + 8.0, abs=0.5), "it starts once"
            assert row.job_cost == pytest.approx(row.job_seconds / 3600 * row.cost_per_hour, rel=1e-3)


def test_why_events_and_the_figure_say_what_a_change_did_to_the_batch() -> None:
    job, records = trained()
    running = fold(records[: next(i for i, one in enumerate(records) if getattr(one, "token", "") == "own.6")])
    said = why(running["own"], running, NODES, 300.0).lines
    assert "With 4 workers: a batch a worker: 4 times as many samples a step as with 1 worker" in said
    assert any(line.startswith("A change of its workers starts it again, and takes 10") for line in said)
    events = [line.text for line in history(records)]
    assert any(line.startswith("measures 4 workers: expected to save") for line in events)
    assert any("4 times as many samples a step" in line for line in events)
    assert b"1 to 4 batches a step" in one_figure(Story.of(job, records, 500.0), "allocation", "svg")


def test_a_batch_that_the_program_divides_is_said_to_stay() -> None:
    job, records = trained(program={"batch": "per-job"})
    assert any("as many samples a step as with 1 worker" in line.text for line in history(records))
    assert b"one batch a step, divided" in one_figure(Story.of(job, records, 500.0), "allocation", "svg")
