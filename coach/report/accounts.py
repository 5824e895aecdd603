"""The rows of budgets over jobs, and of who spent what in which period."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from coach.core.jobs.accounts import Account, Accounts
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.money import Money, to_amount
from coach.core.periods import EVER, MONTH, Period
from coach.handler.accounts import Payment
from coach.report.formatting import iso


@dataclass(frozen=True, slots=True)
class AccountRow:
    """A budget over jobs in its present period, in `currency`; what is in the accounts in it counts too."""

    name: str
    parent: str
    amount: float
    currency: str
    period: str
    timezone: str
    spent: float
    reserved: float
    left: float  #: negative where the amount was set lower than what was spent and reserved
    since: str | None  #: the period's first instant; None for ever
    until: str | None  #: when the next period begins; None for ever and in a rolling window
    noticed: int  #: the highest of 50, 80 and 100 percent that was noticed in this period; 0 for none
    jobs: int  #: jobs that have not ended
    waiting: int  #: of these, how many wait for its money, or for that of an account that it is in


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """What a job paid out of an account in one of its periods, which begins at `since`."""

    account: str
    since: str | None
    job: str
    spent: float
    currency: str
    state: str


ACCOUNT_COLUMNS = tuple(field.name for field in fields(AccountRow))
SPENDING_COLUMNS = tuple(field.name for field in fields(SpendingRow))


def account_rows(accounts: Accounts, jobs: Mapping[str, Job], now: float) -> list[AccountRow]:
    """The rows of all accounts at `now`, each before those that are in it."""
    ordered = sorted(
        accounts.known.values(), key=lambda one: [each.name for each in reversed(accounts.above(one.name))]
    )
    live = [job for job in jobs.values() if not job.ended and job.spec.budget.account is not None]
    return [_account_row(accounts, account, live, now) for account in ordered]


def _account_row(accounts: Accounts, account: Account, live: list[Job], now: float) -> AccountRow:
    own = [job for job in live if account in accounts.of(job)]
    return AccountRow(
        name=account.name,
        parent=account.parent,
        amount=to_amount(account.amount),
        currency=account.currency,
        period=account.period.kind,
        timezone=account.period.zone,
        spent=to_amount(accounts.spent(account, now)),
        reserved=to_amount(accounts.reserved(account)),
        left=to_amount(accounts.left(account, now)),
        since=_iso(account.period.start(now)),
        until=_iso(account.period.end(now)),
        noticed=accounts.noticed(account, now),
        jobs=len(own),
        waiting=sum(job.reason is Reason.ACCOUNT_SPENT for job in own),
    )


def _iso(at: float) -> str | None:
    return iso(at) if math.isfinite(at) else None


def spending_rows(accounts: Accounts, jobs: Mapping[str, Job], paid: Iterable[Payment]) -> list[SpendingRow]:
    """Who spent what: a row for each account, period and job, the newest period first, the dearest job first.

    Rolling windows and accounts for ever have no periods: their months are shown.
    """
    sums = Counter[tuple[str, float, str]]()
    for payment in paid:
        account = accounts.known.get(payment.account)
        if account is not None:
            sums[account.name, _shown(account.period).start(payment.at), payment.job] += payment.amount

    def order(one: tuple[tuple[str, float, str], Money]) -> tuple[str, float, Money, str]:
        (account, start, job), amount = one
        return account, -start, -amount, job

    return [
        SpendingRow(
            account=account,
            since=_iso(start),
            job=job,
            spent=to_amount(amount),
            currency=accounts.known[account].currency,
            state=jobs[job].state.value,
        )
        for (account, start, job), amount in sorted(sums.items(), key=order)
    ]


def _shown(period: Period) -> Period:
    return period if period.window is None and period.kind != EVER else Period(MONTH, period.zone)
