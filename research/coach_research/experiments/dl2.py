"""DL²: its trained network compared with DRF, Optimus, constant allocations and others, on traces new to it.

`replicate`: one held-out trace, all policies in the simulator, so that every difference is on the same jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason
from coach.core.policies.api.policy import Policy
from coach.core.policies.sharing.progressive_filling import Filling
from coach_research.dl2.workload import SLOT
from coach_research.experiments.common import interval_table
from coach_research.experiments.dl2_baselines import each_slot, measured
from coach_research.workload import FloatArray

#: The measures of each policy, and their column headings.
COLUMNS = {
    "mean": "mean completion, slots",
    "drf": "against DRF, %",
    "optimus": "against Optimus, %",
    "makespan": "makespan, slots",
    "gpus": "GPUs held, %",
}
#: The name of `EachAlone` in a scenario's policies.
ALONE = "alone"


@dataclass(frozen=True)
class EachAlone(Policy):
    """Each job gets the workers and servers with which it is fastest alone, the oldest first: a bound where all fit."""

    cadence: float | None = None
    name = "each alone"

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        filling = Filling(jobs, cluster)

        def hand_out(filling: Filling) -> None:
            for share in filling.open():
                most = share.job.maximum
                choices = (Allocation(w, s) for w in range(1, most.workers + 1) for s in range(1, most.servers + 1))
                filling.give(share, max(choices, key=share.job.speed))

        filling.fill(hand_out)
        return filling.decision(Reason.SPEED, lambda share: 0.0, "")


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Every one of `policies` on the jobs of one trace. Where it names several networks, their mean counts."""
    means: dict[str, dict[str, float]] = {}
    for label, spec in parameters["policies"].items():
        runs = []
        for one in [spec] if isinstance(spec, str) else spec:
            name, _, speeds = one.partition(" ")
            chosen = EachAlone(SLOT) if name == ALONE else each_slot(name)
            runs.append(measured(parameters, seed, chosen, speeds == "fitted"))
        mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        means[label] = {
            "mean": mean["mean completion, slots"],
            "makespan": mean["makespan, slots"],
            "gpus": mean["GPUs held, %"],
        }
        if len(runs) > 1:
            every = [run["mean completion, slots"] for run in runs]
            means[label] |= {f"network {at}": value for at, value in enumerate(every, 1)}
    for found in means.values():
        for key, base in (("drf", "DRF"), ("optimus", "Optimus")):
            if base in means:
                found[key] = 100.0 * (found["mean"] / means[base]["mean"] - 1.0)
    return {f"{label}: {key}": value for label, found in means.items() for key, value in found.items()}


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """Policies by mean completion time, as Markdown; each number with its 95 % interval over the traces."""
    return interval_table(results, _in_order(results, parameters), COLUMNS)


def _in_order(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> list[str]:
    return sorted(parameters["policies"], key=lambda label: float(results[f"{label}: mean"].mean()))


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Mean completion times by policy: the mean over the traces, and their range."""
    labels = _in_order(results, parameters)
    figure = Figure(figsize=(6.0, 0.8 + 0.35 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for place, label in enumerate(labels):
        values = results[f"{label}: mean"]
        axes.barh(place, values.mean(), color="0.75")
        axes.plot([values.min(), values.max()], [place, place], color="black", linewidth=1.5)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("mean completion time, slots of 20 min")
    return {"completion": figure}
