"""What DL²'s training needs: its recipe with one part left out, and the training as published; a seed is a training.

Each network is tested on traces that no training and no choice of a checkpoint saw, in the slots of
`coach_research.dl2`, which are the simulator's; DRF and Optimus decide on the same traces in the simulator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach_research.dl2.federated import Federation
from coach_research.dl2.learner import Learner, Recipe, play
from coach_research.dl2.published import PublishedSlots, learn
from coach_research.dl2.slots import Case
from coach_research.experiments.common import interval_table
from coach_research.experiments.dl2_baselines import each_slot, measured
from coach_research.policies.dl2.flat import FlatInference
from coach_research.workload import FloatArray

#: The first of the traces to test on.
TEST = 201
#: The measures of each variant, and their column headings.
COLUMNS = {
    "mean": "mean completion, slots",
    "drf": "against DRF, %",
    "optimus": "against Optimus, %",
    "full": "against the first, %",
    "start": "against its start, %",
}


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Train each of `variants` with this seed, and test it."""
    case = Case.of(parameters)
    tests = range(TEST, TEST + int(parameters["tests"]))
    base = _heuristics(json.dumps(parameters), tests)
    measures: dict[str, float] = {}
    first = np.nan
    for label, changes in parameters["variants"].items():
        if changes == "published":
            mean = _published(case, parameters, seed, tests)
        else:
            changed = {**parameters["recipe"], **changes}
            # Offline: it learns from other speeds than those that it is tested with.
            offline = bool(changed.pop("offline", False))
            clusters, window = int(changed.pop("clusters", 1)), int(changed.pop("window", case.window))
            seen = replace(case, window=window)
            trained = Case.of({**parameters, "analytic": True}) if offline else seen
            recipe = replace(Recipe(), **changed)
            if clusters > 1:
                together = Federation(trained, recipe, seed, clusters)
                together.train()
                learner, best, curve = together.clusters[0], together.best_weights, together.curve
            else:
                learner = Learner(trained, recipe, seed)
                if recipe.teacher:
                    learner.imitate()
                while not learner.ended:
                    learner.step()
                best, curve = learner.best_weights, [(slots, found) for _, slots, _, found in learner.curve]
            mean = float(play(seen, best, tests, bundles=recipe.bundles).mean())
            if recipe.teacher:
                start = float(learner.test(tests, learner.imitated).mean())
                measures |= {f"{label}: start": 100.0 * (mean / start - 1.0), f"{label}: imitates": start}
            measures |= {f"{label}: after {slots} slots": found for slots, found in curve}
        first = mean if np.isnan(first) else first
        measures[f"{label}: mean"] = mean
        measures |= {f"{label}: {key}": 100.0 * (mean / value - 1.0) for key, value in base.items()}
        measures |= {f"{label}: full": 100.0 * (mean / first - 1.0), f"{label}: times the first": mean / first}
    return measures


@cache
def _heuristics(parameters: str, tests: range) -> dict[str, float]:
    """Mean completion times of DRF and Optimus on the tests."""
    given = json.loads(parameters)
    return {
        key: float(np.mean([measured(given, one, each_slot(key))["mean completion, slots"] for one in tests]))
        for key in ("drf", "optimus")
    }


def _published(case: Case, parameters: Mapping[str, Any], seed: int, tests: range) -> float:
    """The best of the checkpoints, by validation, on the tests."""
    made = learn(case, seed, int(parameters["slots"]), int(parameters["every"]), int(parameters["validation"]))
    _, weights = min(made, key=lambda one: one[0])
    return float(play(case, weights, tests, PublishedSlots, FlatInference).mean())


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """The variants, as Markdown; each number with its 95 % interval over the trainings."""
    labels = list(parameters["variants"])
    columns = {key: words for key, words in COLUMNS.items() if all(f"{label}: {key}" in results for label in labels)}
    return interval_table(results, labels, columns)


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Mean completion times by variant, a dot for each training."""
    labels = list(parameters["variants"])
    figure = Figure(figsize=(6.0, 0.8 + 0.35 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for place, label in enumerate(labels):
        values = results[f"{label}: mean"]
        axes.plot(values, [place] * len(values), "o", color="black", markersize=4)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("mean completion time, slots of 20 min")
    return {"completion": figure}
