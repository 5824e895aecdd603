"""Each allocation policy takes two real jobs to their targets on a cluster that is too small for both."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coach.core.policies.dl2.policy import Dl2Policy
from coach.handler.state.state_directory import StateDirectory
from coach.plugins import policy
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
    "dl2": "learned",
} | dict.fromkeys(("fitgpp", "lrtp", "rand"), "queue")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in {"fitgpp", "dl2"} else pytest.mark.full) for name in WORDS],
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


def test_a_network_that_does_not_decide_leaves_it_to_drf_and_why_says_so(
    home: StateDirectory, tmp_path: Path
) -> None:
    chosen = policy("dl2")
    assert isinstance(chosen, Dl2Policy)
    broken = {name: array * np.float32(1e20) for name, array in chosen.network.weights.items()}
    weights = tmp_path / "broken.npz"
    weights.write_bytes(replace(chosen.network, weights=broken).to_bytes())
    file = write_job(tmp_path / "one.yaml", "one", target={"accuracy": 0.8, "epochsInARow": 1})
    words = ["run", str(file), "--policy", f"dl2:{weights}", "-o", "json"]
    done = subprocess.run(
        [*COACH, *words], cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert any(": fallback, " in why for why in as_json("show", "one")["why"])
    assert_nothing_left(home)
