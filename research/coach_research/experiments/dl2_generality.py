"""DL²'s section 6.4 on trained networks: other arrivals, speeds that vary, wrong numbers of epochs, unknown kinds.

`replicate`: one held-out trace in each of `settings`, which change the parameters; all policies on the same jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.policies.api.policy import Policy
from coach_research.experiments.common import interval_table
from coach_research.experiments.dl2_baselines import each_slot, measured
from coach_research.policies.dl2.policy import Dl2Policy
from coach_research.workload import FloatArray


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Every one of `policies` in each of `settings`: its mean completion time, and that against Optimus's, DRF's and
    its own in the first setting.
    """
    measures: dict[str, float] = {}
    first: dict[str, float] = {}
    for setting, changes in parameters["settings"].items():
        given = {**parameters, **changes}
        means = {
            label: measured(given, seed, _known(each_slot(spec), given))["mean completion, slots"]
            for label, spec in parameters["policies"].items()
        }
        for label, mean in means.items():
            name = f"{setting}, {label}"
            measures[f"{name}: mean"] = mean
            measures[f"{name}: optimus"] = 100.0 * (mean / means["Optimus"] - 1.0)
            measures[f"{name}: drf"] = 100.0 * (mean / means["DRF"] - 1.0)
            measures[f"{name}: first"] = 100.0 * (mean / first.setdefault(label, mean) - 1.0)
    return measures


def _known(policy: Policy, parameters: Mapping[str, Any]) -> Policy:
    """The policy, without the kinds of jobs from number `known` on: it takes such jobs for another kind."""
    if not isinstance(policy, Dl2Policy) or "known" not in parameters:
        return policy
    progress = policy.network.progress.copy()
    # No job's speeds are near to these.
    progress[int(parameters["known"]) :, 2:, 2:] *= 1e9
    return replace(policy, network=replace(policy.network, progress=progress))


def _names(parameters: Mapping[str, Any]) -> list[str]:
    return [f"{setting}, {label}" for setting in parameters["settings"] for label in parameters["policies"]]


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """Settings and policies, as Markdown, with 95 % intervals over the traces."""
    columns = {
        "mean": "mean completion, slots",
        "optimus": "against Optimus, %",
        "first": f"against {next(iter(parameters['settings']))}, %",
    }
    return interval_table(results, _names(parameters), columns)


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Mean completion times: a group of bars for each setting."""
    labels, settings = list(parameters["policies"]), list(parameters["settings"])
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(labels)
    for at, label in enumerate(labels):
        heights = [results[f"{setting}, {label}: mean"].mean() for setting in settings]
        places = np.arange(len(settings)) + at * width
        axes.bar(places, heights, width, label=label, color=str(0.15 + 0.7 * at / len(labels)))
    axes.set_xticks(np.arange(len(settings)) + 0.4 - width / 2, settings)
    axes.set_ylabel("mean completion time, slots of 20 min")
    axes.legend()
    return {"completion": figure}
