"""Pollux's simulator (Qiao et al., OSDI 2021, section 5.3): 160 jobs in 8 hours on 16 nodes of 4 GPUs, and its load.

The authors' artifact has the workloads and what was measured of their applications (`applications`). It has no licence,
so it is not part of Coach: `missing` says how to get it.

A seed is the number of a workload. Under Pollux a job adapts its batch size in each epoch; else it trains at the one
that its user chose (the artifact's tuned jobs), so that its length is a number of steps. A step's time depends on how
many workers it has on each node. Decisions are a minute apart, and a start or a change takes 30 s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coach import plugins
from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import Objective
from coach.core.policies.coach import CoachPolicy
from coach.core.policies.optimus import OptimusPolicy
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.experiments.clusters.applications import Adapted, Application, Chosen, read, rows
from coach_research.workload import Work

#: Seconds between two decisions, and of a start or change.
ROUND, CHANGE = 60.0, 30.0
#: GPUs of a node.
GPUS = 4
#: The largest batch of a GPU where it is not the largest measured.
LARGEST = {"yolov3": 8}

POLICIES: dict[str, Any] = {
    "optimus": lambda: OptimusPolicy(cadence=ROUND),
    "tiresias": lambda: plugins.policy(f"tiresias:round={ROUND:g}"),
    "pollux": lambda: plugins.policy(f"pollux:round={ROUND:g}"),
    "coach": lambda: CoachPolicy(Objective.MEAN_COMPLETION, cadence=ROUND),
}


def missing() -> str:
    """The command that gets the artifact, where it is not there."""
    clone = "git clone --depth 1 --branch osdi21-artifact https://github.com/petuum/adaptdl"
    return "" if (folder() / "simulator" / "workloads").is_dir() else f"{clone} {folder()}"


def folder() -> Path:
    """Where the artifact is."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coach" / "adaptdl-osdi21"


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """The mean completion time of workload `seed` at each load, under each policy. Nothing is random."""
    measures: dict[str, float] = {}
    for load in parameters["loads"]:
        for name in parameters["policies"]:
            jobs = list(works(load, seed, name, parameters["nodes"]))[: parameters["jobs"]]
            record = Engine(Cluster.uniform(parameters["nodes"], 64, gpu=GPUS), jobs, POLICIES[name]()).run()
            took = record.column("finished") - record.column("arrived")
            measures[f"{name}, load {load:g}: mean completion, s"] = float(took.mean())
        if {"tiresias", "coach"} <= {*parameters["policies"]}:
            ours, theirs = (measures[f"{name}, load {load:g}: mean completion, s"] for name in ("coach", "tiresias"))
            measures[f"coach, load {load:g}: shorter than tiresias, %"] = 100.0 * (1.0 - ours / theirs)
    return measures


def works(load: float, workload: int, policy: str, nodes: int = 16) -> Iterator[Work]:
    """The jobs of a workload. Under Tiresias a job has the GPUs that its user chose, else any number."""
    name = "workloads" if load == 1 else f"workloads-{load:.1f}"
    for row in rows(folder() / "simulator" / name / f"workload-{workload}.csv"):
        application, batch = of(row["application"]), int(row["batch_size"])
        chosen = Allocation(int(row["num_replicas"]), 0)
        epochs, on = application.progress.shape[1], (application,) * nodes
        most = min(64, (application.batches[-1] if policy == "pollux" else batch) // application.smallest)
        elastic = Allocation(1 if application.name == "ncf" else most, 0)
        adapted = policy == "pollux"
        yield Work(
            float(row["time"]),
            float(epochs) if adapted else 100.0,
            np.array([0.0, 0.0, 1.0]),
            name=row["name"],
            kind=application.name,
            minimum=chosen if policy == "tiresias" else Allocation(1, 0),
            maximum=chosen if policy == "tiresias" else elastic,
            speed=Adapted(on, 0) if adapted else Chosen(on, batch),
            paces=tuple((epoch, Adapted(on, epoch)) for epoch in range(1, epochs)) if adapted else (),
            start_seconds=CHANGE,
            rescale_seconds=CHANGE,
            migration_seconds=CHANGE,
        )


def of(name: str) -> Application:
    """An application of the artifact."""
    return read(folder() / "simulator" / "traces" / name, largest=LARGEST.get(name, 0))
