"""Schedulers that are not Coach's: one with the coscheduling plugin, and the cluster's own, also with native gangs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.cluster import ROOT, ExistingCluster
from tests.kubernetes.installed import LARGE, Coach, job, ours
from tests.kubernetes.test_cluster import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(900), pytest.mark.usefixtures("no_job_left")]

PLUGINS = ROOT / "scheduler-plugins"
OTHER = "scheduler-plugins-scheduler"
TWO = {"min": 2, "max": 2}
GROUPS = "podgroups.v1beta1.scheduling.k8s.io"


def fills(number: int, node: str) -> dict[str, Any]:
    """A pod of another namespace that takes more than half of a node's cores; the handler does not see it."""
    container = {
        "name": "sleep",
        "image": "coach-functions:0.1.0",
        "command": ["sleep", "100000"],
        "resources": {"requests": {"cpu": "1100m"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"fills-{number}", "namespace": "crowd"},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]},
    }


@pytest.fixture
def crowded(coach: Coach, cluster: ExistingCluster) -> Iterator[None]:
    """All nodes but one have no room for a large worker."""
    cluster.kubectl("create", "namespace", "crowd")
    wait_for("account", lambda: cluster.kubectl("get", "serviceaccount", "-n", "crowd", "--ignore-not-found"))
    free = coach.free_node()
    full = [name for name in cluster.node_names if name != free]
    cluster.apply(*(fills(number, node) for number, node in enumerate(full)))
    for number, _ in enumerate(full):
        cluster.kubectl("wait", "-n", "crowd", "--for=condition=Ready", f"pod/fills-{number}", "--timeout=60s")
    yield
    cluster.kubectl("delete", "namespace", "crowd", "--ignore-not-found", "--timeout=60s")


@pytest.fixture
def coscheduling(coach: Coach, cluster: ExistingCluster, tmp_path: Path) -> Iterator[None]:
    """A scheduler with the coscheduling plugin, whose PodGroups Coach makes."""
    plane = ours(cluster)
    subprocess.run(["make", "-s", "-C", PLUGINS, "bin/coscheduling"], check=True)
    asked = ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/scheduler-plugins"]
    folder = subprocess.run(asked, cwd=PLUGINS / "test/coscheduling", check=True, capture_output=True, text=True)
    cluster.kubectl("apply", "--server-side", "-f", f"{folder.stdout.strip()}/manifests/coscheduling/crd.yaml")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(cluster.kubeconfig)},
        "profiles": [
            {
                "schedulerName": OTHER,
                "plugins": {
                    "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                    "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
                },
            }
        ],
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    words = [PLUGINS / "bin/coscheduling", "--config", tmp_path / "config.yaml", "--secure-port", "0"]
    running = plane.spawn(words, "coscheduling.log")
    coach.upgrade("scheduler.kind=coscheduling")
    yield
    coach.upgrade()
    running.kill()
    cluster.kubectl("delete", "crd", "podgroups.scheduling.x-k8s.io", "--timeout=60s")


@pytest.mark.usefixtures("coscheduling", "crowded")
def test_under_coscheduling_all_pods_of_a_job_start_or_none(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(job("together", workers=TWO, resources=LARGE))
    coach.until("together", lambda status: "PodGroup" in status.get("message", ""), "waiting for its group")
    assert cluster.get("podgroup", "together")["spec"]["minMember"] == 4
    pods = cluster.get("pods", "-l", "coach.dev/job=together")["items"]
    assert len(pods) == 4 and not [pod for pod in pods if pod["spec"].get("nodeName")]
    cluster.kubectl("delete", "namespace", "crowd", "--timeout=60s")
    assert coach.ended("together")["state"] == "Succeeded"
    assert not cluster.get("podgroups")["items"]
    coach.paid("together")


@pytest.fixture
def native(coach: Coach, cluster: ExistingCluster) -> Iterator[None]:
    """Native gangs, which Kubernetes 1.37 has, switched off."""
    plane = ours(cluster)
    gates = ("--feature-gates=GenericWorkload=true",)
    plane.restart("kube-apiserver", *gates, "--runtime-config=scheduling.k8s.io/v1beta1=true")
    for name in ("kube-controller-manager", "kube-scheduler"):
        plane.restart(name, *gates)
    coach.upgrade("scheduler.kind=native")
    yield
    coach.upgrade()
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        plane.restart(name)


@pytest.mark.skipif(os.environ.get("COACH_KUBERNETES") != "1.37", reason="native gangs are in Kubernetes 1.37")
@pytest.mark.usefixtures("native", "crowded")
def test_with_native_gangs_all_pods_of_a_job_start_or_none(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(job("together", workers=TWO, resources=LARGE))
    coach.until("together", lambda status: "Insufficient cpu" in status.get("message", ""), "waiting for room")
    wait_for("kube-scheduler's verdict", lambda: cluster.get(GROUPS, "together")["status"].get("conditions"))
    group = cluster.get(GROUPS, "together")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    [condition] = group["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("PodGroupInitiallyScheduled", "Unschedulable")
    pods = cluster.get("pods", "-l", "coach.dev/job=together")["items"]
    assert len(pods) == 4 and not [pod for pod in pods if pod["spec"].get("nodeName")]
    cluster.kubectl("delete", "namespace", "crowd", "--timeout=60s")
    assert coach.ended("together")["state"] == "Succeeded"
    wait_for("no PodGroup", lambda: not cluster.get(GROUPS)["items"])
    coach.paid("together")


@pytest.mark.usefixtures("crowded")
def test_under_a_scheduler_without_gangs_a_job_that_has_a_part_of_its_pods_says_what_may_be(
    coach: Coach, cluster: ExistingCluster
) -> None:
    coach.upgrade("scheduler.kind=default")
    try:
        coach.apply(job("apart", workers=TWO, resources=LARGE))
        said = "default-scheduler places pods one by one: jobs with a part of the nodes each wait for each other"
        status = coach.until("apart", lambda status: said in status.get("message", ""), "waiting for the rest")
        assert "Insufficient cpu" in status["message"]
        assert said in json.dumps(coach.ask("why", "apart"))
        workers = cluster.get("pods", "-l", "coach.dev/job=apart,coach.dev/role=worker")["items"]
        assert sum("nodeName" in pod["spec"] for pod in workers) == 1, "it holds a node, and trains nothing"
        cluster.kubectl("delete", "namespace", "crowd", "--timeout=60s")
        assert coach.ended("apart")["state"] == "Succeeded"
        coach.paid("apart")
    finally:
        coach.upgrade()
