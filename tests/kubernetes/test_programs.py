"""Programs on a cluster: a plain script in an image that has Python and nothing of Coach's functions at work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.cluster import ExistingCluster
from tests.kubernetes.installed import Coach, job, only, ours
from tests.kubernetes.test_cluster import wait_for
from tests.kubernetes.test_laptop import coach_command

#: Any image with a Python; this one is on every node.
IMAGE = "coach-functions:0.1.0"
#: A training loop of its own that goes on from its newest checkpoint, an epoch each half second. The metric has its
#: own name, and the size of a step comes from a Secret.
SCRIPT = """
import os, pathlib, time
checkpoint = pathlib.Path(os.environ.get("COACH_CHECKPOINTS", "/tmp"), "epoch")
done = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("begins after", done, "epochs", flush=True)
for epoch in range(done + 1, 10000):
    time.sleep(0.5)
    checkpoint.with_suffix(".new").write_text(str(epoch))
    checkpoint.with_suffix(".new").replace(checkpoint)
    print(f"epoch {epoch} eval_loss {1 / (1 + float(os.environ['STEP']) * epoch):.6f}", flush=True)
"""
#: What only the Secret says.
STEP = "0.500000731"
#: Where the metric is after ten epochs.
TEN_EPOCHS = {"metric": "eval_loss", "value": 1 / 6, "epochsInARow": 1}
NEVER = {"metric": "eval_loss", "value": 1e-9, "epochsInARow": 1}


def program(name: str, script: str = SCRIPT, **spec: Any) -> dict[str, Any]:
    """A TrainingJob with a program, until `spec` says otherwise."""
    document = job(name)
    document["spec"] = {
        "image": IMAGE,
        "program": {
            "command": ["python3", "-c", script],
            "secrets": {"STEP": {"secret": "size", "key": "step"}},
            "resumes": True,
        },
        "target": TEN_EPOCHS,
        "budget": {"amount": 0.5, "currency": "USD"},
        "gracePeriod": "5s",
        "resources": {"worker": {"cpu": "200m", "memory": "128Mi"}},
        **spec,
    }
    return document


@pytest.fixture(autouse=True)
def secret(cluster: ExistingCluster) -> None:
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "size"}, "stringData": {"step": STEP}}
    cluster.apply(made)


def reported(coach: Coach, name: str) -> list[float]:
    """The values that counted, in order."""
    return [one["value"] for one in coach.ask("show", name)["epochs"]]


def test_a_plain_script_runs_in_its_own_image_to_its_target(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(program("plain"))
    coach.training("plain", epochs=3)
    (pod,) = cluster.get("pods", "-l", "coach.dev/job=plain")["items"]
    assert pod["spec"]["containers"][0]["image"] == IMAGE
    cluster.kubectl("delete", "pod", "-l", "app.kubernetes.io/component=handler", "--grace-period=0", "--force")
    status = coach.ended("plain")
    assert (status["state"], status["reason"]) == ("Succeeded", "TargetReached")
    assert coach.paid("plain") == 0, "another handler took the running program over"
    values = reported(coach, "plain")
    assert values == [pytest.approx(1 / (1 + 0.5 * epoch), abs=1e-5) for epoch in range(1, 11)], (
        "each report counted once"
    )
    logs = cluster.kubectl("exec", "deploy/coach-handler", "--", "coach", "logs", "plain")
    assert logs.count("begins after 0 epochs") == logs.count("begins after") == 1
    shown = json.dumps(coach.ask("show", "plain")) + json.dumps(coach.ask("events", "plain"))
    home = cluster.kubectl(
        *("exec", "deploy/coach-handler", "--", "sh", "-c"),
        f"grep -rl {STEP} /var/lib/coach/home /var/lib/coach/checkpoints; true",
    )
    assert STEP not in shown + logs and home == "", "nobody but the program reads the Secret"


@pytest.mark.full
def test_an_api_server_that_restarts_costs_no_report(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(program("patient"))
    coach.training("patient", epochs=2)
    ours(cluster).restart("kube-apiserver")
    assert coach.ended("patient")["state"] == "Succeeded"
    assert coach.paid("patient") == 0
    assert len(reported(coach, "patient")) == 10 and reported(coach, "patient") == sorted(
        reported(coach, "patient"), reverse=True
    )


@pytest.mark.full
def test_a_program_ends_with_its_money_and_not_after(coach: Coach, cluster: ExistingCluster) -> None:
    money = {"amount": 0.0002, "currency": "USD"}
    coach.apply(program("poor", target=NEVER, budget=money, stopEarly=False))
    status = coach.ended("poor")
    assert (status["state"], status["reason"]) == ("BudgetExhausted", "BudgetSpent")
    coach.paid("poor")


@pytest.mark.full
def test_a_program_that_needs_more_memory_than_its_limit_fails_with_the_kubelets_reason(coach: Coach) -> None:
    coach.apply(program("greedy", "held = [b'x' * (1 << 20) for _ in range(1024)]"))
    status = coach.ended("greedy")
    assert (status["state"], status["reason"]) == ("Failed", "OutOfMemory"), status
    coach.paid("greedy")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_without_a_handler_a_program_ends_and_goes_on_under_the_next(coach: Coach, cluster: ExistingCluster) -> None:
    coach.apply(program("left", target={**NEVER, "value": 1 / 41}))
    coach.training("left", epochs=2)
    cluster.kubectl("scale", "deploy/coach-handler", "--replicas=0")
    try:
        cluster.kubectl("wait", "pod/left-worker-0", "--for=delete", "--timeout=150s")
    finally:
        cluster.kubectl("scale", "deploy/coach-handler", "--replicas=1")
    assert coach.ended("left")["state"] == "Succeeded"
    assert coach.paid("left") == 1, "the epoch that its lease ended"
    logs = cluster.kubectl("exec", "deploy/coach-handler", "--", "coach", "logs", "left")
    assert "begins after 0 epochs" in logs and logs.count("begins after") == 2


@pytest.mark.full
def test_a_lost_node_costs_a_program_the_time_since_its_checkpoint(coach: Coach, cluster: ExistingCluster) -> None:
    nodes = ours(cluster)
    free = coach.free_node()
    with only(cluster, free):
        coach.apply(program("stranded", target={**NEVER, "value": 1 / 31}))
        coach.training("stranded", epochs=2)
    assert set(coach.pods("stranded").values()) == {free}
    nodes.kill_node(free)
    try:
        status = coach.ended("stranded")
    finally:
        nodes.start_node(free)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{free}", "--timeout=90s")
    assert status["state"] == "Succeeded"
    assert coach.paid("stranded") == 1


@pytest.mark.full
def test_a_suspended_program_goes_on_from_its_checkpoint(coach: Coach, cluster: ExistingCluster) -> None:
    def suspend(yes: bool) -> None:
        cluster.kubectl(*("patch", "tj", "resting", "--type", "merge"), "-p", json.dumps({"spec": {"suspend": yes}}))

    coach.apply(program("resting"))
    coach.training("resting", epochs=2)
    suspend(True)
    coach.until("resting", lambda status: status.get("reason") == "Suspended", "suspended")
    coach.nothing_left("resting")
    suspend(False)
    assert coach.ended("resting")["state"] == "Succeeded"
    coach.paid("resting")


#: Two workers meet where torchrun's variables say, and the first one reports what it heard from the second.
MEET = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", where[1])) as server:
        others = [server.accept()[0] for _ in range(world - 1)]
        said = {other.recv(100) for other in others}
        assert said == {str(other).encode() for other in range(1, world)}, said
        for epoch in range(1, 10000):
            print(f"epoch {epoch} loss {1 / epoch}", flush=True)
            time.sleep(0.5)
while True:
    try:
        with socket.create_connection(where, 5) as first:
            first.sendall(str(rank).encode())
            first.recv(1)
    except OSError:
        time.sleep(0.2)
"""


