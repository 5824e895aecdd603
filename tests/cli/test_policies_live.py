"""Each allocation policy takes two real jobs to their targets on a cluster that is too small for both."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from coach.handler.state.state_directory import StateDirectory
from tests.cli.conftest import ROOT
from tests.cli.test_run import COACH, as_json, assert_nothing_left, write_job

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(500)]

#: Policy -> the word of its decisions. `make all-tests` runs all, `make test` one of each kind: what they decide
#: is tested without processes.
WORDS = {
    "fifo": "queue",
    "srtf": "shortest",
    "drf": "fair",
    "tetris": "packing",
    "optimus": "utility",
} | dict.fromkeys(("fitgpp", "lrtp", "rand"), "queue")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "fitgpp" else pytest.mark.full) for name in WORDS],
)
def test_two_jobs_reach_their_targets_under(name: str, home: StateDirectory, tmp_path: Path) -> None:
    """A node of 2 cores: one job could have 2x2 (1.65 cores), both together 1x1 each."""
    roles = {
        role: {"cpu": cpu, "memory": "512Mi"}
        for role, cpu in (("scheduler", "50m"), ("server", "300m"), ("worker", "500m"))
    }
    soon = {"accuracy": 0.8, "epochsInARow": 1}
    files = [
        str(write_job(tmp_path / f"{job}.yaml", job, resources=roles, target=soon, **{"class": kind}))
        for job, kind in (("first", "best-effort"), ("second", "trial-and-error"))
    ]
    words = ["run", *files, "--nodes", "1x2", "--policy", name, "-o", "json"]
    done = subprocess.run(
        [*COACH, *words], cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"policy {name}," in done.stderr
    assert {row["name"]: row["state"] for row in json.loads(done.stdout)} == {
        "first": "Succeeded",
        "second": "Succeeded",
    }
    for job in ("first", "second"):
        assert any(f": {WORDS[name]}, " in why for why in as_json("show", job)["why"])
    assert_nothing_left(home)
