"""Nodes with GPUs that are made up (scheduler-plugins/test/controlplane), and what the tests of their jobs share."""

from __future__ import annotations

import json
from typing import Any

from coach.core.spec.quantities import of_object
from tests.kubernetes.cluster import FILES, Cluster
from tests.kubernetes.installed import Coach, job
from tests.kubernetes.machines.machine import Daemon
from tests.kubernetes.test_cluster import wait_for
from tests.kubernetes.test_programs import IMAGE, NEVER

GPU = "nvidia.com/gpu"
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
