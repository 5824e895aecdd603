"""Jobs that are applied to a cluster on which the chart is installed, and what may happen to them there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster, ExistingCluster
from tests.kubernetes.installed import LARGE, Coach, bytes_sent, job, only, ours

TWO = {"min": 2, "max": 2}


def test_a_job_trains_to_its_target_in_pods_on_two_nodes(coach: Coach, cluster: ExistingCluster) -> None:
    nodes = ours(cluster)
    before = {node: bytes_sent(nodes, node) for node in nodes.nodes}
    coach.apply(job("far", workers=TWO, resources=LARGE))
    coach.training("far")
    workers = {node for pod, node in coach.pods("far").items() if "worker" in pod}
    assert len(workers) == 2
    status = coach.ended("far")
    assert status["state"] == "Succeeded" and status["loss"] <= 1.0
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert conditions["Complete"] == "True" and conditions["Failed"] == "False"
    sent = [bytes_sent(nodes, node) - before[node] for node in sorted(workers)]
    assert all(amount > 30e6 for amount in sent), "each step, gradients and weights cross between nodes"
    assert coach.paid("far") == 0


def test_a_deleted_worker_costs_an_attempt(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(job("hurt"))
    coach.training("hurt")
    cluster.kubectl("delete", "pod", "hurt-worker-0", "--grace-period=0", "--force")
    status = coach.ended("hurt")
    assert status["state"] == "Succeeded"
    assert coach.paid("hurt") >= 1


@pytest.mark.full
def test_elastic_servers_in_pods_go_on_without_one_of_them(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(job("elastic", parameterServer="elastic", workers=TWO, servers=TWO))
    coach.training("elastic")
    cluster.kubectl("delete", "pod", "elastic-server-1", "--grace-period=0", "--force")
    status = coach.ended("elastic")
    assert status["state"] == "Succeeded" and status["loss"] <= 0.6
    assert coach.paid("elastic") == 0, "no attempt was lost with it"


def test_a_lost_node_costs_an_attempt(coach: Coach, cluster: ExistingCluster) -> None:
    nodes = ours(cluster)
    free = coach.free_node()
    with only(cluster, free):
        coach.apply(job("stranded"))
        coach.training("stranded")
    assert set(coach.pods("stranded").values()) == {free}
    nodes.kill_node(free)
    try:
        status = coach.ended("stranded")
    finally:
        nodes.start_node(free)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{free}", "--timeout=90s")
    assert status["state"] == "Succeeded"
    assert coach.paid("stranded") >= 1


def test_a_killed_handler_is_followed_by_another_that_goes_on(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(job("orphan"))
    coach.training("orphan", epochs=2)
    cluster.kubectl("delete", "pod", "-l", "app.kubernetes.io/component=handler", "--grace-period=0", "--force")
    status = coach.ended("orphan")
    assert status["state"] == "Succeeded"
    coach.paid("orphan")
    epochs = coach.ask("show", "orphan")["epochs"]
    assert [one["epoch"] for one in epochs] == list(range(1, len(epochs) + 1)), "none was lost, none is there twice"


def test_a_job_without_budget_ends(coach: Coach) -> None:
    coach.apply(job("poor", target={"loss": 1.0, "epochsInARow": 1000}, budget={"amount": 0.0004, "currency": "USD"}))
    status = coach.ended("poor")
    assert status["state"] == "BudgetExhausted"
    (failed,) = [one for one in status["conditions"] if one["type"] == "Failed"]
    assert failed["status"] == "True" and failed["reason"] == "BudgetExhausted"
    coach.paid("poor")


def test_of_two_jobs_where_one_has_room_the_other_waits_and_says_why(coach: Coach, cluster: ExistingCluster) -> None:
    three = {"workers": {"min": 3, "max": 3}, "resources": LARGE}
    nodes = cluster.nodes if isinstance(cluster, Cluster) else ()  # of a user's, bytes are not counted
    before = {node: bytes_sent(cluster, node) for node in nodes}
    coach.apply(job("first", **three))
    coach.training("first")
    coach.apply(job("second", **three))
    waits = coach.until("second", lambda status: status.get("reason") == "WaitingCapacity", "waiting")
    assert "worker" in waits["message"] and waits["state"] == "Waiting"
    assert "waits for capacity in the cluster" in json.dumps(coach.ask("why", "second"))
    assert coach.ended("first")["state"] == "Succeeded"
    sent = {node: bytes_sent(cluster, node) - amount for node, amount in before.items()}
    assert all(amount > 20e6 for amount in sent.values()), "gradients cross between nodes, and weights back"
    assert coach.ended("second")["state"] == "Succeeded"
    coach.paid("first")
    coach.paid("second")


@contextlib.contextmanager
def quota(cluster: ExistingCluster, room: int) -> Iterator[int]:
    """Room for so many more pods in the namespace; how many there may be then."""
    running = [one for one in cluster.get("pods")["items"] if one["status"]["phase"] in ("Pending", "Running")]
    most = len(running) + room
    cluster.kubectl("create", "quota", "room", f"--hard=pods={most}")
    try:
        cluster.kubectl("wait", "quota/room", f"--for=jsonpath={{.status.hard.pods}}={most}", "--timeout=60s")
        yield most
    finally:
        cluster.kubectl("delete", "quota", "room")


def test_a_job_waits_whole_while_a_quota_is_full_and_trains_when_there_is_room(
    coach: Coach, cluster: ExistingCluster
) -> None:
    with quota(cluster, 5) as most:  # a gang of three, and two of the next
        coach.apply(job("early"))
        coach.training("early")
        coach.apply(job("late"))
        waits = coach.until("late", lambda status: status.get("reason") == "QuotaExceeded", "waiting")
        assert waits["state"] == "Waiting"
        assert f"exceeded quota: room, requested: pods=1, used: pods={most}" in waits["message"]
        assert "waits for room in a quota" in json.dumps(coach.ask("why", "late"))
        coach.nothing_left_of_pods("late")
        assert coach.ended("early")["state"] == "Succeeded"
        assert coach.ended("late")["state"] == "Succeeded"
    assert coach.paid("late") == 0, "no attempt was counted"


def test_a_gang_that_a_quota_can_never_hold_is_said_so(coach: Coach, cluster: ExistingCluster) -> None:
    own = {"scheduler": {"cpu": "10m"}, "server": {"cpu": "50m"}, "worker": {"cpu": "200m"}}
    cluster.kubectl("create", "quota", "small", "--hard=requests.memory=1Gi")
    try:
        cluster.kubectl("wait", "quota/small", "--for=jsonpath={.status.used}", "--timeout=60s")
        coach.apply(job("large", resources={role: {**one, "memory": "1Gi"} for role, one in own.items()}))
        status = coach.ended("large")
    finally:
        cluster.kubectl("delete", "quota", "small")
    assert (status["state"], status["reason"]) == ("Failed", "NeverFits")
    assert "it needs memory=3072Mi, the quota's limit is 1024Mi" in status["message"]
