"""Budgets over jobs: accounts, and what the jobs of each have spent and reserved; the fold of their records.

A job names its account; an account may be in another one, which then pays too. A reservation counts from when it is
made until it is paid or released, also across the turn of a period, so that each period keeps its amount: what is paid
counts for the period in which the time ends that it pays for. `spent + reserved <= amount` holds after every event, for
an account and for all that it is in, unless a user has set the amount below what was spent and reserved already, or has
put such an account into it: nothing more is reserved then.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from coach.core.jobs import actions as act
from coach.core.jobs.events import AccountSet
from coach.core.jobs.job import AccountMoney, Job
from coach.core.money import Money, to_amount
from coach.core.periods import EVER, Period

#: Percentages of an account's amount at which its users are noticed; at the last one it covers no further epoch.
NOTICES = (50, 80, 100)
#: Seconds after which a payment has surely left its window: instants are rounded.
WINDOW_MARGIN = 0.001


@dataclass(slots=True)
class Payments:
    """What was paid when, in the order of time, and the sum of all payments before each."""

    times: list[float] = field(default_factory=list)
    before: list[Money] = field(default_factory=lambda: [0])

    def add(self, at: float, amount: Money) -> None:
        """Book a payment. Late ones are rare: a killed handler's are booked when the next one starts."""
        place = bisect_right(self.times, at)
        self.times.insert(place, at)
        self.before.insert(place + 1, self.before[place])
        self.before[place + 1 :] = [one + amount for one in self.before[place + 1 :]]

    def since(self, start: float) -> Money:
        """The sum of what was paid at `start` or later."""
        return self.before[-1] - self.before[bisect_left(self.times, start)]

    def counted(self, start: float) -> Iterator[tuple[float, Money]]:
        """Time and amount of the payments at `start` or later."""
        for place in range(bisect_left(self.times, start), len(self.times)):
            yield self.times[place], self.before[place + 1] - self.before[place]


@dataclass(slots=True)
class Account:
    """An account: `amount` in each `period`, within those of the account `parent`. Payments: of its own jobs."""

    name: str
    amount: Money
    currency: str
    period: Period
    parent: str = ""
    payments: Payments = field(default_factory=Payments)
    reserved: dict[str, Money] = field(default_factory=dict)  #: by job, of its own jobs
    held: Money = 0  #: the sum of these
    noticed: tuple[float, int] = (-math.inf, 0)  #: when its users were last noticed, and at how many percent

    def written(self) -> str:
        """`50 USD/month`."""
        per = "" if self.period.kind == EVER else f"/{self.period.kind}"
        return f"{to_amount(self.amount):g} {self.currency}{per}"


