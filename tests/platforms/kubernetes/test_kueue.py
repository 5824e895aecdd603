"""What Kueue says of pods, on a real API server that gates them as Kueue does; Kueue itself: tests/kubernetes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from coach.core.cluster import Allocation, Pod, PodId, Role
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import GangSize
from coach.platforms.kubernetes import platform as module
from coach.platforms.kubernetes.kueue import COUNT, GROUP, PRIORITY, QUEUE
from coach.platforms.kubernetes.platform import KubernetesPlatform
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Api
from tests.core.lifecycle.faulty_cluster import spec
from tests.docs.pages import ROOT
from tests.packaging.api_server import ApiServer, api_server, served, until
from tests.platforms.kubernetes import test_programs as programs
from tests.platforms.kubernetes.test_platform import PODS, SIZE, WORKER, Heard, Kubelets, pod_of

pytestmark = [pytest.mark.processes, pytest.mark.full]  # on an API server of its own

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
NAMES = {"kind": "Workload", "listKind": "WorkloadList", "plural": "workloads", "singular": "workload"}
ANYTHING = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
VERSION = {"name": "v1beta2", "served": True, "storage": True, "schema": ANYTHING}
WORKLOAD_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "workloads.kueue.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in"},
    },
    "spec": {"group": "kueue.x-k8s.io", "scope": "Namespaced", "names": NAMES, "versions": [VERSION]},
}
GATED = "SchedulingGated: until kueue.x-k8s.io/admission is taken away"
SHORT = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor gpus, 1 more"
#: What Kueue's webhook does to a pod that names a queue.
GATES = {
    "metadata": {"name": "kueue"},
    "spec": {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "matchConditions": [
            {"name": "queue", "expression": "'kueue.x-k8s.io/queue-name' in object.metadata.?labels.orValue({})"}
        ],
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": "Object{metadata: Object.metadata{labels: {'kueue.x-k8s.io/managed': 'true'}}, "
                    "spec: Object.spec{schedulingGates: "
                    "[Object.spec.schedulingGates{name: 'kueue.x-k8s.io/admission'}]}}"
                },
            }
        ],
    },
}


async def of_a_model_file(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
    """Its pods are admitted each by itself."""
    document = spec("job")
    document["metadata"]["labels"] = {QUEUE: "team"}
    job = TrainingJob.from_json(document)
    await platform.gang(SIZE, job)
    starting = asyncio.create_task(platform.deploy(pod_of(job), job))
    made = await cluster.there(WORKER.name)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/managed"] == "true"
    assert GROUP not in made["metadata"]["labels"]
    await heard.until(lambda: heard.pending)
    assert heard.pending == [(WORKER, Reason.WAITING_CAPACITY, GATED)]
    await cluster._ask("PATCH", f"{PODS}/{WORKER.name}", {"spec": {"schedulingGates": None}})
    await cluster.run(WORKER.name, "n1", "10.1.1.7")
    assert (await starting)[:2] == ("10.1.1.7:8080", "n1")
    await platform.release([WORKER])
    await platform.forget("job")


async def of_a_program(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
    """Its pods are a group, one of each attempt; what they wait for is said as their Workload has it."""
    document = programs.training_job().to_json()
    document["metadata"]["labels"] = {QUEUE: "team", PRIORITY: "urgent"}
    job, groups = TrainingJob.from_json(document), set[str]()
    count, workers = Allocation(2, 0), [PodId("job", Role.WORKER, number) for number in range(2)]
    words = (Reason.WAITING_CAPACITY, f"Kueue: {SHORT}")
    for _ in range(2):
        heard.pending.clear()
        await platform.gang(GangSize("job", count, count, 0), job)
        pods = [Pod(worker, "", job.spec.resources.of(Role.WORKER)) for worker in workers]
        starting = [asyncio.create_task(platform.deploy(pod, job)) for pod in pods]
        made = [(await cluster.there(worker.name))["metadata"] for worker in workers]
        (group,) = {one["labels"][GROUP] for one in made}
        assert {(one["labels"][PRIORITY], one["annotations"][COUNT]) for one in made} == {("urgent", "2")}
        owners = [{"apiVersion": "v1", "kind": "Pod", "name": one["name"], "uid": one["uid"]} for one in made]
        conditions = [{"type": "QuotaReserved", "status": "False", "message": SHORT}]
        workload = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "status": {"conditions": conditions}}
        await cluster._ask("POST", WORKLOADS, workload | {"metadata": {"name": group, "ownerReferences": owners}})
        await heard.until(lambda: {(worker, *words) for worker in workers} <= set(heard.pending))
        for task in starting:
            task.cancel()
        await platform.release(workers)
        await cluster.gone(group, WORKLOADS)
        await platform.forget("job")
        groups.add(group)
    assert len(groups) == 2


def test_pods_of_a_job_with_a_queue_wait_for_its_admission_in_kueues_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beta = {
        "runtime-config": "admissionregistration.k8s.io/v1beta1=true",
        "feature-gates": "MutatingAdmissionPolicy=true",
    }
    monkeypatch.setattr(module, "FORCE_SECONDS", 0.3)

    async def main(server: ApiServer) -> None:
        cluster, heard = Kubelets(server), Heard()
        await cluster.node("n1")
        platform = KubernetesPlatform(Api.connect, Settings("i:1", handler="h"), lambda _: tmp_path, lambda: 0.0)
        await platform.open(heard)
        await of_a_model_file(platform, cluster, heard)
        served(server.admin, WORKLOAD_CRD)
        await of_a_program(platform, cluster, heard)
        await platform.close()

    with api_server(tmp_path, options=beta) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
        served(server.admin, yaml.safe_load((ROOT / "deploy/chart/files/gang-crd.yaml").read_text()))
        server.admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
        group = "/apis/admissionregistration.k8s.io/v1beta1"
        server.admin.create(f"{group}/mutatingadmissionpolicies", GATES)
        binding = {"metadata": {"name": "kueue"}, "spec": {"policyName": "kueue"}}
        server.admin.create(f"{group}/mutatingadmissionpolicybindings", binding)
        gated: dict[str, Any] = {"metadata": {"name": "probe", "labels": {QUEUE: "team"}}}
        gated["spec"] = {"containers": [{"name": "c", "image": "i"}]}
        until(
            "the policy is in force",
            lambda: "schedulingGates" in server.admin.create(PODS, gated, dryRun="All")["spec"],
        )
        asyncio.run(main(server))
