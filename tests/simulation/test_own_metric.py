"""Jobs of model files with a metric by name, and epochs that are a part of the data, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from coach.core.cluster import Node, Resources
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.plugins import policy
from coach.simulation.dynamics.from_journal import learn, runs_of
from coach.simulation.dynamics.measured_speeds import find_speed
from coach.simulation.dynamics.synthetic import assumed
from coach.simulation.reducer_simulation import Driver
from tests.core.lifecycle.faulty_cluster import spec

NODES = (Node("n", Resources(16.0, 32.0)),)


@pytest.mark.parametrize(
    "target",
    [
        {"metric": "f1", "value": 0.9},
        {"metric": "perplexity", "value": 12.5},
        {"metric": "elo", "value": 1500, "goal": "maximize"},
    ],
)
def test_a_job_reaches_its_metric_by_name_as_assumed_and_as_it_was_measured(target: dict[str, Any]) -> None:
    document = spec(target={**target, "epochsInARow": 1}, epoch={"time": "5m"}, budget={"unlimited": True})
    job = TrainingJob.from_json(document)
    found = assumed(job, find_speed("resnet-50"), epoch_seconds=10.0, epochs=12.0)
    for _ in range(2):
        records: list[Any] = []
        driver = Driver(NODES, policy("coach"), journal=records.append)
        driver.submit_at(0.0, "job", document, found)
        driver.run()
        ended = driver.ended["job"]
        assert ended.reason is Reason.TARGET_REACHED
        assert 10 <= ended.final.epochs_trained <= 15
        found = learn(list(runs_of(records).values()))
