"""Why a job waits, or has its allocation: the last decision with present numbers, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from coach.core.cluster import NOTHING, Allocation, Node, Resources, Taken, by_node, without
from coach.core.errors import UserError
from coach.core.estimation.interval import CURVE_EPOCHS, Interval
from coach.core.jobs.decision import DecisionStep
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import RESUMABLE, Reason, State
from coach.core.lifecycle import forecast, program_changes, stopping_rules
from coach.core.lifecycle.cluster_state import queue_key
from coach.core.lifecycle.enough_money import enough
from coach.core.lifecycle.start_forecast import expected_starts
from coach.core.money import to_amount
from coach.handler.resume_rules import refuse_resume
from coach.report import formatting
from coach.report.choices import Choice, considered
from coach.report.formatting import ORPHAN
from coach.report.models import curve_words, speed_words
from coach.report.row_types import Action, ChoiceRow, Step, Why, bounds
from coach.report.status import device_use, shown_allocation

#: Reasons to wait that another job's end, or a larger cluster, would change.
_FOR_ROOM = (Reason.WAITING_CAPACITY, Reason.SHADOW_RESERVED, Reason.DRAINING, Reason.PLACING)
#: Other allocations that are all shown; of more, those one step away.
_MAX_ALTERNATIVES = 8
#: GPUs that compute for a smaller part of the time wait for something else: data, the CPU, or each other.
LOW_USE = 0.5
_MORE = ": more workers will not help before the data comes faster"
#: Allocations in the answer, at most: the chosen one, then those one step away, then the others.
MAX_ALTERNATIVES = 16
#: Names of jobs before it in the queue, at most.
MAX_BEFORE = 20
#: Other jobs that are named, at most.
_MAX_NAMED = 5


def why(
    job: Job,
    jobs: Mapping[str, Job],
    nodes: Sequence[Node],
    now: float,
    taken: Sequence[Taken] = (),
    *,
    orphan: bool = False,
) -> Why:
    """The reasons of `job`, one of `jobs`, on a cluster of `nodes`, of which others have `taken`.

    Of its lines the most important come first.

    `orphan`: it has not ended, but no handler has its journal.
    """
    waits = not job.ended and not job.gang.pods and not job.stop.suspend
    starts_in = expected_starts(jobs.values(), without(nodes, taken), now).get(job.name) if waits else None
    before = [one.name for one in waiting(jobs) if queue_key(one) < queue_key(job)]
    at = shown_allocation(job) or job.decision.desired
    known = not job.ended and at is not None and forecast.predicted_seconds(job, at, 1.0) is not None
    choices = considered(job, at, job.decision.reasons) if known and at is not None else []
    alternatives = _alternatives(job, choices)
    room = {node.name: free_words(node, jobs, taken) for node in nodes}
    if orphan and job.reason not in RESUMABLE:
        state = f"{job.name} is Waiting: {ORPHAN}, after {formatting.count(job.full_epoch_count, 'epoch')}"
        lines = [state, *_next_command(job), f"Money: {_spent(job, now)}"]
    else:
        lines = _lines(job, now, list(_queue(job, jobs, room, before, starts_in)), choices)
    return Why(
        lines=lines,
        state=job.state.value,
        reason=job.reason.value,
        summary=_summary(job, alternatives),
        steps=[_step(job, step) for step in job.decision.reasons],
        alternatives=alternatives,
        queue=len(before) + 1 if waits else None,
        before=before[:MAX_BEFORE] if waits else [],
        starts_in=starts_in,
        blockers=[requested_words(job), *room.values()] if waits else [],
        actions=list(_actions(job)),
    )


def _lines(job: Job, now: float, queue: Sequence[str], choices: Sequence[Choice]) -> list[str]:
    about = f" ({job.message})" if job.message else ""
    lines = [f"{job.name} is {job.state.value}: {job.reason.words}{about}"]
    if job.ended:
        return [*lines, *_next_command(job)]
    if job.reason in _FOR_ROOM or job.state is State.QUEUED:
        lines += queue
    if job.reason in RESUMABLE:
        lines += _next_command(job)
    lines += devices(job)
    if (use := device_use(job)) is not None and use.busy is not None:
        lines.append(
            f"Its GPUs compute {formatting.percent(use.busy)} of the time{_MORE if use.busy < LOW_USE else ''}"
        )
    if job.decision.reasons and job.gang.pods:
        kind = "a mini-epoch" if job.decision.kind is EpochKind.PROBE else "an epoch"
        lines.append(f"Decided for {kind} with {job.decision.desired}:")
        lines += [f"  {step.text(job.name)}" for step in job.decision.reasons]
    lines += _considered(job, choices)
    lines += _changes(job)
    lines += _known(job, now)
    lines.append(_money(job, now))
    if (found := enough(job)) is not None:
        lines.append(f"Budget: {found.words}")
    return lines


def devices(job: Job) -> list[str]:
    """Which GPUs its workers have, a line each: `digits-worker-0 has GPU 0 (NVIDIA H100, GPU-...)`."""
    return [f"{pod.name} has {', '.join(held.devices)}" for pod, held in sorted(job.gang.pods.items()) if held.devices]


def device_use_words(job: Job) -> str:
    """What its GPUs did: `34 % of the time computing, idle at 50 % of 12 looks, 20.0 GiB at most, 9 W each`."""
    if (use := device_use(job)) is None:
        return ""
    looks = formatting.count(use.samples, "look")
    known = {
        f"{formatting.percent(use.busy or 0.0)} of the time computing": use.busy,
        f"idle at {formatting.percent(use.idle or 0.0)} of {looks}": use.idle,
        f"{use.memory or 0.0:.1f} GiB at most": use.memory,
        f"{use.watts or 0.0:.0f} W each": use.watts,
    }
    return ", ".join(words for words, value in known.items() if value is not None)


def _next_command(job: Job) -> Iterator[str]:
    if job.state is State.BUDGET_EXHAUSTED:
        yield f"Go on with more money: coach resume {job.name} --add-budget AMOUNT"
    elif job.state is not State.SUCCEEDED:
        changed = " --accept-model, after the model file was mended" if job.reason is Reason.MODEL_INVALID else ""
        yield f"Go on from {formatting.resumes_from(job)}: coach resume {job.name}{changed}"
    yield f"What happened: coach events {job.name}, coach logs {job.name}"


def waiting(jobs: Mapping[str, Job]) -> list[Job]:
    """The jobs that wait for capacity, in the order of the queue."""
    found = [one for one in jobs.values() if not one.ended and not one.gang.pods and not one.stop.suspend]
    return sorted(found, key=queue_key)


def free_on(node: Node, jobs: Mapping[str, Job]) -> Resources:
    """What no pod of these jobs holds of a node."""
    held = (one.pod.requests for job in jobs.values() for one in job.gang.pods.values() if one.pod.node == node.name)
    return node.capacity - sum(held, NOTHING)


def free_words(node: Node, jobs: Mapping[str, Job], taken: Sequence[Taken] = ()) -> str:
    """`node-0: 0.5 of 2 cores and 1.0 of 4.0 GiB free`, with the GPUs of a node that has some, and what others hold."""
    (left,), all_of_it = without([node], taken), node.capacity
    free, held = free_on(left, jobs), all_of_it - left.capacity
    gpus = f" and {free.gpu:g} of {all_of_it.gpu:g} GPUs" if all_of_it.gpu else ""
    return (
        f"{node.name}: {free.cpu:g} of {all_of_it.cpu:g} cores and {free.memory:.1f} of {all_of_it.memory:.1f} GiB"
        f"{gpus} free{_others_hold(held)}"
    )


def _others_hold(held: Resources) -> str:
    if held == NOTHING:
        return ""
    gpus = f" and {formatting.count(int(held.gpu), 'GPU')}" if held.gpu else ""
    return f"; others hold {held.cpu:g} cores and {held.memory:.1f} GiB{gpus}"


def requested_words(job: Job) -> str:
    """What the smallest gang of a job requests."""
    smallest = job.spec.resources.total(job.minimum)
    gpus = f" and {formatting.count(int(smallest.gpu), 'GPU')}" if smallest.gpu else ""
    return f"its smallest gang, {job.minimum}, requests {smallest.cpu:g} cores and {smallest.memory:.1f} GiB{gpus}"


def _queue(
    job: Job,
    jobs: Mapping[str, Job],
    room: Mapping[str, str],
    before: Sequence[str],
    start: Interval | None,
) -> Iterator[str]:
    """The jobs before it, and the jobs that hold the capacity."""
    yield f"{formatting.count(len(before), 'job')} before it in the queue{_named(before)}"
    for node, free in room.items():
        held = {other.name: sum(one.pod.node == node for one in other.gang.pods.values()) for other in jobs.values()}
        by = "; ".join(f"{name} has {formatting.count(count, 'function')}" for name, count in held.items() if count)
        yield f"{free}{'; ' + by if by else ''}"
    yield requested_words(job)
    if start is None:
        yield "When it starts is not known: it depends on a job whose end nothing predicts"
    else:
        yield f"Expected to start in {formatting.duration_interval(start)}"


def _named(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f": {', '.join(names[:_MAX_NAMED])}{more}"


def _considered(job: Job, choices: Sequence[Choice]) -> Iterator[str]:
    """The predicted time and cost of an epoch with other allocations, and why the job does not have them.

    Of many allocations only those one step away.
    """
    if not choices:
        return
    at, others = choices[0].allocation, choices[1:]
    currency = job.price_book.currency
    lines = []
    if len(others) > _MAX_ALTERNATIVES:
        others = [one for one in others if _steps(one.allocation, at) == 1]
    seconds = forecast.predicted_seconds(job, at, 1.0)
    assert seconds is not None
    for one in others:
        time = forecast.predicted_seconds(job, one.allocation, 1.0)
        assert time is not None
        # A probe is chosen for its measurement, so nothing was refused for it.
        refusal = "" if job.decision.kind is EpochKind.PROBE else f"; {one.refusal}"
        lines.append(
            f"  {one.allocation}: {formatting.duration_interval(time)}, {one.faster}, "
            f"{formatting.amount(one.cost)} {currency}{refusal}"
        )
    yield (
        f"An epoch with {at} is predicted to take {formatting.duration_interval(seconds)} "
        f"and to cost {formatting.amount(forecast.predicted_cost(job, at))} {currency}"
        f"{'; considered instead,' if lines else ''}"
    )
    yield from lines


def _changes(job: Job) -> Iterator[str]:
    """Of a program whose workers may change: what a change costs, and what the last ones did to its batch."""
    if job.spec.program is None or job.minimum == job.maximum or not job.epochs:
        return
    if job.times.fresh is not None:
        takes = formatting.duration(job.times.restart)
        yield (
            f"A change of its workers forms its group anew in the same process, and takes {takes}, as measured"
            if job.elastic
            else f"A change of its workers starts it again, and takes {takes} from SIGTERM to the first report, "
            "as measured"
        )
    if job.gang.queue_wait:
        yield f"The cluster's queue is expected to let another worker wait {formatting.duration(job.gang.queue_wait)}"
    first, now = job.epochs[0].allocation, job.epochs[-1].allocation
    if first != now:
        yield f"With {now}: {program_changes.batch_words(job, first, now)}"


def _known(job: Job, now: float) -> Iterator[str]:
    yield f"Speed: {speed_words(job)}"
    yield f"Learning: {curve_words(job)}"
    if not stopping_rules.ends_early(job) and (words := stopping_rules.out_of_reach(job)):
        goes_on = "it was resumed" if job.stop.overruled else "it has no --stop-early (stopEarly: true)"
        yield f"Its target looks out of reach: {words}. It goes on, as {goes_on}; coach cancel {job.name} ends it"
    until = forecast.time_left(job, now)
    if until is None and job.gang.pods and job.spec.target is not None and job.full_epoch_count < CURVE_EPOCHS:
        yield f"When it is done is not known yet: its curve says something from epoch {CURVE_EPOCHS} on"
    if until is not None:
        left = forecast.remaining(job).epochs
        yield (
            f"Done in {formatting.duration_interval(until)}, after {left.expected:.0f} more epochs "
            f"({left.low:.0f}-{left.high:.0f})"
        )


def _spent(job: Job, now: float) -> str:
    ledger, budget = job.money.ledger, job.spec.budget
    spent = ledger.spent + job.running_cost(now)
    return f"{formatting.spent_of(spent, ledger.budget, job.price_book.currency, budget.account)} spent"


def _money(job: Job, now: float) -> str:
    currency = job.price_book.currency
    ledger = job.money.ledger
    spent = f"Money: {_spent(job, now)}"
    if job.money.billed_resources != NOTHING:
        spent += f", {formatting.amount(job.billed_rate * 3600)} {currency} an hour for what it holds"
    if ledger.reserved:
        spent += f", {formatting.amount(to_amount(ledger.reserved - job.running_cost(now)))} reserved"
    pods = by_node(job.money.billed_pods)
    if job.money.billed_pods and job.money.billed_book != (book := job.book_on(job.price_book.on(pods))):
        rate = book.rate(job.money.billed_resources, pods) * 3600
        spent += f"; from its next reservation on {formatting.amount(rate)} an hour, as the price has changed"
    plan, left = forecast.spending_plan(job), forecast.remaining(job)
    each = forecast.epoch_budget(job, left, plan)
    if each is not None:
        spent += (
            f"; the next epoch may cost {formatting.amount(each)} {currency}"
            if each >= forecast.cheapest_epoch(job)
            else f"; what is left is for the cheapest allocation, as {left.provided:.0f} epochs may remain"
        )
    if plan is not None and plan.spare > 0.0:
        spent += (
            f"; kept for {plan.provided} epochs at {formatting.amount(plan.cheapest)}, at a chance of "
            f"{formatting.percent(job.spec.budget.chance)} to run out, "
            f"{formatting.amount(plan.spare)} for speed"
        )
    return spent


def _summary(job: Job, alternatives: list[ChoiceRow]) -> str:
    words = job.reason.words
    at = shown_allocation(job)
    if job.ended or job.attempts.running is None or at is None:
        return f"{words}: {job.message}" if job.message else words
    if job.decision.kind is EpochKind.PROBE:
        return f"measures the speed of {at} in a mini-epoch, which trains too"
    others = [one for one in alternatives[1:] if one.pace > -1]
    if not others:
        return f"trains with {at}"
    best = max(others, key=lambda one: one.pace)
    other = Allocation(best.workers, best.servers)
    if best.pace > 0:
        because = f"{best.verdict}, {best.reason}" if best.reason else best.verdict
        return f"trains with {at}, not {other}, which is predicted {best.pace:.0%} faster: {because}"
    return f"trains with {at}: {1 / (1 + best.pace) - 1:.0%} faster than the next best, {other}"


def _step(job: Job, step: DecisionStep) -> Step:
    return Step(
        kind=step.kind.value,
        before=None if step.before is None else step.before.cell,
        after=None if step.after is None else step.after.cell,
        reason=step.reason,
        gain=step.gain,
        unit=step.unit,
        cost=step.cost,
        text=step.text(job.name),
    )


def _alternatives(job: Job, choices: Sequence[Choice]) -> list[ChoiceRow]:
    """The chosen allocation, then the nearest ones, MAX_ALTERNATIVES at most."""
    nearest = sorted(choices, key=lambda one: _steps(one.allocation, choices[0].allocation))
    return [
        replace(
            one.row,
            cost=forecast.predicted_cost(job, one.allocation),
            **bounds("seconds", forecast.predicted_seconds(job, one.allocation, 1.0)),
        )
        for one in nearest[:MAX_ALTERNATIVES]
    ]


def _steps(one: Allocation, other: Allocation) -> int:
    return abs(one.workers - other.workers) + abs(one.servers - other.servers)


def _actions(job: Job) -> Iterator[Action]:
    try:
        refuse_resume(job, 0)
    except UserError:
        pass
    else:
        yield Action(action="resume", text="Resume", command=f"coach resume {job.name}")
    if job.money.ledger.budget is not None and job.state is not State.SUCCEEDED:
        command = f"coach resume {job.name} --add-budget AMOUNT"
        yield Action(action="add-budget", text="Add budget", command=command)
    if not job.ended and job.reason not in RESUMABLE:
        yield Action(action="suspend", text="Suspend", command=f"coach suspend {job.name}")
    if not job.ended:
        yield Action(action="cancel", text="Cancel", command=f"coach cancel {job.name}")
