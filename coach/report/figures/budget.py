"""The figure of a plan for several budgets: the loss or accuracy to expect for the money."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from coach.report import formatting
from coach.report.budget_plan import BudgetPlan
from coach.report.figures.style import BLUE, GREEN, GREY, ORANGE, RED

#: Amounts between none and the largest that the curve is drawn through.
STEPS = 80


def amounts(budgets: Sequence[float]) -> list[float]:
    """The amounts to plan for, so that `draw` has a curve: up to a little more than the largest of `budgets`."""
    return [1.1 * max(budgets) * step / STEPS for step in range(1, STEPS + 1)]


def draw(plan: BudgetPlan, asked: BudgetPlan, target: float | None) -> Figure:
    """The curve of `plan`, made for `amounts`, with the budgets that were `asked` for."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    ax = figure.subplots()
    known = [(row.budget, row.value, row.value_low, row.value_high) for row in plan.rows if row.value is not None]
    if known:
        money, value, low, high = zip(*known, strict=True)
        ax.plot(money, value, "-", color=BLUE, linewidth=1.6, label="expected")
        ax.fill_between(money, low, high, color=BLUE, alpha=0.15, linewidth=0, label="80 % interval")
    points = [(row.budget, row.value) for row in asked.rows if row.value is not None]
    if points:
        ax.plot(*zip(*points, strict=True), "o", color=BLUE, markersize=6)
    for row in asked.rows:
        if row.value is not None:
            text = f"{row.epochs} epochs"
            ax.annotate(text, (row.budget, row.value), (4, 8), textcoords="offset points", fontsize=8, color=GREY)
    ax.axhline(plan.level, color=GREY, linestyle=":", linewidth=1.2, label="where the curve levels off")
    if target is not None:
        ax.axhline(target, color=RED, linestyle="--", linewidth=1.2, label=f"target {target:g}")
        for (chance, needed), colour in zip(asked.chances, (GREEN, ORANGE, RED), strict=True):
            if needed is not None and needed <= plan.rows[-1].budget:
                words = f"{chance:.0%} chance: {formatting.amount(needed)}"
                ax.plot(needed, target, "D", color=colour, markersize=6, label=words)
    ax.set_xlim(0, plan.rows[-1].budget)
    ax.set_xlabel(f"budget ({plan.currency})")
    ax.set_ylabel(f"{plan.metric} (test split)")
    ax.set_title(f"{plan.name}: what the money buys")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    return figure
