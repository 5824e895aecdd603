"""PyTorch's functions in pods, in the image that `scripts/images.py functions-pytorch` makes of Debian's PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from scripts import images
from tests.kubernetes.cluster import ROOT, ExistingCluster
from tests.kubernetes.installed import LARGE, Coach, job
from tests.kubernetes.test_more_scenarios import ENDLESS, went_on

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

#: A job whose two workers are on two nodes.
PYTORCH = {
    "framework": "pytorch",
    "model": {"file": "/opt/coach/functions/models/pytorch/lenet.py:LeNet"},
    "optimizer": {"name": "SGD", "lr": 0.05},
    "workers": {"min": 2, "max": 2},
    "servers": {"min": 0, "max": 0},
    "resources": {role: LARGE[role] for role in ("scheduler", "worker")},
}


@pytest.fixture(scope="module")
def pytorch(coach: Coach, cluster: ExistingCluster) -> Iterator[None]:
    subprocess.run([sys.executable, "scripts/images.py", "functions-pytorch"], cwd=ROOT, check=True)
    cluster.load_image(images.OUT / "coach-functions-pytorch.tar")
    coach.upgrade("functions.pytorchImage.repository=coach-functions-pytorch")
    yield
    coach.upgrade()


@pytest.mark.usefixtures("pytorch")
def test_a_pytorch_job_trains_to_its_target_in_pods_on_two_nodes(coach: Coach) -> None:
    coach.apply(job("torch", **PYTORCH))
    coach.training("torch")
    workers = {node for pod, node in coach.pods("torch").items() if "worker" in pod}
    assert len(workers) == 2
    status = coach.ended("torch")
    assert status["state"] == "Succeeded" and status["loss"] <= 0.6
    assert coach.paid("torch") == 0


@pytest.mark.usefixtures("pytorch")
def test_a_pytorch_worker_that_is_lost_costs_an_attempt_at_most(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(job("bitten", **(PYTORCH | ENDLESS)))
    coach.training("bitten", epochs=2)
    cluster.kubectl("delete", "pod", "bitten-worker-1", "--grace-period=0", "--force")
    went_on(coach, "bitten")
