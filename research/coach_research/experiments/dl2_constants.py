"""The best constant allocation on DL²'s cluster, found by trying all: what a learned policy has to be better than."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach_research.experiments.dl2_baselines import each_slot, measured
from coach_research.workload import FloatArray

#: Rows of the table.
SHOWN = 10


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """The mean completion time on one trace with each number of workers and of servers for every job."""
    counts = range(1, int(parameters["most"]) + 1)
    return {
        f"{w}x{s}": measured(parameters, seed, each_slot(f"static:{w}x{s}"))["mean completion, slots"]
        for w in counts
        for s in counts
    }


def table(results: Mapping[str, FloatArray], _: Mapping[str, Any]) -> str:
    """The best, as Markdown: means over the traces."""
    means = {name: float(values.mean()) for name, values in results.items()}
    rows = [f"| {name} | {means[name]:.3g} |" for name in sorted(means, key=means.__getitem__)[:SHOWN]]
    return "\n".join(["| workers x servers | mean completion, slots |", "| --- | ---: |", *rows])


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """All of them, up to twice the best."""
    most = int(parameters["most"])
    means = np.array([[results[f"{w}x{s}"].mean() for s in range(1, most + 1)] for w in range(1, most + 1)], float)
    figure = Figure(figsize=(5.6, 4.4), layout="constrained")
    axes = figure.subplots()
    edges = np.arange(most + 1) + 0.5
    shown = axes.pcolormesh(edges, edges, means, cmap="gray", vmin=means.min(), vmax=2 * means.min())
    axes.set_xlabel("servers of each job")
    axes.set_ylabel("workers of each job")
    figure.colorbar(shown, label="mean completion time, slots")
    return {"completion": figure}
