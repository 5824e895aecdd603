"""The fitted models of a job as text and rows: its speed, its cost and its learning curve."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import numpy as np

from coach.core.cluster import Allocation
from coach.core.estimation.interval import CURVE_EPOCHS, Interval
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.core.lifecycle import forecast
from coach.core.lifecycle.stopping_rules import HOPELESS_EPOCHS
from coach.report import formatting
from coach.report.row_types import SpeedRow, bounds

#: Allocations that a table of predictions shows at most.
MAX_ROWS = 16
#: How much longer than expected the fitted curve is drawn, where its upper bound is further away.
LONGEST_CURVE = 4.0
#: With a smaller chance the median curve levels off before the target.
LIKELY = 0.5


def fitted_curve(job: Job, points: int) -> list[tuple[float, float, Interval]]:
    """The fitted learning curve at `points` x: x, value and 80 % interval; none before there is a curve.

    Of a job that has not reached its target it goes to the upper bound of the predicted end.
    """
    model = job.models.convergence
    if model is None or not job.full_epochs:
        return []
    last = None if job.state is State.SUCCEEDED else forecast.remaining(job).last
    end = job.epochs_trained
    if last is not None:
        end = max(end, min(last.high, LONGEST_CURVE * last.expected))
    elif not job.ended and job.target is None:
        end += forecast.remaining(job).epochs.expected
    xs = np.linspace(job.epochs[0].epochs_trained, end, points).tolist()
    return [(x, model.predict(x), model.interval(x)) for x in xs]


def shown_allocations(job: Job, first: Iterable[Allocation]) -> list[Allocation]:
    """Those within the job's limits; of many the `first`, then the fastest, where a speed is known."""
    low, high, speed = job.minimum, job.maximum, job.speed
    every = [
        Allocation(w, s)
        for w in range(low.workers, min(high.workers, low.workers + 63) + 1)
        for s in range(low.servers, min(high.servers, low.servers + 63) + 1)
    ]
    if len(every) <= MAX_ROWS:
        return every
    if speed is not None:
        every.sort(key=lambda at: -speed.predict(*at))
    return list(dict.fromkeys([*first, *every]))[:MAX_ROWS]


def speed_rows(job: Job) -> list[SpeedRow]:
    """Every allocation within the limits, or, of many, those measured and the fastest; fastest first."""
    if job.speed is None:
        return []
    points: dict[Allocation, list[float]] = {}
    for point in job.speed_points():
        points.setdefault(Allocation(point.workers, point.servers), []).append(point.epochs_per_second * job.pace)
    rows = []
    for at in shown_allocations(job, points):
        interval = job.speed.interval(*at)
        seconds = forecast.predicted_seconds(job, at, 1.0)
        rows.append(
            SpeedRow(
                workers=at.workers,
                servers=at.servers,
                measured=statistics.median(points[at]) if at in points else None,
                epochs=sum(epoch.allocation == at for epoch in job.epochs),
                **bounds("epochs_per_second", interval),
                seconds=seconds.expected if seconds else 0.0,
                cost=forecast.predicted_cost(job, at),
                affordable=forecast.affordable(job, at),
            )
        )
    return sorted(rows, key=lambda row: -row.epochs_per_second)


def speed_words(job: Job) -> str:
    """The fitted form and its data."""
    if job.speed is None:
        return "no speed is known yet"
    points = formatting.count(len(job.speed.points), "configuration")
    return f"the {job.speed.form} form, fitted to {points} and {formatting.count(len(job.epochs), 'epoch')}"


def curve_words(job: Job) -> str:
    """Where the learning curve levels off, and when it reaches the target."""
    model = job.models.convergence
    if model is None:
        return "no learning curve is known yet"
    if (seen := job.full_epoch_count) < CURVE_EPOCHS:
        return f"too early: {formatting.count(seen, 'epoch')}, and {CURVE_EPOCHS} say something of its curve"
    ends = model.asymptote
    goes = (
        f"{job.metric} levels off at {formatting.score(ends.expected)} "
        f"({formatting.score(ends.low)} to {formatting.score(ends.high)})"
    )
    if job.target is None:
        epochs = forecast.remaining(job).epochs.expected
        end = model.interval(job.epochs_trained + epochs)
        return (
            f"{goes}; after {epochs:.0f} more epochs, all that its bounds allow, {formatting.score(end.expected)} "
            f"({formatting.score(end.low)} to {formatting.score(end.high)}) is expected"
        )
    last, chance = forecast.remaining(job).last, model.chance(job.target)
    if last is None:
        young = f"too early to say whether {job.target:g} is held"  # values that get worse at first often turn
        return f"{goes}; {young if seen < HOPELESS_EPOCHS else f'it sees no way to {job.target:g}'}"
    spread = f"{last.low:.0f} to {last.high:.0f}"
    held = f"after {last.expected:.0f} {formatting.epochs(job.spec)} ({spread})"
    if chance < LIKELY:
        return f"{goes}; {job.target:g} is held with a chance of {formatting.percent(chance)}, and then {held}"
    return f"{goes}; {job.target:g} is held {held}"
