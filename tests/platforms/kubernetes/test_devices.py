"""GPUs by the names that device plugins give them, and by claims: in job files, pods, nodes, prices and quotas."""

from __future__ import annotations

from typing import Any

import pytest

from coach.core.cluster import Instance, Pod, PodId, Resources, Role
from coach.core.spec.job import TrainingJob
from coach.platforms.kubernetes import manifests, program_manifests
from coach.platforms.kubernetes.node_prices import NodePrices
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api import nodes, pods
from coach.platforms.kubernetes_api.refusals import never_holds
from tests.core.lifecycle.faulty_cluster import spec
from tests.packaging.api_server import ApiServer

WORKER = PodId("job", Role.WORKER, 0)
MIG = "nvidia.com/mig-1g.10gb"


def job(**worker: Any) -> TrainingJob:
    return TrainingJob.from_json(spec("job", resources={"worker": {"cpu": "1", "memory": "1Gi", **worker}}))


def pod(of: TrainingJob, member: PodId = WORKER) -> dict[str, Any]:
    return manifests.pod(Pod(member, "", of.spec.resources.of(member.role)), of, Settings("image"), [], "key")


def node(labels: dict[str, str] | None = None, capacity: dict[str, str] | None = None, **has: str) -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "32Gi", **has}
    status = {"allocatable": allocatable, "capacity": allocatable | (capacity or {})}
    return {"metadata": {"name": "n1", "labels": labels or {}}, "spec": {}, "status": status}


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        ({"gpu": 2}, {"nvidia.com/gpu": "2"}),
        ({"gpu": 1, "gpuResource": "amd.com/gpu"}, {"amd.com/gpu": "1"}),
        ({"gpu": 1, "gpuResource": MIG}, {MIG: "1"}),
        ({}, {}),
    ],
)
def test_a_worker_asks_for_the_devices_that_its_job_names(asked: dict[str, Any], limit: dict[str, str]) -> None:
    made = pod(job(**asked))["spec"]
    assert made["containers"][0]["resources"]["limits"] == {"memory": "1024Mi"} | limit
    assert pods.held({"spec": {"containers": [{"resources": {"requests": {**limit}}}]}}).gpu == asked.get("gpu", 0)


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ({"gpuResource": "amd.com/gpu"}, "no GPU is asked for"),
        ({"gpu": 1, "gpuResource": "nvidia.com/mig"}, r"worker\.gpuResource"),
        ({"gpu": 1, "gpuResource": "example.com/gpu"}, r"worker\.gpuResource"),
        ({"claims": ["Single_GPU"]}, r"worker\.claims\.0"),
        ({"claims": ["one"] * 9}, "at most 8 items"),
    ],
)
def test_a_job_file_names_devices_that_coach_knows_and_claims_by_their_names(
    worker: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        job(**worker)


def test_the_gpus_of_a_node_are_those_of_every_device_plugin() -> None:
    has = {"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "7", "amd.com/gpu": "1", "nvidia.com/hostdev": "9"}
    assert nodes.read(node(**has)).capacity.gpu == 10.0


def test_devices_that_are_unhealthy_are_there_and_given_to_none() -> None:
    """A job that fits on the node once they are well again waits; it is not ended as one that never fits."""
    found = node(capacity={"nvidia.com/gpu": "4"}, **{"nvidia.com/gpu": "3"})
    assert nodes.read(found).capacity.gpu == 4.0 and nodes.lacking(found) == 1.0
    without = node(capacity={"nvidia.com/gpu": "4"}, **{"nvidia.com/gpu": "0"})
    assert nodes.read(without).capacity.gpu == nodes.lacking(without) == 4.0
    assert nodes.lacking(node(**{"nvidia.com/gpu": "4"})) == 0.0


def test_a_mig_instance_costs_its_part_of_the_machine_and_a_node_of_amd_has_its_kind() -> None:
    labels = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X", "node.kubernetes.io/instance-type": "a3-highgpu-8g"}
    cloud = {"spec": {"providerID": "gce://p/z/n"}}
    machine = Instance(56.0, 200.0, 1800.0, 8.0)
    prices = NodePrices(lambda _: machine)
    priced = prices.of(node(labels, **{MIG: "56"}) | cloud)
    assert priced.kind == "AMD_Instinct_MI300X" and priced.price is not None
    assert priced.price.hour * priced.price.machines(Resources(1.0, 1.0, 1.0)) == pytest.approx(1.0)
    assert prices.of(node(labels) | cloud).price == machine, "a node whose device plugin is not there yet"


def test_a_quota_of_other_devices_can_be_too_small_for_ever() -> None:
    message = "exceeded quota: q, requested: pods=1, used: pods=0, limited: requests.amd.com/gpu=1"
    gang = [Resources(1.0, 1.0, 2.0)]
    assert "it needs amd.com/gpu=2, the quota's limit is 1" in never_holds(message, gang, "amd.com/gpu")
    assert never_holds(message, gang) == ""


def test_each_pod_of_a_worker_has_a_claim_of_each_template_and_other_roles_have_none() -> None:
    claimed = job(claims=["single-gpu", "fast-network"])
    made = pod(claimed)["spec"]
    assert made["resourceClaims"] == [
        {"name": "claim-0", "resourceClaimTemplateName": "single-gpu"},
        {"name": "claim-1", "resourceClaimTemplateName": "fast-network"},
    ]
    assert made["containers"][0]["resources"]["claims"] == [{"name": "claim-0"}, {"name": "claim-1"}]
    other = pod(claimed, PodId("job", Role.SERVER, 0))["spec"]
    assert "resourceClaims" not in other and "claims" not in other["containers"][0]["resources"]


@pytest.mark.processes
def test_a_program_with_claims_is_a_pod_that_an_api_server_takes_as_it_is_written(server: ApiServer) -> None:
    worker = {"cpu": "1", "memory": "1Gi", "gpu": 1, "gpuResource": MIG, "claims": ["single-gpu"]}
    content = {
        "image": "me/train:1",
        "program": {"command": ["python", "train.py"]},
        "budget": {"unlimited": True},
        "resources": {"worker": worker},
    }
    found = TrainingJob.from_json({**spec("claims"), "spec": content})
    member = Pod(PodId("claims", Role.WORKER, 0), "", found.spec.resources.of(Role.WORKER))
    made = program_manifests.pod(member, found, 1, Settings("image"), [])
    answered = server.admin.create("/api/v1/namespaces/default/pods", made, fieldValidation="Strict", dryRun="All")
    assert answered["spec"]["resourceClaims"] == made["spec"]["resourceClaims"]
    resources = answered["spec"]["containers"][0]["resources"]
    assert (
        resources["claims"] == [{"name": "claim-0"}] and resources["requests"][MIG] == resources["limits"][MIG] == "1"
    )
