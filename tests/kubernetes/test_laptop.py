"""A user outside the cluster: `coach run --platform kubernetes`, and `coach --context NAME` for the cluster's jobs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from tests.kubernetes.cluster import ROOT, Cluster
from tests.kubernetes.installed import Coach, job
from tests.kubernetes.test_cluster import wait_for


def coach_command(coach: Coach, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`coach` on this machine, with the cluster's kubeconfig."""
    environment = {**os.environ, "KUBECONFIG": str(coach.cluster.kubeconfig), "COACH_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "coach.cli.main", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A job file with a model of this machine, and the digits of the cluster's volume."""
    model = tmp_path / "own_lenet.py"
    model.write_text((ROOT / "functions/models/lenet.py").read_text())
    document = job("laptop", model={"file": "own_lenet.py"}, target={"loss": 0.3, "epochsInARow": 1})
    document["spec"]["data"]["uri"] = "/var/lib/coach/data/mnist-digits"
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_handler_outside_trains_a_model_of_its_own_in_pods(coach: Coach, file: Path, tmp_path: Path) -> None:
    ran = coach_command(coach, tmp_path / "home", "run", "--platform", "kubernetes", str(file), "-o", "json")
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(coach_command(coach, tmp_path / "home", "show", "laptop", "-o", "json").stdout)
    assert shown["state"] == "Succeeded" and shown["spent"] <= shown["budget"]
    assert shown["spent"] == pytest.approx(sum(epoch["cost"] for epoch in shown["epochs"]), rel=0.2)
    assert "ready" in coach_command(coach, tmp_path / "home", "logs", "laptop").stdout
    coach.nothing_left("laptop")
    assert len(shown["epochs"]) > 3
    if isinstance(coach.cluster, Cluster):
        left = list((coach.cluster.shared / "checkpoints/laptop").glob("*.ckpt"))
        assert 2 <= len(left) <= 3, "the functions delete older ones"


def test_the_jobs_of_the_cluster_are_seen_and_changed_from_outside(coach: Coach, file: Path, tmp_path: Path) -> None:
    def remote(*arguments: str) -> str:
        context = ("--context", coach.cluster.kubectl("config", "current-context").strip())
        done = coach_command(coach, tmp_path / "home", *context, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "applied" in remote("submit", str(file))
    coach.training("laptop")
    remote("suspend", "laptop")  # at once: on a slow machine each command takes an epoch, and the job ends by itself
    coach.until("laptop", lambda status: status.get("reason") == "Suspended", "suspended")
    assert "laptop" in remote("ps")
    assert "laptop is Waiting" in remote("why", "laptop")
    assert "worker-0" in remote("logs", "laptop")
    assert "submitted" in remote("events", "laptop")
    assert "pods of coach-functions" in remote("doctor")
    coach.nothing_left("laptop")
    remote("resume", "laptop")
    assert coach.ended("laptop")["state"] == "Succeeded"
    shown = json.loads(remote("show", "laptop", "-o", "json"))
    assert shown["state"] == "Succeeded"
    model = tmp_path / "laptop.npz"
    assert str(model) in remote("model", "laptop", "-o", str(model))
    card = json.loads(model.with_name("laptop.npz.json").read_text())
    assert card["loss"] == shown["best_loss"] and card["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
    assert "weights/0.weight" in np.load(model)
    coach.apply(job("unwanted", target={"loss": 1.0, "epochsInARow": 1000}, maxEpochs=2000))
    coach.training("unwanted")
    remote("cancel", "unwanted")
    assert coach.ended("unwanted")["state"] == "Cancelled"
    failed = coach_command(coach, tmp_path / "home", "--context", "nowhere", "ps")
    assert failed.returncode == 2 and "no such context" in failed.stderr


def answers(url: str, cookies: httpx.Cookies) -> bool:
    """Whether a new connection gets the jobs."""
    try:
        return httpx.get(f"{url}/api/v1/jobs", cookies=cookies).status_code == 200
    except httpx.TransportError:
        return False


def test_the_clusters_page_is_reached_from_outside(coach: Coach, tmp_path: Path) -> None:
    context = coach.cluster.kubectl("config", "current-context").strip()
    with subprocess.Popen(
        [sys.executable, "-m", "coach.cli.main", "--context", context, "ui", "--no-browser"],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": str(coach.cluster.kubeconfig), "COACH_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as opened:
        try:
            assert opened.stdout is not None
            url, _, code = opened.stdout.readline().strip().partition("/ui/#login=")
            with httpx.Client(base_url=url, headers={"Origin": url}) as browser:
                assert "<html" in browser.get("/ui/").text
                assert browser.get("/api/v1/jobs").status_code == 401
                assert browser.post("/api/v1/login", json={"code": code}).status_code == 200
                assert browser.post("/api/v1/login", json={"code": code}).status_code == 403, "once"
                assert browser.get("/api/v1/jobs").status_code == 200
                handler = ("-l", "app.kubernetes.io/component=handler")
                coach.cluster.kubectl("delete", "pod", *handler, "--grace-period=0", "--force")
                wait_for("page of another handler, by the same login", lambda: answers(url, browser.cookies))
        finally:
            opened.send_signal(signal.SIGINT)
        assert opened.wait(30) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
