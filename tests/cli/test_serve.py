"""`coach serve` as people run it: a process of its own, and real MXNet groups."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from coach.handler import endpoint
from coach.handler.state.state_directory import StateDirectory
from tests.cli.conftest import ROOT
from tests.cli.test_run import as_json, assert_nothing_left, coach, started, write_job

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions", "one_template"), pytest.mark.timeout(300)]


def test_a_service_trains_a_submitted_job_to_its_target(home: StateDirectory, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.yaml")
    allowed = ("--allow", str(tmp_path), "--allow", str(ROOT))
    with started("serve", "--port", "0", *allowed, "--log-format", "json") as service:
        service.until("serving at http://127.0.0.1:")
        done = coach("submit", str(job), "-o", "json")
        assert done.returncode == 0, done.stderr
        assert [row["name"] for row in json.loads(done.stdout)] == ["digits"]
        followed = coach("events", "digits", "-f")
        assert followed.returncode == 0
        assert re.search(r"mini-epoch 1 \(\d+ % of the data\): 1x1 loss", followed.stdout)
        assert "Succeeded: accuracy " in followed.stdout.splitlines()[-1]
        (row,) = as_json("ps")
        assert (row["state"], row["reason"], row["reserved"]) == ("Succeeded", "TargetReached", 0)
        assert 0 < row["spent"] < row["budget"]
        again = coach("run", str(job), "-o", "json")  # joins: another name, and what the first one measured
        assert again.returncode == 0, again.stderr
        (second,) = json.loads(again.stdout)
        assert (second["name"], second["state"]) == ("digits-2", "Succeeded")
        assert "earlier jobs like it measured the speed of" in again.stderr
        assert "worker-0" in coach("logs", "digits").stdout
        service.signal(signal.SIGINT)
        code, said = service.end()
    assert code == 0
    assert all(isinstance(json.loads(line), dict) for line in said.splitlines())
    token = (home.path / "token").read_text().strip()
    assert token not in said
    assert endpoint.find(home) is None
    assert_nothing_left(home)


@pytest.mark.full
def test_a_stopped_job_goes_on_with_resume_in_the_foreground(home: StateDirectory, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.yaml", budget={"unlimited": True}, target={"accuracy": 0.93, "epochsInARow": 6})
    with started("run", str(job)) as run:
        run.until(r"digits: epoch 3")
        run.signal(signal.SIGINT)
        assert run.end()[0] == 130
    stopped = as_json("show", "digits")
    done = coach("resume", "digits", "-o", "json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["state"] == "Succeeded"
    assert f"resumed from the checkpoint of epoch {stopped['epoch']}" in done.stderr
    assert as_json("show", "digits")["epochs"][: len(stopped["epochs"])] == stopped["epochs"]
    assert_nothing_left(home)
