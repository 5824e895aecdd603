"""The cluster of these tests: one of our own on this machine, or the user's by KUBECONFIG."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import images
from tests.kubernetes.cluster import Cluster, ExistingCluster, Unready, existing
from tests.kubernetes.installed import Coach, ours
from tests.kubernetes.machines.gpus import DevicePlugins


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder needs the cluster."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("kubernetes")


@pytest.fixture(scope="session")
def cluster() -> Iterator[ExistingCluster]:
    """A cluster with the images coach-handler, coach-functions and coach-scheduler on every node."""
    if os.environ.get("KUBECONFIG"):
        yield existing()
        return
    try:
        with Cluster() as started:
            for name in images.STANDARD:
                started.load_image(images.OUT / f"coach-{name}.tar")
            yield started
    except Unready as error:
        pytest.exit(f"test-kubernetes: {error}", returncode=1)


@pytest.fixture(scope="session")
def coach(cluster: ExistingCluster) -> Iterator[Coach]:
    """Coach, installed by its chart; nothing of it is left afterwards."""
    installed = Coach(cluster)
    installed.install()
    yield installed
    installed.uninstall()


@pytest.fixture
def no_job_left(coach: Coach) -> Iterator[None]:
    """A failed test's job does not disturb the next one's."""
    yield
    coach.cluster.kubectl("delete", "trainingjobs", "--all", "--timeout=60s")


@pytest.fixture
def plugins(cluster: ExistingCluster) -> Iterator[DevicePlugins]:
    """Device plugins of the nodes, which a test starts."""
    with contextlib.closing(DevicePlugins(ours(cluster))) as made:
        yield made
