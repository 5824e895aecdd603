"""What the cluster of these tests gives, and that a function lives in a pod of it from Coach's own image."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tests.kubernetes.cluster import ExistingCluster

T = TypeVar("T")
IMAGE = "coach-functions:0.1.0"


def wait_for(what: str, look: Callable[[], T | None], seconds: float = 60) -> T:
    """The first thing that `look` finds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.2)
    pytest.fail(f"no {what} after {seconds:.0f} s")


def function_pod(name: str, node: str) -> dict[str, object]:
    container = {
        "name": "function",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["worker"],
        "env": [{"name": "COACH_KEY", "value": "the-key-of-this-function"}],
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8082}, "periodSeconds": 1},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "nodeName": node,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 30,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def pods(cluster: ExistingCluster) -> Iterator[dict[str, str]]:
    """A worker function on each of two nodes: name -> address."""
    nodes = cluster.node_names[:2]
    names = {f"worker-on-{node}": node for node in nodes}
    cluster.apply(*(function_pod(name, node) for name, node in names.items()))
    try:
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=90s", *(f"pod/{name}" for name in names))
        yield {name: cluster.get("pod", name)["status"]["podIP"] for name in names}
    finally:
        cluster.kubectl("delete", "pod", *names, "--ignore-not-found", "--grace-period=1")


def ask(cluster: ExistingCluster, source: str, address: str) -> dict[str, object]:
    """The answer to `health` of the function at an address, asked from the pod `source`."""
    program = f"""
import urllib.request
body, header = b'{{"op": "health"}}', {{"Content-Type": "application/json", "X-Coach-Key": "the-key-of-this-function"}}
request = urllib.request.Request("http://{address}:8080/", body, header)
print(urllib.request.urlopen(request, timeout=5).read().decode())
"""
    answer: dict[str, object] = json.loads(cluster.kubectl("exec", source, "--", "python3", "-c", program))
    return answer


def test_three_nodes_are_ready(cluster: ExistingCluster) -> None:
    nodes = cluster.get("nodes")["items"]
    ready = {
        node["metadata"]["name"]: condition["status"]
        for node in nodes
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    }
    assert len(ready) >= 3
    assert set(ready.values()) == {"True"}


def test_functions_on_two_nodes_reach_each_other_and_import_mxnet(
    cluster: ExistingCluster, pods: dict[str, str]
) -> None:
    first, second = pods
    for source, target in ((first, second), (second, first)):
        answer = wait_for(
            f"idle function {target}",
            lambda source=source, target=target: (
                found if (found := ask(cluster, source, pods[target]))["state"] == "idle" else None
            ),
        )
        assert answer["role"] == "worker"
        assert float(str(answer["imports_seconds"])) > 0


def test_a_function_runs_as_the_images_user_and_may_write_to_tmp_only(
    cluster: ExistingCluster, pods: dict[str, str]
) -> None:
    pod = next(iter(pods))
    assert cluster.kubectl("exec", pod, "--", "id", "-u").strip() == "65532"
    cluster.kubectl("exec", pod, "--", "touch", "/tmp/file")
    with pytest.raises(RuntimeError, match="Read-only file system"):
        cluster.kubectl("exec", pod, "--", "touch", "/opt/coach/file")


def test_kubectl_logs_shows_the_functions_log(cluster: ExistingCluster, pods: dict[str, str]) -> None:
    pod = next(iter(pods))
    lines = [json.loads(line) for line in cluster.kubectl("logs", pod).splitlines()]
    assert {line["function"] for line in lines} == {"coach-worker"}
    assert "ready" in [line["message"] for line in lines]


def test_the_api_server_answers_a_pod_at_the_kubernetes_service(cluster: ExistingCluster, pods: dict[str, str]) -> None:
    program = """
import os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
url = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}/version".format(**os.environ)
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(folder + "token").read()})
trust = ssl.create_default_context(cafile=folder + "ca.crt")
print(urllib.request.urlopen(request, context=trust, timeout=10).read().decode())
"""
    pod = next(iter(pods))
    version = json.loads(cluster.kubectl("exec", pod, "--", "python3", "-c", program))
    assert version["gitVersion"].startswith("v1.")


def test_a_process_that_lost_its_parent_leaves_no_zombie(cluster: ExistingCluster, pods: dict[str, str]) -> None:
    script = "(sleep 0.2 &); sleep 1; grep -l State:.Z /proc/[0-9]*/status; true"
    assert cluster.kubectl("exec", next(iter(pods)), "--", "sh", "-c", script) == ""


def test_a_deleted_function_ends_long_before_its_grace_period(cluster: ExistingCluster, pods: dict[str, str]) -> None:
    node = cluster.node_names[-1]
    cluster.apply(function_pod("worker-to-end", node))
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=90s", "pod/worker-to-end")
    cluster.kubectl("delete", "pod", "worker-to-end", "--timeout=15s")
    assert not cluster.kubectl("get", "pod", "worker-to-end", "--ignore-not-found")
