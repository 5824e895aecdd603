"""Jobs with `spec.spot` on a cluster whose nodes are labelled: spot while it is there, on-demand for the deadline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.cluster import ExistingCluster
from tests.kubernetes.installed import Coach, job
from tests.kubernetes.test_cluster import wait_for
from tests.kubernetes.test_programs import NEVER, YIELDS, program
from tests.kubernetes.test_schedulers import fills

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

#: A machine of two cores and 8 GiB of the catalogue that ships with Coach, and what it costs an hour.
OFFER, HOUR = "aws/m8i-flex.large@us-east-1", {True: 0.0344, False: 0.10055}
NOTICE = "cloud.google.com/impending-node-termination"
#: Seconds x price, by a loop over the journal: until when each pod was held, its share of its node, that node's price.
PLAIN = """
import json, sys
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
prices = json.loads(sys.argv[2])
journal = Journal.read(StateDirectory.default().journal(1))
job = journal.jobs()[sys.argv[1]]
node, ready, billed, since, paid, seconds = {}, set(), set(), None, 0.0, {}
for _, record in journal.records(job.name):
    kind = type(record).__name__
    if kind == "PodReady":
        node[record.pod] = record.node
        ready.add(record.pod)
    elif kind == "PodLost":
        ready.discard(record.pod)
    elif kind == "PodsReleased":
        ready -= set(record.pods)
    elif kind == "RunEpoch":
        billed, since = set(record.pods), record.at
    elif kind == "Settle":
        for name in {node[pod] for pod in billed}:
            held = [job.spec.resources.of(pod.role) for pod in billed if node[pod] == name]
            share = max(sum(one.cpu for one in held) / 2, sum(one.memory for one in held) / 8)
            paid += (record.until - since) * share * prices[name] / 3600
            seconds[name] = seconds.get(name, 0.0) + record.until - since
        billed, since = set(ready), record.until
print(json.dumps([job.money.ledger.spent, paid * 1e9, seconds]))
"""


@pytest.fixture(scope="module")
def spot(coach: Coach, cluster: ExistingCluster) -> Iterator[str]:
    """The only spot node: labelled, as are the prices of all."""
    free = coach.free_node()
    for name in cluster.node_names:
        cluster.kubectl("annotate", "node", name, f"coach.dev/offer={OFFER}{':spot' if name == free else ''}")
    cluster.kubectl("label", "node", free, "coach.dev/capacity-type=spot")
    yield free
    cluster.kubectl("annotate", "node", *cluster.node_names, "coach.dev/offer-")
    cluster.kubectl("label", "node", free, "coach.dev/capacity-type-")


def paid(coach: Coach, name: str, spot: str) -> tuple[int, dict[str, float]]:
    """What a job has spent, which is seconds x price, and how long it paid for each node."""
    prices = {node: HOUR[node == spot] for node in coach.cluster.node_names}
    run = ("exec", "deploy/coach-handler", "--", "python", "-c", PLAIN, name, json.dumps(prices))
    spent, plain, seconds = json.loads(coach.cluster.kubectl(*run))
    assert spent == pytest.approx(plain, rel=1e-6, abs=1e3), seconds
    return spent, seconds


def events(coach: Coach, name: str) -> str:
    return coach.cluster.kubectl("exec", "deploy/coach-handler", "--", "coach", "events", name)


def test_when_the_spot_node_goes_one_job_waits_for_it_and_one_goes_on_on_demand_for_its_deadline(
    coach: Coach, cluster: ExistingCluster, spot: str
) -> None:
    endless: dict[str, Any] = {"target": {"loss": 1e-9}, "stopEarly": False, "prices": "nodes", "maxEpochs": 25}
    coach.apply(job("patient", spot={"deadline": "3h"}, **endless))
    coach.training("patient", epochs=2)
    assert set(coach.pods("patient").values()) == {spot}
    coach.apply(job("hurried", spot={"deadline": "90s"}, **endless))
    coach.training("hurried", epochs=1)
    cluster.kubectl("taint", "node", spot, f"{NOTICE}=true:NoSchedule")
    try:
        waits = coach.until("patient", lambda status: status.get("reason") == "WaitingSpot", "waiting for spot")
        assert waits["state"] == "Waiting" and "takes on-demand nodes" in waits["message"]
        coach.nothing_left_of_pods("patient")
        before = paid(coach, "patient", spot)
        coach.ended("hurried")
        after = paid(coach, "patient", spot)
        assert before == after, "it waits, and pays nothing"
        waits = coach.status("patient")
        assert waits["reason"] == "WaitingSpot"
    finally:
        cluster.kubectl("taint", "node", spot, f"{NOTICE}-")
    coach.training("patient", epochs=waits["epochs"] + 1)
    assert set(coach.pods("patient").values()) == {spot}
    coach.ended("patient")
    for name in ("patient", "hurried"):
        assert coach.status(name)["epochs"] == endless["maxEpochs"]
        coach.paid(name)
    assert set(paid(coach, "patient", spot)[1]) == {spot}
    assert set(paid(coach, "hurried", spot)[1]) - {spot} and "takes on-demand nodes" in events(coach, "hurried")
    assert "waits for spot nodes: takes on-demand nodes" in events(coach, "patient")


def test_a_program_under_the_clusters_own_scheduler_says_that_it_waits_for_spot_nodes_and_takes_others(
    coach: Coach, cluster: ExistingCluster, spot: str
) -> None:
    """Another namespace, which the handler does not see, has the spot node; then it gives it back."""
    coach.upgrade("scheduler.kind=default")
    cluster.kubectl("create", "namespace", "crowd")
    try:
        wait_for("account", lambda: cluster.kubectl("get", "serviceaccount", "-n", "crowd", "--ignore-not-found"))
        cluster.apply(fills(1, spot))
        cluster.kubectl("wait", "-n", "crowd", "--for=condition=Ready", "pod/fills-1", "--timeout=60s")
        command = {"command": ["python3", "-c", YIELDS], "resumes": True}
        large = {"worker": {"cpu": "1050m", "memory": "128Mi"}}
        wanted = {"prices": "nodes", "spot": {"deadline": "1h"}, "target": {**NEVER, "value": 1 / 61}}
        coach.apply(program("choosy", program=command, gracePeriod="20s", resources=large, **wanted))
        alone = "spec.spot: on spot nodes alone"
        status = coach.until("choosy", lambda status: alone in status.get("message", ""), "waiting for a spot node")
        assert "Insufficient cpu" in status["message"] and status["state"] == "Waiting"
        coach.training("choosy", epochs=1)
        assert spot not in set(coach.pods("choosy").values())
        cluster.kubectl("delete", "namespace", "crowd", "--timeout=60s")
        wait_for("a pod on the spot node", lambda: set(coach.pods("choosy").values()) == {spot}, 240)
        assert coach.ended("choosy")["state"] == "Succeeded"
        assert set(paid(coach, "choosy", spot)[1]) > {spot}
        logs = cluster.kubectl("exec", "deploy/coach-handler", "--", "coach", "logs", "choosy")
        begun = {int(line.split("after ")[1].split()[0]) for line in logs.splitlines() if "begins" in line}
        assert max(begun) >= 1, f"on the spot node it went on from its checkpoint:\n{logs}"
    finally:
        cluster.kubectl("delete", "namespace", "crowd", "--ignore-not-found", "--timeout=60s")
        cluster.kubectl("delete", "trainingjob", "choosy", "--ignore-not-found", "--timeout=60s")
        coach.upgrade()
