"""A paper's number compared with ours: the row of a table, counts of rows, and the figure of all rows.

Differences are relative to the paper's value. A row is judged by its tolerance, which its scenario states with the
reason. Rows on which a parameter was fitted and variants of another row are shown, and don't count. Nor do open ones:
their interval holds the tolerance's edge, so it can't tell a hit from a miss, or they ran shorter than the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations

from matplotlib.figure import Figure

JUDGED, CALIBRATED, VARIANT, OPEN = "judged", "calibrated", "variant", "open"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table. `half_width`: half the 95 % interval of our mean over the seeds; NaN for one run."""

    scenario: str
    measure: str
    unit: str
    paper: float
    ours: float
    half_width: float
    #: The least and the largest result. Nothing is judged by them.
    low: float
    high: float
    runs: int
    #: ours / paper - 1, and half its 95 % interval.
    relative: float
    relative_half_width: float
    #: |relative| up to which our mean counts as the paper's.
    tolerance: float
    reason: str
    within: bool
    #: Of two policies, whether the same one is ahead: yes, no, open (equality is in our interval); "" if not compared.
    direction: str
    #: Rows of one group are compared by their order.
    group: str
    #: judged, calibrated, variant or open.
    role: str
    source: str


COLUMNS = tuple(field.name for field in fields(Comparison))

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#666666"


def direction(paper: float, ours: float, half_width: float, equal: float | None) -> str:
    """See `Comparison.direction`. `equal`: the value at which both policies are alike; None: no comparison."""
    if equal is None or math.isnan(ours):
        return ""
    if abs(ours - equal) <= (0.0 if math.isnan(half_width) else half_width):
        return "open"
    return "yes" if (ours > equal) == (paper > equal) else "no"


def tells(relative: float, half_width: float, tolerance: float) -> bool:
    """Whether a difference with its 95 % interval is a hit or a miss: all of it inside the tolerance, or outside."""
    if math.isnan(half_width):
        return True
    return abs(abs(relative) - tolerance) >= half_width


def order(rows: Sequence[Comparison]) -> tuple[int, int]:
    """Pairs of one group in the paper's order, and all pairs. Pairs that are equal in the paper have no order."""
    pairs = [
        (a.paper - b.paper, a.ours - b.ours)
        for a, b in combinations(rows, 2)
        if a.group and (a.scenario, a.group) == (b.scenario, b.group) and a.paper != b.paper
    ]
    return sum(paper * ours > 0 for paper, ours in pairs), len(pairs)


def counts(rows: Sequence[Comparison]) -> dict[str, str]:
    """What a summary says of rows: `n of m`, by heading; "" for none. Only judged rows count as such."""
    of = {role: [row for row in rows if row.role == role] for role in (JUDGED, CALIBRATED, VARIANT, OPEN)}
    judged = of[JUDGED]
    compared = [row for row in judged if row.direction]

    def part(some: int, every: int) -> str:
        return f"{some} of {every}" if every else ""

    return {
        "judged: within tolerance": part(sum(row.within for row in judged), len(judged)),
        "direction agrees": part(sum(row.direction == "yes" for row in compared), len(compared)),
        "order agrees, pairs": part(*order(judged)),
        "calibrated: within tolerance": part(sum(row.within for row in of[CALIBRATED]), len(of[CALIBRATED])),
        "variants, not counted": f"{len(of[VARIANT])}" if of[VARIANT] else "",
        "open, not counted": f"{len(of[OPEN])}" if of[OPEN] else "",
    }


def ends(rows: Sequence[Comparison]) -> list[tuple[str, Comparison]]:
    """The judged rows that are nearest to and farthest from the paper."""
    judged = sorted((row for row in rows if row.role == JUDGED and row.runs), key=lambda row: abs(row.relative))
    return [("best", judged[0]), ("worst", judged[-1])] if judged else []


def relative_text(row: Comparison) -> str:
    """The relative difference with its 95 % interval, in per cent."""
    interval = "" if math.isnan(row.relative_half_width) else f" ± {100.0 * row.relative_half_width:.2g}"
    return f"{100.0 * row.relative:+.3g}{interval} %"


def comparison_table(rows: Sequence[Comparison]) -> str:
    """As Markdown."""
    lines = [
        "| measure | paper | ours (95 % of the mean) | difference | tolerance | within | direction | role | reason |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- | --- | --- |",
    ]
    for row in rows:
        unit = f" {row.unit}" if row.unit else ""
        interval = "" if math.isnan(row.half_width) else f" ± {row.half_width:.2g}"
        lines.append(
            f"| {row.measure} | {row.paper:g}{unit} | {row.ours:.4g}{unit}{interval} | {relative_text(row)} | "
            f"{100.0 * row.tolerance:g} % | {'yes' if row.within else 'no'} | {row.direction} | {row.role} | "
            f"{row.reason} |"
        )
    return "\n".join(lines)


def comparison_figure(rows: Sequence[Comparison]) -> Figure:
    """Our mean (dot; hollow: not judged) and its 95 % interval (line), relative to the paper's value (dashed).

    Bands are tolerances.
    """
    rows = [row for row in rows if row.runs]
    figure = Figure(figsize=(8, 1.2 + 0.26 * max(1, len(rows))), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0.0, color=GREY, linestyle="--", linewidth=1)
    for place, row in enumerate(reversed(rows)):
        colour = BLUE if row.within else ORANGE
        middle, half = 100.0 * row.relative, 100.0 * row.relative_half_width
        axes.barh(place, 200.0 * row.tolerance, left=-100.0 * row.tolerance, height=0.8, color="0.92", zorder=0)
        axes.plot([middle - half, middle + half], [place, place], color=colour, linewidth=2)
        axes.plot(middle, place, "o", color=colour, markerfacecolor=colour if row.role == JUDGED else "white")
    axes.set_yticks(range(len(rows)), [row.measure for row in reversed(rows)], fontsize=8)
    axes.set_xlabel("difference to the paper's value, % (blue: within tolerance, the band)")
    axes.grid(axis="x", alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
