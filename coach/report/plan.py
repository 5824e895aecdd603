"""The predicted time and cost of a job before it starts: per allocation, with intervals, and what is unknown.

The estimates are those that the job would begin with, from measurements of earlier jobs of the same model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping

from coach.core.cluster import Allocation, Node
from coach.core.estimation.cost import epoch_cost, epoch_seconds, second_cost
from coach.core.estimation.interval import Interval
from coach.core.estimation.observations import KnownSpeed
from coach.core.gang.plan import Pending
from coach.core.jobs.epoch import Epoch
from coach.core.jobs.job import Job
from coach.core.jobs.overheads import PRIOR_FIXED_SECONDS
from coach.core.lifecycle import forecast, probing
from coach.core.lifecycle.cluster_state import plan_alone
from coach.core.lifecycle.enough_money import enough
from coach.core.money import PriceBook, to_amount
from coach.core.spec.job import TrainingJob
from coach.handler.prior_runs import alike, earlier_runs, new_job
from coach.handler.state.state_directory import StoredJob
from coach.report import formatting
from coach.report.models import shown_allocations
from coach.report.row_types import Plan, PlanRow, bounds


def plan(spec: TrainingJob, past: Mapping[str, StoredJob], nodes: tuple[Node, ...]) -> Plan:
    """The plan of a job that is not submitted, on the empty cluster `nodes`."""
    job = new_job(spec, past, nodes)
    job.see_nodes(nodes)
    points, epochs_trained = job.models.known_points, job.models.known_epochs
    fixed = _fixed_seconds(past.values(), spec, nodes)
    start = start_seconds(past.values(), spec, nodes) or 0.0
    left = forecast.remaining(job)
    measured = {Allocation(point.workers, point.servers) for point in points}
    first = [job.minimum, job.maximum, *(at for at in measured if at.within(*job.spec.limits))]
    shown = sorted(shown_allocations(job, first))
    rows = tuple(_row(job, at, fixed, start, at in measured, nodes) for at in shown)
    measured_words = f"{formatting.count(len(points), 'allocation')} on these nodes"
    known = [f"speed: earlier jobs like it measured {measured_words}"] if points else []
    book = job.price_book
    money = spec.spec.budget_money
    aims = money is not None and spec.spec.target is not None
    costs = [row.cost for row in rows if row.cost is not None]
    spending, reach = forecast.spending_plan(job), enough(job, min(costs, default=None))
    return Plan(
        name=spec.name,
        currency=book.currency,
        prices=_prices(book),
        budget=None if money is None else to_amount(money),
        chance_of_running_out=spec.spec.budget.chance if aims else None,
        epochs_provided_for=spending.provided if spending else None,
        **bounds("epochs", left.epochs),
        epochs_known=epochs_trained is not None or (spec.spec.target is None and job.speed is not None),
        enough="" if reach is None else reach.words,
        probes=tuple(map(str, _probes(job, nodes))),
        known=(*known, *_changes(past.values(), spec, nodes), *earlier_words(spec, past)),
        unknown=tuple(_unknown(spec, points, epochs_trained)),
        refusal=_refusal(job, nodes),
        rows=rows,
    )


def cheapest_by(plan: Plan, seconds: float) -> PlanRow | None:
    """The cheapest allocation with which the job ends within `seconds` in nine of ten cases; None: none does."""
    return _best(plan, lambda row: (row.job_seconds_high, row.job_cost), seconds)


def fastest_for(plan: Plan, amount: float) -> PlanRow | None:
    """The fastest allocation with which `amount` suffices in nine of ten cases; None: none does."""
    return _best(plan, lambda row: (row.job_cost_high, row.job_seconds), amount)


def _best(plan: Plan, of: Callable[[PlanRow], tuple[float | None, float | None]], limit: float) -> PlanRow | None:
    """The row that the cluster holds with the least second number of `of`, where the first is within `limit`."""
    found = [
        (value, number)
        for number, row in enumerate(plan.rows)
        for bound, value in [of(row)]
        if row.fits and bound is not None and value is not None and bound <= limit
    ]
    return plan.rows[min(found)[1]] if found else None


def _prices(book: PriceBook) -> str:
    if (machine := book.instance) is not None:
        gpus = f", {machine.gpu:g} GPUs" if machine.gpu else ""
        how = "whole machines" if machine.whole else "the part of it that the gang takes"
        if machine.by_hour:
            how += ", each hour begun"
        dearest = "at most, by the node, " if book.nodes else ""
        return (
            f"{book.name}: {dearest}{machine.hour:g} {book.currency} an hour for {machine.cpu:g} cores, "
            f"{machine.memory:g} GiB{gpus}; paid is {how}"
        )
    return (
        f"{book.name}: {formatting.number(book.vcpu_second * 3600)} {book.currency} a vCPU and hour, "
        f"{formatting.number(book.gib_second * 3600)} a GiB and hour, "
        f"{formatting.number(book.invocation * 1e6)} a million calls"
    )


def _row(  # noqa: PLR0917
    job: Job, at: Allocation, fixed: Interval, start: float, measured: bool, nodes: tuple[Node, ...]
) -> PlanRow:
    book = job.price_book
    held = job.spec.resources.total(at)
    rate = second_cost(held, book, at.pods)
    budget = job.money.ledger.budget
    seconds = None if job.speed is None else epoch_seconds(job.speed, *at, fixed)
    left = forecast.remaining(job, at, seconds)
    total = left.seconds and left.seconds + start
    costs = left.cost and left.cost + start * rate
    return PlanRow(
        workers=at.workers,
        servers=at.servers,
        measured=measured,
        fits=not isinstance(plan_alone(job, at, nodes), Pending),
        cost_per_hour=rate * 3600,
        hours_within_budget=None if budget is None or not rate else to_amount(budget) / rate / 3600,
        cost=None if seconds is None else epoch_cost(seconds.expected, held, book, at.pods),
        **bounds("seconds", seconds),
        **bounds("job_seconds", total),
        **bounds("job_cost", costs),
        within_budget=None if budget is None or costs is None else costs.expected <= to_amount(budget),
    )


def _fixed_seconds(past: Iterable[StoredJob], spec: TrainingJob, nodes: tuple[Node, ...]) -> Interval:
    """Seconds of an epoch outside training, as earlier jobs like this one had them: median and range."""
    if spec.spec.program is not None:
        return Interval(0.0, 0.0, 0.0)  # it trains on between two reports
    found = [epoch.other_seconds for one in alike(past, spec, nodes) for epoch in one.job.epochs]
    if not found:
        return PRIOR_FIXED_SECONDS
    return Interval(min(found), statistics.median(found), max(found))


def _probes(job: Job, nodes: tuple[Node, ...]) -> list[Allocation]:
    if job.spec.policy.allocation is not None or job.spec.program is not None:
        return []  # a program's first intervals are its probes
    left = probing.probes_left(job, lambda at: not isinstance(plan_alone(job, at, nodes), Pending))
    return [probe.at for probe in left]


def _changes(past: Iterable[StoredJob], spec: TrainingJob, nodes: tuple[Node, ...]) -> Iterable[str]:
    """What starts and changes took of earlier programs like this one."""
    if spec.spec.program is not None:
        times = [one.job.times.restart for one in alike(past, spec, nodes) if one.job.times.fresh is not None]
        if times:
            yield f"a start with other workers: {formatting.duration(statistics.median(times))}, until it reports again"


def start_seconds(past: Iterable[StoredJob], spec: TrainingJob, nodes: tuple[Node, ...]) -> float | None:
    """What a start of a program takes longer than an epoch, as earlier ones like it showed; None where none did."""
    if spec.spec.program is None:
        return None  # the seconds of its epochs outside training have it
    fresh = [one.job.times.fresh for one in alike(past, spec, nodes)]
    known = [one.expected for one in fresh if one is not None]
    return statistics.median(known) if known else None


def earlier_words(spec: TrainingJob, past: Mapping[str, StoredJob]) -> list[str]:
    """What earlier jobs that learn like `spec` did, the last one with its time and cost."""
    runs = earlier_runs(past.values(), spec)
    reached = [run for run in runs if run.reached is not None]
    others = [run for run in runs if run.reached is None and run.job.ended]
    words = []
    if reached:
        passes = [run.reached.epochs_trained for run in reached if run.reached is not None]
        last = reached[-1]
        if len(reached) == 1:
            text = f"{last.job.name} reached this target after {passes[0]:.0f} {formatting.epochs(spec.spec)},"
        else:
            text = (
                f"{len(reached)} earlier jobs like it reached this target after {min(passes):.0f} to "
                f"{max(passes):.0f} {formatting.epochs(spec.spec)}; the last one, {last.job.name},"
            )
        words.append(f"epochs: {text} {_took(last.job, last.reached)}")
    if others:
        job, metric = others[-1].job, spec.spec.metric
        best_epoch = job.best
        best = formatting.score(None if best_epoch is None else best_epoch.report.value(metric))
        many = f"; {formatting.count(len(others) - 1, 'more job')} like it" if len(others) > 1 else ""
        end = "" if spec.spec.target is None else ", without this target"
        words.append(
            f"epochs: {job.name} ended after {job.epochs_trained:.0f} {formatting.epochs(spec.spec)}{end}: "
            f"best {metric} {best}, {_took(job, job.epochs[-1])}{many}"
        )
    return words


def _took(job: Job, last: Epoch | None) -> str:
    """The time and cost of a job up to its epoch `last`."""
    seconds, cost = job.progress.run_seconds, job.money.ledger.spent
    if last is not None and last.number < len(job.epochs):
        until = job.epochs[: last.number]
        seconds, cost = sum(epoch.seconds for epoch in until), sum(epoch.cost for epoch in until)
    return f"in {formatting.duration(seconds)} for {formatting.money(cost, job.price_book.currency)}"


def _unknown(spec: TrainingJob, points: tuple[KnownSpeed, ...], epochs_trained: float | None) -> Iterable[str]:
    what = "model" if spec.spec.program is None else "program"
    if not spec.spec.sha256:
        yield f"the {what}'s file cannot be read here, so nothing says which earlier jobs are like this one"
    if not points and spec.spec.program is not None:
        yield "speed: no earlier job with this program and these resources ran on these nodes"
    elif not points:
        yield "speed: no earlier job with this model, data, batch size and resources ran on these nodes"
    if spec.spec.target is None:
        yield "how good the model gets; it trains as many epochs as its bounds allow"
    elif epochs_trained is None:
        guess = f"{forecast.PRIOR_EPOCHS:.0f} epochs is a guess"
        which = "this model and data" if spec.spec.program is None else "this program"
        yield f"epochs: no earlier job with {which} reached this target; {guess}"


def _refusal(job: Job, nodes: tuple[Node, ...]) -> str:
    alone = plan_alone(job, job.minimum, nodes)
    if isinstance(alone, Pending):
        return alone.message
    if not forecast.affordable(job, job.minimum):
        seconds, cost = forecast.minimum_reservation(job, job.minimum)
        return (
            "the budget does not cover one epoch: "
            f"at {job.minimum} it may take {formatting.duration(seconds)} and cost "
            f"{formatting.money(cost, job.price_book.currency)}"
        )
    return ""
