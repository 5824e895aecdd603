"""Gang-like compared with default placement under the same policies: jobs arrive in batches on a small cluster.

All runs are in the reducer, with probes, fits and money, on the same jobs with the same noise. Static jobs under
default placement behave as in the thesis with the stock scheduler: all pods of a job are requested when it arrives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.cluster import Node, Resources
from coach.core.spec.job import TrainingJob
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.dynamics.synthetic import assumed, job_file
from coach.simulation.metrics import Result, measure
from coach.studies.study import Question, answer
from coach_research.workload import FloatArray


def question(parameters: Mapping[str, Any], seed: int) -> Question:
    """The jobs, with random models and gaps; `together` jobs arrive at the same time."""
    draw = np.random.default_rng([seed, 0])
    count, together = parameters["jobs"], parameters["together"]
    gaps = draw.exponential(parameters["gap"], math.ceil(count / together))
    bunches = np.cumsum(gaps) - gaps[0]
    speeds = shipped()
    models = draw.choice(sorted(speeds), count)
    jobs = [TrainingJob.from_json(job_file(f"job-{n}", parameters["most"])) for n in range(count)]
    return Question(
        tuple(jobs),
        tuple(
            assumed(job, speeds[str(model)], parameters["epoch_seconds"], parameters["epochs"])
            for job, model in zip(jobs, models, strict=True)
        ),
        tuple(float(bunches[n // together]) for n in range(count)),
        tuple(
            Node(f"node-{n}", Resources(parameters["cores"], 4.0 * parameters["cores"]))
            for n in range(parameters["nodes"])
        ),
    )


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Run each policy with each placement."""
    asked = question(parameters, seed)
    measures: dict[str, float] = {}
    for policy in parameters["policies"]:
        runs = {placement: answer(asked, policy, seed, placement) for placement in parameters["placement"]}
        for placement, run in runs.items():
            measures |= {f"{policy}, {placement}: {name}": value for name, value in _of(run).items()}
        first, *others = runs
        for other in others:
            against = _against(runs[other], runs[first])
            measures[f"{policy}: {other} against {first}, completion of jobs that end under both, %"] = against
    return measures


def _of(run: Result) -> dict[str, float]:
    found = measure(run)
    return {
        "jobs that end, %": 100 * found.reached / found.jobs,
        "mean completion of these, min": found.completion_mean / 60,
        "money a job that ends, USD": found.money / found.reached if found.reached else math.nan,
        "cores held, %": 100 * found.cpu_used,
    }


def _against(run: Result, base: Result) -> float:
    """The change of the mean completion time of the jobs that finished in both, %."""
    both = ~np.isnan(run.completion) & ~np.isnan(base.completion)
    if not both.any():
        return math.nan
    return 100 * float(run.completion[both].mean() / base.completion[both].mean() - 1)


def figures(results: Mapping[str, FloatArray], _parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """The share of jobs that end and their completion time, by policy and placement: mean and range over the seeds."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, end in zip(figure.subplots(1, 2), (": jobs that end, %", ": mean completion of these, min"), strict=True):
        values = {name.removesuffix(end): found for name, found in results.items() if name.endswith(end)}
        for place, found in enumerate(values.values()):
            known = found[~np.isnan(found)]
            if len(known):
                axes.plot([known.min(), known.max()], [place, place], color="0.4")
                axes.plot(known.mean(), place, "o", color="black")
        axes.set_yticks(range(len(values)), list(values))
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel(end.removeprefix(": "))
    return {"placement": figure}
