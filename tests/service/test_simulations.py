"""What if, over the API: a job of the service and one of a file, under two policies; and what is no such question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coach import Client
from coach.core.cluster import Node, Resources
from coach.core.errors import UserError
from coach.handler.state.state_directory import StateDirectory
from coach.jobfiles.load import load_jobs
from coach.report.simulation.tables import job_rows, timeline_rows
from coach.service.schemas import SimulatedNodes
from coach.service.views import simulations
from coach.studies.simulation_inputs import of_specs
from coach.studies.study import Question, answer
from tests.service.conftest import Api, job_text, serve
from tests.service.test_api import ENDLESS
from tests.service.test_serve import served

pytestmark = pytest.mark.processes


def test_jobs_are_simulated_under_two_policies(home: StateDirectory, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    budget = {"amount": 5.0, "currency": "USD"}
    file.write_text(job_text("a", maxEpochs=30, target={"loss": 0.3}, budget=budget))
    with served(tmp_path), Client() as coach:
        coach.submit([file])
        before = [row.name for row in coach.list_jobs().jobs]
        nodes = SimulatedNodes(count=2, cpu=4, memory=16)
        found = coach.simulate_jobs(["a"], [file], policies=["coach", "static:1x1"], nodes=nodes)
        assert [row.name for row in coach.list_jobs().jobs] == before, "nothing was started"
    assert [run.policy for run in found.runs] == ["coach", "static:1x1"]
    assert found.nodes == 2
    assert sorted(name for origin in found.origins for name in origin.jobs) == ["a", "a-2"]
    for run in found.runs:
        assert [job["job"] for job in run.jobs] == ["a", "a-2"]
        for job in run.jobs:
            assert job["end"] is not None and 0 < job["end"] <= run.seconds
            assert job["cost"] is not None and 0 < job["cost"] <= 5.0
            # The curve of `a` is of what it has trained until now.
            assert job["reached"] == (job["why"] == "TargetReached") and job["why"] in (
                "TargetReached",
                "EpochLimit",
            )
        assert run.timeline == []


def test_the_rows_are_those_of_the_library(home: StateDirectory, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(job_text("new", maxEpochs=30, target={"loss": 0.3}))
    with served(tmp_path), Client() as coach:
        nodes = SimulatedNodes(count=2, cpu=4, memory=16)
        (run,) = coach.simulate_jobs(files=[file], policies=["drf"], nodes=nodes, timeline=True).runs
    assumed = of_specs([one.spec for one in load_jobs([file])], "resnet-50", 10.0, 20.0, assume=True)
    two = tuple(Node(f"node-{number}", Resources(4, 16)) for number in range(2))
    result = answer(Question(tuple(assumed.jobs), tuple(assumed.dynamics), assumed.arrivals, two), "drf", 0)
    assert run.jobs == list(job_rows(result)) and len(run.jobs) == 1
    assert run.timeline == list(timeline_rows(result)) and run.timeline[0]["cpu_used"] > 0


QUESTIONS: list[tuple[dict[str, Any], int, str]] = [
    ({}, 422, "0 jobs: must be 1 to 20"),
    ({"jobs": ["nobody"]}, 404, "there is no job 'nobody'"),
    ({"jobs": ["a"] * 21}, 422, "at most 20"),
    ({"jobs": ["a"], "policies": ["nonsense"]}, 422, "there is no policy"),
    ({"jobs": ["a"], "policies": ["dl2:file=/etc/passwd"]}, 422, "pattern"),
    ({"jobs": ["a"], "policies": ["coach"] * 6}, 422, "at most 5"),
    ({"jobs": ["a"], "nodes": {"count": 10**9, "cpu": 1, "memory": 1}}, 422, "less than or equal to 100"),
    ({"files": [{"path": "/job.yaml", "text": "kind: 1"}]}, 422, "kind"),
]


def test_what_is_no_question_is_one_clear_error(home: StateDirectory) -> None:
    async def body(api: Api) -> None:
        await api.submit("a")
        for question, status, said in QUESTIONS:
            assert said in json.dumps(await api.post("/simulations", question, status)), question

    serve(home, body)


def test_one_that_takes_too_long_is_ended_and_one_runs_at_a_time(
    home: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(api: Api) -> None:
        await api.submit("a", maxEpochs=100_000, **ENDLESS)
        answer = await api.post("/simulations", {"jobs": ["a"], "policies": ["static:1x1"]}, 422)
        assert "the simulation was ended" in answer["error"]
        async with simulations._running:
            assert "another simulation runs" in (await api.post("/simulations", {"jobs": ["a"]}, 409))["error"]

    monkeypatch.setattr(simulations, "SECONDS", 2.0)
    serve(home, body)


def test_a_client_reports_it_as_a_user_error(home: StateDirectory, tmp_path: Path) -> None:
    with served(tmp_path), Client() as coach, pytest.raises(UserError, match="must be 1 to 20"):
        coach.simulate_jobs()
