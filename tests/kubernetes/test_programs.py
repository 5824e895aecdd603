"""Programs on a cluster: a plain script in an image that has Python and nothing of Coach's functions at work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kubernetes.cluster import ExistingCluster
from tests.kubernetes.installed import Coach, job

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
    cluster.kubectl(
        "delete", "pod", "-l", "app.kubernetes.io/component=handler", "--grace-period=0", "--force"
    )
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
