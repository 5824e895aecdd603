"""Pollux's simulator (Qiao et al., OSDI 2021, section 5.3): 160 jobs in 8 hours on 16 nodes of 4 GPUs, and its load.

The authors' artifact has the workloads, step times by placement and batch size, and how far an epoch gets at each
batch size. It has no licence, so it is not part of Coach: `missing` says how to get it.

A seed is the number of a workload. A job trains at the batch size that its user chose (the artifact's tuned jobs), so
that its length is a number of steps; a step's time depends on how many workers it has on each node. Decisions are a
minute apart, and a start or a change takes 30 s.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import LinearNDInterpolator

from coach import plugins
from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import Objective
from coach.core.policies.coach import CoachPolicy
from coach.core.policies.optimus import OptimusPolicy
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.workload import FloatArray, Plan, Work

#: Seconds between two decisions, and of a start or change.
ROUND, CHANGE = 60.0, 30.0
#: GPUs of a node.
GPUS = 4

#: Epochs of each application, and the largest batch of a GPU where it is not the largest measured.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LARGEST = {"yolov3": 8}

POLICIES: dict[str, Any] = {
    "optimus": lambda: OptimusPolicy(cadence=ROUND),
    "tiresias": lambda: plugins.policy(f"tiresias:round={ROUND:g}"),
    "coach": lambda: CoachPolicy(Objective.MEAN_COMPLETION, cadence=ROUND),
}


def missing() -> str:
    """The command that gets the artifact, where it is not there."""
    clone = "git clone --depth 1 --branch osdi21-artifact https://github.com/petuum/adaptdl"
    return "" if (folder() / "simulator").is_dir() else f"{clone} {folder()}"


def folder() -> Path:
    """Where the artifact is."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coach" / "adaptdl-osdi21"


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """The mean completion time of workload `seed` at each load, under each policy. Nothing is random."""
    measures: dict[str, float] = {}
    for load in parameters["loads"]:
        for name in parameters["policies"]:
            elastic = name != "tiresias"
            jobs = list(works(load, seed, elastic))[: parameters["jobs"]]
            record = Engine(Cluster.uniform(parameters["nodes"], 64, gpu=GPUS), jobs, POLICIES[name]()).run()
            took = record.column("finished") - record.column("arrived")
            measures[f"{name}, load {load:g}: mean completion, s"] = float(took.mean())
        if {"tiresias", "coach"} <= {*parameters["policies"]}:
            ours, theirs = (measures[f"{name}, load {load:g}: mean completion, s"] for name in ("coach", "tiresias"))
            measures[f"coach, load {load:g}: shorter than tiresias, %"] = 100.0 * (1.0 - ours / theirs)
    return measures


