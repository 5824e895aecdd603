"""What each of several budgets would buy: epochs, and the loss or accuracy to expect after them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coach.core.cluster import Allocation, Node
from coach.core.errors import UserError
from coach.core.estimation.convergence import ConvergenceModel, fit_convergence
from coach.core.estimation.interval import Interval
from coach.core.lifecycle.forecast import epochs_paid, like_earlier
from coach.core.spec.job import JobSpec, TrainingJob
from coach.core.spec.program import Goal
from coach.handler.prior_runs import known_curve, known_epochs
from coach.handler.state.state_directory import StoredJob
from coach.report.plan import earlier_words, fastest_for, plan, start_seconds
from coach.report.row_types import bounds

#: For these chances of reaching the target the money is given.
CHANCES = (0.5, 0.8, 0.95)
#: Points of an earlier learning curve without which nothing is predicted.
MIN_POINTS = 4


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One budget. `value`: the loss or accuracy to expect, with its 80 % interval; None where it buys no whole epoch.

    `gain`: what a currency unit more adds to it, from the budget before to this one; None where that has no value.
    `target_seconds`, with its 80 % interval, and `target_at`: the fastest allocation with which it reaches the target
    in nine of ten cases; None and "" without one.
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
    target_seconds: float | None
    target_seconds_low: float | None
    target_seconds_high: float | None
    target_at: str


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """Of a job. `level`, with its bounds: where the learning curve levels off, whatever is paid.

    `chances`: the money with which the job reaches its target with that chance; None where no money does. Empty without
    a target. `known`: what earlier jobs like it did.
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
    known: tuple[str, ...]


def probe_of(spec: TrainingJob, amount: float) -> TrainingJob:
    """The job that trains the same for at most `amount`, whatever it reaches: then speed and curve are known."""
    document = spec.to_json()
    document["metadata"]["name"] = f"{spec.name[:34]}-probe"
    wanted = document["spec"]
    for name in ("target", "timeLimit", "maxEpochs"):
        wanted.pop(name, None)
    objective = "best-accuracy" if spec.spec.metric == "accuracy" else "best-loss"
    wanted |= {
        "objective": objective,
        "stopEarly": False,
        "budget": {"amount": amount, "currency": spec.spec.price_book.currency},
    }
    return TrainingJob.from_json(document)


class Choice(NamedTuple):
    """Cost and seconds of an epoch with an allocation, and of the start before the first."""

    cost: float
    seconds: float
    at: Allocation
    start: float
    start_cost: float


def budget_plan(
    spec: TrainingJob, past: Mapping[str, StoredJob], nodes: tuple[Node, ...], budgets: Sequence[float]
) -> BudgetPlan:
    """What each of `budgets`, in the currency of the job's prices, buys. Raises UserError without earlier runs."""
    points, metric = known_curve(past.values(), spec), spec.spec.metric
    planned = plan(spec, past, nodes)
    start = start_seconds(past.values(), spec, nodes) or 0.0
    choices = [
        Choice(row.cost, row.seconds, Allocation(row.workers, row.servers), start, start * row.cost_per_hour / 3600)
        for row in planned.rows
        if row.fits and row.cost is not None and row.seconds is not None
    ]
    few = f"{len(points)} points of its learning curve, at least {MIN_POINTS} are needed"
    if len(points) < MIN_POINTS or not choices:
        lacking = few if len(points) < MIN_POINTS else "no speed"
        raise UserError(
            f"{spec.name}: earlier runs like it on these nodes measured {lacking}; "
            "--probe AMOUNT trains it first for so much money"
        )
    model = fit_convergence(points, spec.spec.curve)
    rows: list[BudgetRow] = []
    for budget in sorted(budgets):
        epochs, seconds, at = _most(spec.spec, choices, budget)
        expected = low = high = gain = None
        ready = fastest_for(planned, budget) if spec.spec.target is not None else None
        when: tuple[float | None, float | None, float | None] = (None, None, None)
        if ready is not None:
            when = ready.job_seconds, ready.job_seconds_low, ready.job_seconds_high
        with_ = str(Allocation(ready.workers, ready.servers)) if ready is not None else ""
        if epochs:
            found = _value(model, epochs)
            expected, low, high = found.expected, found.low, found.high
            if rows and rows[-1].value is not None:
                gain = (expected - rows[-1].value) / (budget - rows[-1].budget)
        rows.append(BudgetRow(budget, *at, epochs, seconds, expected, low, high, gain, *when, with_))
    cheapest = min(choices)
    level = model.asymptote
    best = (min if spec.spec.goal is Goal.MINIMIZE else max)(point.value for point in points)
    level = _possible(model, Interval(min(level.low, best), level.expected, max(level.high, best)))
    return BudgetPlan(
        name=spec.name,
        currency=spec.spec.price_book.currency,
        metric=metric,
        points=len(points),
        rows=tuple(rows),
        **bounds("level", level),
        chances=tuple(
            (chance, None if epochs is None else epochs * cheapest.cost + cheapest.start_cost)
            for chance, epochs in zip(CHANCES, _needed(spec, past, model), strict=True)
        )
        if spec.spec.target is not None
        else (),
        known=tuple(earlier_words(spec, past)),
    )


def _value(model: ConvergenceModel, epochs: float) -> Interval:
    """The value to expect after `epochs`: as far as the earlier run went, what it measured; its interval holds that."""
    found, points = model.interval(epochs), model.points
    if epochs > points[-1].x:
        return _possible(model, found)
    seen = float(np.interp(epochs, [point.x for point in points], [point.value for point in points]))
    return _possible(model, Interval(min(found.low, seen), seen, max(found.high, seen)))


def _possible(model: ConvergenceModel, found: Interval) -> Interval:
    """Without the values that noise alone may have: above a perfect accuracy, or below 0 where no value was."""
    low = 0.0 if min(point.value for point in model.points) >= 0.0 else -math.inf
    high = model.ceiling if model.metric == "accuracy" else math.inf
    return Interval(*(min(max(value, low), high) for value in (found.low, found.expected, found.high)))


def _needed(spec: TrainingJob, past: Mapping[str, StoredJob], model: ConvergenceModel) -> Sequence[float | None]:
    """Epochs with which a new run reaches its target with each of CHANCES; None where it never does.

    Where earlier ones reached it: as many as those. Else by the curve.
    """
    assert spec.spec.target is not None and spec.spec.target_value is not None
    found: Sequence[float | None]
    if (took := known_epochs(past.values(), spec)) is not None:
        found = [like_earlier(took).quantile(chance) for chance in CHANCES]
    else:
        found = model.epochs_of_new_run(spec.spec.target_value, spec.spec.target.epochs_in_a_row, CHANCES)
    most = spec.spec.max_epochs or math.inf
    return [None if epochs is None or epochs > most else epochs for epochs in found]


def _most(spec: JobSpec, choices: Sequence[Choice], budget: float) -> tuple[int, float, Allocation]:
    """The most epochs that `budget` and the job's other bounds allow; their seconds; with which allocation.

    Of equal ones the fastest.
    """
    seconds, costs, start_costs = np.array([(each.seconds, each.cost, each.start_cost) for each in choices]).T
    start = choices[0].start
    time = math.inf if spec.time_limit is None else spec.time_limit - start
    most = epochs_paid(seconds, costs, time, budget - start_costs, spec.max_epochs or math.inf)
    negative, each, at = min(
        (-math.floor(epochs), one.seconds, one.at) for epochs, one in zip(most.tolist(), choices, strict=True)
    )
    return -negative, start - negative * each if negative else 0.0, at
