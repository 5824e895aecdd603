"""DL²'s simulation (section 6.2) without DL² itself: DRF, Tetris, SRTF, FIFO and Optimus in slots of 20 minutes.

The paper shows its trace and its models' speeds only in figures. This experiment uses the numbers of the simulator
that its authors published: measured speeds, epochs by model, requests of workers and servers, and arrivals a slot. The
published file for the trace of the paper's figures is empty; the arrivals follow the simulator's other pattern.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.interpolate import RBFInterpolator

from coach.core.cluster import Allocation
from coach.core.estimation.speed import SpeedModel, SpeedPoint
from coach.core.policies.api.policy import Policy
from coach.core.policies.api.scheduling import FloatArray, Remaining
from coach.plugins import policy
from coach.simulation.engine.cluster import Cluster
from coach.simulation.engine.event_engine import Engine
from coach.simulation.engine.job import Knowledge, SimJob
from coach.simulation.engine.knowledge import PerfectKnowledge
from coach.simulation.workload import Work, by_counts

#: Seconds of a time slot (Figure 8a).
SLOT = 1200.0

#: A server of the cluster (section 6.2: 2 GPUs; the published simulator has 8 cores): cores, GiB, devices.
NODE = (8.0, 0.0, 2.0)

#: By model, as published: samples of an epoch (in their unit), epochs relative to the longest, devices of a worker.
MODELS: dict[str, tuple[float, float, float]] = {
    "resnet-50": (115, 0.30, 1),
    "vgg-16": (115, 0.96, 1),
    "resnext-110": (390, 0.05, 1),
    "inception-bn": (120, 0.54, 1),
    "seq2seq": (780, 0.95, 1),
    "cnn-text-classification": (193, 0.46, 0),
    "dssm": (349, 0.33, 0),
    "wlm": (165, 0.23, 1),
}


@cache
def epochs_per_second(model: str) -> MeasuredEpochs:
    """The measured speed of a model."""
    return MeasuredEpochs(model, MODELS[model][0])


@dataclass(frozen=True)
class MeasuredEpochs:
    """Epochs/s by workers and servers, as the published simulator has them.

    A linear radial basis through all measured points, the holes of the table included, also beyond the largest counts
    that were measured. At least a thousandth of the model's largest speed.
    """

    model: str
    epoch_size: float
    _known: dict[tuple[int, int], float] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, workers: int, servers: int) -> float:
        """Epochs/s."""
        at = workers, servers
        if at not in self._known:
            self._known[at] = self.several(np.array([at], float)).item() / self.epoch_size
        return self._known[at]

    def several(self, counts: FloatArray) -> FloatArray:
        """The speed in the table's unit at each row (workers, servers) of `counts`."""
        fit, largest = _interpolations()[self.model]
        speeds: FloatArray = np.maximum(fit(counts), 1e-3 * largest)
        return speeds


@cache
def _interpolations() -> dict[str, tuple[RBFInterpolator, float]]:
    """By model: the interpolation of its published speeds, and the largest of them. VGG-16 has a file of its own."""
    data = resources.files("coach.simulation") / "data"
    points: dict[str, list[tuple[int, int, float]]] = {model: [] for model in MODELS}
    for name in ("ps_speed.csv", "ps_speed_vgg16.csv"):
        for row in csv.DictReader((data / name).read_text().splitlines()):
            speed = sum(map(float, row["worker_speed"].split(";")))
            points[row["model"]].append((int(row["workers"]), int(row["servers"]), speed))
    arrays = {model: np.array(found) for model, found in points.items()}
    return {
        model: (
            RBFInterpolator(found[:, :2], found[:, 2], kernel="linear", degree=-1),
            float(found[:, 2].max()),
        )
        for model, found in arrays.items()
    }


def workload(parameters: Mapping[str, Any], rng: np.random.Generator) -> Iterator[Work]:
    """`jobs` jobs of random models. `arrivals` is the number of jobs in each slot, from a random one of its first
    five on.

    A job trains its model's share of `epochs`, with 1 to `most` workers and as many servers.
    """
    arrivals: Sequence[int] = parameters["arrivals"]
    offset = int(rng.integers(5))
    max_count = int(parameters["most"])
    models = list(MODELS)
    worker, server = np.array([2.0, 0.0, 1.0]), np.array([2.0, 0.0, 0.0])
    left = int(parameters["jobs"])
    slot = 0
    while left:
        for _ in range(min(left, arrivals[(slot + offset) % len(arrivals)])):
            model = models[int(rng.integers(len(models)))]
            _, part, devices = MODELS[model]
            left -= 1
            yield Work(
                slot * SLOT,
                part * parameters["epochs"],
                worker if devices else server,
                server,
                kind=model,
                minimum=Allocation(1, 1),
                maximum=Allocation(max_count, max_count),
                speed=by_counts(epochs_per_second(model)),
            )
        slot += 1


