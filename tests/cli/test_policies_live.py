"""Each allocation policy takes two real jobs to their targets on a cluster that is too small for both."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coach.handler.state.state_directory import StateDirectory
from coach.plugins import policy
from coach_research.policies.dl2.policy import Dl2Policy
from tests.cli.conftest import ROOT
from tests.cli.test_run import as_json, assert_nothing_left, coach, started, write_job

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions", "one_template"), pytest.mark.timeout(500)]

#: Policy -> the word of its decisions. `make all-tests` runs all, `make test` one: what they decide is
#: tested without processes.
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
    done = coach(*words)
    assert done.returncode == 0, done.stderr
    assert f"policy {name}\n" in done.stderr
    assert {row["name"]: row["state"] for row in json.loads(done.stdout)} == {
        "first": "Succeeded",
        "second": "Succeeded",
    }
    for job in ("first", "second"):
        assert any(f": {WORDS[name]}, " in why for why in as_json("show", job)["why"])
    assert_nothing_left(home)


@pytest.mark.full
@pytest.mark.parametrize(("slow_after", "word"), [("60", "learned"), ("0", "fallback, too slow")])
def test_a_service_shares_out_by_a_network_from_a_file_and_why_says_how(
    slow_after: str, word: str, home: StateDirectory, tmp_path: Path
) -> None:
    chosen = policy("dl2")
    assert isinstance(chosen, Dl2Policy)
    (tmp_path / "mine.npz").write_bytes(chosen.network.to_bytes())
    job = write_job(tmp_path / "job.yaml", target={"accuracy": 0.8, "epochsInARow": 20})
    name = f"dl2:weights={tmp_path}/mine.npz,slow_after={slow_after}"
    allowed = ("--allow", str(tmp_path), "--allow", str(ROOT))
    with started("serve", "--port", "0", *allowed, "--policy", name) as service:
        service.until("serving at http://127.0.0.1:")
        assert coach("submit", str(job)).returncode == 0
        seen: list[str] = []
        while not any(f": {word}, " in line for line in seen):
            assert as_json("ps")[0]["state"] != "Succeeded", seen
            seen = as_json("why", "digits")["lines"]
        followed = coach("events", "digits", "-f")
        assert "Succeeded: accuracy " in followed.stdout.splitlines()[-1]
        service.signal(signal.SIGINT)
        code, said = service.end()
    assert code == 0
    assert ("its fallback decides from now on" in said) == (slow_after == "0"), said
    assert_nothing_left(home)


@pytest.mark.full
def test_a_network_that_does_not_decide_leaves_it_to_drf_and_why_says_so(home: StateDirectory, tmp_path: Path) -> None:
    chosen = policy("dl2")
    assert isinstance(chosen, Dl2Policy)
    broken = {name: array * np.float32(1e20) for name, array in chosen.network.weights.items()}
    weights = tmp_path / "broken.npz"
    weights.write_bytes(replace(chosen.network, weights=broken).to_bytes())
    file = write_job(tmp_path / "one.yaml", "one", target={"accuracy": 0.8, "epochsInARow": 1})
    words = ["run", str(file), "--policy", f"dl2:{weights}", "-o", "json"]
    done = coach(*words)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert any(": fallback, " in why for why in as_json("show", "one")["why"])
    assert_nothing_left(home)
