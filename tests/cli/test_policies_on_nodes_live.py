"""Each policy that decides on nodes takes two real jobs to their targets, on two nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coach.handler.state.state_directory import StateDirectory
from tests.cli.test_run import as_json, assert_nothing_left, coach, write_job

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(300)]


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    ["specon", "round-robin", "kod2", "tf-operator"],
)
def test_two_jobs_reach_their_targets_under(name: str, home: StateDirectory, tmp_path: Path) -> None:
    """Nodes of 2 cores: each holds one job of 2x2 (1.65 cores) or two of 1x1."""
    roles = {
        role: {"cpu": cpu, "memory": "512Mi"}
        for role, cpu in (("scheduler", "50m"), ("server", "300m"), ("worker", "500m"))
    }
    files = [str(write_job(tmp_path / f"{job}.yaml", job, resources=roles)) for job in ("first", "second")]
    done = coach("run", *files, "--nodes", "2x2", "--policy", name, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert f"policy {name}\n" in done.stderr
    assert {row["name"]: row["state"] for row in json.loads(done.stdout)} == {
        "first": "Succeeded",
        "second": "Succeeded",
    }
    for job in ("first", "second"):
        assert any(": planned" in why for why in as_json("show", job)["why"])
    assert_nothing_left(home)
