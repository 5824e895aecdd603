"""SpeCon's experiments: Figures 5, 6, 7, 12 and Table III. Identical jobs on shared workers, under DS and under SpeCon.

The paper gives neither the models' training times alone nor how much containers on one worker slow each other down:
these are parameters of the scenarios. Of the loss, Figure 1 gives one point for three of the models: the share of its
reduction in the first fifth of the training. We fit an exponential through it, which falls to `loss_floor` of the first
loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.policies.api.policy import Policy
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.policies.specon import RoundRobin, SpeCon
from coach_research.workload import NOTHING, FloatArray, Work

#: Cores of an M510 (section VI.A).
CORES = 16.0


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Run one set of jobs under DS and under SpeCon with each of the `settings`. Parameters: see the scenarios."""
    works = workload(parameters, np.random.default_rng([seed, 0]))
    baseline = completions(works, RoundRobin(), parameters, seed)
    measures: dict[str, float] = {}
    for label, settings in parameters["settings"].items():
        ours = completions(works, SpeCon(**settings), parameters, seed)
        for name, value in compare(works, baseline, ours).items():
            measures[name if name.startswith("DS ") else f"{label}: {name}"] = value
    return measures


def workload(parameters: Mapping[str, Any], rng: np.random.Generator) -> list[Work]:
    """`jobs` containers of kinds drawn from `models`, in order of their arrival.

    `models` are [seconds alone, part of the loss's reduction in the first fifth] by name.

    They arrive every `gap` seconds, or at times drawn from [0, `window`]. Times alone vary by `jitter` (a coefficient
    of variation); pauses of a move are N(`pause`, `pause_sd`) clipped to 0.5..5 s (Figures 2 and 3: all below 5 s).
    """
    count, models = parameters["jobs"], parameters["models"]
    if "gap" in parameters:
        arrivals = np.arange(count) * float(parameters["gap"])
    else:
        arrivals = np.sort(rng.uniform(0.0, parameters["window"], count))
    works = []
    for arrival in arrivals.tolist():
        kind = str(rng.choice(sorted(models)))
        seconds, early = models[kind]
        solo = seconds * max(0.1, rng.normal(1.0, parameters["jitter"]))
        works.append(
            Work(
                arrival,
                solo,
                NOTHING,
                kind=kind,
                loss=_Falling(-5.0 * math.log(1.0 - early) / solo, parameters["loss_floor"]),
                loss_noise=parameters["loss_noise"],
                migration_seconds=float(np.clip(rng.normal(parameters["pause"], parameters["pause_sd"]), 0.5, 5.0)),
            )
        )
    return works


@dataclass(frozen=True, slots=True)
class _Falling:
    """floor + (1 - floor) exp(-rate epochs)."""

    rate: float
    floor: float

    def __call__(self, epochs: float) -> float:
        return self.floor + (1.0 - self.floor) * math.exp(-self.rate * epochs)


def completions(
    works: list[Work], policy: Policy, parameters: Mapping[str, Any], seed: int
) -> tuple[FloatArray, FloatArray]:
    """When each job ended, and how often it moved."""
    cluster = Cluster.uniform(parameters["workers"], cpu=CORES, memory=64.0, contention=parameters["contention"])
    record = Engine(cluster, works, policy, seed=seed).run()
    return record.column("finished"), record.column("migrations")


def compare(
    works: list[Work], baseline: tuple[FloatArray, FloatArray], ours: tuple[FloatArray, FloatArray]
) -> dict[str, float]:
    """The paper's measures for two runs of the same jobs. Reductions are in per cent of DS."""
    arrived = np.array([work.arrival for work in works])
    before, after = baseline[0] - arrived, ours[0] - arrived
    makespans = float(baseline[0].max() - arrived[0]), float(ours[0].max() - arrived[0])
    reduced = 100.0 * (before - after) / before
    # A job that SpeCon changed by less than the paper's resolution, a tenth of a second, is neither faster nor slower.
    faster, slower = after < before - 0.1, after > before + 0.1
    return {
        "DS mean completion, s": float(before.mean()),
        "SpeCon mean completion, s": float(after.mean()),
        "mean completion reduced, %": 100.0 * float(1.0 - after.mean() / before.mean()),
        "DS makespan, s": makespans[0],
        "SpeCon makespan, s": makespans[1],
        "makespan reduced, %": 100.0 * (1.0 - makespans[1] / makespans[0]),
        "jobs faster, %": 100.0 * float(faster.mean()),
        "faster jobs: reduced on average, s": _mean((before - after)[faster]),
        "faster jobs: reduced on average, %": _mean(reduced[faster]),
        "slower jobs: increased on average, s": _mean((after - before)[slower]),
        "slower jobs: increased on average, %": _mean(-reduced[slower]),
        "best job reduced, %": float(reduced.max()),
        "moves": float(ours[1].sum()),
        "jobs moved, %": 100.0 * float((ours[1] > 0).mean()),
    }


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else math.nan


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """The spread of the reductions over the seeds, for each setting."""
    names = ["mean completion reduced, %", "makespan reduced, %", "best job reduced, %"]
    rows = [name for name in results if name.endswith(tuple(names))]
    figure = Figure(figsize=(7.0, 0.6 + 0.35 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.boxplot([results[row] for row in rows], orientation="horizontal", whis=(0, 100))
    axes.set_yticks(range(1, len(rows) + 1), [row.removesuffix(", %") for row in rows])
    axes.invert_yaxis()
    axes.axvline(0.0, color="0.6", linewidth=0.8)
    axes.set_xlabel(f"SpeCon against DS, % ({len(results[rows[0]])} runs; whiskers: all)")
    return {"reductions": figure}
