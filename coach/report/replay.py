"""Going through a journal's records again: what a job's last state alone does not tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from coach.core.budget import Charge, to_amount
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs import job as jobs
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.report.words import iso


def replay(records: Iterable[Any]) -> Iterator[tuple[Any, dict[str, Job]]]:
    """Each record with all jobs as they stand after it (the same dictionary, changed from step to step)."""
    known: dict[str, Job] = {}
    for record in records:
        if isinstance(record, ev.JobSubmitted):
            known[record.job] = jobs.submitted(record)
        elif record.job:
            jobs.apply(known[record.job], record)
        else:
            for job in known.values():
                jobs.apply(job, record)
        yield record, known


def pauses(records: Iterable[Any]) -> list[tuple[float, float]]:
    """When one job was interrupted or had no handler: (from, to), in seconds since 1970; `records` are its own."""
    found = []
    before = since = None
    for record in records:
        if since is not None and isinstance(record, ev.ResumeAsked | act.RunEpoch):
            found.append((since, record.at))
            since = None
        elif since is None:
            if isinstance(record, ev.HandlerStarted) and before is not None:
                since = before
            elif isinstance(record, act.Enter) and record.reason is Reason.INTERRUPTED:
                since = record.at
        if record.job:
            before = record.at
    return found


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of an epoch in time. `end` None: it still runs."""

    order: act.RunEpoch
    end: float | None
    counted: bool


def attempts(records: Iterable[Any], name: str) -> list[Attempt]:
    """All attempts of job `name`, in order."""
    found: dict[str, Attempt] = {}
    last = 0.0
    for record in records:
        if isinstance(record, ev.HandlerStarted):
            # Nothing of before runs any more; it ended no later than the last thing that is known.
            found |= {t: Attempt(a.order, last, False) for t, a in found.items() if a.end is None}
        elif record.job == name:
            if isinstance(record, act.RunEpoch):
                found[record.token] = Attempt(record, None, False)
            elif isinstance(record, ev.EpochFinished | ev.EpochFailed) and record.token in found:
                counted = isinstance(record, ev.EpochFinished)
                found[record.token] = Attempt(found[record.token].order, record.at, counted)
        last = record.at
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Purse:
    """A job's money at a time: spent, and reserved beside it, in currency units."""

    at: float
    spent: float
    reserved: float


def money(records: Iterable[Any], name: str) -> list[Purse]:
    """How the money of job `name` went: one entry after each record that moved some."""
    found: list[Purse] = []
    for record, known in replay(record for record in records if record.job in ("", name)):
        if name not in known:
            continue
        ledger = known[name].ledger
        now = Purse(record.at, to_amount(ledger.spent), to_amount(ledger.reserved))
        if not found or (found[-1].spent, found[-1].reserved) != (now.spent, now.reserved):
            found.append(now)
    return found


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What one attempt of an epoch cost, in currency units. `held` pays for functions kept after it."""

    job: str
    epoch: int
    attempt: int
    kind: str
    workers: int
    servers: int
    outcome: str  #: counted, running, or the reason why it does not count
    reserved: float
    cost: float  #: the attempt itself
    held: float
    spent: float  #: of the job, after it
    started_at: str | None


LEDGER_COLUMNS = tuple(field.name for field in fields(LedgerRow))


def ledger(records: Sequence[Any], name: str) -> list[LedgerRow]:
    """One row an attempt of job `name`, in order; the last one's `spent` is what the job spent."""
    orders: dict[str, act.RunEpoch] = {}
    outcomes: dict[str, str] = {}
    costs: dict[str, int] = {}
    held: dict[str, int] = {}
    for record in records:
        if record.job != name:
            continue
        match record:
            case act.RunEpoch():
                orders[record.token] = record
            case ev.EpochFinished():
                outcomes[record.token] = "counted"
            case ev.EpochFailed():
                outcomes.setdefault(record.token, record.reason.value)
            case act.Settle():
                kind = held if record.charge is Charge.RELEASE else costs
                kind[record.token] = kind.get(record.token, 0) + record.amount
                if record.charge is Charge.FAILED:
                    outcomes.setdefault(record.token, Reason.HANDLER_RESTARTED.value)
    rows = []
    spent = 0
    for token, order in orders.items():
        spent += costs.get(token, 0) + held.get(token, 0)
        rows.append(
            LedgerRow(
                job=name,
                epoch=order.number,
                attempt=order.attempt,
                kind=order.kind.value,
                workers=order.allocation.workers,
                servers=order.allocation.servers,
                outcome=outcomes.get(token, "running"),
                reserved=to_amount(order.reservation),
                cost=to_amount(costs.get(token, 0)),
                held=to_amount(held.get(token, 0)),
                spent=to_amount(spent),
                started_at=iso(order.at),
            )
        )
    return rows
