"""ElasticFlow (Gu et al., ASPLOS 2023), Figure 8(a): 195 jobs with deadlines on 16 nodes of 4 GPUs.

Inputs are the authors' repository (`missing` says how to get it): `elasticVpollux_e.csv` with the jobs, and
`throughputs_T4` with iterations a second by model, global batch size and GPUs. They are no part of Coach.

A job has one batch size, and the speed measured for it at 1, 2, 4, ... GPUs, wherever they are. Decisions are a minute
apart. A start or a change takes the seconds that the authors' simulator adds for one
of 4 GPUs (2 + 2 (log2 4 + 1)); theirs adds 2 more at each decision.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from coach import plugins
from coach.core.cluster import Allocation
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.workload import Work, by_counts

#: Seconds of a start, and of a change.
CHANGE = 8.0
#: Numbers of GPUs that were measured.
COUNTS = (1, 2, 4, 8, 16, 32, 64)


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """The share of jobs that end by their deadlines, under each policy. Nothing is random."""
    del seed
    cluster = Cluster.uniform(parameters["nodes"], 64, gpu=parameters["gpus"])
    jobs = list(islice(works(), parameters["jobs"]))
    deadlines = np.array([work.deadline for work in jobs])
    last = max(work.arrival + work.deadline for work in jobs)
    measures: dict[str, float] = {}
    for policy in parameters["policies"]:
        record = Engine(cluster, jobs, plugins.policy(policy)).run(until=last)
        took = record.column("finished") - record.column("arrived")
        measures[f"{policy}: in time, %"] = 100.0 * float((took <= deadlines).mean())
    return measures


def missing() -> str:
    """The command that gets the repository, where it is not there."""
    clone = f"git clone --depth 1 https://github.com/pkusys/ElasticFlow {folder().parent}"
    return "" if folder().is_dir() else clone


def folder() -> Path:
    """Where its simulator is."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "coach" / "elasticflow" / "ElasticFlow"


def works() -> Iterator[Work]:
    """The jobs in order of arrival; an epoch is a hundredth of a job."""
    speeds: dict[tuple[str, str], dict[int, float]] = {}
    for path in sorted((folder() / "scheduler/throughputs_T4").glob("*.csv")):
        for row in _rows(path):
            found = {count: float(row[str(count)]) for count in COUNTS}
            speeds[path.stem, row["global_batch_size"]] = {at: one for at, one in found.items() if not math.isnan(one)}
    jobs = _rows(folder() / "traces_for_ElasticFlow/elasticVpollux_e.csv")
    first = float(jobs[0]["submit_time"])
    for row in jobs:
        measured, epoch = speeds[row["model_name"], row["batch_size"]], int(row["iteration"]) / 100.0
        most = max(measured)
        yield Work(
            float(row["submit_time"]) - first,
            100.0,
            np.array([0.0, 0.0, 1.0]),
            name=row["job_id"],
            kind=row["model_name"],
            maximum=Allocation(most, 0),
            deadline=float(row["ddl"]) - float(row["submit_time"]),
            speed=by_counts(lambda workers, _, of=measured, epoch=epoch: _at(of, workers) / epoch),  # type: ignore[misc]
            start_seconds=CHANGE,
            rescale_seconds=CHANGE,
        )


def _at(measured: dict[int, float], workers: int) -> float:
    """The speed with the most GPUs that were measured and are there."""
    return measured[max(count for count in measured if count <= workers)]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
