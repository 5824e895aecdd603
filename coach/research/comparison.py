"""A paper's number compared with ours: the row of a table, and the figure of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table. `low`..`high`: the range over all seeds. `half_width`: of the mean's 95 % interval."""

    scenario: str
    measure: str
    unit: str
    paper: float
    ours: float
    half_width: float
    low: float
    high: float
    runs: int
    difference: float
    inside: bool
    #: Whether our mean is within the scenario's tolerance; None if it has none.
    within: bool | None
    calibrated: bool
    source: str


COLUMNS = tuple(field.name for field in fields(Comparison))

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#666666"


def comparison_figure(rows: Sequence[Comparison]) -> Figure:
    """Range (line) and mean (dot) of our runs, relative to the paper's value (1, dashed). Hollow: calibrated on it."""
    rows = [row for row in rows if row.paper != 0 and row.runs]
    figure = Figure(figsize=(8, 1.2 + 0.26 * max(1, len(rows))), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1)
    for place, row in enumerate(reversed(rows)):
        colour = BLUE if row.inside else ORANGE
        axes.plot([row.low / row.paper, row.high / row.paper], [place, place], color=colour, linewidth=2)
        axes.plot(
            row.ours / row.paper,
            place,
            "o",
            color=colour,
            markerfacecolor="white" if row.calibrated else colour,
        )
    axes.set_yticks(range(len(rows)), [row.measure for row in reversed(rows)], fontsize=8)
    axes.set_xlabel("ours / paper's (blue: the paper's value is inside our range)")
    axes.grid(axis="x", alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