@pytest.mark.full
def test_the_workers_of_a_program_start_together_and_meet_by_name(coach: Coach, cluster: ExistingCluster) -> None:
    resources = {"worker": {"cpu": "1050m", "memory": "128Mi"}}  # two are on two nodes
    command = {"command": ["python3", "-c", MEET]}
    target = {"loss": 0.04, "epochsInARow": 1}
    coach.apply(program("met", program=command, target=target, workers={"min": 2}, resources=resources))
    coach.training("met", epochs=1)
    assert len(set(coach.pods("met").values())) == 2
    assert coach.ended("met")["state"] == "Succeeded"
    assert coach.paid("met") == 0
    assert not cluster.get("services,jobs", "-l", "coach.dev/job=met")["items"]


@pytest.mark.full
def test_a_handler_that_is_killed_at_once_is_followed_by_one_that_goes_on(
    coach: Coach, cluster: ExistingCluster
) -> None:
    coach.apply(program("kept", target={**NEVER, "value": 1 / 21}))
    coach.training("kept", epochs=2)
    (pod,) = cluster.get("pods", "-l", "app.kubernetes.io/component=handler")["items"]
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    ours(cluster).nodes[pod["spec"]["nodeName"]].ctr("tasks", "kill", "--signal", "SIGKILL", container)
    assert coach.ended("kept")["state"] == "Succeeded"
    assert coach.paid("kept") == 0
    assert len(reported(coach, "kept")) == 40


