"""Checkpoints and data in an object store: functions that have no volume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import ExistingCluster
from tests.kubernetes.installed import Coach, job, ours, write_digits
from tests.kubernetes.test_more_scenarios import ENDLESS, went_on
from tests.object_store import ObjectStore

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


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
