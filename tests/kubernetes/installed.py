"""Coach as its chart installs it, and what a test needs of it: jobs by `kubectl apply`, answers of the handler."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.cluster import ROOT, Cluster, ExistingCluster

HELM = ROOT / ".cache/bin/helm"
DIGITS = ROOT / ".data/mnist-digits"
ENDED = ("Succeeded", "BudgetExhausted", "TargetUnreachable", "Failed", "Cancelled")
#: Images of each digit: an epoch takes a second or two, and there are many ends of epochs.
EACH_DIGIT = 250
#: What a job has spent, may spend, what its settlements and its epochs add up to, and how many attempts failed.
LEDGER = """
import json, sys
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
home = StateDirectory.default()
journal = Journal.read(home.journal(1))
job, before = journal.jobs()[sys.argv[1]], None
while before is None or job.money.ledger.spent != before.money.ledger.spent:  # it may be running
    before = job
    records = [record for _, record in journal.records(job.name)]
    job = journal.jobs()[sys.argv[1]]
settled = sum(record.amount for record in records if type(record).__name__ == "Settle")
begun = sum(type(record).__name__ == "RunEpoch" for record in records)
epochs = sum(epoch.cost for epoch in job.epochs)
failed = begun - len(job.epochs) - (job.attempts.running is not None)
print(json.dumps([job.money.ledger.spent, job.money.ledger.budget, settled, epochs, failed]))
"""
#: What a release may leave behind.
KINDS = "pods,deployments,services,jobs,configmaps,secrets,serviceaccounts,pvc"
#: More than half a node: two such workers are on two nodes.
LARGE = {
    "scheduler": {"cpu": "10m", "memory": "256Mi"},
    "server": {"cpu": "50m", "memory": "512Mi"},
    "worker": {"cpu": "1050m", "memory": "1Gi"},
}
#: Seconds that a job of these tests may take, on a busy machine.
PATIENCE = 240.0
#: Seconds that a job may be ended that is waited for in another state: it may be resumed just now.
ENDED_SECONDS = 15.0


def job(name: str, **spec: Any) -> dict[str, Any]:
    """A TrainingJob that learns the digits in a few epochs: one worker, one server, until `spec` says otherwise."""
    return {
        "apiVersion": "coach.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"file": "/opt/coach/functions/models/lenet.py"},
            "data": {"uri": "mnist-digits", "format": "digits-json"},
            "target": {"loss": 0.6, "epochsInARow": 3},  # a test can act on it before it ends, on any machine
            "budget": {"amount": 0.5, "currency": "USD"},
            "maxEpochs": 100,
            "workers": {"min": 1, "max": 1},
            "servers": {"min": 1, "max": 1},
            "resources": {
                "scheduler": {"cpu": "10m", "memory": "256Mi"},
                "server": {"cpu": "50m", "memory": "512Mi"},
                "worker": {"cpu": "200m", "memory": "1Gi"},
            },
            "batchSize": 128,
            "optimizer": {"name": "sgd", "learningRate": 0.05},
            "seed": 1,
            **spec,
        },
    }


class Coach:
    """A release of the chart on a cluster."""

    def __init__(self, cluster: ExistingCluster) -> None:
        self.cluster = cluster

    def install(self) -> None:
        """Install the chart and put the digits on the volume."""
        if isinstance(self.cluster, Cluster):
            self.cluster.reset_volume()
            for folder in ("data/mnist-digits", "checkpoints"):
                (self.cluster.shared / folder).mkdir(parents=True)
            write_digits(self.cluster.shared / "data/mnist-digits")
            for path in (self.cluster.shared, *self.cluster.shared.iterdir()):
                path.chmod(0o777)
        self._chart("install")
        if not isinstance(self.cluster, Cluster):  # as docs/guides/kubernetes.md has it
            pods = self.cluster.get("pods", "-l", "app.kubernetes.io/component=handler")["items"]
            with tempfile.TemporaryDirectory() as folder:
                digits = Path(folder, "mnist-digits")
                digits.mkdir()
                write_digits(digits)
                self.cluster.kubectl("cp", digits, f"{pods[0]['metadata']['name']}:/var/lib/coach/data/mnist-digits")

    def upgrade(self, *settings: str) -> None:
        """`helm upgrade` with further settings."""
        self._chart("upgrade", *settings)

    def _chart(self, command: str, *more: str) -> None:
        settings = ("persistence.storageClass=coach", "scheduler.replicas=1", *more)
        options = [part for one in settings for part in ("--set", one)]
        self.helm(command, "coach", str(ROOT / "deploy/chart"), *options, "--wait", "--timeout", "3m")

    def uninstall(self) -> None:
        """`helm uninstall`, and nothing of Coach is left once the kubelets have ended the pods.

        helm, with --wait too, does not wait for the pods of a Deployment that it has deleted.
        """
        self.helm("uninstall", "coach", "--wait", "--timeout", "2m")
        deadline = time.monotonic() + PATIENCE
        while left := [
            f"{one['kind']} {one['metadata']['name']}"
            for one in self.cluster.get(KINDS)["items"]
            if "coach" in json.dumps({**one["metadata"], "namespace": ""})
        ]:
            assert time.monotonic() < deadline, left
            time.sleep(0.5)
        assert "coach.dev" not in self.cluster.kubectl("get", "crds")

    def apply(self, *jobs: dict[str, Any]) -> None:
        """`kubectl apply`."""
        self.cluster.apply(*jobs)

    def status(self, name: str) -> dict[str, Any]:
        """Of a TrainingJob; empty before the first."""
        status: dict[str, Any] = self.cluster.get("trainingjob", name).get("status", {})
        return status

    def until(self, name: str, done: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The first status of a job for which `done` holds; one that has ended otherwise is not waited for."""
        deadline, ended = time.monotonic() + PATIENCE, 0.0
        while (now := time.monotonic()) < deadline and not 0 < ended < now - ENDED_SECONDS:
            status = self.status(name)
            if done(status):
                return status
            ended = (ended or now) if status.get("state") in ENDED else 0.0
            time.sleep(0.5)
        pytest.fail(f"{name}: not {what}, {json.dumps(status)}\n{self.log()}")

    def ended(self, name: str) -> dict[str, Any]:
        """The status of a job once it has ended, and holds nothing."""
        status = self.until(name, lambda status: status.get("state") in ENDED, "ended")
        self.nothing_left(name)
        return status

    def training(self, name: str, epochs: int = 1) -> dict[str, Any]:
        """The status of a job that trains, with so many epochs behind it."""
        return self.until(
            name,
            lambda status: status.get("state") == "Training" and status.get("epochs", 0) >= epochs,
            f"training after {epochs} epochs",
        )

    def nothing_left(self, name: str) -> None:
        """No pod, Gang or ConfigMap of a job is there any more, or soon will be."""
        deadline = time.monotonic() + 30
        while True:
            left = self.cluster.get("pods,gangs,configmaps", "-l", f"coach.dev/job={name}")["items"]
            if not left:
                return
            assert time.monotonic() < deadline, [f"{one['kind']} {one['metadata']['name']}" for one in left]
            time.sleep(0.5)

    def nothing_left_of_pods(self, name: str) -> None:
        """No pod of a job is there any more, or soon will be."""
        deadline = time.monotonic() + 30
        while left := self.cluster.get("pods", "-l", f"coach.dev/job={name}")["items"]:
            assert time.monotonic() < deadline, [one["metadata"]["name"] for one in left]
            time.sleep(0.2)

    def ask(self, *command: str) -> Any:
        """What `coach COMMAND -o json` says in the handler's pod."""
        return json.loads(self.cluster.kubectl("exec", "deploy/coach-handler", "--", "coach", *command, "-o", "json"))

    def paid(self, name: str) -> int:
        """The ledger is the sum of what was settled, and within the budget; how many attempts have failed."""
        spent, budget, settled, epochs, failed = json.loads(
            self.cluster.kubectl("exec", "deploy/coach-handler", "--", "python", "-c", LEDGER, name)
        )
        assert spent == settled
        assert epochs <= spent, "an epoch was paid twice"
        assert budget is None or spent <= budget
        return int(failed)

    def pods(self, name: str) -> dict[str, str]:
        """The pods of a job that run, and their nodes."""
        items = self.cluster.get("pods", "-l", f"coach.dev/job={name}")["items"]
        return {
            pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
            for pod in items
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    def free_node(self) -> str:
        """A node on which neither the handler nor the scheduler is."""
        items = self.cluster.get("pods", "-l", "app.kubernetes.io/instance=coach")["items"]
        return min(set(self.cluster.node_names) - {pod["spec"].get("nodeName") for pod in items})

    def log(self) -> str:
        """The last lines of the handler."""
        return self.cluster.kubectl("logs", "deploy/coach-handler", "--tail=30")

    def helm(self, *arguments: str) -> None:
        """Run Helm; fails with its words."""
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        done = subprocess.run([HELM, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"helm {arguments[0]}: {done.stderr}\n{self._why_not()}"

    def _why_not(self) -> str:
        return self.cluster.kubectl("get", "pods", "-o", "wide")


def write_digits(folder: Path) -> None:
    """A few images of each digit, in the format `digits-json`."""
    for file in DIGITS.glob("*.json"):
        few = json.loads(file.read_text())["data"][: EACH_DIGIT * 28 * 28]
        (folder / file.name).write_text(json.dumps({"data": few}))


def ours(cluster: ExistingCluster) -> Cluster:
    """The cluster, if its nodes and its control plane may be killed."""
    if not isinstance(cluster, Cluster):
        pytest.fail("needs nodes that may be killed: run without KUBECONFIG")
    return cluster


@contextlib.contextmanager
def only(cluster: ExistingCluster, node: str) -> Iterator[None]:
    """All other nodes are cordoned meanwhile."""
    others = [name for name in cluster.node_names if name != node]
    cluster.kubectl("cordon", *others)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", *others)


def bytes_sent(cluster: Cluster, node: str) -> int:
    """Bytes that a node has sent to the others and the control plane, so far."""
    machine = cluster.nodes[node].machine
    assert machine is not None
    lines = machine.run("cat", "/proc/net/dev").splitlines()
    (line,) = [line for line in lines if line.strip().startswith("eth0:")]
    return int(line.split(":")[1].split()[8])
