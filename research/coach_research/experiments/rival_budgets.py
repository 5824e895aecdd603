"""The same jobs under the budgets of others: what is overspent, which targets are reached, what is left, how long.

A job is a model of the speed table, a learning curve, and a budget drawn between half of and four times what the
cheapest fixed choice costs, log-uniform. Others' users have to choose workers and servers: a drawn choice, or one with
*speeds known*, by a user who has measured all of them and expects as many epochs as Coach does at first: the fastest
choice that the budget pays for, else the cheapest. A fixed choice runs to its target: nothing is predicted for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.lifecycle.forecast import PRIOR_EPOCHS
from coach.core.money import to_amount
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.outcome import Ended
from coach.simulation.reducer_simulation import Driver
from coach_research.budgets import FixedRun, Outcome, after_the_fact, hourly_cap, oracle, time_limit
from coach_research.experiments.coach_budget import Case, cases
from coach_research.workload import FloatArray

DRAWN, KNOWN = "drawn choice", "speeds known"
#: A user who types a time limit takes so many times the expected time.
TYPED = 1.5
RULES: dict[str, Callable[[FixedRun, float], Outcome]] = {
    "paid after the fact (MLflow)": after_the_fact,
    "hourly cap (SkyPilot)": hourly_cap,
    "time limit, all the money (Slurm)": lambda run, budget: time_limit(run, budget, math.inf),
    "time limit as typed (Slurm)": lambda run, budget: time_limit(
        run, budget, TYPED * PRIOR_EPOCHS * float(run.seconds[-1]) / len(run.seconds)
    ),
}
COACH, ORACLE = "Coach", "oracle: fastest fixed choice within the money"
ROWS = [*(f"{rule}, {choice}" for choice in (DRAWN, KNOWN) for rule in RULES), COACH, ORACLE]
#: Money in multiples of what the cheapest fixed choice costs; with less than 1 no fixed choice reaches the target.
LOW, HIGH = 0.5, 4.0
#: Sums of costs are exact to so much of a budget.
ROUNDING = 1e-9
BANDS = ((LOW, 1.0), (1.0, 1.5), (1.5, 2.0), (2.0, HIGH))
#: Of each row by band: how many jobs there are, and how many reach their target, and do so within their budget.
COUNTS = JOBS, REACHED, WITHIN = ("jobs", "targets reached", "within the budget")
#: Of each row: sums over its jobs, except WORST, the largest. LATER and TOGETHER: of jobs that the oracle ends, too.
SUMS = OVER, OVERSHOOT, WORST, UNUSED, LATER, TOGETHER = (
    "jobs over budget",
    "overshoot, budgets",
    "worst overshoot, budgets",
    "unused, budgets",
    "time, oracle's",
    "reached by both",
)


class WithoutFits(Driver):
    """A run for which nothing is predicted, so nothing but its target ends it."""

    def _fit(self, job: Job) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        return None, None


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """The counts of all rows over the jobs of a seed by band of money, and the sums."""
    found = {f"{row}, {low:g}: {name}": 0.0 for row in ROWS for low, _ in BANDS for name in COUNTS}
    found |= {f"{row}: {name}": 0.0 for row in ROWS for name in SUMS}
    for number in range(int(parameters["jobs"])):
        draw = np.random.default_rng([seed, number])
        model = list(shipped())[(seed + number) % len(shipped())]
        options = cases(parameters, number, model, seed * int(parameters["jobs"]) + number)
        case = list(options.values())[int(draw.integers(len(options)))]
        factor = float(np.exp(draw.uniform(math.log(LOW), math.log(HIGH))))
        low = next(low for low, _ in reversed(BANDS) if low <= factor)
        outcomes = job_outcomes(case, int(parameters["most"]), seed, factor, draw)
        for row, one in outcomes.items():
            over = one.spent - 1.0 if one.spent > 1.0 + ROUNDING else 0.0
            found[f"{row}, {low:g}: {JOBS}"] += 1
            found[f"{row}, {low:g}: {REACHED}"] += one.reached
            found[f"{row}, {low:g}: {WITHIN}"] += one.reached and over == 0.0
            found[f"{row}: {OVER}"] += over > 0.0
            found[f"{row}: {OVERSHOOT}"] += over
            found[f"{row}: {WORST}"] = max(found[f"{row}: {WORST}"], over)
            found[f"{row}: {UNUSED}"] += max(0.0, 1.0 - one.spent)
            if one.reached and outcomes[ORACLE].reached:
                found[f"{row}: {LATER}"] += one.seconds / outcomes[ORACLE].seconds
                found[f"{row}: {TOGETHER}"] += 1
    return found


def job_outcomes(case: Case, most: int, seed: int, factor: float, draw: np.random.Generator) -> dict[str, Outcome]:
    """Every row's outcome of a job with `factor` times the cheapest fixed choice's money, in budgets (1: all of it)."""
    counts = range(1, most + 1)
    grid = [{"name": "static", "workers": w, "servers": s} for w in counts for s in counts]
    runs = [_fixed(case.run(most, seed, policy=policy, driver=WithoutFits)) for policy in grid]
    chosen = runs[int(draw.integers(len(runs)))]
    budget = factor * min(float(run.costs[-1]) for run in runs)
    expected = [(PRIOR_EPOCHS / len(run.costs) * run.costs[-1], run.seconds[-1]) for run in runs]
    paid = [number for number, (cost, _) in enumerate(expected) if cost <= budget]
    informed = runs[
        min(paid, key=lambda number: expected[number][1])
        if paid
        else min(range(len(runs)), key=lambda number: expected[number][0])
    ]
    found = {
        f"{name}, {choice}": rule(run, budget)
        for name, rule in RULES.items()
        for choice, run in ((DRAWN, chosen), (KNOWN, informed))
    }
    ended = case.run(most, seed, budget=budget)
    found[COACH] = Outcome(ended.ended, ended.spent, ended.state is State.SUCCEEDED)
    found[ORACLE] = oracle(runs, budget)
    return {row: Outcome(one.seconds, one.spent / budget, one.reached) for row, one in found.items()}


def _fixed(ended: Ended) -> FixedRun:
    """A fixed choice's run by its epochs; the release at its end is paid with the last."""
    epochs = ended.final.epochs
    costs = np.cumsum([to_amount(epoch.cost) for epoch in epochs])
    costs[-1] = ended.spent
    return FixedRun(np.array([epoch.ended_at for epoch in epochs]), costs)


