"""Policies on one workload of live jobs: speeds and epochs are not known, and probes take their time and their money.

All run in the reducer on the same jobs with the same noise: the same mini-epochs are open to every policy, the same
models are fitted to what was measured, and a policy chooses by them. So all have the same information, and pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.cluster import Node, Resources
from coach.core.spec.job import TrainingJob
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.dynamics.synthetic import assumed, job_file
from coach.simulation.metrics import measure
from coach.studies.study import Question, answer
from coach_research.experiments.common import interval_table
from coach_research.workload import FloatArray

MINUTE = 60.0
#: The measures of each policy, and their column headings.
COLUMNS = {
    "mean": "mean completion, min",
    "ahead": "ahead of the first, %",
    "p95": "p95, min",
    "makespan": "makespan, min",
    "money": "money a job, USD",
    "resizes": "resizes a job",
    "reached": "reached, %",
}


def question(parameters: Mapping[str, Any], seed: int) -> Question:
    """`jobs` jobs of random models and numbers of epochs, one every `gap` seconds on average (Poisson)."""
    draw = np.random.default_rng([seed, 0])
    speeds, count, most = shipped(), int(parameters["jobs"]), int(parameters["most"])
    models = draw.choice(sorted(speeds), count).tolist()
    epochs = draw.choice(parameters["epochs"], count).tolist()
    seconds = parameters["epoch_seconds"] * np.exp(draw.normal(0.0, 0.5, count))
    jobs = [TrainingJob.from_json(job_file(f"job-{n}", most)) for n in range(count)]
    dynamics = [
        assumed(job, speeds[model], float(second), float(of))
        for job, model, second, of in zip(jobs, models, seconds, epochs, strict=True)
    ]
    cores = float(parameters["cores"])
    nodes = tuple(Node(f"node-{n}", Resources(cores, 4.0 * cores)) for n in range(parameters["nodes"]))
    arrivals = np.cumsum(draw.exponential(parameters["gap"], count))
    return Question(tuple(jobs), tuple(dynamics), tuple(arrivals.tolist()), nodes)


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Every one of `policies` on the same jobs."""
    asked, measures = question(parameters, seed), dict[str, float]()
    for policy in parameters["policies"]:
        found = measure(answer(asked, policy, seed))
        values = {
            "mean": found.completion_mean / MINUTE,
            "p95": found.completion_p95 / MINUTE,
            "makespan": found.makespan / MINUTE,
            "money": found.money / found.jobs,
            "resizes": found.resizes / found.jobs,
            "reached": 100.0 * found.reached / found.jobs,
        }
        measures |= {f"{policy}: {key}": value for key, value in values.items()}
        first = measures[f"{parameters['policies'][0]}: mean"]
        # On the same jobs, so this varies less from seed to seed than the mean itself.
        measures[f"{policy}: ahead"] = 100.0 * (1.0 - values["mean"] / first)
    return measures


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """A row a policy, as Markdown; each number with its 95 % interval over the seeds."""
    return interval_table(results, parameters["policies"], COLUMNS)


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """How far each policy's mean completion time is ahead of the first one's: each seed, and the mean."""
    figure = Figure(figsize=(7, 0.9 + 0.4 * len(parameters["policies"])), layout="constrained")
    axes = figure.subplots()
    for place, policy in enumerate(parameters["policies"]):
        values = results[f"{policy}: ahead"]
        axes.plot(values, np.full(len(values), place), "|", color="0.5")
        axes.plot(values.mean(), place, "o", color="black")
    axes.axvline(0.0, color="0.6", linestyle="--")
    axes.set_yticks(range(len(parameters["policies"])), parameters["policies"])
    axes.invert_yaxis()
    axes.set_xlabel(f"mean completion time ahead of {parameters['policies'][0]}, %")
    return {"ahead": figure}
