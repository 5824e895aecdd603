"""A team's month, and spot nodes, on a cluster. `make all-tests` runs these."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from tests.kubernetes.cluster import ExistingCluster
from tests.kubernetes.installed import Coach, job, ours
from tests.kubernetes.test_cluster import wait_for
from tests.kubernetes.test_programs import NEVER, YIELDS, program, reported

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

AMOUNT, KILLS = 0.0015, 4
#: The journal record by record: the most of an account that was spent and reserved at once, what all settlements come
#: to, what the account has spent, and how many handlers there were.
ACCOUNT = """
import json, sys
from coach.core.lifecycle.reducer import Reducer
from coach.core.policies.coach import CoachPolicy
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
journal = Journal.read(StateDirectory.default().journal(1))
folded, most, settled, handlers = Reducer(CoachPolicy()), 0, 0, 0
for _, record in journal.records():
    folded.apply(record)
    settled += record.amount if type(record).__name__ == "Settle" and record.job in sys.argv[2:] else 0
    handlers += type(record).__name__ == "HandlerStarted"
    if account := folded.accounts.known.get(sys.argv[1]):
        used = folded.accounts.spent(account, record.at) + account.held
        assert used <= account.amount, (used, account.amount, record)
        most = max(most, used)
print(json.dumps([most, settled, folded.accounts.known[sys.argv[1]].payments.since(0.0), handlers]))
"""


def account(coach: Coach, name: str, *jobs: str) -> list[int]:
    found: list[int] = json.loads(
        coach.cluster.kubectl("exec", "deploy/coach-handler", "--", "python", "-c", ACCOUNT, name, *jobs)
    )
    return found


def budget(coach: Coach, name: str) -> dict[str, Any]:
    status: dict[str, Any] = coach.cluster.get("trainingbudget", name).get("status", {})
    return status


def test_two_jobs_of_a_team_spend_no_more_than_its_month_through_kills_of_the_handler(
    coach: Coach, cluster: ExistingCluster
) -> None:
    month = {"amount": AMOUNT, "currency": "USD", "period": "month", "timeZone": "Europe/Berlin"}
    document = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingBudget", "metadata": {"name": "team-a"}}
    coach.apply({**document, "spec": month})
    endless = {"target": {"loss": 1.0, "epochsInARow": 1000}, "maxEpochs": 2000, "budget": {"account": "team-a"}}
    jobs, dice = ("anna", "ben"), random.Random(7)
    try:
        coach.apply(job("anna", **endless))
        coach.until("anna", lambda status: status.get("state") in ("Probing", "Training"), "at work")
        coach.apply(job("ben", **endless))
        waits = coach.until("ben", lambda status: status.get("reason") == "AccountSpent", "waiting for money")
        assert "reserved by anna" in waits["message"] and f"of {AMOUNT:g} USD/month" in waits["message"]
        for _ in range(KILLS):
            time.sleep(dice.uniform(1.0, 12.0))
            handler = ("-l", "app.kubernetes.io/component=handler")
            cluster.kubectl("delete", "pod", *handler, "--grace-period=0", "--force")
            cluster.kubectl("rollout", "status", "deploy/coach-handler", "--timeout=120s")
        for name in jobs:  # each has taken what there was
            coach.until(name, lambda status: status.get("reason") == "AccountSpent", "waiting for the next month")
        most, settled, spent, handlers = account(coach, "team-a", *jobs)
        assert 0 < spent == settled <= most <= round(AMOUNT * 1e9)
        assert handlers > KILLS
        status = budget(coach, "team-a")
        assert float(status["spent"].split()[0]) <= AMOUNT and status["waiting"] == 2, status
    finally:
        cluster.kubectl("delete", "trainingjobs", *jobs, "--timeout=60s", "--ignore-not-found")
        cluster.kubectl("delete", "trainingbudget", "team-a", "--timeout=60s")


def test_a_program_waits_for_its_spot_node_that_is_taken_away_and_goes_on_when_it_is_back(
    coach: Coach, cluster: ExistingCluster
) -> None:
    nodes, spot = ours(cluster), coach.free_node()
    cluster.kubectl("label", "node", spot, "karpenter.sh/capacity-type=spot")
    command = {"command": ["python3", "-c", YIELDS], "resumes": True}
    wanted = {"prices": "nodes", "spot": {"deadline": "1h"}, "maxEpochs": 60}
    taint = "karpenter.sh/disrupted"
    try:
        coach.apply(program("spotted", program=command, gracePeriod="20s", target={**NEVER, "value": 1 / 16}, **wanted))
        coach.training("spotted", epochs=4)
        assert set(coach.pods("spotted").values()) == {spot}
        cluster.kubectl("taint", "node", spot, f"{taint}=true:NoSchedule")
        coach.until("spotted", lambda status: status.get("reason") == "WaitingSpot", "waiting for spot nodes")
        nodes.kill_node(spot)
        coach.nothing_left_of_pods("spotted")
        nodes.start_node(spot)
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{spot}", "--timeout=90s")
        cluster.kubectl("taint", "node", spot, f"{taint}-")
        wait_for("a pod on the spot node", lambda: set(coach.pods("spotted").values()) == {spot}, 120)
        assert coach.ended("spotted")["state"] == "Succeeded"
    finally:
        cluster.kubectl("label", "node", spot, "karpenter.sh/capacity-type-")
    coach.paid("spotted")
    values = reported(coach, "spotted")
    assert values == sorted(set(values), reverse=True), "no epoch was trained twice"
