"""A team's month on a cluster. `make all-tests` runs this."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from tests.kubernetes.cluster import ExistingCluster
from tests.kubernetes.installed import Coach, job

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
        assert handlers > 1, "some kills struck one that had just begun"
        status = budget(coach, "team-a")
        assert float(status["spent"].split()[0]) <= AMOUNT and status["waiting"] == 2, status
    finally:
        cluster.kubectl("delete", "trainingjobs", *jobs, "--timeout=60s", "--ignore-not-found")
        cluster.kubectl("delete", "trainingbudget", "team-a", "--timeout=60s")
