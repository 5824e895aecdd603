"""What a cluster costs a job: from `kubectl apply` to the first step, and seconds outside training in each epoch.

    make kubernetes && python -m benchmarks.service.kubernetes

On the cluster of `make test-kubernetes`, with the jobs of its tests. The first job after the nodes were started is
cold: no page of the images is read yet by their containers. The others are warm.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

from benchmarks.harness import RESULTS, ROOT, write_table
from scripts import images
from tests.kubernetes.cluster import Cluster, Unready
from tests.kubernetes.installed import LARGE, Coach, job

COMMAND = "make kubernetes && python -m benchmarks.service.kubernetes"
#: When a job's first step began, by the clock of the worker's node.
FIRST_STEP = """
import sys
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
journal = Journal.read(StateDirectory.default().journal(1))
print(journal.jobs()[sys.argv[1]].epochs[0].report.train_started_at)
"""
TWO = {"workers": {"min": 2, "max": 2}, "resources": LARGE}
WARM = 3


def main() -> int:
    """Measure, and write the table."""
    try:
        with Cluster() as cluster:
            for name in images.IMAGES:
                cluster.load_image(images.OUT / f"coach-{name}.tar")
            coach = Coach(cluster)
            coach.install()
            first = [_run(coach, f"one-{number}", {}) for number in range(1 + WARM)]
            two = [_run(coach, f"two-{number}", TWO) for number in range(WARM)]
            coach.uninstall()
    except Unready as error:
        print(f"benchmarks.service.kubernetes: {error}", file=sys.stderr)
        return 1
    rows = [
        _row("from kubectl apply to the first step, 1x1, cold", [first[0][0]]),
        _row("from kubectl apply to the first step, 1x1, warm", [seconds for seconds, _ in first[1:]]),
        _row("from kubectl apply to the first step, 2x1 on two nodes, warm", [seconds for seconds, _ in two]),
        _row("outside training in an epoch with the pods of the one before, 1x1", _kept(first)),
        _row("outside training in an epoch with the pods of the one before, 2x1", _kept(two)),
        _row("outside training in the first epoch, once its pods are ready, 1x1", _fresh(first[1:])),
        _row("outside training in the first epoch, once its pods are ready, 2x1", _fresh(two)),
    ]
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    note = (
        f"On {datetime.now(UTC):%Y-%m-%d}, at commit {commit}. Control plane and three nodes share the machine.\n"
        "Time outside training is all since the epoch before that was neither training nor evaluation."
    )
    write_table(RESULTS / "kubernetes" / "README.md", "Seconds that a cluster costs", COMMAND, rows, note)
    return 0


def _run(coach: Coach, name: str, spec: dict[str, Any]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds from `kubectl apply` to the first step of a job, and its epochs."""
    applied = time.time()
    coach.apply(job(name, target={"loss": 1.0, "epochsInARow": 5}, **spec))
    coach.ended(name)
    handler = ("exec", "deploy/coach-handler", "--", "python", "-c", FIRST_STEP, name)
    started = json.loads(coach.cluster.kubectl(*handler))
    epochs: list[dict[str, Any]] = coach.ask("show", name)["epochs"]
    return started - applied, epochs


def _kept(runs: list[tuple[float, list[dict[str, Any]]]]) -> list[float]:
    return [one["outside_seconds"] for _, epochs in runs for one in epochs if not one["new_group"]]


def _fresh(runs: list[tuple[float, list[dict[str, Any]]]]) -> list[float]:
    return [one["outside_seconds"] for _, epochs in runs for one in epochs if one["new_group"]]


def _row(what: str, seconds: list[float]) -> dict[str, Any]:
    return {
        "seconds": what,
        "measured": len(seconds),
        "median": f"{statistics.median(seconds):.2f}",
        "least": f"{min(seconds):.2f}",
        "most": f"{max(seconds):.2f}",
    }


if __name__ == "__main__":
    sys.exit(main())
