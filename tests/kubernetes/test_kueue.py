"""Kueue itself, built from its module: jobs with a queue's name wait for its quota of GPUs, which are made up."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from coach.platforms.kubernetes.kueue import PRIORITY, QUEUE
from tests.kubernetes.cluster import ROOT, ExistingCluster
from tests.kubernetes.installed import HELM, Coach, ours
from tests.kubernetes.machines.gpus import EACH_NODE, GPU, DevicePlugins, devices, suspend, trains, waits
from tests.kubernetes.test_cluster import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(900), pytest.mark.usefixtures("no_job_left")]

PLUGINS = ROOT / "scheduler-plugins"
SYSTEM, SERVICE, SECRET = "kueue-system", "kueue-webhook-service", "kueue-webhook-server-cert"
PORT = 9443
#: What of the chart is not a Deployment's: the API server asks a process next to it, which does as an administrator.
KINDS = ("CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
#: GPUs of the queue: fewer than the node has.
QUOTA = 3
#: Goes on from its last epoch.
SCRIPT = """
import os, pathlib, time
kept = pathlib.Path(os.environ["COACH_CHECKPOINTS"], "epoch")
done = int(kept.read_text()) if kept.exists() else 0
for epoch in range(done + 1, 100000):
    time.sleep(0.5)
    if os.environ["RANK"] == "0":
        kept.with_suffix(".new").write_text(str(epoch))
        kept.with_suffix(".new").replace(kept)
    print(f"epoch {epoch} eval_loss {1 / (1 + epoch):.6f}", flush=True)
"""
TEAM: list[dict[str, Any]] = [
    {"kind": "ResourceFlavor", "metadata": {"name": "gpus"}},
    {
        "kind": "ClusterQueue",
        "metadata": {"name": "lab"},
        "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "memory", GPU],
                    "flavors": [
                        {
                            "name": "gpus",
                            "resources": [
                                {"name": "cpu", "nominalQuota": 100},
                                {"name": "memory", "nominalQuota": "100Gi"},
                                {"name": GPU, "nominalQuota": QUOTA},
                            ],
                        }
                    ],
                }
            ],
        },
    },
    {"kind": "LocalQueue", "metadata": {"name": "team"}, "spec": {"clusterQueue": "lab"}},
    {"kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}, "value": 1000, "description": "goes first"},
]


def certificate(folder: Path) -> dict[str, str]:
    """What Kueue keeps in its Secret: a certificate that signs itself, for the address that the API server asks."""
    names = f"subjectAltName=DNS:kueue-ca,DNS:{SERVICE}.{SYSTEM}.svc,IP:127.0.0.1"
    key, made = str(folder / "tls.key"), str(folder / "tls.crt")
    asked = ["-key", key, "-out", made, "-days", "3650", "-subj", "/CN=kueue-ca", "-addext", names]
    for words in (["genrsa", "-traditional", "-out", key, "2048"], ["req", "-x509", *asked]):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    pair = {"crt": Path(made).read_text(), "key": Path(key).read_text()}
    return {f"{name}.{part}": text for name in ("ca", "tls") for part, text in pair.items()}


def asked_here(found: Any) -> Any:
    """A part of an object, whose webhooks are asked by their port on the API server's machine, not by a Service."""
    if isinstance(found, list):
        return [asked_here(one) for one in found]
    if not isinstance(found, dict):
        return found
    if service := found.get("service"):
        return {"url": f"https://127.0.0.1:{PORT}{service['path']}"}
    return {name: asked_here(one) if name != "openAPIV3Schema" else one for name, one in found.items()}


def needed(one: dict[str, Any]) -> bool:
    """Whether a webhook is one of Kueue's own objects, or of pods."""
    path = one["clientConfig"]["service"]["path"]
    return "kueue-x-k8s-io" in path or path.endswith("--v1-pod")


