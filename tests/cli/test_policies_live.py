"""Each allocation policy takes two real jobs to their targets on a cluster that is too small for both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coach.handler.home import Home
from tests.cli.test_run import as_json, assert_nothing_left, coach, write_job

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(300)]

#: Policy -> the word of its decisions.
WORDS = {
    "fifo": "queue",
    "srtf": "shortest",
    "drf": "fair",
    "tetris": "packing",
    "optimus": "utility",
} | dict.fromkeys(("fitgpp", "lrtp", "rand"), "queue")


@pytest.mark.parametrize("name", WORDS)
def test_two_jobs_reach_their_targets_under(name: str, home: Home, tmp_path: Path) -> None:
    """A node of 2 cores: one job could have 2x2 (1.65 cores), both together 1x1 each."""
    roles = {
        role: {"cpu": cpu, "memory": "512Mi"}
        for role, cpu in (("scheduler", "50m"), ("server", "300m"), ("worker", "500m"))
    }
    files = [str(write_job(tmp_path / f"{job}.yaml", job, resources=roles)) for job in ("first", "second")]
    done = coach("run", *files, "--nodes", "1x2", "--policy", name, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert f"policy {name}," in done.stderr
    assert {row["name"]: row["state"] for row in json.loads(done.stdout)} == {
        "first": "Succeeded",
        "second": "Succeeded",
    }
    for job in ("first", "second"):
        assert any(f": {WORDS[name]}, " in why for why in as_json("show", job)["why"])
    assert_nothing_left(home)
