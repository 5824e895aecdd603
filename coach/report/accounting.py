"""Replaying a journal's records, for what a job's last state does not contain; and the rows of budgets over jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.accounts import Account, Accounts
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import RESUMABLE, Reason, State
from coach.core.lifecycle.account_forecast import account_forecast
from coach.core.money import Charge, Money, to_amount
from coach.core.periods import EVER, MONTH, Period
from coach.handler.accounts import Payment
from coach.handler.state.journal import take_in
from coach.report.formatting import iso
from coach.report.row_types import AccountRow, LedgerRow, SpendingRow, bounds


def replay(records: Iterable[Any]) -> Iterator[tuple[Any, dict[str, Job]]]:
    """Each record with all jobs after it (the same dictionary, changed from step to step)."""
    known: dict[str, Job] = {}
    for record in records:
        take_in(known, record)
        yield record, known


class Pauses:
    """When the job `name` was suspended, had ended or had no handler: (from, to), in seconds since 1970."""

    def __init__(self, name: str) -> None:
        self.found: list[tuple[float, float]] = []
        self._name = name
        self._before: float | None = None
        self._since: float | None = None

    def take(self, record: Any) -> None:
        """One more record; those of other jobs are ignored."""
        if record.job not in ("", self._name):
            return
        if self._since is not None and isinstance(record, ev.ResumeRequested | act.RunEpoch):
            self.found.append((self._since, record.at))
            self._since = None
        elif self._since is None:
            goes_on = isinstance(record, ev.HandlerStarted) and self._name in {one.job for one in record.kept}
            if isinstance(record, ev.HandlerStarted) and self._before is not None and not goes_on:
                self._since = self._before
            elif isinstance(record, act.SetStatus) and (
                record.reason in RESUMABLE or (record.reason.state or State.FAILED).ended
            ):
                self._since = record.at
        if record.job and not _by_the_next_handler(record):
            self._before = record.at


def _by_the_next_handler(record: Any) -> bool:
    """Whether a handler that starts may have written it about a job whose handler had died."""
    return isinstance(record, ev.SuspendRequested) and not record.by_user


def pauses(records: Iterable[Any], name: str) -> list[tuple[float, float]]:
    """See `Pauses`."""
    taken = Pauses(name)
    for record in records:
        taken.take(record)
    return taken.found


@dataclass(frozen=True, slots=True)
class Balance:
    """A job's money at a time: spent, and reserved in addition, in currency units."""

    at: float
    spent: float
    reserved: float


def money(records: Iterable[Any], name: str) -> list[Balance]:
    """The money of job `name` over time: one entry after each record that changed it."""
    found: list[Balance] = []
    for record, known in replay(record for record in records if record.job in ("", name)):
        if name not in known:
            continue
        ledger = known[name].money.ledger
        now = Balance(record.at, to_amount(ledger.spent), to_amount(ledger.reserved))
        if not found or (found[-1].spent, found[-1].reserved) != (now.spent, now.reserved):
            found.append(now)
    return found


@dataclass(slots=True)
class Attempt:
    """An attempt of an epoch, with what it cost. `end` None: it still runs; `outcome` is that of `LedgerRow`."""

    order: act.RunEpoch
    epoch: int  #: its number among those of its kind
    end: float | None = None
    outcome: str = "running"
    cost: Money = 0
    held: Money = 0
    grace: Money = 0

    @property
    def counted(self) -> bool:
        """Whether its epoch ended with it."""
        return self.outcome == "counted"