@pytest.fixture
def kueue(coach: Coach, cluster: ExistingCluster, plugins: DevicePlugins, tmp_path: Path) -> Iterator[None]:
    """Kueue with its integration of pods, and a queue `team` of three GPUs; n1 has four."""
    plane = ours(cluster)
    subprocess.run(["make", "-s", "-C", PLUGINS, "bin/kueue"], check=True)
    asked = ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue"]
    module = subprocess.run(asked, cwd=PLUGINS / "test/kueue", check=True, capture_output=True, text=True)
    template = [str(HELM), "template", "kueue", f"{module.stdout.strip()}/charts/kueue", "--namespace", SYSTEM]
    chart = subprocess.run(template, check=True, capture_output=True, text=True).stdout
    objects = [one for one in yaml.safe_load_all(chart) if one and one["kind"] in KINDS]
    for one in objects:
        if "webhooks" in one:
            one["webhooks"] = [webhook for webhook in one["webhooks"] if needed(webhook)]
    secret: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": SYSTEM}}
    text = "\n---\n".join(json.dumps(asked_here(one)) for one in objects)
    cluster.kubectl("create", "namespace", SYSTEM)
    cluster.apply(secret | {"stringData": certificate(tmp_path)})
    cluster.kubectl("apply", "--server-side", "-f", "-", input=text)
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": SYSTEM,
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": PORT, "certDir": str(tmp_path)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True, "webhookServiceName": SERVICE, "webhookSecretName": SECRET},
        "integrations": {"frameworks": ["pod"]},
        "featureGates": {"VisibilityOnDemand": False},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    words = [PLUGINS / "bin/kueue", "--config", tmp_path / "config.yaml", "--kubeconfig", cluster.kubeconfig]
    running = plane.spawn(words, "kueue.log")
    try:
        plugins.start("n1")
        plugins.has("n1", EACH_NODE)
        wait_for("queue of Kueue", lambda: applied(cluster, *TEAM))
        yield
        cluster.kubectl("delete", "trainingjobs", "--all", "--timeout=60s")
        wait_for("end of all Workloads", lambda: not cluster.get("workloads")["items"])
        cluster.kubectl("delete", ",".join(one["kind"] for one in TEAM), "--all", "--timeout=60s")
    finally:
        running.kill()
        cluster.kubectl("delete", ",".join(KINDS), "-l", "app.kubernetes.io/name=kueue", "--timeout=60s")
        cluster.kubectl("delete", "namespace", SYSTEM, "--timeout=60s")


def applied(cluster: ExistingCluster, *objects: dict[str, Any]) -> bool:
    """Whether Kueue takes its objects: it does once it runs."""
    try:
        cluster.apply(*({"apiVersion": "kueue.x-k8s.io/v1beta2", **one} for one in objects))
    except RuntimeError:
        return False
    return True


def queued(name: str, **labels: str) -> dict[str, Any]:
    """A program of two workers with a GPU each, in the queue `team`."""
    made = trains(name, workers=2)
    made["spec"]["program"] = {"command": ["python3", "-c", SCRIPT], "resumes": True}
    made["metadata"]["labels"] = {QUEUE: "team", **labels}
    return made


def admitted(cluster: ExistingCluster, name: str) -> list[str]:
    """The GPUs with which each Workload of a job is admitted."""
    return [
        assigned["resourceUsage"][GPU]
        for one in cluster.get("workloads")["items"]
        if one["metadata"]["name"].startswith(f"{name}-") and "admission" in one["status"]
        for assigned in one["status"]["admission"]["podSetAssignments"]
    ]


@pytest.mark.usefixtures("kueue")
def test_a_job_in_a_queue_of_kueue_starts_whole_waits_for_quota_and_goes_on_after_it_was_preempted(
    coach: Coach, cluster: ExistingCluster
) -> None:
    coach.apply(queued("first"))
    epochs = coach.training("first")["epochs"]
    assert admitted(cluster, "first") == ["2"]
    assert len(set(devices(coach, "first"))) == 2
    coach.apply(queued("second"))
    short = f"insufficient unused quota for {GPU} in flavor gpus, 1 more needed"
    assert "Kueue: couldn't assign flavors to pod set" in waits(coach, "second", short)
    suspend(coach, "second")
    coach.nothing_left_of_pods("second")
    coach.training("first", epochs + 2)

    coach.apply(queued("urgent", **{PRIORITY: "urgent"}))
    coach.training("urgent")
    assert admitted(cluster, "urgent") == ["2"]
    waits(coach, "first", short)
    events = json.dumps(coach.ask("events", "first"))
    assert "Kueue: WorkloadEvictedDueToPreempted: Preempted to accommodate a workload" in events, events
    assert "Disrupted" in events, "which counts as no failure of the job"
    epochs = coach.status("first")["epochs"]
    suspend(coach, "urgent")
    coach.training("first", epochs + 1)
    assert len(set(devices(coach, "first"))) == 2
    coach.nothing_left_of_pods("urgent")
