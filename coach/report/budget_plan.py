"""What each of several budgets would buy: epochs, and the loss or accuracy to expect after them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coach.core.cluster import Node
from coach.core.errors import UserError
from coach.core.estimation.convergence import fit_convergence
from coach.core.lifecycle import forecast
from coach.core.money import Ledger, to_money
from coach.core.spec.job import TrainingJob
from coach.handler.prior_runs import known_curve
from coach.handler.state.state_directory import StoredJob
from coach.report.plan import new_job

#: For these chances of reaching the target the money is given.
CHANCES = (0.5, 0.8, 0.95)
#: Points of an earlier learning curve without which nothing is predicted.
MIN_POINTS = 4


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One budget. `value`: the loss or accuracy to expect, with its 80 % interval; None where it buys no whole epoch.

    `gain`: by how much a currency unit betters it, from the budget before to this one; None where that has no value.
    """

    budget: float
    workers: int
    servers: int
    epochs: int
    seconds: float
    value: float | None
    value_low: float | None
    value_high: float | None
    gain: float | None


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """Of a job. `level`, with its bounds: where the learning curve levels off, whatever is paid.

    `chances`: the money with which the job reaches its target with that chance; None where no money does. Empty without
    a target.
    """

    name: str
    currency: str
    metric: str
    points: int
    rows: tuple[BudgetRow, ...]
    level: float
    level_low: float
    level_high: float
    chances: tuple[tuple[float, float | None], ...]


def budget_plan(
    spec: TrainingJob, past: Mapping[str, StoredJob], nodes: tuple[Node, ...], budgets: Sequence[float]
) -> BudgetPlan:
    """What each of `budgets`, in the currency of the job's prices, buys. Raises UserError without earlier runs."""
    points, job = known_curve(past.values(), spec), new_job(spec, past, nodes)
    if len(points) < MIN_POINTS or job.speed is None:
        raise UserError(
            f"{spec.name}: earlier runs like it on these nodes measured {len(points)} points of "
            f"its learning curve, at least {MIN_POINTS} are needed; train it first, with a small budget: coach run FILE"
        )
    model = fit_convergence(points, job.metric)
    rows: list[BudgetRow] = []
    for budget in sorted(budgets):
        most, at, seconds = forecast.most_epochs(replace(job, ledger=Ledger(to_money(budget))))
        epochs = math.floor(most)
        value = low = high = gain = None
        if epochs:
            found = model.interval(epochs)
            value, low, high = found.expected, found.low, found.high
            if rows and rows[-1].value is not None:
                gain = abs(value - rows[-1].value) / (budget - rows[-1].budget)
        rows.append(BudgetRow(budget, *at, epochs, epochs * seconds, value, low, high, gain))
    chances: list[tuple[float, float | None]] = []
    target, each = spec.spec.target, forecast.cheapest_epoch(job)
    if target is not None and job.target is not None:
        needed = model.epochs_of_new_run(job.target, target.epochs_in_a_row, CHANCES)
        chances = [
            (chance, None if epochs is None else epochs * each)
            for chance, epochs in zip(CHANCES, needed, strict=True)
        ]
    level = model.asymptote
    return BudgetPlan(
        name=spec.name,
        currency=spec.spec.price_book.currency,
        metric=job.metric,
        points=len(points),
        rows=tuple(rows),
        level=level.expected,
        level_low=level.low,
        level_high=level.high,
        chances=tuple(chances),
    )