@pytest.mark.full
def test_a_users_own_handler_and_a_submission_from_outside_run_a_program(
    coach: Coach, cluster: ExistingCluster, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(program("outside")))
    ran = coach_command(coach, tmp_path / "home", "run", "--platform", "kubernetes", str(file), "-o", "json")
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(coach_command(coach, tmp_path / "home", "show", "outside", "-o", "json").stdout)
    assert shown["state"] == "Succeeded" and shown["spent"] <= shown["budget"]
    assert "begins after 0 epochs" in coach_command(coach, tmp_path / "home", "logs", "outside").stdout
    coach.nothing_left("outside")
    context = cluster.kubectl("config", "current-context").strip()
    sent = coach_command(coach, tmp_path / "home", "--context", context, "submit", str(file))
    assert "applied" in sent.stdout, sent.stderr
    assert coach.ended("outside")["state"] == "Succeeded"


#: A plain script of a user's folder: a step takes less time with more workers, and it goes on from its checkpoint.
TRAIN = """
import os, pathlib, sys, time
from parts import after
kept = pathlib.Path(os.environ["COACH_CHECKPOINTS"], "epoch")
world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
epoch = int(kept.read_text()) if kept.exists() else 0
print("begins after", epoch, "epochs with", world, "workers", flush=True)
while True:
    time.sleep(1.5 / world)
    epoch += 1
    if rank == 0:
        kept.with_suffix(".new").write_text(str(epoch))
        kept.with_suffix(".new").replace(kept)
        print(f"epoch {epoch} eval_loss {after(epoch):.6f}", flush=True)
"""
PARTS = "def after(epoch):\n    return 1 / (1 + 0.05 * epoch)\n"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_persons_own_folder_is_trained_to_its_target_by_workers_that_change_under_another_handler(
    coach: Coach, cluster: ExistingCluster, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "train.py").write_text(TRAIN)
    (own / "parts.py").write_text(PARTS)
    context = cluster.kubectl("config", "current-context").strip()
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "COACH_HOME": str(tmp_path / "home")}
    options = (
        "--budget",
        "0.5USD",
        "--target",
        "eval_loss<=0.15",
        "--image",
        IMAGE,
        "--workers",
        "1-3",
        "--resumes",
    )
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "coach.cli.main", "--context", context, "run", *options),
            *("--cpu", "200m", "--memory", "128Mi", "--", "python3", "train.py"),
        ],
        cwd=own,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        try:
            wait_for("the job", lambda: "train" in cluster.kubectl("get", "trainingjobs"))
            coach.until("train", lambda status: status.get("workers", 0) > 1, "trained by more workers")
            coach.training("train", epochs=6)
            handler = ("-l", "app.kubernetes.io/component=handler")
            cluster.kubectl("delete", "pod", *handler, "--grace-period=0", "--force")
            said, _ = running.communicate(timeout=600)
        finally:
            running.kill()
    assert running.returncode == 0, said
    assert "configmap train-code: 2 files" in said and "Succeeded (TargetReached)" in said
    coach.nothing_left("train")
    shown = coach.ask("show", "train")
    assert shown["spent"] <= shown["budget"]
    allocations = {one["workers"] for one in shown["epochs"]}
    assert 1 in allocations and len(allocations) > 1, "its workers changed"
    assert coach.paid("train") <= 1, "at most the epoch that a handler's death broke off"
    logs = cluster.kubectl("exec", "deploy/coach-handler", "--", "coach", "logs", "train")
    begun = [int(line.split("after ")[1].split()[0]) for line in logs.splitlines() if "begins after" in line]
    assert max(begun) > 0, "it went on from its checkpoint"
    values = reported(coach, "train")
    assert values == sorted(values, reverse=True) and len(values) == len(set(values)), "no report counted twice"
    cluster.kubectl("delete", "trainingjob", "train", "--wait")
    assert not [one for one in cluster.get("configmaps")["items"] if one["metadata"]["name"] == "train-code"]