@dataclass(slots=True)
class Accounts:
    """All accounts by name. Only `apply` and `follow` change them."""

    known: dict[str, Account] = field(default_factory=dict)
    #: By account: itself and all that are in it.
    _inside: dict[str, list[Account]] = field(default_factory=dict, repr=False, compare=False)

    # -- the fold -----------------------------------------------------------------------------------------

    def apply(self, record: AccountSet) -> None:
        """A new account, or other terms of one that keeps what was spent and reserved."""
        before = self.known.get(record.account)
        account = Account(
            record.account, record.amount, record.currency, Period(record.period, record.zone), record.parent
        )
        if before is not None:
            account.payments, account.reserved, account.held = before.payments, before.reserved, before.held
        self.known[record.account] = account
        self._inside = {name: [] for name in self.known}
        for one in self.known.values():
            for above in self.above(one.name):
                self._inside[above.name].append(one)

    def follow(self, job: Job, record: Any) -> bool:
        """Book what a record of `job`, which is folded already, means for its account; whether it has more left."""
        account = self.known.get(job.spec.budget.account or "")
        if account is None:
            return False
        freed = account.reserved.get(job.name, 0) - job.ledger.reserved
        account.held -= freed
        if isinstance(record, act.Settle) and record.amount:
            account.payments.add(record.until, record.amount)
            freed -= record.amount
        elif isinstance(record, act.NoticeAccount) and record.account in self.known:
            self.known[record.account].noticed = record.at, record.percent
        if job.ledger.reserved:
            account.reserved[job.name] = job.ledger.reserved
        else:
            account.reserved.pop(job.name, None)
        return freed > 0

    # -- what is refused before it is a record ---------------------------------------------------------------

    def problem(self, setting: AccountSet) -> str:
        """Why an account cannot be set so; empty where it can."""
        above = self.above(setting.parent)
        if setting.parent and not above:
            return f"there is no account {setting.parent}{self._known_words()}"
        if setting.account in {one.name for one in above}:
            return f"{setting.parent} is in {setting.account}, so {setting.account} cannot be in it"
        inside = [one for one in self._inside.get(setting.account, []) if one.name != setting.account]
        for other in (*above, *inside):
            if other.currency != setting.currency:
                return f"{other.name}, which is in one tree with it, is in {other.currency}, not {setting.currency}"
        before = self.known.get(setting.account)
        if before is not None and before.currency != setting.currency:
            return (
                f"it has spent {before.currency}, so it cannot be in {setting.currency}; give it another name"
            )
        return ""

    def problem_of(self, account: str, currency: str) -> str:
        """Why a job billed in `currency` cannot have an account; empty where it can."""
        if account not in self.known:
            make = f"coach budget set {account} 50{currency}/month"
            return f"there is no account {account}{self._known_words()}; make it: {make}"
        if self.known[account].currency != currency:
            return (
                f"account {account} is in {self.known[account].currency}, the job's prices are in {currency}"
            )
        return ""

    def _known_words(self) -> str:
        return f"; there are {', '.join(sorted(self.known))}" if self.known else ""

    # -- questions ----------------------------------------------------------------------------------------

    def of(self, job: Job) -> list[Account]:
        """A job's account and those that it is in, the innermost first; none for a job without one."""
        return self.above(job.spec.budget.account or "")

    def above(self, name: str) -> list[Account]:
        """An account and those that it is in, the innermost first."""
        found: dict[str, Account] = {}
        while name in self.known and name not in found:
            found[name] = self.known[name]
            name = found[name].parent
        return list(found.values())

    def inside(self, account: Account) -> list[Account]:
        """An account and those that are in it."""
        return self._inside[account.name]

    def spent(self, account: Account, at: float) -> Money:
        """What its jobs, and those of the accounts in it, have spent in its period at `at`."""
        start = account.period.start(at)
        return sum(one.payments.since(start) for one in self.inside(account))

    def reserved(self, account: Account) -> Money:
        """What its jobs, and those of the accounts in it, have reserved."""
        return sum(one.held for one in self.inside(account))

    def left(self, account: Account, at: float) -> Money:
        """What is neither spent nor reserved; negative where it was set lower than that."""
        return account.amount - self.spent(account, at) - self.reserved(account)

    def ever(self, account: Account, at: float) -> Money:
        """The most that one job may come to have of it: when no other job holds any, and in its next period."""
        return account.amount - (self.spent(account, at) if account.period.kind == EVER else 0)

    def money(self, job: Job, at: float) -> AccountMoney | None:
        """What a job has of its accounts, its own reservation included; None without an account."""
        accounts = self.of(job)
        if not accounts:
            return None
        now = min(self.left(account, at) for account in accounts) + job.ledger.reserved
        return AccountMoney(now, min(self.ever(account, at) for account in accounts))

    def when(self, account: Account, lacking: Money, at: float) -> float:
        """When it has `lacking` more by time alone, if no job takes it before; infinite if time does not help."""
        window = account.period.window
        if window is None:
            return account.period.end(at)
        start = account.period.start(at)
        paid = sorted(payment for one in self.inside(account) for payment in one.payments.counted(start))
        for when, amount in paid:
            lacking -= amount
            if lacking <= 0:
                return when + window + WINDOW_MARGIN
        return math.inf

    def reached(self, account: Account, at: float) -> int:
        """The highest of NOTICES that is spent; 0 for none."""
        spent = self.spent(account, at)
        return max((percent for percent in NOTICES if 100 * spent >= percent * account.amount), default=0)

    def noticed(self, account: Account, at: float) -> int:
        """The percentage at which its users were noticed last, in its present period; 0 for none."""
        when, percent = account.noticed
        return percent if when >= account.period.start(at) else 0
