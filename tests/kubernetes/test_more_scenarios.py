"""What else may happen to a job, to its pods, and to the parts of the cluster itself. `make all-tests` runs these."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.kubernetes.cluster import ROOT, ExistingCluster
from tests.kubernetes.installed import PATIENCE, Coach, job, only, ours

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("no_job_left")]

CHART = ROOT / "deploy/chart"
#: A job that trains until the test deletes it, however fast the machine is.
ENDLESS: dict[str, Any] = {"target": {"loss": 1.0, "epochsInARow": 1000}, "maxEpochs": 2000}


def went_on(coach: Coach, name: str, *, attempts: int = 0) -> int:
    """After so many failed attempts, at least, an ENDLESS job trains another epoch; how many failed.

    Then it is deleted. It has every epoch once, and all that it cost is in its ledger.
    """
    deadline = time.monotonic() + PATIENCE
    while (failed := coach.paid(name)) < attempts:
        assert time.monotonic() < deadline, f"{failed} failed attempts of {name}\n{coach.log()}"
        time.sleep(0.5)
    coach.training(name, coach.status(name)["epochs"] + 2)  # of two, one has begun since
    failed = coach.paid(name)
    coach.cluster.kubectl("delete", "trainingjob", name, "--timeout=60s")
    coach.nothing_left(name)
    coach.paid(name)
    epochs = [one["epoch"] for one in coach.ask("show", name)["epochs"] if one["kind"] == "full"]
    assert epochs == list(range(1, len(epochs) + 1)), "none was lost, none is there twice"
    return failed


def kill_in_pod(cluster: ExistingCluster, pod: str) -> None:
    """SIGKILL to a child of the container's first process."""
    program = """
import os
for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
    with open(f"/proc/{pid}/stat") as file:
        parent = int(file.read().rpartition(")")[2].split()[1])
    if parent == 1 and pid != os.getpid():
        os.kill(pid, 9)
        print(pid)
        break
"""
    try:
        assert cluster.kubectl("exec", pod, "--", "python3", "-c", program).strip()
    except RuntimeError as error:
        if "exit code 137" not in str(error):  # the container ended before it could answer
            raise


def test_a_drained_node_is_left_and_the_job_goes_on_elsewhere(coach: Coach, cluster: ExistingCluster) -> None:
    free = coach.free_node()
    with only(cluster, free):
        coach.apply(job("drained", **ENDLESS))
        coach.training("drained")
    assert set(coach.pods("drained").values()) == {free}
    try:
        cluster.kubectl("drain", free, "--delete-emptydir-data", "--timeout=60s")
        assert free not in coach.pods("drained").values()
        coach.until("drained", lambda status: status.get("state") == "Training", "training again")
        assert free not in coach.pods("drained").values()
        went_on(coach, "drained")
    finally:
        cluster.kubectl("uncordon", free)


def test_a_kubelet_that_stops_for_a_moment_costs_nothing(coach: Coach, cluster: ExistingCluster) -> None:
    nodes = ours(cluster)
    coach.apply(job("moment", **ENDLESS))
    epochs = coach.training("moment")["epochs"]
    stopped = set(coach.pods("moment").values())
    for node in stopped:
        nodes.stop_kubelet(node)
    try:
        coach.until("moment", lambda status: status.get("epochs", 0) > epochs, "one epoch further")
    finally:
        for node in stopped:
            nodes.start_kubelet(node)
    assert went_on(coach, "moment") == 0


def test_a_node_whose_kubelet_stays_away_is_left(coach: Coach, cluster: ExistingCluster) -> None:
    nodes = ours(cluster)
    free = coach.free_node()
    with only(cluster, free):
        coach.apply(job("silent", **ENDLESS))
        coach.training("silent")
    nodes.stop_kubelet(free)
    try:
        cluster.kubectl("wait", "--for=condition=Ready=Unknown", f"node/{free}", "--timeout=60s")
        coach.until("silent", lambda status: status.get("state") != "Training", "noticed")
        coach.training("silent")
        assert free not in coach.pods("silent").values()
        went_on(coach, "silent", attempts=1)
    finally:
        nodes.start_kubelet(free)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{free}", "--timeout=90s")
    # What went on there when nobody could end it has ended, too.
    deadline = time.monotonic() + 60
    while "coach-functions" in nodes.nodes[free].ctr("containers", "ls"):
        assert time.monotonic() < deadline, nodes.nodes[free].ctr("containers", "ls")
        time.sleep(1)