#: A program that prints no metric: it sends Kubeflow's status, as transformers' Trainer does.
SENDS = """
import json, os, time, urllib.request
for epoch in range(1, 10000):
    time.sleep(0.7)
    metrics = [{"name": "eval_loss", "value": str(1 / epoch)}, {"name": "epoch", "value": str(epoch)}]
    body = json.dumps({"trainerStatus": {"metrics": metrics}}).encode()
    token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read()
    assert open(os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"]).read()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(os.environ["KUBEFLOW_TRAINER_SERVER_URL"], body, headers)
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except OSError as error:
        print(error, flush=True)
"""


@pytest.mark.full
def test_a_program_that_sends_its_status_reaches_its_target(coach: Coach, cluster: ExistingCluster) -> None:
    command = {"command": ["python3", "-c", SENDS], "metrics": {"eval_loss": "status"}}
    coach.apply(program("sends", program=command))
    coach.training("sends", epochs=2)
    handler = ("-l", "app.kubernetes.io/component=handler")
    cluster.kubectl("delete", "pod", *handler, "--grace-period=0", "--force")
    assert coach.ended("sends")["state"] == "Succeeded"
    assert coach.paid("sends") == 0


@pytest.mark.full
def test_metrics_in_a_file_of_the_jobs_folder_are_read(coach: Coach, cluster: ExistingCluster) -> None:
    script = (
        "import os, time\n"
        "for epoch in range(1, 10000):\n"
        "    time.sleep(0.5)\n"
        "    with open(os.environ['COACH_CHECKPOINTS'] + '/metrics.csv', 'a') as file:\n"
        "        file.write('epoch,eval_loss\\n' if epoch == 1 else '')\n"
        "        file.write(f'{epoch},{1 / epoch}\\n')\n"
    )
    where = "csv:/var/lib/coach/checkpoints/writes/metrics.csv"
    command = {"command": ["python3", "-c", script], "metrics": {"eval_loss": where}}
    coach.apply(program("writes", program=command))
    assert coach.ended("writes")["state"] == "Succeeded"
    assert len(reported(coach, "writes")) == 6


@pytest.mark.full
@pytest.mark.timeout(600)
def test_more_workers_than_others_leave_room_for_do_not_stop_a_program(coach: Coach, cluster: ExistingCluster) -> None:
    """A pod in another namespace, of which the handler does not know, holds half of each node."""
    cluster.kubectl("create", "namespace", "others")
    held = {"cpu": "1100m", "memory": "64Mi"}
    container = {"name": "x", "image": IMAGE, "command": ["sleep", "10000"], "resources": {"requests": held}}
    for number, node in enumerate(cluster.node_names):
        pod = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
        metadata = {"name": f"x{number}", "namespace": "others"}
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
    try:
        script = SCRIPT.replace("time.sleep(0.5)", "time.sleep(1.5 / int(os.environ['WORLD_SIZE']))")
        large = {"worker": {"cpu": "500m", "memory": "128Mi"}}
        target = {**NEVER, "value": 1 / 41}
        coach.apply(program("crowded", script=script, workers={"min": 1, "max": 8}, resources=large, target=target))
        assert coach.ended("crowded")["state"] == "Succeeded"
        coach.paid("crowded")
        events = cluster.kubectl("exec", "deploy/coach-handler", "--", "coach", "events", "crowded")
        assert " instead of " in events, f"fewer where more had no room:\n{events}"
    finally:
        cluster.kubectl("delete", "namespace", "others", "--wait=false")


