"""What a cluster costs a job: from `kubectl apply` to the first step, and seconds outside training in each epoch.

    make kubernetes && python -m benchmarks.service.kubernetes

On the cluster of `make test-kubernetes`, with the jobs of its tests. The first job after the nodes were started is
cold: no page of the images is read yet by their containers. The others are warm. Then the same job with the same fixed
allocation in processes of this machine and in pods of the cluster, each twice, one after the other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.harness import RESULTS, ROOT, spread, write_table
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
#: The fixed allocations of the job that runs both here and there.
SIZES = ((1, 1), (2, 2))
PREDICTED = re.compile(r"next: \S+ (\S+) and (\S+) USD an epoch predicted")


def main() -> int:
    """Measure, and write the tables."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    try:
        with Cluster() as cluster:
            for name in images.STANDARD:
                cluster.load_image(images.OUT / f"coach-{name}.tar")
            coach = Coach(cluster)
            coach.install()
            first = [_run(coach, f"one-{number}", {}) for number in range(1 + WARM)]
            two = [_run(coach, f"two-{number}", TWO) for number in range(WARM)]
            same = [row for size in SIZES for row in _same_job(coach, cluster, *size)]
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
    load = "{:.1f}, {:.1f}, {:.1f}".format(*os.getloadavg())
    measured = f"On {datetime.now(UTC):%Y-%m-%d}, at commit {commit}; load average {load}."
    note = (
        f"{measured} Control plane and three nodes share the machine.\n"
        "Time outside training is all since the epoch before that was neither training nor evaluation."
    )
    write_table(RESULTS / "kubernetes" / "README.md", "Seconds that a cluster costs", COMMAND, rows, note)
    note = (
        f"{measured} The same packages, one BLAS thread.\n"
        "Two runs in each place; the second one's first prediction is from what the first has measured. Real are\n"
        "medians of the second run's epochs that kept their functions."
    )
    write_table(RESULTS / "kubernetes" / "same-job.md", "One job in two places", COMMAND, same, note)
    return 0


def _same_job(coach: Coach, cluster: Cluster, workers: int, servers: int) -> list[dict[str, Any]]:
    """The rows of one fixed allocation: what an epoch takes in each place, and whether the loss curves are the same."""
    size = f"{workers}x{servers}"
    names = [f"same-{size}-{number}" for number in (1, 2)]
    limits = {"workers": {"min": 1, "max": workers}, "servers": {"min": 1, "max": servers}}
    policy = {"policy": {"name": "static", "workers": workers, "servers": servers}}
    jobs = [job(name, target={"loss": 0.5, "epochsInARow": 3}, **limits, **policy) for name in names]
    with tempfile.TemporaryDirectory(prefix="coach-bench-") as home:
        here = [_run_here(one, cluster, Path(home)) for one in jobs]
        weights = [_last_checkpoint(Path(home, "jobs", name, "checkpoints")) for name in names]
    there = []
    for one in jobs:
        coach.apply(one)
        coach.ended(one["metadata"]["name"])
        there.append(coach.ask("show", one["metadata"]["name"]))
    weights += [_last_checkpoint(cluster.shared / "checkpoints" / name) for name in names]
    curves = [[epoch["loss"] for epoch in run["epochs"]] for run in (*here, *there)]
    return [
        {
            "allocation": size,
            "where": where,
            **_predicted(runs[1]),
            "loss curve": _compared(curves),
            "weights": same,
        }
        for where, runs in (("this machine", here), ("cluster", there))
        for same in ["the same bytes" if len(set(weights)) == 1 else "differ"]
    ]


def _run_here(document: dict[str, Any], cluster: Cluster, home: Path) -> dict[str, Any]:
    """What `coach show` says of a job that ran in processes of this machine."""
    spec = {**document["spec"], "model": {"file": str(ROOT / "functions/models/lenet.py")}}
    spec["data"] = {**spec["data"], "uri": str(cluster.shared / "data/mnist-digits")}
    file = home / "job.yaml"
    file.write_text(yaml.safe_dump({**document, "spec": spec}))
    environment = {**os.environ, "COACH_HOME": str(home), "OMP_NUM_THREADS": "1"}
    coach = [sys.executable, "-m", "coach.cli.main"]
    for command in (["run", str(file), "-o", "json"], ["show", document["metadata"]["name"], "-o", "json"]):
        done = subprocess.run([*coach, *command], env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def _last_checkpoint(folder: Path) -> str:
    """SHA-256 of the last one's arrays: the file names its job's epoch, too."""
    last = max(folder.glob("*.ckpt"), key=lambda path: int(path.name.split(".")[-2]))
    digest = hashlib.sha256()
    with np.load(last) as arrays:
        for name in sorted(arrays.files):
            digest.update(name.encode() + arrays[name].tobytes() if name.startswith("weights/") else b"")
    return digest.hexdigest()


def _compared(curves: list[list[float]]) -> str:
    """Whether all curves are the same to the last bit, or the first epoch that differs."""
    for number, losses in enumerate(itertools.zip_longest(*curves), start=1):
        if len(set(losses)) > 1:
            return f"epoch {number} differs: {', '.join(map(repr, losses))}"
    return f"{len(curves[0])} epochs, {len(curves)} runs: the same to the last bit"


def _predicted(shown: dict[str, Any]) -> dict[str, Any]:
    """Predicted before the first epoch, and real."""
    texts = [PREDICTED.match(event["text"]) for event in shown["events"]]
    first = next(found for found in texts if found)
    kept = [epoch for epoch in shown["epochs"] if not epoch["new_group"]]
    return {
        "seconds an epoch, predicted": first[1],
        "real": f"{statistics.median(epoch['seconds'] for epoch in kept):.2f}",
        "USD an epoch, predicted": first[2],
        "real ": f"{statistics.median(epoch['cost'] for epoch in kept):.2g}",
        "seconds of the job": f"{shown['seconds']:.0f}",
    }


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
    return {"seconds": what, **spread(seconds)}


if __name__ == "__main__":
    sys.exit(main())
