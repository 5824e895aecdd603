"""Budgets over jobs: accounts, and what the jobs of each have spent and reserved; the fold of their records.

A job is paid by the account that it names, by those whose labels it has, and by all that these are in; by each once. A
reservation counts from when it is made until it is paid or released, also across the turn of a period, so that each
period keeps its amount: what is paid counts for the period in which the time ends that it pays for.
`spent + reserved <= amount` holds after every event for every account, unless a user has set its amount below what its
jobs had spent and reserved already, or has put such jobs into it by a label or with another account: nothing more is
reserved then.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from coach.core.jobs import actions as act
from coach.core.jobs.events import AccountSet
from coach.core.jobs.job import Job
from coach.core.jobs.parts import AccountMoney
from coach.core.money import HOURS, Money, to_amount
from coach.core.periods import EVER, Period
from coach.core.spec.job import TrainingJob

#: Percentages of an account's amount at which its users are noticed; at the last one it covers no further epoch.
NOTICES = (50, 80, 100)
#: Labels that begin so are Coach's own.
OWN_LABELS = "coach.dev/"
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
    """An account: `amount` in each `period`, within those of the account `parent`; `payments` of all that it pays."""

    name: str
    amount: Money
    currency: str
    period: Period
    parent: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    removed: bool = False
    set_at: float = 0.0  #: when a user set its terms, seconds since 1970
    payments: Payments = field(default_factory=Payments)
    reserved: dict[str, Money] = field(default_factory=dict)  #: by job
    held: Money = 0  #: the sum of these
    noticed: tuple[float, int] = (-math.inf, 0)  #: when its users were last noticed, and at how many percent

    def terms(self) -> AccountSet:
        """What a user has set."""
        kind, zone = self.period.kind, self.period.zone
        return AccountSet(
            self.set_at, self.name, self.amount, self.currency, kind, zone, self.parent,
            labels=self.labels, removed=self.removed,
        )  # fmt: skip

    def written(self) -> str:
        """`50 USD/month`."""
        per = "" if self.period.kind == EVER else f"/{self.period.kind}"
        return f"{to_amount(self.amount):g} {self.currency}{per}"

    def collects(self, payer: Payer) -> bool:
        """Whether it pays a job for its labels."""
        return bool(self.labels) and self.currency == payer.currency and self.labels.items() <= payer.labels


@dataclass(frozen=True, slots=True)
class Payer:
    """What decides which accounts pay a job."""

    named: str
    labels: frozenset[tuple[str, str]]
    currency: str

    @classmethod
    def of(cls, spec: TrainingJob) -> Payer | None:
        """None for a job that no account can pay."""
        labels = spec.metadata.labels or {}
        own = frozenset((key, value) for key, value in labels.items() if not key.startswith(OWN_LABELS))
        named = spec.spec.budget.account or ""
        return cls(named, own, spec.spec.price_book.currency) if named or own else None


@dataclass(slots=True)
class Accounts:
    """All accounts by name. Only `apply` and `follow` change them."""

    known: dict[str, Account] = field(default_factory=dict)
    #: Of each job that an account pays, or may pay one day: what decides it, its payments, its reservation.
    _jobs: dict[str, tuple[Payer, Payments]] = field(default_factory=dict)
    _held: dict[str, Money] = field(default_factory=dict)
    _paying: dict[Payer, list[Account]] = field(default_factory=dict, repr=False, compare=False)

    # -- the fold -----------------------------------------------------------------------------------------

    def apply(self, record: AccountSet) -> None:
        """A new account, or other terms of one; what its jobs have spent and reserved stays theirs."""
        period = Period(record.period, record.zone)
        self.known[record.account] = Account(
            record.account, record.amount, record.currency, period, record.parent,
            record.labels, record.removed, record.at,
        )  # fmt: skip
        self._paying.clear()
        for account in self.known.values():
            account.payments, account.reserved, account.held = Payments(), {}, 0
        paid = [(*one, name) for name, (_, all_) in self._jobs.items() for one in all_.counted(-math.inf)]
        for at, amount, name in sorted(paid):
            for account in self._payers(self._jobs[name][0]):
                account.payments.add(at, amount)
        for name, held in self._held.items():
            for account in self._payers(self._jobs[name][0]):
                account.reserved[name] = held
                account.held += held

    def follow(self, job: Job, record: Any) -> bool:
        """Book what a record of `job`, which is folded already, means for its accounts; whether they have more left."""
        if isinstance(record, act.NoticeAccount):
            account = self.known.get(record.account)
            if account is not None and record.at >= account.set_at:  # the journal is read one job after another
                account.noticed = max(account.noticed, (record.at, record.percent))
            return False
        payer = Payer.of(job.job_file)
        if payer is None:
            return False
        _, payments = self._jobs.setdefault(job.name, (payer, Payments()))
        accounts = self._payers(payer)
        freed = self._held.get(job.name, 0) - job.money.ledger.reserved
        if freed:
            self._held[job.name] = job.money.ledger.reserved
            for account in accounts:
                account.held -= freed
                account.reserved[job.name] = job.money.ledger.reserved
            if not job.money.ledger.reserved:
                del self._held[job.name]
                for account in accounts:
                    del account.reserved[job.name]
        if isinstance(record, act.Settle) and record.amount:
            freed -= record.amount
            for one in (payments, *(account.payments for account in accounts)):
                one.add(record.until, record.amount)
        return bool(accounts) and freed > 0

    # -- what is refused before it is a record ---------------------------------------------------------------

    def problem(self, setting: AccountSet) -> str:
        """Why an account cannot be set so; empty where it can."""
        above = self.above(setting.parent)
        if setting.parent and (not above or above[0].removed):
            return f"there is no account {setting.parent}{self._known_words()}"
        if setting.account in {one.name for one in above}:
            return f"{setting.parent} is in {setting.account}, so {setting.account} cannot be in it"
        before = self.known.get(setting.account)
        inside = self.inside(before)[1:] if before is not None else []
        for other in (*above, *inside):
            if other.currency != setting.currency:
                return f"{other.name}, which is in one tree with it, is in {other.currency}, not {setting.currency}"
        if before is not None and before.currency != setting.currency:
            return f"it has spent {before.currency}, so it cannot be in {setting.currency}; give it another name"
        return ""

    def problem_of(self, spec: TrainingJob) -> str:
        """Why a job cannot have its accounts; empty where it can."""
        payer = Payer.of(spec)
        if payer is None:
            return ""
        named = self.known.get(payer.named)
        if payer.named and (named is None or named.removed):
            return self.unknown(payer.named, payer.currency)
        for one in self.known.values():
            by_label = one.labels and one.labels.items() <= payer.labels
            if one.currency != payer.currency and (one is named or by_label):
                own = f"; with prices: {HOURS[one.currency]} they are" if one.currency in HOURS else ""
                return f"account {one.name} is in {one.currency}, the job's prices are in {payer.currency}{own}"
        return ""

    def unknown(self, account: str, currency: str) -> str:
        """That there is no such account."""
        make = f"coach budget set {account} 50{currency}/month"
        return f"there is no account {account}{self._known_words()}; make it: {make}"

    def _known_words(self) -> str:
        return f"; there are {', '.join(sorted(one.name for one in self.present))}" if self.present else ""

    # -- questions ----------------------------------------------------------------------------------------

    @property
    def present(self) -> list[Account]:
        """All that were not removed, each before those that are in it."""
        found = [one for one in self.known.values() if not one.removed]
        return sorted(found, key=lambda one: [each.name for each in reversed(self.above(one.name))])

    def of(self, job: Job) -> list[Account]:
        """The accounts that pay a job, first the one that it names and those that this is in."""
        return self.paying(job.job_file)

    def innermost(self, job: Job) -> list[str]:
        """Of the accounts that pay a job, those in which no other one is."""
        paying = self.of(job)
        return [one.name for one in paying if one.name not in {other.parent for other in paying}]

    def paying(self, spec: TrainingJob) -> list[Account]:
        """The accounts that pay a job of this description."""
        payer = Payer.of(spec)
        return [] if payer is None else self._payers(payer)

    def _payers(self, payer: Payer) -> list[Account]:
        found = self._paying.get(payer)
        if found is None:
            first = [payer.named, *(one.name for one in self.known.values() if one.collects(payer))]
            names = {above.name: above for name in first for above in self.above(name)}
            found = self._paying[payer] = list(names.values())
        return found

    def above(self, name: str) -> list[Account]:
        """An account and those that it is in, the innermost first."""
        found: dict[str, Account] = {}
        while name in self.known and name not in found:
            found[name] = self.known[name]
            name = found[name].parent
        return list(found.values())

    def inside(self, account: Account) -> list[Account]:
        """An account and those that are in it."""
        return [account, *(one for one in self.known.values() if account in self.above(one.name)[1:])]

    def paid(self, account: Account, since: float) -> list[Money]:
        """What each job that it pays has spent from `since` on, apart from those that have spent nothing."""
        sums = (payments.since(since) for payer, payments in self._jobs.values() if account in self._payers(payer))
        return [one for one in sums if one]

    def spent(self, account: Account, at: float) -> Money:
        """What the jobs that it pays have spent in its period at `at`."""
        return account.payments.since(account.period.start(at))

    def left(self, account: Account, at: float) -> Money:
        """What is neither spent nor reserved; negative where it was set lower than that."""
        return account.amount - self.spent(account, at) - account.held

    def ever(self, account: Account, at: float) -> Money:
        """The most that one job may come to have of it: when no other job holds any, and in its next period."""
        return account.amount - (self.spent(account, at) if account.period.kind == EVER else 0)

    def money(self, job: Job, at: float) -> AccountMoney | None:
        """What a job has of its accounts, its own reservation included; None without an account."""
        accounts = self.of(job)
        if not accounts:
            return None
        now = min(self.left(account, at) for account in accounts) + job.money.ledger.reserved
        return AccountMoney(now, min(self.ever(account, at) for account in accounts))

    def when(self, account: Account, lacking: Money, at: float) -> float:
        """When it has `lacking` more by time alone, if no job takes it before; infinite if time does not help."""
        window = account.period.window
        if window is None:
            return account.period.end(at)
        start = account.period.start(at)
        for when, amount in account.payments.counted(start):
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
