"""The figure of a comparison: each job's best loss or accuracy by money and by time."""

from __future__ import annotations

from matplotlib.figure import Figure

from coach.report.comparison import Comparison
from coach.report.figures.style import COLOURS, look, time_unit


def draw(comparison: Comparison) -> Figure:
    """Left by money, right by time."""
    names = len(comparison.jobs)
    figure = Figure(figsize=(10, max(4.0, 0.2 * names + 1.0)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    unit, scale = time_unit(max(one.seconds[-1] for one in comparison.jobs))
    for index, one in enumerate(comparison.jobs):
        drawn = {**look(index), "markersize": 4, "linewidth": 1.3}
        left.step(one.money, one.best, where="post", label=one.name, **drawn)
        right.step([each / scale for each in one.seconds], one.best, where="post", label=one.name, **drawn)
    left.set_ylabel(f"best {comparison.metric} so far (test split)")
    left.set_xlabel(f"money spent ({comparison.currency})")
    right.set_xlabel(f"time since the first epoch began ({unit})")
    for ax in (left, right):
        ax.set_xlim(left=0)
    lowest = min(one.best[-1] for one in comparison.jobs)
    if comparison.metric == "loss" and 0 < lowest < 0.2 * max(one.best[0] for one in comparison.jobs):
        left.set_yscale("log")
    left.set_title("For the same money")
    right.set_title("In the same time")
    if names > len(COLOURS):
        figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    else:
        right.legend(loc="upper right" if comparison.lower else "lower right", fontsize=8)
    return figure
