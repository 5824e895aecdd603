"""Sia's simulator (Jayaram Subramanya et al., SOSP 2023, section 5.2): jobs on three kinds of GPUs, and on one.

The authors' artifact has the workloads and what was measured of their applications on each kind (`applications`). It
has no licence, so it is not part of Coach: `missing` says how to get it.

A seed is the number of a workload. Under Sia and Pollux a job adapts its batch size in each epoch, and has any number
of GPUs; under Gavel it has the batch and GPUs of the artifact's tuned jobs. Rounds are 60 s, under Gavel 360 s. A
start or a change takes what the authors measured of the model; every model is slower than in its profile by what they
fitted to their cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coach import plugins
from coach.core.cluster import Allocation
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.experiments.clusters.applications import Adapted, Application, Chosen, read, rows
from coach_research.policies.rounds.throughput import MaxThroughput
from coach_research.scheduling.api import JobState
from coach_research.workload import Work

#: Nodes of each kind, as the artifact names its files: g4dn (T4), RTX 2080 Ti, DGX-A100; and GPUs of a node.
CLUSTERS = {"heterogeneous": {"aws": 6, "dgx-ext": 2, "rtx": 3}, "homogeneous": {"aws": 16}}
GPUS = {"aws": 4, "dgx-ext": 8, "rtx": 8}
#: By model: seconds of a start or change, and by how much the authors' cluster was slower than the profile.
CHANGE = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}
SLOWER = {"cifar10": 1.8, "imagenet": 1.2, "yolov3": 1.2, "bert": 1.2, "deepspeech2": 1.2, "ncf": 1.5}


def missing() -> str:
    """The command that gets the artifact, where it is not there."""
    clone = "git clone --depth 1 https://github.com/siasosp23/artifacts"
    return "" if (folder() / "sia-simulator").is_dir() else f"{clone} {folder()}"


def folder() -> Path:
    """Where the artifact is."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coach" / "sia-sosp23"


@dataclass
class Gavel(MaxThroughput):
    """Gavel as Sia's authors run it: the most steps a second of all jobs together, at their users' batch sizes."""

    round: float = 360.0

    def rate(self, job: JobState, node: int) -> float:
        """See `Shares`."""
        speed: Chosen = job.dynamics.speed  # type: ignore[attr-defined]
        return job.speed(*job.maximum, node) * speed.of[node].steps(speed.batch) / 100.0


POLICIES: dict[str, Any] = {
    "sia": lambda: plugins.policy("sia"),
    "pollux": lambda: plugins.policy("pollux"),
    "gavel": Gavel,
}


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Figures of workload `seed` of each trace, on its cluster, under each policy. Nothing is random."""
    measures: dict[str, float] = {}
    for label, (trace, cluster, policies) in parameters["runs"].items():
        kinds = CLUSTERS[cluster]
        on = tuple(kind for kind, count in kinds.items() for _ in range(count))
        nodes = Cluster(np.array([[64.0, 1e6, GPUS[kind]] for kind in on]), kinds=on)
        for policy in policies if _workload(trace, seed).is_file() else ():
            jobs = list(works(trace, seed, policy, on))[: parameters["jobs"]]
            record = Engine(nodes, jobs, POLICIES[policy]()).run()
            arrived, finished = record.column("arrived"), record.column("finished")
            hours = np.sort(finished - arrived) / 3600.0
            measures |= {
                f"{label}, {policy}: mean completion, h": float(hours.mean()),
                f"{label}, {policy}: 99th percentile, h": float(hours[int(0.99 * len(hours))]),
                f"{label}, {policy}: makespan, h": float(finished.max() - arrived.min()) / 3600.0,
                f"{label}, {policy}: GPU hours a job": float(record.column("gpu_seconds").mean()) / 3600.0,
            }
    return measures


def _workload(trace: str, number: int) -> Path:
    return folder() / "sia-simulator/workloads" / trace / f"workload-{number}.csv"


def works(trace: str, workload: int, policy: str, on: tuple[str, ...]) -> Iterator[Work]:
    """The jobs of a workload on nodes of these kinds."""
    for row in rows(_workload(trace, workload)):
        name, batch = row["application"], int(row["batch_size"])
        applications = {kind: of(name, kind) for kind in dict.fromkeys(on)}
        there = tuple(applications[kind] for kind in on)
        first, chosen = there[0], Allocation(int(row["num_replicas"]), 0)
        epochs, adapted = first.progress.shape[1], policy != "gavel"
        most = max(min(64, first.batches[-1] // each.smallest) for each in there)
        yield Work(
            float(row["time"]),
            float(epochs) if adapted else 100.0,
            np.array([0.0, 0.0, 1.0]),
            name=row["name"],
            kind=name,
            minimum=Allocation(1, 0) if adapted else chosen,
            maximum=Allocation(1 if name == "ncf" else most, 0) if adapted else chosen,
            speed=Adapted(there, 0) if adapted else Chosen(there, batch),
            paces=tuple((epoch, Adapted(there, epoch)) for epoch in range(1, epochs)) if adapted else (),
            start_seconds=CHANGE[name],
            rescale_seconds=CHANGE[name],
            migration_seconds=CHANGE[name],
        )


def of(name: str, kind: str) -> Application:
    """An application of the artifact on GPUs of a kind."""
    largest = 57 if (name, kind) == ("deepspeech2", "rtx") else 0
    return read(folder() / "sia-simulator/traces" / name, kind, GPUS[kind], largest, SLOWER[name])
