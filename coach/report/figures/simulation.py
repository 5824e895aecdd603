"""The figure of a simulation: when jobs end and how long they wait under each policy, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coach.report.figures.style import BLUE, GREEN, GREY, LINES, ORANGE, PURPLE, RED, save, time_unit
from coach.simulation.metrics import Result
from coach.simulation.recorder import FloatArray

COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, GREY)


def plot_simulated(results: Mapping[str, Sequence[Result]], path: Path) -> Path:
    """Write the figure; its kind is that of the path's ending (png, svg, pdf). Raises UserError."""
    return save(path, lambda: simulated(results))


def simulated(results: Mapping[str, Sequence[Result]]) -> Figure:
    """The distributions of completion times and of waits; then cores, and GPUs where there are any, held over time.

    What is held is that of the first run of each policy.
    """
    every = [run for runs in results.values() for run in runs]
    times: dict[str, Callable[[Result], FloatArray]] = {
        "completion time": lambda run: run.completion,
        "wait": lambda run: np.maximum(run.waiting, 0.0),
    }
    held = {"cores": 0, **({"GPUs": 2} if any(run.capacity[2] for run in every) else {})}
    end = max((run.ended for run in every), default=0.0)
    figure = Figure(figsize=(5 * (len(times) + len(held)), 4), layout="constrained")
    axes = figure.subplots(1, len(times) + len(held))
    for of, (words, measure) in zip(axes, times.items(), strict=False):
        longest = max((float(found[~np.isnan(found)].max(initial=0.0)) for found in map(measure, every)), default=0.0)
        unit, scale = time_unit(longest)
        for number, (policy, runs) in enumerate(results.items()):
            _distribution(of, policy, [measure(run) for run in runs], scale, _look(number))
        of.set(xlabel=f"{words}, {unit}", ylabel="share of jobs, %", ylim=(0, 101), title="Jobs")
        of.set_xlim(left=0)
    unit, scale = time_unit(end)
    for of, (words, column) in zip(axes[len(times) :], held.items(), strict=True):
        for number, (policy, runs) in enumerate(results.items()):
            for run in runs[:1]:
                at, used = np.append(run.times, run.ended), run.used[:, column]
                of.step(at / scale, 100 * np.append(used, used[-1:]), where="post", label=policy, **_look(number))
        of.set(xlabel=f"time, {unit}", ylabel=f"{words} held, %", title="Cluster")
        of.set_ylim(bottom=0)
    axes[0].legend()
    return figure


def _look(number: int) -> dict[str, Any]:
    """The colour and line of a policy."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number // len(COLOURS) % len(LINES)]}


def _distribution(axes: Axes, policy: str, runs: Sequence[FloatArray], scale: float, look: dict[str, Any]) -> None:
    times = np.concatenate(runs) if runs else np.zeros(0)
    done = np.sort(times[~np.isnan(times)]) / scale
    share = 100 * np.arange(1, len(done) + 1) / max(len(times), 1)
    label = policy if len(done) else f"{policy} (no job ends)"
    axes.step(np.concatenate([[0.0], done]), np.concatenate([[0.0], share]), where="post", label=label, **look)