@dataclass
class Profiled:
    """Speeds as Optimus (section 3.2) estimates them: its form, fitted to `points` measured allocations of each
    model.

    `1/f = a/w + b + c w/p + d w + e p`, all coefficients >= 0. Measurements have a relative error of `error`. The
    epochs left are known, as DL²'s jobs state them.
    """

    rng: np.random.Generator
    points: int
    error: float
    max_count: int
    _fitted: dict[str, SpeedModel] = field(default_factory=dict)

    def speed(self, job: SimJob, workers: int, servers: int) -> float:
        """See `Knowledge`."""
        if job.kind not in self._fitted:
            true = epochs_per_second(job.kind)
            spread = {(1, 1), (1, self.max_count), (self.max_count, 1), (self.max_count, self.max_count)}
            while len(spread) < self.points:
                w, s = self.rng.integers(1, self.max_count + 1, 2).tolist()
                spread.add((w, s))
            measured = tuple(
                SpeedPoint(w, s, true(w, s) * max(0.1, self.rng.normal(1.0, self.error)))
                for w, s in sorted(spread)
            )
            self._fitted[job.kind] = SpeedModel("parameter-server", measured)
        return self._fitted[job.kind].parametric(workers, servers)

    def remaining(self, job: SimJob) -> Remaining:
        """See `Knowledge`."""
        return PerfectKnowledge().remaining(job)


def each_slot(name: str) -> Policy:
    """The policy, asked at the beginning of each slot."""
    found: Any = policy(name)
    made: Policy = replace(found, cadence=SLOT)
    return made


def measured(
    parameters: Mapping[str, Any], seed: int, chosen: Policy, fitted: bool = False
) -> dict[str, float]:
    """The jobs of `seed` under a policy: mean completion time and makespan in slots, GPUs held in %."""
    knowledge: Knowledge = PerfectKnowledge()
    if fitted:
        knowledge = Profiled(
            np.random.default_rng([seed, 1]),
            int(parameters["profile_points"]),
            parameters["profile_error"],
            int(parameters["most"]),
        )
    engine = Engine(
        Cluster.uniform(int(parameters["nodes"]), *NODE),
        workload(parameters, np.random.default_rng([seed, 0])),
        chosen,
        knowledge=knowledge,
    )
    record = engine.run()
    finished, arrived = record.column("finished"), record.column("arrived")
    gpu = record.column("gpu_seconds").sum() / (parameters["nodes"] * NODE[2] * finished.max())
    return {
        "mean completion, slots": float((finished - arrived).mean() / SLOT),
        "makespan, slots": float((finished.max() - arrived.min()) / SLOT),
        "GPUs held, %": 100.0 * float(gpu),
    }


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Mean completion time, in slots, under each of `policies` on the same jobs, and relative to that of DRF."""
    measures: dict[str, float] = {}
    for label, spec in parameters["policies"].items():
        name, _, speeds = spec.partition(" ")
        found = measured(parameters, seed, each_slot(name), speeds == "fitted")
        measures |= {f"{label}: {key}": value for key, value in found.items()}
    base = measures.get("DRF: mean completion, slots")
    if base:
        for label in parameters["policies"]:
            measures[f"{label} / DRF"] = measures[f"{label}: mean completion, slots"] / base
    return measures


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Mean completion times: the mean over the seeds, and all of them as a line."""
    labels = list(parameters["policies"])
    values = [results[f"{label}: mean completion, slots"] for label in labels]
    figure = Figure(figsize=(6.0, 0.8 + 0.35 * len(labels)), layout="constrained")
    axes = figure.subplots()
    axes.barh(labels, [v.mean() for v in values], color="0.75")
    for place, v in enumerate(values):
        axes.plot([v.min(), v.max()], [place, place], color="black", linewidth=1.5)
    axes.invert_yaxis()
    axes.set_xlabel("mean completion time, slots of 20 min")
    return {"completion": figure}
