"""GPUs by the kubelet's own device plugin API; the devices are made up (scheduler-plugins/test/controlplane)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from coach.core.spec.quantities import of_object
from tests.kubernetes.cluster import FILES, Cluster, ExistingCluster
from tests.kubernetes.installed import Coach, job, ours
from tests.kubernetes.machines.machine import Daemon
from tests.kubernetes.test_cluster import wait_for
from tests.kubernetes.test_programs import IMAGE, NEVER

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_job_left")]

GPU, MIG, AMD = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu"
EACH_NODE = 4
SCRIPT = """
import time
for epoch in range(1, 100000):
    time.sleep(0.5)
    print(f"epoch {epoch} eval_loss {1 / (1 + epoch):.6f}", flush=True)
"""


class DevicePlugins:
    """The device plugins of the nodes; `n1` has n1-0 to n1-3."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._running: dict[str, Daemon] = {}

    def start(self, node: str, resource: str = GPU) -> None:
        """Start a node's plugin, with what was said to be unhealthy."""
        machine = self._cluster.nodes[node].machine
        assert machine is not None
        words = ["device-plugin", resource, EACH_NODE, f"{node}-", self._ill(node)]
        self._running[node] = machine.spawn(words, FILES / "logs" / f"{node}-device-plugin.log")

    def stop(self, node: str) -> None:
        """Kill a node's plugin."""
        self._running.pop(node).kill()

    def ill(self, node: str, *numbers: int) -> None:
        """These devices of a node are unhealthy, and no others."""
        self._ill(node).write_text("\n".join(f"{node}-{number}" for number in numbers))

    def has(self, node: str, count: int, resource: str = GPU) -> None:
        """Wait until the kubelet may give so many devices of a node."""

        def given() -> bool:
            status = self._cluster.get("node", node)["status"]
            return of_object(status["allocatable"].get(resource, "0")) == count

        wait_for(f"{count} {resource} on {node}", given)

    def close(self) -> None:
        """End all of them; all devices are healthy again."""
        for node in list(self._running):
            self.stop(node)
            self._ill(node).unlink(missing_ok=True)

    def _ill(self, node: str) -> Any:
        return FILES / "run" / f"{node}-unhealthy"


@pytest.fixture
def plugins(cluster: ExistingCluster) -> Iterator[DevicePlugins]:
    with contextlib.closing(DevicePlugins(ours(cluster))) as made:
        yield made


def trains(name: str, gpu: int = 1, workers: int = 1, **worker: Any) -> dict[str, Any]:
    """A program that trains for ever, and pays with hours of GPUs."""
    document = job(name)
    document["spec"] = {
        "image": IMAGE,
        "program": {"command": ["python3", "-c", SCRIPT]},
        "target": NEVER,
        "stopEarly": False,
        "budget": {"amount": 50, "currency": "gpuh"},
        "workers": {"min": workers, "max": workers},
        "gracePeriod": "1s",
        "resources": {"worker": {"cpu": "50m", "memory": "64Mi", "gpu": gpu, **worker}},
    }
    return document


def devices(coach: Coach, name: str) -> list[str]:
    """The devices that the processes of a job's pods were given, by their environment."""
    found: list[str] = []
    for pod in coach.pods(name):
        environment = coach.cluster.kubectl("exec", pod, "--", "env").splitlines()
        (given,) = [line.partition("=")[2] for line in environment if line.startswith("NVIDIA_VISIBLE_DEVICES=")]
        found += given.split(",")
    return sorted(found)


def waits(coach: Coach, name: str, words: str) -> str:
    """What a waiting job says, once that has `words` in it."""
    status = coach.until(name, lambda status: words in status.get("message", ""), f"waiting: {words}")
    assert not [pod for pod in coach.cluster.get("pods", "-l", f"coach.dev/job={name}")["items"] if bound(pod)]
    assert words in json.dumps(coach.ask("why", name))
    return str(status["message"])


def bound(pod: dict[str, Any]) -> bool:
    return "nodeName" in pod["spec"]


def suspend(coach: Coach, name: str) -> None:
    coach.cluster.kubectl("patch", "trainingjob", name, "--type", "merge", "-p", '{"spec":{"suspend":true}}')


def test_no_two_jobs_share_a_gpu_and_a_gang_that_finds_too_few_waits_whole(
    coach: Coach, plugins: DevicePlugins
) -> None:
    for node in ("n1", "n2"):
        plugins.start(node)
        plugins.has(node, EACH_NODE)
    coach.apply(trains("pair", workers=2), trains("double", gpu=2))
    for name in ("pair", "double"):
        coach.training(name)
    held = devices(coach, "pair") + devices(coach, "double")
    assert len(held) == len(set(held)) == 4, held
    coach.apply(trains("five", workers=5))
    waits(coach, "five", "5 GPUs needed, 4 free")
    suspend(coach, "double")
    coach.training("five")
    held = devices(coach, "pair") + devices(coach, "five")
    assert len(held) == len(set(held)) == 7, held


@pytest.mark.full
def test_a_device_plugin_that_restarts_costs_no_job_its_gpus_and_ends_none_that_waits(
    coach: Coach, plugins: DevicePlugins
) -> None:
    plugins.start("n1")
    plugins.has("n1", EACH_NODE)
    coach.apply(trains("kept", gpu=3))
    epochs = coach.training("kept")["epochs"]
    held = devices(coach, "kept")
    plugins.stop("n1")
    plugins.has("n1", 0)
    coach.apply(trains("later", gpu=2))
    waits(coach, "later", "of n1 are unhealthy, or their device plugin does not run")
    coach.training("kept", epochs + 10)
    plugins.start("n1")
    plugins.has("n1", EACH_NODE)
    waits(coach, "later", "2 GPUs needed, 1 free")
    assert devices(coach, "kept") == held
    suspend(coach, "kept")
    coach.training("later")
    assert len(set(devices(coach, "later"))) == 2
    assert coach.paid("kept") == 1, "the attempt that was suspended, and no other"


@pytest.mark.full
def test_a_gpu_that_turns_unhealthy_is_given_to_nobody_until_it_is_well(coach: Coach, plugins: DevicePlugins) -> None:
    plugins.ill("n1", 0, 2)
    plugins.start("n1")
    plugins.has("n1", 2)
    coach.apply(trains("three", gpu=3))
    assert "2 of 4 GPUs of n1 are unhealthy" in waits(coach, "three", "3 GPUs needed, 2 free")
    plugins.ill("n1", 2)
    epochs = coach.training("three")["epochs"]
    assert devices(coach, "three") == ["n1-0", "n1-1", "n1-3"]
    plugins.ill("n1", 1, 2)
    plugins.has("n1", 2)
    coach.training("three", epochs + 10)  # as Kubernetes does, it leaves a pod the GPU that it has


@pytest.mark.full
def test_mig_instances_and_gpus_of_amd_are_given_to_jobs_that_name_them(coach: Coach, plugins: DevicePlugins) -> None:
    for node, resource in (("n1", MIG), ("n2", AMD)):
        plugins.start(node, resource)
        plugins.has(node, EACH_NODE, resource)
    coach.apply(trains("slices", gpu=2, gpuResource=MIG), trains("amd", workers=2, gpuResource=AMD))
    for name, node in (("slices", "n1"), ("amd", "n2")):
        coach.training(name)
        assert set(coach.pods(name).values()) == {node}
        assert len(set(devices(coach, name))) == 2
    coach.apply(trains("more", gpu=3, gpuResource=MIG))
    waits(coach, "more", f"3 {MIG} needed, 2 free")
    suspend(coach, "slices")
    coach.training("more")