class LedgerBook:
    """The attempts of one job in order, from its records."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._attempts: dict[str, Attempt] = {}  #: by token
        self._kinds: list[EpochKind] = []  #: of the epochs that counted
        self._last = 0.0  #: when the last record was written, as far as its own handler wrote it

    def take(self, record: Any) -> None:
        """One more record; those of other jobs are ignored."""
        if record.job not in ("", self._name):
            return
        match record:
            case ev.HandlerStarted() if self._name not in {pod.job for pod in record.kept}:
                for attempt in self._attempts.values():
                    # It does not run any more; it ended no later than the last known record.
                    attempt.end = self._last if attempt.end is None else attempt.end
            case act.RunEpoch():
                self._attempts[record.token] = Attempt(record, 1 + self._kinds.count(record.kind))
            case act.RollBack():
                del self._kinds[record.epochs :]
            case ev.EpochFinished() | ev.EpochFailed() | act.Settle() if record.token in self._attempts:
                self._settle(self._attempts[record.token], record)
        self._last = self._last if _by_the_next_handler(record) else record.at

    def _settle(self, attempt: Attempt, record: ev.EpochFinished | ev.EpochFailed | act.Settle) -> None:
        match record:
            case ev.EpochFinished():
                attempt.end, attempt.outcome = record.at, "counted"
                self._kinds.append(attempt.order.kind)
            case ev.EpochFailed():
                attempt.end = record.at
                if attempt.outcome == "running":
                    attempt.outcome = record.reason.value
            case act.Settle(charge=Charge.RELEASE | Charge.AHEAD):
                attempt.held += record.amount
            case act.Settle(charge=Charge.GRACE):
                attempt.grace += record.amount
            case act.Settle():
                attempt.cost += record.amount
                if record.charge is Charge.FAILED and attempt.outcome == "running":
                    attempt.outcome = Reason.HANDLER_RESTARTED.value

    @property
    def attempts(self) -> list[Attempt]:
        """All attempts, in order."""
        return list(self._attempts.values())

    def rows(self) -> list[LedgerRow]:
        """One row an attempt, in order; the last one's `spent` is the job's total."""
        rows = []
        spent = 0
        for attempt in self._attempts.values():
            order = attempt.order
            spent += attempt.cost + attempt.held + attempt.grace
            rows.append(
                LedgerRow(
                    job=self._name,
                    epoch=attempt.epoch,
                    attempt=order.attempt,
                    kind=order.kind.value,
                    workers=order.allocation.workers,
                    servers=order.allocation.servers,
                    outcome=attempt.outcome,
                    reserved=to_amount(order.reservation),
                    cost=to_amount(attempt.cost),
                    held=to_amount(attempt.held),
                    grace=to_amount(attempt.grace),
                    spent=to_amount(spent),
                    started_at=iso(order.at),
                    ended_at=iso(attempt.end),
                )
            )
        return rows


def _book(records: Iterable[Any], name: str) -> LedgerBook:
    book = LedgerBook(name)
    for record in records:
        book.take(record)
    return book


def attempts(records: Iterable[Any], name: str) -> list[Attempt]:
    """All attempts of job `name`, in order."""
    return _book(records, name).attempts


def ledger(records: Iterable[Any], name: str) -> list[LedgerRow]:
    """The rows of `LedgerBook` for job `name`."""
    return _book(records, name).rows()


# -- budgets over jobs ----------------------------------------------------------------------------------------


def account_rows(accounts: Accounts, jobs: Mapping[str, Job], now: float) -> list[AccountRow]:
    """The rows of all accounts at `now`, each before those that are in it."""
    live = [job for job in jobs.values() if not job.ended and accounts.of(job)]
    return [_account_row(accounts, account, live, now) for account in accounts.present]


def _account_row(accounts: Accounts, account: Account, live: list[Job], now: float) -> AccountRow:
    own = [job for job in live if account in accounts.of(job)]
    found = account_forecast(accounts, account, own, now)
    return AccountRow(
        name=account.name,
        parent=account.parent,
        labels=",".join(map("=".join, account.labels.items())),
        amount=to_amount(account.amount),
        currency=account.currency,
        period=account.period.kind,
        timezone=account.period.zone,
        spent=to_amount(accounts.spent(account, now)),
        reserved=to_amount(account.held),
        left=to_amount(accounts.left(account, now)),
        since=iso(account.period.start(now)),
        until=iso(account.period.end(now)),
        noticed=accounts.noticed(account, now),
        **bounds("forecast", found.spent if found else None),
        runs_out=iso(found.runs_out) if found and found.runs_out else None,
        jobs=len(own),
        waiting=sum(job.reason is Reason.ACCOUNT_SPENT for job in own),
    )


def spending_rows(accounts: Accounts, jobs: Mapping[str, Job], paid: Iterable[Payment]) -> list[SpendingRow]:
    """Who spent what: a row for each account, period and job, the newest period first, the dearest job first.

    A job that has the labels of several accounts has a row in each; what is in an account is not repeated above.

    Rolling windows and accounts for ever have no periods: their months are shown.
    """
    sums = Counter[tuple[str, float, str]]()
    for payment in paid:
        account = accounts.known.get(payment.account)
        if account is not None:
            period = account.period
            if period.window is not None or period.kind == EVER:
                period = Period(MONTH, period.zone)
            sums[account.name, period.start(payment.at), payment.job] += payment.amount

    def order(one: tuple[tuple[str, float, str], Money]) -> tuple[str, float, Money, str]:
        (account, start, job), amount = one
        return account, -start, -amount, job

    return [
        SpendingRow(
            account=account,
            since=iso(start),
            job=job,
            spent=to_amount(amount),
            currency=accounts.known[account].currency,
            state=jobs[job].state.value,
        )
        for (account, start, job), amount in sorted(sums.items(), key=order)
    ]
