"""DL²'s simulation (section 6.2) without DL² itself: DRF, Tetris, SRTF, FIFO and Optimus in slots of 20 minutes.

The paper shows its trace and its models' speeds only in figures. This experiment uses the numbers of the simulator
that its authors published: measured speeds, epochs by model, requests of workers and servers, and arrivals a slot. The
published file for the trace of the paper's figures is empty; the arrivals follow the simulator's other pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.estimation.speed import SpeedModel, SpeedPoint
from coach.core.policies.api.policy import Policy
from coach.plugins import policy
from coach_research.dl2.workload import NODE, SLOT, epochs_per_second, workload
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.engine.job import Knowledge, SimJob
from coach_research.engine.knowledge import PerfectKnowledge
from coach_research.scheduling.api import Remaining
from coach_research.workload import FloatArray


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

    def speed(self, job: SimJob, workers: int, servers: int, node: int) -> float:
        """See `Knowledge`."""
        del node
        if job.kind not in self._fitted:
            true = epochs_per_second(job.kind)
            spread = {(1, 1), (1, self.max_count), (self.max_count, 1), (self.max_count, self.max_count)}
            while len(spread) < self.points:
                w, s = self.rng.integers(1, self.max_count + 1, 2).tolist()
                spread.add((w, s))
            measured = tuple(
                SpeedPoint(w, s, true(w, s) * max(0.1, self.rng.normal(1.0, self.error))) for w, s in sorted(spread)
            )
            self._fitted[job.kind] = SpeedModel("parameter-server", measured)
        return self._fitted[job.kind].parametric(workers, servers)

    def remaining(self, job: SimJob) -> Remaining:
        """See `Knowledge`."""
        return PerfectKnowledge().remaining(job)


@dataclass
class Stated(PerfectKnowledge):
    """The epochs left are by what each job states: it needs `1 + error` or `1 - error` times as many, drawn for each.

    One that trains longer than stated has a hundredth of that left; the paper (section 6.4) leaves it open.
    """

    rng: np.random.Generator
    error: float
    _parts: dict[Any, float] = field(default_factory=dict)

    def remaining(self, job: SimJob) -> Remaining:
        """See `Knowledge`."""
        if job.id not in self._parts:
            self._parts[job.id] = 1 + self.error * (1 if self.rng.random() < 0.5 else -1)
        stated = job.work / self._parts[job.id]
        left = max(stated / 100, stated - job.done())
        return Remaining(left, left, left)


def each_slot(name: str) -> Policy:
    """The policy, asked at the beginning of each slot."""
    found: Any = policy(name)
    made: Policy = replace(found, cadence=SLOT)
    return made


def measured(parameters: Mapping[str, Any], seed: int, chosen: Policy, fitted: bool = False) -> dict[str, float]:
    """The jobs of `seed` under a policy: mean completion time and makespan in slots, GPUs held in %."""
    knowledge: Knowledge = PerfectKnowledge()
    if error := parameters.get("epoch_error"):
        knowledge = Stated(np.random.default_rng([seed, 2]), error)
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
