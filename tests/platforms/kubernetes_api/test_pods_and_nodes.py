"""What pods and nodes report, from the states that Kubernetes writes down in its objects."""

from __future__ import annotations

from typing import Any

import pytest

from coach.core.cluster import Node, Resources
from coach.core.jobs.reasons import Reason
from coach.platforms.kubernetes_api import nodes, pods


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "job-worker-0", **metadata}, "spec": {}, "status": status}


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "function", "image": "coach-functions:9", "state": state}]}


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "by b"},
            "PreemptionByScheduler: by b",
        ),
        ({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}, ""),
        (
            {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvicted", "message": "Preempted to ..."},
            "Kueue: WorkloadEvicted: Preempted to ...",
        ),
        ({"type": "TerminationTarget", "status": "False", "reason": "WorkloadEvicted"}, ""),
    ],
)
def test_a_sound_pod_that_is_taken_away_is_told_from_one_that_failed(condition: dict[str, str], words: str) -> None:
    """By the scheduler, by a drain of its node, or by Kueue 0.17 (pkg/controller/jobs/pod: Stop)."""
    assert pods.disrupted(pod({"phase": "Running", "conditions": [condition]})) == words


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Pending"}, None),
        (
            unscheduled("TargetReached: a word that ends jobs"),
            (Reason.WAITING_CAPACITY, "Unschedulable: TargetReached: a word that ends jobs"),
        ),
        (
            unscheduled("WaitingCapacity: needs 2 workers x 1 cpu, best partial fit 1"),
            (Reason.WAITING_CAPACITY, "needs 2 workers x 1 cpu, best partial fit 1"),
        ),
        (
            unscheduled("Draining: job b gives its capacity back"),
            (Reason.DRAINING, "job b gives its capacity back"),
        ),
        (
            unscheduled("0/3 nodes are available: 3 Insufficient cpu."),
            (Reason.WAITING_CAPACITY, "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."),
        ),
        (
            container(waiting={"reason": "ErrImagePull", "message": "not found"}),
            (Reason.IMAGE_UNAVAILABLE, "ErrImagePull: coach-functions:9: not found"),
        ),
        (
            container(waiting={"reason": "CreateContainerConfigError", "message": 'configmap "m" not found'}),
            (Reason.MISCONFIGURED, 'CreateContainerConfigError: configmap "m" not found'),
        ),
        (container(waiting={"reason": "ContainerCreating"}), None),
        (container(running={"startedAt": "2026-01-01T00:00:00Z"}), None),
    ],
)
def test_what_a_pod_waits_for(status: dict[str, Any], expected: tuple[Reason, str] | None) -> None:
    assert pods.waiting(pod(status)) == expected


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (
            container(terminated={"exitCode": 137, "reason": "OOMKilled"}),
            Reason.OUT_OF_MEMORY,
            "more memory than its limit",
        ),
        (
            container(terminated={"exitCode": 137, "reason": "Error"}),
            Reason.FUNCTION_LOST,
            "exit code 137 (SIGKILL)",
        ),
        (
            container(terminated={"exitCode": 2, "reason": "Error", "message": "no numpy"}),
            Reason.FUNCTION_LOST,
            "exit code 2: no numpy",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
            Reason.FUNCTION_LOST,
            "Evicted: The node was low on memory.",
        ),
        ({"phase": "Failed"}, Reason.FUNCTION_LOST, "phase Failed"),
        (container(waiting={"reason": "InvalidImageName"}), Reason.POD_REFUSED, "InvalidImageName"),
    ],
)
def test_why_a_pod_ended_or_never_will_start(status: dict[str, Any], reason: Reason, words: str) -> None:
    found = pods.failure(pod(status))
    assert found is not None
    assert found[0] is reason and words in found[1]


def test_a_pod_is_ready_until_it_is_being_deleted() -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert pods.ready(pod(status))
    assert not pods.ready(pod(status, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert not pods.ready(pod({"conditions": [{"type": "Ready", "status": "False"}]}))


def node(ready: str = "True", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1"},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "1900m", "memory": "4Gi", nodes.GPU: "2"},
            "conditions": [{"type": "Ready", "status": ready, "message": "kubelet stopped posting status"}],
        },
    }


def test_a_node_has_what_is_allocatable() -> None:
    assert nodes.read(node()) == Node("n1", Resources(1.9, 4.0, 2.0))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (node(), ""),
        (node(unschedulable=True), "cordoned"),
        (node("Unknown"), "not ready: kubelet stopped posting status"),
        (node(taints=[{"key": "gpu", "effect": "NoSchedule"}]), "tainted: gpu"),
        (node(taints=[{"key": "slow", "effect": "PreferNoSchedule"}]), ""),
    ],
)
def test_why_nothing_can_be_placed_on_a_node(found: dict[str, Any], why: str) -> None:
    assert nodes.unavailable(found) == why


def test_a_notice_is_a_taint_of_the_clouds_and_not_of_a_user() -> None:
    notice = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
    assert nodes.leaving(node(taints=[{"key": "gpu", "effect": "NoSchedule"}, notice])) == notice["key"]
    assert not nodes.leaving(node(taints=[{"key": "gpu", "effect": "NoSchedule"}])) and not nodes.leaving(node())


def test_only_a_node_without_a_report_is_lost() -> None:
    assert nodes.lost(node("Unknown"))
    assert not nodes.lost(node("False")) and not nodes.lost(node(unschedulable=True))


def asks(restart: str = "", **amounts: str) -> dict[str, Any]:
    return {"resources": {"requests": amounts}} | ({"restartPolicy": restart} if restart else {})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [{}]}, Resources(0.0, 0.0)),
        (
            {"containers": [asks(cpu="250m", memory="1Gi"), asks(cpu="1e0", memory="1073741824")]},
            Resources(1.25, 2.0),
        ),
        (
            {"containers": [asks(cpu="1")], "initContainers": [asks(cpu="3"), asks(cpu="2")]},
            Resources(3.0, 0.0),
        ),
        (
            {"containers": [asks(cpu="2")], "initContainers": [asks("Always", cpu="500m"), asks(cpu="1")]},
            Resources(2.5, 0.0),
        ),
        (
            {"containers": [asks(cpu="1")], "initContainers": [asks("Always", cpu="1"), asks(cpu="2")]},
            Resources(3.0, 0.0),
        ),
        (
            {"containers": [asks(cpu="1")], "overhead": {"cpu": "100m", "memory": "512Mi"}},
            Resources(1.1, 0.5),
        ),
        ({"containers": [asks(**{"nvidia.com/gpu": "2"})]}, Resources(0.0, 0.0, 2.0)),
    ],
)
def test_what_a_pod_holds_is_what_the_scheduler_counts(spec: dict[str, Any], expected: Resources) -> None:
    found = {"metadata": {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1"}, "spec": spec}
    assert pods.held(found) == pods.held(pods.footprint(found)) == expected
