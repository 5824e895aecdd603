"""Why a job waits, or has its allocation, as data; `coach.report.why` has the same as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from coach.core.cluster import Allocation, Node, Taken, without
from coach.core.errors import UserError
from coach.core.jobs.decision import DecisionStep
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import RESUMABLE, State
from coach.core.lifecycle import forecast
from coach.core.lifecycle.cluster_state import queue_key
from coach.core.lifecycle.start_forecast import expected_starts
from coach.handler.resume_rules import refuse_resume
from coach.report.choices import considered
from coach.report.row_types import Action, ChoiceRow, Step, Why, bounds
from coach.report.status import shown_allocation
from coach.report.why import free_words, requested_words, waiting, why

#: Allocations in the answer, at most: the chosen one, then those one step away, then the others.
MAX_ALTERNATIVES = 16
#: Names of jobs before it in the queue, at most.
MAX_BEFORE = 20


def explanation(
    job: Job,
    jobs: Mapping[str, Job],
    nodes: Sequence[Node],
    taken: Sequence[Taken],
    now: float,
    *,
    orphan: bool = False,
) -> Why:
    """The reasons of `job`, one of `jobs`, on a cluster of `nodes`, of which others have `taken`.

    `orphan`: no handler has its journal.
    """
    alternatives = list(_alternatives(job))
    waits = not job.ended and not job.pods and not job.suspend
    start = expected_starts(jobs.values(), without(nodes, taken), now).get(job.name) if waits else None
    before = [one.name for one in waiting(jobs) if queue_key(one) < queue_key(job)] if waits else []
    return Why(
        lines=why(job, jobs, nodes, now, taken, orphan=orphan),
        state=job.state.value,
        reason=job.reason.value,
        summary=_summary(job, alternatives),
        steps=[_step(job, step) for step in job.reasons],
        alternatives=alternatives,
        queue=len(before) + 1 if waits else None,
        before=before[:MAX_BEFORE],
        starts_in=start if start else None,
        blockers=[requested_words(job), *(free_words(node, jobs, taken) for node in nodes)] if waits else [],
        actions=list(_actions(job)),
    )


def _summary(job: Job, alternatives: list[ChoiceRow]) -> str:
    words = job.reason.words
    at = shown_allocation(job)
    if job.ended or job.running is None or at is None:
        return f"{words}: {job.message}" if job.message else words
    if job.kind is EpochKind.PROBE:
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


def _alternatives(job: Job) -> Iterator[ChoiceRow]:
    at = shown_allocation(job) or job.desired
    if at is None or job.ended or forecast.predicted_seconds(job, at, 1.0) is None:
        return
    chosen, *others = considered(job, at, job.reasons)
    others.sort(key=lambda one: abs(one.allocation.workers - at.workers) + abs(one.allocation.servers - at.servers))
    for one in [chosen, *others[: MAX_ALTERNATIVES - 1]]:
        seconds = forecast.predicted_seconds(job, one.allocation, 1.0)
        yield replace(one.row, cost=forecast.predicted_cost(job, one.allocation), **bounds("seconds", seconds))


def _actions(job: Job) -> Iterator[Action]:
    try:
        refuse_resume(job, 0)
    except UserError:
        pass
    else:
        yield Action(action="resume", text="Resume", command=f"coach resume {job.name}")
    if job.ledger.budget is not None and job.state is not State.SUCCEEDED:
        command = f"coach resume {job.name} --add-budget AMOUNT"
        yield Action(action="add-budget", text="Add budget", command=command)
    if not job.ended and job.reason not in RESUMABLE:
        yield Action(action="suspend", text="Suspend", command=f"coach suspend {job.name}")
    if not job.ended:
        yield Action(action="cancel", text="Cancel", command=f"coach cancel {job.name}")
