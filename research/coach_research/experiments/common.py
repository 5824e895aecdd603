"""All policies on one workload: elastic parameter-server jobs on reserved nodes, some of them trial-and-error.

Every policy knows the true speeds, and no job probes: only the decisions differ. Jobs have speeds of the table that
comes with Coach, and limits within which a policy may choose. A policy that does not choose gives all jobs their
maximum (FIFO, FitGpp, LRTP, RAND) or their minimum (round robin, SpeCon).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from coach import plugins
from coach.core.cluster import Allocation
from coach.simulation.dynamics.measured_speeds import MeasuredSpeed, shipped
from coach.simulation.metrics import nearest_rank
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.scheduling.api import TRIAL
from coach_research.workload import FloatArray, Work, by_counts

MINUTE = 60.0

#: The measures of each policy, and their column headings.
COLUMNS = {
    "mean": "mean completion, min",
    "against": "against the first, %",
    "p95": "p95, min",
    "trial": "trial-and-error jobs: mean, min",
    "makespan": "makespan, min",
    "slowdown": "p95 slowdown",
    "changes": "resizes and moves a job",
    "preemptions": "preemptions a job",
    "finished": "finished, %",
}


@dataclass(frozen=True)
class Scaled:
    """Epochs/s: `unit` at one worker and one server."""

    table: MeasuredSpeed
    unit: float

    def __call__(self, workers: int, servers: int) -> float:
        """Epochs/s."""
        return float(self.unit * self.table(workers, servers))


@dataclass(frozen=True)
class Falling:
    """A loss that falls to a hundredth (e^-4.6) of its first value over the job."""

    epochs: float

    def __call__(self, done: float) -> float:
        """The loss after `done` epochs."""
        return math.exp(-4.6 * done / self.epochs)


def workload(parameters: Mapping[str, Any], rng: np.random.Generator) -> Iterator[Work]:
    """`jobs` jobs, one every `gap` seconds on average (Poisson); a share of `trials` is trial-and-error.

    A job has `epochs` epochs. Its time at one worker and one server is exponential with the mean of its kind
    (`minutes`, `trial_minutes`), and at least two minutes. Workers request 2 cores, servers 1.
    """
    tables = list(shipped().values())
    at = 0.0
    for _ in range(int(parameters["jobs"])):
        at += rng.exponential(parameters["gap"])
        trial = bool(rng.random() < parameters["trials"])
        mean = parameters["trial_minutes" if trial else "minutes"]
        seconds = MINUTE * (2.0 + rng.exponential(mean - 2.0))
        epochs = float(parameters["epochs"])
        max_count = int(parameters["trial_most" if trial else "most"])
        yield Work(
            at,
            epochs,
            np.array([2.0, 4.0, 0.0]),
            np.array([1.0, 2.0, 0.0]),
            np.array([0.1, 0.5, 0.0]),
            kind=TRIAL if trial else "best-effort",
            minimum=Allocation(1, 1),
            maximum=Allocation(max_count, max_count),
            speed=by_counts(Scaled(tables[int(rng.integers(len(tables)))], epochs / seconds)),
            loss=Falling(epochs),
            grace=float(parameters["pause"]),
            rescale_seconds=float(parameters["pause"]),
            migration_seconds=float(parameters["pause"]),
        )


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Every one of `policies` on the same jobs."""
    measures: dict[str, float] = {}
    cluster = Cluster.uniform(int(parameters["nodes"]), float(parameters["cores"]), 4.0 * parameters["cores"])
    for spec in parameters["policies"]:
        policy = plugins.policy(spec, np.random.default_rng([seed, 1]))
        works = workload(parameters, np.random.default_rng([seed, 0]))
        record = Engine(cluster, works, policy, seed=seed).run(until=parameters["hours"] * 3600.0)
        arrived, finished = record.column("arrived"), record.column("finished")
        times = finished - arrived
        done = ~np.isnan(times)
        trial = record.column("kind") == record.kinds.get(TRIAL, -1)
        changes = record.column("resizes") + record.column("migrations")
        found = {
            "mean": float(times[done].mean()) / MINUTE,
            "p95": nearest_rank(times[done], 0.95) / MINUTE,
            "trial": float(times[done & trial].mean()) / MINUTE,
            "makespan": float(finished[done].max() - arrived.min()) / MINUTE,
            "slowdown": nearest_rank(times[done] / record.column("executed")[done], 0.95),
            "changes": float(changes.mean()),
            "preemptions": float(record.column("preemptions").mean()),
            "finished": 100.0 * float(done.mean()),
        }
        measures |= {f"{spec}: {key}": value for key, value in found.items()}
    first = measures[f"{parameters['policies'][0]}: mean"]
    for spec in parameters["policies"]:
        # On the same jobs, so the ratio varies less from seed to seed than the mean itself.
        measures[f"{spec}: against"] = 100.0 * (measures[f"{spec}: mean"] / first - 1.0)
    return measures


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """Policies by mean completion time, as Markdown; each number with its 95 % interval over the seeds."""
    return interval_table(results, _in_order(results, parameters), COLUMNS)


def interval_table(results: Mapping[str, FloatArray], policies: Sequence[str], columns: Mapping[str, str]) -> str:
    """A row a policy, as Markdown, with 95 % intervals over the seeds; `columns`: headings by measure."""
    from scipy.stats import t

    lines = [f"| policy | {' | '.join(columns.values())} |", f"| --- |{' ---: |' * len(columns)}"]
    for policy in policies:
        cells = []
        for key in columns:
            values = results[f"{policy}: {key}"]
            half = math.nan
            if len(values) > 1:
                half = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
            cells.append(f"{values.mean():.3g}" + (f" ± {half:.2g}" if half > 1e-9 else ""))
        lines.append(f"| `{policy}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _in_order(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> list[str]:
    """Order by mean completion time. Policies that leave jobs unfinished come last: their means lack those jobs."""

    def rank(spec: str) -> tuple[bool, float]:
        return bool(results[f"{spec}: finished"].min() < 100.0), float(results[f"{spec}: mean"].mean())

    return sorted(parameters["policies"], key=rank)


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Completion times of all jobs and of the trial-and-error jobs, by policy."""
    specs = _in_order(results, parameters)
    figure = Figure(figsize=(9.0, 0.8 + 0.3 * len(specs)), layout="constrained")
    axes = cast(Any, figure.subplots(1, 3, sharey=True))
    for panel, key in zip(axes, ("mean", "p95", "trial"), strict=True):
        values = [results[f"{spec}: {key}"] for spec in specs]
        panel.barh(specs, [v.mean() for v in values], color="0.75")
        for place, v in enumerate(values):
            panel.plot([v.min(), v.max()], [place, place], color="black", linewidth=1.5)
        panel.set_xlabel(COLUMNS[key])
    axes[0].invert_yaxis()
    return {"policies": figure}