def works(load: float, workload: int, elastic: bool) -> Iterator[Work]:
    """The jobs of a workload. `elastic`: a job may have any number of GPUs, else the number that its user chose."""
    name = "workloads" if load == 1 else f"workloads-{load:.1f}"
    for row in _rows(folder() / "simulator" / name / f"workload-{workload}.csv"):
        application, batch = read(row["application"]), int(row["batch_size"])
        chosen = Allocation(int(row["num_replicas"]), 0)
        most = 1 if application.name == "ncf" else min(64, batch // application.smallest)
        yield Work(
            float(row["time"]),
            100.0,
            np.array([0.0, 0.0, 1.0]),
            name=row["name"],
            kind=application.name,
            minimum=Allocation(1, 0) if elastic else chosen,
            maximum=Allocation(most, 0) if elastic else chosen,
            speed=Speed(application, batch),
            start_seconds=CHANGE,
            rescale_seconds=CHANGE,
            migration_seconds=CHANGE,
        )


@dataclass(frozen=True)
class Speed:
    """Hundredths of a job a second, at a batch size."""

    of: Application
    batch: int

    def __call__(self, plan: Plan) -> float:
        """See `coach_research.workload.Speed`. More workers than a node has GPUs fill one node after the other."""
        counts = [min(GPUS, workers - first) for _, workers, _ in plan for first in range(0, workers, GPUS)]
        return _speed(self.of, self.batch, tuple(counts))


@cache
def _speed(of: Application, batch: int, counts: tuple[int, ...]) -> float:
    workers = sum(counts)
    each = math.ceil(batch / workers - 1e-8)
    more = math.ceil(each / of.largest - 1e-8) - 1
    if workers == 1 and batch > of.batches[0]:
        more = max(1, more)
    at_once = min(math.ceil(each / (more + 1) - 1e-8), int(of.batches[-1] / (workers * (more + 1))))
    step, sync = of.step(counts, at_once)
    return 100.0 / (of.steps(workers * at_once * (more + 1)) * (step + more * (step - sync)))


@dataclass(frozen=True, eq=False)
class Application:
    """What was measured of a model.

    `batches` [batch]: the batch sizes of its runs. `progress`, `sqr`, `var` [batch, epoch]: samples of the first batch
    size that an epoch's end is worth, and the squared norm and the variance of gradients. `smallest` and `largest`:
    samples of one GPU at once. `placed`: by counts on nodes, (samples, step seconds, of these in synchronisation).
    """

    name: str
    batches: list[int]
    progress: FloatArray
    sqr: FloatArray
    var: FloatArray
    smallest: int
    largest: int
    placed: dict[tuple[int, ...], FloatArray]
    between: LinearNDInterpolator

    def step(self, counts: tuple[int, ...], samples: int) -> tuple[float, float]:
        """Seconds of a step, and of its synchronisation."""
        turned = min(counts[at:] + counts[:at] for at in range(len(counts)))
        if turned in self.placed:
            table = self.placed[turned]
            return tuple(float(np.interp(samples, table[:, 0], table[:, column])) for column in (1, 2))  # type: ignore[return-value]
        found = self.between([min(16, len(counts)), sum(counts), samples])[0].tolist()
        if math.isnan(sum(found)):
            raise ValueError(f"{self.name}: nothing was measured around {counts}, {samples} samples")
        return found[0], found[1]

    def steps(self, batch: int) -> float:
        """Steps of a job at a batch size: in each epoch its progress, by how much a step of this size is worth."""
        least = np.diff(self.progress.min(axis=0), prepend=0.0)
        upper = int(np.searchsorted(self.batches, batch))
        lower = upper if self.batches[upper] == batch else upper - 1
        part = 0.0 if lower == upper else (batch - self.batches[lower]) / (self.batches[upper] - self.batches[lower])
        sqr, var = ((1.0 - part) * table[lower] + part * table[upper] for table in (self.sqr, self.var))
        gain = (var + sqr) / (var * self.batches[0] / batch + sqr)
        return float((least / gain).sum())


@cache
def read(name: str) -> Application:
    """An application of the artifact."""
    place, epochs = folder() / "simulator" / "traces" / name, EPOCHS[name]
    files = {int(path.stem.split("-")[1]): _rows(path) for path in place.glob("validation-*.csv")}
    batches = sorted(files)
    progress, square, variance = (
        np.array([[float(row[key]) for row in files[batch][:epochs]] for batch in batches]) for key in KEYS
    )
    placed: dict[tuple[int, ...], list[list[float]]] = {}
    for row in _rows(place / "placements.csv"):
        placed.setdefault(tuple(map(int, row["placement"])), []).append([float(row[key]) for key in TIMES])
    samples = [line[0] for lines in placed.values() for line in lines]
    points: dict[tuple[float, ...], list[list[float]]] = {}
    for counts, lines in placed.items():
        for line in lines:
            points.setdefault((len(counts), sum(counts), line[0]), []).append(line[1:])
    for row in _rows(place / "scalability.csv"):
        points.setdefault((float(row["num_nodes"]), float(row["num_replicas"]), float(row["local_bsz"])), []).append(
            [float(row[key]) for key in TIMES[1:]]
        )
    return Application(
        name,
        batches,
        progress,
        square,
        variance,
        smallest=int(min(samples)),
        largest=LARGEST.get(name, int(max(samples))),
        placed={counts: np.array(sorted(lines)) for counts, lines in placed.items()},
        between=LinearNDInterpolator(
            np.array(list(points)), np.array([np.mean(lines, axis=0) for lines in points.values()])
        ),
    )


KEYS = ("progress", "grad_sqr", "grad_var")
TIMES = ("local_bsz", "step_time", "sync_time")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