#: Writes its only checkpoint when it is to end, which takes it three seconds.
YIELDS = """
import os, pathlib, signal, sys, time
checkpoint = pathlib.Path(os.environ["COACH_CHECKPOINTS"], "epoch")
epoch = int(checkpoint.read_text()) if checkpoint.exists() else 0
print("begins after", epoch, "epochs", flush=True)
def leave(*_):
    time.sleep(3)
    if os.environ.get("RANK", "0") == "0":
        checkpoint.write_text(str(epoch))
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
while True:
    time.sleep(0.5)
    epoch += 1
    print(f"epoch {epoch} eval_loss {1 / (1 + 0.5 * epoch):.6f}", flush=True)
"""


@pytest.mark.full
def test_a_node_that_is_taken_away_with_its_notice_costs_a_program_no_epoch(
    coach: Coach, cluster: ExistingCluster
) -> None:
    """As a cloud takes a spot machine: a taint first, and the machine is switched off."""
    nodes, free = ours(cluster), coach.free_node()
    command = {"command": ["python3", "-c", YIELDS], "resumes": True}
    with only(cluster, free):
        coach.apply(program("noticed", program=command, gracePeriod="20s", target={**NEVER, "value": 1 / 31}))
        coach.training("noticed", epochs=3)
    assert set(coach.pods("noticed").values()) == {free}
    cluster.kubectl("taint", "node", free, "cloud.google.com/impending-node-termination=true:NoSchedule")
    try:
        wait_for("a pod on another node", lambda: set(coach.pods("noticed").values()) - {free, ""}, 120)
        nodes.kill_node(free)
        assert coach.ended("noticed")["state"] == "Succeeded"
    finally:
        nodes.start_node(free)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{free}", "--timeout=90s")
        cluster.kubectl("taint", "node", free, "cloud.google.com/impending-node-termination-")
    coach.paid("noticed")
    # Each value once: what was reported before the notice was in the checkpoint.
    values = reported(coach, "noticed")
    assert values == sorted(set(values), reverse=True), values
    events = cluster.kubectl("exec", "deploy/coach-handler", "--", "coach", "events", "noticed")
    assert f"node {free} goes away" in events


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_program_that_the_scheduler_preempts_writes_its_checkpoint_and_goes_on_afterwards(
    coach: Coach, cluster: ExistingCluster
) -> None:
    urgent = {
        "apiVersion": "coach.dev/v1alpha1",
        "kind": "Gang",
        "metadata": {"name": "urgent"},
        "spec": {
            "trialAndError": True,
            "roles": [
                {"name": role, "required": count, "desired": count}
                for role, count in (("scheduler", 0), ("server", 0), ("worker", 1))
            ],
        },
    }
    labels = {"coach.dev/job": "urgent", "coach.dev/role": "worker", "coach.dev/index": "0"}
    requests = {"cpu": "1100m", "memory": "64Mi"}
    container = {
        "name": "x",
        "image": IMAGE,
        "command": ["sleep", "10000"],
        "resources": {"requests": requests},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "urgent-worker-0", "labels": labels},
        "spec": {"schedulerName": "coach", "containers": [container], "terminationGracePeriodSeconds": 0},
    }
    coach.upgrade("scheduler.args.preemption=fitgpp")
    try:
        large = {"worker": {"cpu": "1050m", "memory": "128Mi"}}  # one on each node
        command = {"command": ["python3", "-c", YIELDS], "resumes": True}
        target = {**NEVER, "value": 1 / 31}
        spec = {"workers": {"min": len(cluster.node_names)}, "resources": large, "target": target}
        coach.apply(program("yields", program=command, gracePeriod="20s", **spec))
        coach.training("yields", epochs=3)
        cluster.apply(urgent, pod)
        cluster.kubectl("wait", "pod/urgent-worker-0", "--for=condition=Ready", "--timeout=90s")
        coach.until("yields", lambda status: status.get("state") == "Waiting", "waiting for its room")
        cluster.kubectl("delete", "gang/urgent", "pod/urgent-worker-0")
        assert coach.ended("yields")["state"] == "Succeeded"
        coach.paid("yields")
        logs = cluster.kubectl("exec", "deploy/coach-handler", "--", "coach", "logs", "yields")
        begun = {int(line.split("after ")[1].split()[0]) for line in logs.splitlines() if "begins" in line}
        assert max(begun) >= 3, f"it went on from the checkpoint that it wrote when it was preempted:\n{logs}"
    finally:
        cluster.kubectl("delete", "gang/urgent", "pod/urgent-worker-0", "--ignore-not-found")
        coach.upgrade()
