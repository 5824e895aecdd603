"""With the budget on: Coach's dynamic allocation against every static grid point, on measured speeds.

One job for each model of the speed table, alone on its cluster. Its budget is a factor times the cost of the cheapest
static allocation (without noise). Both run in the reducer; the dynamic job has to find a good allocation by probing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.cluster import Node, Resources
from coach.core.jobs.reasons import State
from coach.core.policies.api.scheduling import FloatArray
from coach.core.policies.coach import CoachPolicy
from coach.core.spec.job import TrainingJob
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.dynamics.synthetic import assumed, job_file
from coach.simulation.outcome import Ended
from coach.simulation.reducer_simulation import Driver

NODES = tuple(Node(f"node-{n}", Resources(32.0, 128.0)) for n in range(3))


def _static(max_count: int, workers: int, servers: int) -> dict[str, Any]:
    return job_file("job", max_count, policy={"name": "static", "workers": workers, "servers": servers})


def run_job(document: dict[str, Any], model: str, parameters: dict[str, Any], seed: int) -> Ended:
    """One run of the job, from submission to end."""
    job = TrainingJob.from_json(document)
    dynamics = assumed(job, shipped()[model], parameters["epoch_seconds"], parameters["epochs"])
    driver = Driver(NODES, CoachPolicy(), seed=seed)
    driver.submit_at(0.0, "job", document, dynamics)
    driver.run()
    return driver.ended["job"]


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """For each model, the dynamic job compared with the static grid."""
    max_count = parameters["most"]
    measures: dict[str, float] = {}
    lost, ranks, spent = [], [], []
    for model in parameters.get("models") or shipped():
        counts = range(1, max_count + 1)
        grid = [(workers, servers) for workers in counts for servers in counts]
        free = {at: run_job(_static(max_count, *at), model, parameters, seed) for at in grid}
        budget = parameters["budget"] * min(ended.spent for ended in free.values())
        within = {
            at: ended.ended
            for at, ended in free.items()
            if ended.state is State.SUCCEEDED and ended.spent <= budget
        }
        dynamic = run_job(job_file("job", max_count, budget=budget), model, parameters, seed)
        best = min(within.values())
        reached = dynamic.state is State.SUCCEEDED
        change = 100 * (dynamic.ended / best - 1) if reached else math.nan
        measures[f"{model}: dynamic against the best static point within the budget, %"] = change
        measures[f"{model}: static points within the budget"] = float(len(within))
        measures[f"{model}: static points that are sooner than dynamic"] = float(
            sum(time < dynamic.ended for time in within.values())
        )
        measures[f"{model}: budget spent, %"] = 100 * dynamic.spent / budget
        measures[f"{model}: budget overshoot, USD"] = dynamic.overshoot
        measures[f"{model}: dynamic reached the target"] = float(reached)
        spent.append(100 * dynamic.spent / budget)
        lost.append(change)
        ranks.append(
            100 * (dynamic.ended / float(np.mean(list(within.values()))) - 1) if reached else math.nan
        )
    measures["mean over models: dynamic against the best static point within the budget, %"] = float(
        np.nanmean(lost)
    )
    measures["mean over models: dynamic against the mean static point within the budget, %"] = float(
        np.nanmean(ranks)
    )
    measures["mean over models: budget spent, %"] = float(np.mean(spent))
    measures["models whose dynamic job did not reach the target"] = float(np.isnan(lost).sum())
    return measures


def figures(results: Mapping[str, FloatArray], _parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """How much later the dynamic job ends than the best static point within the budget, by model."""
    end = ": dynamic against the best static point within the budget, %"
    values = {name.removesuffix(end): found for name, found in results.items() if name.endswith(end)}
    figure = Figure(figsize=(7, 0.9 + 0.32 * len(values)), layout="constrained")
    axes = figure.subplots()
    for place, found in enumerate(values.values()):
        known = found[~np.isnan(found)]
        if len(known):
            axes.plot([known.min(), known.max()], [place, place], color="0.4")
            axes.plot(known.mean(), place, "o", color="black")
    axes.axvline(0.0, color="0.6", linestyle="--")
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    axes.set_xlabel("ends later than the best static point, % (range and mean)")
    return {"budget": figure}