def _counted(results: Mapping[str, FloatArray], row: str, name: str) -> list[int]:
    """One of COUNTS of a row by band."""
    return [round(float(results[f"{row}, {low:g}: {name}"].sum())) for low, _ in BANDS]


def _of_oracle(results: Mapping[str, FloatArray], row: str) -> float:
    """Of the targets that the oracle reaches, the part that a row reaches within the budget, %.

    The oracle reaches those of all jobs with at least the cheapest fixed choice's money, and no other.
    """
    within, best = (sum(_counted(results, each, WITHIN)[1:]) for each in (row, ORACLE))
    return 100 * within / best


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """All rows over all jobs; then how many targets are reached with how much money."""
    lines = [
        "| budget | jobs over it | overshoot, mean | worst | targets reached | within the budget | of the oracle's "
        "| money unused | time, the oracle's |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in ROWS:
        jobs, reached, within = (sum(_counted(results, row, name)) for name in COUNTS)
        over, overshoot, _, unused, later, both = (results[f"{row}: {name}"].sum() for name in SUMS)
        worst = results[f"{row}: {WORST}"].max()
        lines.append(
            f"| {row} | {over:.0f} of {jobs} | {100 * overshoot / jobs:.1f} % | {100 * worst:.0f} % | {reached} | "
            f"{within} | {_of_oracle(results, row):.1f} % | {100 * unused / jobs:.0f} % | {later / max(both, 1):.2f} |"
        )
    bands = " | ".join(f"{low:g} to {high:g}" for low, high in BANDS)
    lines += [
        "",
        "Targets reached within the budget, by the budget in multiples of the cheapest fixed choice's cost:",
        "",
        f"| budget | {bands} |",
        f"| --- |{' ---: |' * len(BANDS)}",
    ]
    for row in ROWS:
        each = zip(_counted(results, row, WITHIN), _counted(results, row, JOBS), strict=True)
        lines.append(f"| {row} | {' | '.join(f'{within} of {jobs}' for within, jobs in each)} |")
    return "\n".join(lines)


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Overspent, and reached within the budget: a point a row."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    for row, marker in zip(ROWS, "ovs^ovs^DX", strict=True):
        over = results[f"{row}: {OVERSHOOT}"].sum() / sum(_counted(results, row, JOBS))
        style = "none" if row.endswith(DRAWN) else "full"
        axes.plot(100 * over, _of_oracle(results, row), marker, label=row, fillstyle=style)
    axes.set(xlabel="overshoot, mean % of the budget", ylabel="targets reached within it, % of the oracle's")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return {"rival-budgets": figure}
