"""What values of the chart change: an object store in place of the volume, and an image for PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import images
from tests.kubernetes.cluster import ROOT, ExistingCluster
from tests.kubernetes.installed import LARGE, Coach, job, ours, write_digits
from tests.kubernetes.test_more_scenarios import ENDLESS, went_on
from tests.object_store import ObjectStore

pytestmark = [pytest.mark.full, pytest.mark.timeout(900), pytest.mark.usefixtures("no_job_left")]


@pytest.fixture
def stored(coach: Coach, cluster: ExistingCluster, tmp_path: Path) -> Iterator[ObjectStore]:
    """A store with the digits, which the chart's values name."""
    store = ObjectStore(tmp_path, ours(cluster).outside)
    digits = store.bucket / "digits"
    digits.mkdir()
    write_digits(digits)
    store.start()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "stringData": store.environment}
    cluster.apply(secret)
    coach.upgrade("objectStore.uri=s3://bucket/checkpoints", "objectStore.secret=store")
    try:
        yield store
    finally:
        coach.upgrade()
        cluster.kubectl("delete", "secret", "store")
        store.kill()


def test_a_job_trains_from_and_into_an_object_store_and_outlasts_its_worker_and_the_store(
    coach: Coach, cluster: ExistingCluster, stored: ObjectStore
) -> None:
    coach.apply(job("stored", data={"uri": "s3://bucket/digits", "format": "digits-json"}, **ENDLESS))
    epochs = coach.training("stored", epochs=2)["epochs"]
    worker = cluster.get("pod", "stored-worker-0")
    assert "persistentVolumeClaim" not in json.dumps(worker["spec"]["volumes"])
    cluster.kubectl("delete", "pod", "stored-worker-0", "--grace-period=0", "--force")
    epochs = coach.training("stored", epochs=epochs + 2)["epochs"]
    stored.kill()
    stored.start()
    coach.training("stored", epochs=epochs + 2)
    assert went_on(coach, "stored") >= 1
    kept = [name for name in stored.objects() if name.endswith(".ckpt")]
    assert 2 <= len(kept) <= 6 and all(name.startswith("checkpoints/stored/") for name in kept), kept
    logs = cluster.kubectl("logs", "deploy/coach-handler")
    assert stored.environment["AWS_SECRET_ACCESS_KEY"] not in logs


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
