"""The cluster of these tests: a real Slurm on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.required import missing
from tests.slurm.cluster import PACKAGES, SlurmCluster
from tests.slurm.cluster import missing as absent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder needs the cluster, and root."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slurm")
            item.add_marker("root")
            item.add_marker("processes")


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    """A controller and three nodes."""
    if os.geteuid() != 0 or absent():
        missing(f"Slurm needs root, and: apt-get install {' '.join(PACKAGES)}")
    with SlurmCluster() as started:
        yield started


@pytest.fixture
def slurm(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The cluster, which this process reaches; nothing of a test is left in its queue."""
    yield from reached(cluster, monkeypatch)


@pytest.fixture
def forgetful(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """Another one, whose controller forgets: its nodes take no job any more that has the id of one that they had."""
    with SlurmCluster() as started:
        yield from reached(started, monkeypatch)


def reached(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """A cluster for one test."""
    for name, value in {**cluster.env, "COACH_SLURM_INTERVAL": "0.5"}.items():
        monkeypatch.setenv(name, value)
    cluster.whole()
    yield cluster
    left = cluster.queue("pending,running,suspended", "%i %j %T %k")
    cluster.cancel_all()
    assert not left, "nothing is left in the queue"