def test_a_function_process_that_is_killed_costs_an_attempt(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(job("bitten", **ENDLESS))
    coach.training("bitten")
    kill_in_pod(cluster, "bitten-worker-0")
    went_on(coach, "bitten", attempts=1)


def test_a_function_container_that_is_killed_costs_an_attempt(coach: Coach, cluster: ExistingCluster) -> None:
    nodes = ours(cluster)
    coach.apply(job("shot", **ENDLESS))
    coach.training("shot")
    pod = cluster.get("pod", "shot-server-0")
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    nodes.nodes[pod["spec"]["nodeName"]].ctr("tasks", "kill", "--signal", "SIGKILL", container)
    went_on(coach, "shot", attempts=1)
    events = json.dumps(coach.ask("events", "shot"))
    said = (
        "SIGKILL",
        "does not answer",
        "PeerLost",
    )  # by the kubelet, by the function, or by its peers: who is first
    assert any(word in events for word in said), events


def test_a_job_waits_for_a_scheduler_that_was_killed(coach: Coach, cluster: ExistingCluster) -> None:
    selector = ("-l", "app.kubernetes.io/component=scheduler")
    cluster.kubectl("delete", "pod", *selector, "--grace-period=0", "--force")
    coach.apply(job("patient"))
    assert coach.ended("patient")["state"] == "Succeeded"
    assert coach.paid("patient") == 0
    assert cluster.get("pods", *selector)["items"]


@pytest.mark.parametrize("part", ["kube-apiserver", "kube-controller-manager"])
def test_a_part_of_the_control_plane_that_restarts_costs_nothing(
    coach: Coach, cluster: ExistingCluster, part: str
) -> None:
    plane = ours(cluster)
    name = part.replace("kube-", "without-")
    coach.apply(job(name, **ENDLESS))
    epochs = coach.training(name)["epochs"]
    plane.restart(part)
    coach.until(name, lambda status: status.get("epochs", 0) > epochs, "one epoch further")
    assert went_on(coach, name) == 0


def test_a_job_that_fits_no_node_fails_at_once_with_numbers(coach: Coach) -> None:
    huge = {"worker": {"cpu": "64", "memory": "1Gi"}}
    coach.apply(job("huge", resources=huge))
    began = time.monotonic()
    status = coach.ended("huge")
    assert time.monotonic() - began < 10
    assert (status["state"], status["reason"]) == ("Failed", "NeverFits")
    assert "64" in status["message"] and "largest node" in status["message"]
    assert coach.paid("huge") == 0


def test_an_image_that_cannot_be_pulled_is_named_and_ends_the_job_after_its_start_timeout(
    coach: Coach,
) -> None:
    image = "127.0.0.1:9/nowhere:1"
    coach.apply(job("blank", image=image, startTimeout="20s"))
    began = time.monotonic()
    status = coach.until("blank", lambda status: status.get("reason") == "ImageUnavailable", "told")
    assert time.monotonic() - began < 20, "before the start has timed out"
    assert image in status["message"] and "connection refused" in status["message"]
    assert status["state"] == "Waiting"
    why = json.dumps(coach.ask("why", "blank"))
    assert "cannot be pulled" in why and "connection refused" in why
    status = coach.ended("blank")
    assert (status["state"], status["reason"]) == ("Failed", "StartTimedOut")
    assert image in status["message"]
    coach.paid("blank")


def test_kubectl_edit_raises_the_budget_of_a_job_that_runs_and_of_one_that_has_spent_it(
    coach: Coach, cluster: ExistingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    coach.apply(job("rich", budget={"amount": 0.1, "currency": "USD"}, **ENDLESS))
    coach.training("rich")
    monkeypatch.setenv("KUBE_EDITOR", "sed -i s/amount:.*/amount:\\ 0.2/")
    cluster.kubectl("edit", "trainingjob", "rich")
    coach.until("rich", lambda status: status.get("budget", "").startswith("0.20 "), "given more")
    assert went_on(coach, "rich") == 0
    longer = {"loss": 1.0, "epochsInARow": 25}  # more than the money is enough for, on any machine
    coach.apply(job("broke", target=longer, budget={"amount": 0.0002, "currency": "USD"}))
    assert coach.ended("broke")["state"] == "BudgetExhausted"
    monkeypatch.setenv("KUBE_EDITOR", "sed -i s/amount:.*/amount:\\ 0.5/")
    cluster.kubectl("edit", "trainingjob", "broke")
    coach.until("broke", lambda status: status.get("state") != "BudgetExhausted", "going on")
    assert coach.ended("broke")["state"] == "Succeeded"
    coach.paid("broke")


def test_suspend_releases_the_pods_and_false_lets_the_job_go_on(coach: Coach, cluster: ExistingCluster) -> None:
    def suspend(value: bool) -> None:
        patch = json.dumps({"spec": {"suspend": value}})
        cluster.kubectl("patch", "trainingjob", "resting", "--type", "merge", "-p", patch)

    coach.apply(job("resting", **ENDLESS))
    coach.training("resting")
    suspend(True)
    status = coach.until("resting", lambda status: status.get("reason") == "Suspended", "suspended")
    coach.nothing_left("resting")
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert status["state"] == "Waiting" and conditions["Suspended"] == "True"
    epochs = status["epochs"]
    suspend(False)
    coach.training("resting", epochs + 1)
    assert went_on(coach, "resting") == 0


def test_a_job_that_is_deleted_ends_and_is_paid(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(job("unwanted", **ENDLESS))
    coach.training("unwanted")
    cluster.kubectl("delete", "trainingjob", "unwanted", "--timeout=30s")
    coach.nothing_left("unwanted")
    coach.paid("unwanted")
    assert coach.ask("show", "unwanted")["state"] == "Cancelled"


def test_an_upgrade_of_the_handler_lets_its_jobs_go_on(coach: Coach) -> None:
    coach.apply(job("upgraded", **ENDLESS))
    coach.training("upgraded", epochs=2)
    coach.upgrade("handler.resources.requests.memory=520Mi")
    assert went_on(coach, "upgraded") <= 1, "the epoch that ran is trained again, no other"


def test_helm_uninstall_ends_jobs_that_train_and_leaves_nothing(coach: Coach) -> None:
    coach.apply(job("interrupted", **ENDLESS))
    coach.training("interrupted")
    coach.uninstall()
    coach.install()


#: A program that needs no volume.
ALONE = {
    "image": "coach-functions:0.1.0",
    "program": {
        "command": ["python3", "-c", "import time\nfor e in range(9999): time.sleep(1); print('loss', 1, flush=True)"]
    },
    "target": {"loss": 0.001},
    "budget": {"amount": 0.5, "currency": "USD"},
    "resources": {"worker": {"cpu": "100m", "memory": "128Mi"}},
    "stopEarly": False,
}


def test_a_second_release_has_its_own_jobs_and_goes_with_its_namespace(coach: Coach, cluster: ExistingCluster) -> None:
    cluster.kubectl("create", "namespace", "other")
    settings = ("crds.enabled=false", "scheduler.enabled=false", "persistence.enabled=false")
    options = [part for one in settings for part in ("--set", one)]
    coach.helm("install", "coach", str(CHART), "--namespace", "other", *options, "--wait", "--timeout", "3m")
    coach.apply(job("ours", **ENDLESS))
    theirs = {**job("theirs"), "spec": ALONE}
    theirs["metadata"]["namespace"] = "other"
    coach.apply(theirs)
    coach.training("ours")
    deadline = time.monotonic() + PATIENCE
    while (found := cluster.get("trainingjob", "theirs", "-n", "other")).get("status", {}).get("epochs", 0) < 2:
        assert time.monotonic() < deadline, found.get("status")
        time.sleep(0.5)
    handlers = [cluster.get("pods", "-n", ns, "-l", "coach.dev/job")["items"] for ns in ("default", "other")]
    assert [{one["metadata"]["labels"]["coach.dev/job"] for one in pods} for pods in handlers] == [{"ours"}, {"theirs"}]
    cluster.kubectl("delete", "namespace", "other", "--timeout=150s")
    assert went_on(coach, "ours") == 0
    for kind in ("clusterrole", "clusterrolebinding"):
        cluster.kubectl("delete", kind, "other-coach-handler")


def test_a_job_without_a_target_trains_the_best_model_for_its_money(coach: Coach) -> None:
    document = job("best", budget={"amount": 0.0005, "currency": "USD"})
    del document["spec"]["target"]
    coach.apply(document)
    status = coach.ended("best")
    assert status["state"] == "Succeeded" and status["reason"] in ("BudgetUsed", "NoGainExpected")
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert conditions["Complete"] == "True" and conditions["Failed"] == "False"
    coach.paid("best")
    assert coach.ask("show", "best")["spent"] <= 0.0005
