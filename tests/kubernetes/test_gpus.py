"""GPUs by the kubelet's own device plugin API; the devices are made up (scheduler-plugins/test/controlplane)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.cluster import FILES, ExistingCluster
from tests.kubernetes.installed import Coach, ours
from tests.kubernetes.machines.gpus import EACH_NODE, DevicePlugins, devices, suspend, trains, waits

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_job_left")]

MIG, AMD = "nvidia.com/mig-1g.10gb", "amd.com/gpu"


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
    assert coach.paid("kept") <= 1, "no attempt but the one that was suspended, if that had not just reported"


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


@pytest.fixture
def claimable(cluster: ExistingCluster) -> Iterator[None]:
    """Two devices on each of n1 and n2 that pods get by claims of the template `single-gpu`."""
    name = "gpu.example.com"
    request = {"name": "gpu", "exactly": {"deviceClassName": name}}
    made: list[tuple[str, str, dict[str, Any]]] = [
        ("DeviceClass", name, {"selectors": [{"cel": {"expression": f"device.driver == '{name}'"}}]}),
        ("ResourceClaimTemplate", "single-gpu", {"spec": {"devices": {"requests": [request]}}}),
    ]
    drivers = []
    for node in ("n1", "n2"):
        machine = ours(cluster).nodes[node].machine
        assert machine is not None
        words = ["dra-driver", name, node, cluster.kubeconfig]
        drivers.append(machine.spawn(words, FILES / f"logs/{node}-dra-driver.log"))
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": f"{node}-{number}"} for number in range(2)]
        made.append(("ResourceSlice", node, {"driver": name, "nodeName": node, "pool": pool, "devices": devices}))
    version = "resource.k8s.io/v1"
    cluster.apply(
        *({"apiVersion": version, "kind": kind, "metadata": {"name": of}, "spec": spec} for kind, of, spec in made)
    )
    yield
    cluster.kubectl("delete", "trainingjobs", "--all", "--timeout=60s")
    for driver in drivers:
        driver.kill()
    for kind, of, _ in made:
        cluster.kubectl("delete", kind, of, "--ignore-not-found")


def claimed(cluster: ExistingCluster, name: str) -> list[str]:
    """The devices that the claims of a job's pods were allocated."""
    found: list[str] = []
    for pod in cluster.get("pods", "-l", f"coach.dev/job={name}")["items"]:
        for one in pod["status"].get("resourceClaimStatuses") or ():
            claim = cluster.get("resourceclaim", one["resourceClaimName"])
            found += [device["device"] for device in claim["status"]["allocation"]["devices"]["results"]]
    return found


@pytest.mark.full
@pytest.mark.usefixtures("claimable")
def test_each_worker_has_a_claim_of_its_own_and_a_gang_with_too_few_devices_waits_whole(
    coach: Coach, cluster: ExistingCluster
) -> None:
    two, three = (trains(f"claims-{count}", 0, count, claims=["single-gpu"]) for count in (2, 3))
    for document in (two, three):
        document["spec"]["budget"] = {"amount": 0.5, "currency": "USD"}
    coach.apply(two)
    coach.training("claims-2")
    held = claimed(cluster, "claims-2")
    assert len(held) == len(set(held)) == 2
    coach.apply(three)
    waits(coach, "claims-3", "cannot allocate all claims")
    suspend(coach, "claims-2")
    coach.training("claims-3")  # no node has three: the claims plugin refuses what is planned there, one by one
    assert len(set(claimed(cluster, "claims-3"))) == 3
    assert set(coach.pods("claims-3").values()) == {"n1", "n2"}
