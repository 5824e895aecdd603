"""The figure of a simulation: when jobs end under each policy, and how much of the cluster they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coach.report.figures.style import BLUE, GREEN, GREY, LINES, ORANGE, PURPLE, RED, save, time_unit
from coach.simulation.metrics import Result

COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, GREY)


def plot_simulated(results: Mapping[str, Sequence[Result]], path: Path) -> Path:
    """Write the figure; its kind is that of the path's ending (png, svg, pdf). Raises UserError."""
    return save(path, lambda: simulated(results))


def simulated(results: Mapping[str, Sequence[Result]]) -> Figure:
    """Left: the distribution of completion times. Right: cores held over time, in the first run of each policy."""
    longest = max((float(run.completion[~np.isnan(run.completion)].max(initial=0.0))
                   for runs in results.values() for run in runs), default=0.0)  # fmt: skip
    end = max((run.ended for runs in results.values() for run in runs), default=0.0)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (policy, runs) in enumerate(results.items()):
        look = {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": LINES[number // len(COLOURS) % len(LINES)],
        }
        _distribution(left, policy, runs, time_unit(longest)[1], look)
        if runs:
            scale = time_unit(end)[1]
            times, used = np.append(runs[0].times, runs[0].ended), runs[0].used[:, 0]
            right.step(times / scale, 100 * np.append(used, used[-1:]), where="post", label=policy, **look)
    left.set(
        xlabel=f"completion time, {time_unit(longest)[0]}",
        ylabel="share of jobs, %",
        ylim=(0, 101),
        title="Jobs",
    )
    right.set(xlabel=f"time, {time_unit(end)[0]}", ylabel="cores held, %", title="Cluster")
    right.set_ylim(bottom=0)
    left.set_xlim(left=0)
    left.legend()
    return figure


def _distribution(axes: Axes, policy: str, runs: Sequence[Result], scale: float, look: dict[str, Any]) -> None:
    times = np.concatenate([run.completion for run in runs]) if runs else np.zeros(0)
    done = np.sort(times[~np.isnan(times)]) / scale
    share = 100 * np.arange(1, len(done) + 1) / max(len(times), 1)
    label = policy if len(done) else f"{policy} (no job ends)"
    axes.step(np.concatenate([[0.0], done]), np.concatenate([[0.0], share]), where="post", label=label, **look)
