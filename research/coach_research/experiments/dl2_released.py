"""The comparison of heuristics that DL²'s authors left in their simulator's source, by that simulator's rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach_research.dl2.released import RULES, run
from coach_research.dl2.slots import Case
from coach_research.experiments.common import interval_table
from coach_research.experiments.dl2_baselines import figures as completion
from coach_research.workload import FloatArray

COLUMNS = {
    "mean completion, slots": "mean completion, slots",
    "makespan, slots": "makespan, slots",
    "against": "mean / DRF's",
    "makespan against": "makespan / DRF's",
}


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """As many traces as the log has, under each rule: means over the traces, and what they are of DRF's."""
    case, traces = Case.of(parameters), int(parameters["traces"])
    found = {
        label: np.mean([run(case, int(parameters["nodes"]), seed * traces + at, rule) for at in range(traces)], axis=0)
        for label, rule in RULES.items()
    }
    measures: dict[str, float] = {}
    for label, values in found.items():
        measures |= {
            f"{label}: mean completion, slots": values[0],
            f"{label}: makespan, slots": values[1],
            f"{label}: against": values[0] / found["DRF"][0],
            f"{label}: makespan against": values[1] / found["DRF"][1],
        }
    return measures


def table(results: Mapping[str, FloatArray], _: Mapping[str, Any]) -> str:
    """The rules, as Markdown, with 95 % intervals over the traces."""
    return interval_table(results, list(RULES), COLUMNS)


def figures(results: Mapping[str, FloatArray], _: Mapping[str, Any]) -> dict[str, Figure]:
    """Mean completion times."""
    return completion(results, {"policies": RULES})
