"""One figure of several jobs that shared a cluster: the functions each held, and its progress to its target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from coach.report.export import write
from coach.report.figures.job import Story
from coach.report.figures.style import COLOURS, FORMATS, MARKERS, RED, STYLE, rendered, time_unit


def plot_together(stories: Sequence[Story], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the figure `jobs` of those that ran at the same time as another, if any; returns the paths.

    It shows eight; the next ones are in `jobs.2`, `jobs.3`, ..., on the same time axis. Raises OSError.
    """
    stories = [one for one in stories if any(other is not one and _met(one, other) for other in stories)]
    if not stories:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    span = min(story.start for story in stories), max(story.now for story in stories)
    written = []
    with mpl.rc_context(cast(Any, STYLE)):
        for number, first in enumerate(range(0, len(stories), len(COLOURS)), 1):
            figure = together(stories[first : first + len(COLOURS)], span if len(stories) > len(COLOURS) else None)
            name = "jobs" if number == 1 else f"jobs.{number}"
            written += [write(folder / f"{name}.{kind}", rendered(figure, kind)) for kind in formats]
    return written


def together(stories: Sequence[Story], span: tuple[float, float] | None = None) -> Figure:
    """Workers and servers of each job over time, one band a job, and each job's progress to its target below.

    `span`: the time axis, in seconds since 1970; None: that of these jobs.
    """
    start, end = span or (min(story.start for story in stories), max(story.now for story in stories))
    unit, scale = time_unit(end - start)
    figure = Figure(figsize=(8, 2.2 + 1.2 * len(stories)), layout="constrained")
    *bands, last = figure.subplots(len(stories) + 1, 1, sharex=True, height_ratios=[*[1] * len(stories), 1.8])
    most = max(sum(span.order.allocation) for story in stories for span in story.attempts)
    for index, (story, band) in enumerate(zip(stories, bands, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        for first, tried in enumerate(story.attempts):
            begin, until = (tried.order.at - start) / scale, ((tried.end or story.now) - start) / scale
            workers, servers = tried.order.allocation
            look = {"width": until - begin, "align": "edge", "linewidth": 0}
            band.bar(begin, workers, color=colour, label=None if first else "workers", **look)
            if servers:
                label = None if first else "servers"
                band.bar(begin, servers, bottom=workers, color=colour, alpha=0.4, label=label, **look)
        band.set_ylim(0, most + 0.3)
        band.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        band.set_ylabel("functions")
        band.set_title(story.job.name, loc="left", color=colour)
        band.legend(loc="lower right", bbox_to_anchor=(1, 0.97), fontsize=8, ncols=2)
        epochs = story.job.evaluated_epochs
        left = [_to_target(story, story.job.value(epoch)) for epoch in epochs]
        at = [(epoch.ended_at - start) / scale for epoch in epochs]
        marker = MARKERS[index % len(MARKERS)]
        last.plot(at, left, "-", marker=marker, markersize=4, linewidth=1.2, color=colour, label=story.job.name)
    if span:
        last.set_xlim(0, (end - start) / scale)
    last.axhline(1, color=RED, linestyle="--", linewidth=1.2, label="target")
    last.set_ylim(0, None)
    last.set_ylabel("part of the way\nto the target")
    last.set_xlabel(f"time since the first epoch ({unit})")
    last.legend(loc="lower right", fontsize=8, ncols=2)
    return figure


def _met(one: Story, other: Story) -> bool:
    return one.start < other.now and other.start < one.now


def _to_target(story: Story, value: float) -> float:
    """0 at the job's first evaluated epoch, 1 at its target, or at its best epoch."""
    first = story.job.value(story.job.evaluated_epochs[0])
    target, best = story.job.target, story.job.best
    if target is None:
        target = first if best is None else story.job.value(best)
    way = target - first
    return (value - first) / way if way else 1.0
