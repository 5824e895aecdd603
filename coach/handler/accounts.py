"""Accounts of a state folder: what a user writes, and reading and setting them where no service runs.

They are in the folder's first journal. One handler at a time has it, so that no two spend one account's money.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coach.core.errors import UserError
from coach.core.jobs.accounts import Accounts, Payer
from coach.core.jobs.events import AccountSet
from coach.core.jobs.job import Job
from coach.core.money import Money, to_money
from coach.core.money import currency as written_currency
from coach.core.periods import EVER, Period
from coach.handler.state.journal import Journal
from coach.handler.state.journal_file import JournalBusyError
from coach.handler.state.state_directory import StateDirectory

#: Seconds of a rolling window at most: ten years.
LONGEST_WINDOW = 3650 * 86400.0
_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]{1,5})\s*(?:/\s*([a-z0-9.]+))?\s*")
_LABEL = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./]{0,252}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Payment:
    """What a job paid out of its account for the time until `at`, seconds since 1970."""

    account: str
    job: str
    at: float
    amount: Money


def setting(name: str, amount: str, zone: str = "UTC", parent: str = "", labels: Sequence[str] = ()) -> AccountSet:
    """The terms that a user wrote: `50USD`, `50USD/month`, `50USD/week` or `50USD/30d`, and `labels` as `team=vision`.

    Raises UserError.
    """
    found = _AMOUNT.fullmatch(amount)
    if found is None:
        raise UserError(
            f"{amount!r} is no budget; an amount, its currency and its period, such as 50USD/month, 500gpuh/week, "
            "50USD/30d (a rolling window), or 50USD for ever"
        )
    pairs = dict(one.partition("=")[::2] for one in labels)
    return terms(name, float(found[1]), written_currency(found[2]), found[3] or EVER, zone, parent, pairs)


def terms(  # noqa: PLR0917 - they are the operation's arguments
    name: str,
    amount: float,
    currency: str,
    period: str = EVER,
    timezone: str = "UTC",
    parent: str = "",
    labels: Mapping[str, str] | None = None,
) -> AccountSet:
    """An account's terms, not yet at a time. Raises UserError for those that cannot be."""
    for word in (name, *([parent] if parent else [])):
        if not _NAME.fullmatch(word):
            raise UserError(f"{word!r} is no account's name: lower-case letters, digits and -, at most 40")
    try:
        window = Period(period, timezone).window
    except ValueError as error:
        raise UserError(f"account {name}: {error}") from error
    if window is not None and window > LONGEST_WINDOW:
        raise UserError(f"account {name}: a window of {period} is longer than 3650d; without a period it is for ever")
    labels = dict(labels or {})
    for label in labels.items():
        if not all(map(_LABEL.fullmatch, label)):
            raise UserError(f"account {name}: {'='.join(filter(None, label))!r} is no label; such as team=vision")
    return AccountSet(0.0, name, to_money(amount), currency, period, timezone, parent, labels=labels)


def removal(accounts: Accounts, name: str) -> AccountSet:
    """An account's removal, not yet at a time: nothing can be paid out of it. Raises UserError where there is none."""
    account = accounts.known.get(name)
    if account is None or account.removed:
        raise UserError(accounts.unknown(name, "USD").partition("; make it")[0])
    period = account.period
    return AccountSet(0.0, name, 0, account.currency, period.kind, period.zone, removed=True)


def refuse(accounts: Accounts, jobs: Mapping[str, Job], wanted: AccountSet) -> None:
    """Raises UserError where an account cannot be set so, or removed."""
    name, problem = wanted.account, accounts.problem(wanted)
    live = {job.name: Payer.of(job.job_file) for job in jobs.values() if not job.ended}
    if wanted.removed and name in accounts.known:
        account = accounts.known[name]
        inside = [one.name for one in accounts.inside(account)[1:] if not one.removed]
        needed = [job for job, payer in live.items() if (payer and payer.named == name) or job in account.reserved]
        if inside:
            problem = f"{inside[0]} is in it; remove that first, or put it elsewhere: coach budget set {inside[0]}"
        elif needed:
            problem = f"{needed[0]} has not ended, which it pays; to end it: coach cancel {needed[0]}"
    for job, payer in live.items():
        by_label = wanted.labels and payer and wanted.labels.items() <= payer.labels
        if by_label and payer and payer.currency != wanted.currency:
            problem = f"{job}, which has these labels, is billed in {payer.currency}, not {wanted.currency}"
    if problem:
        raise UserError(f"account {name}: {problem}")


def set_account(home: StateDirectory, wanted: AccountSet) -> None:
    """Set an account, or remove it, while no handler has the journal. Raises UserError."""
    with home.planning():
        try:
            journal = home.open_journal(home.journal(1))
        except JournalBusyError as error:
            raise UserError(
                "another handler has the accounts now: a service that starts, so try again; or a `coach run`, so set "
                "them when it has ended, or run jobs by a service: coach serve"
            ) from error
        with contextlib.closing(journal):
            jobs = journal.jobs()
            refuse(journal.accounts(jobs), jobs, wanted)
            journal.append([replace(wanted, at=journal.clock.now())])


def read(home: StateDirectory) -> tuple[Accounts, Mapping[str, Job]]:
    """The accounts of a state folder, and the jobs of their journal."""
    path = home.journal(1)
    if not path.exists():
        return Accounts(), {}
    with contextlib.closing(Journal.read(path)) as journal:
        jobs = journal.jobs()
        return journal.accounts(jobs), jobs


def to_simulate(home: StateDirectory, names: Iterable[str]) -> list[AccountSet]:
    """The terms of these accounts and of all that they are in, as they are set; a month is any 30 days, a week any 7.

    Virtual time has no calendar, and in it nothing of them is spent before the start. Unknown names are left out.
    """
    known, _ = read(home)
    found: dict[str, AccountSet] = {}
    for name in names:
        for one in reversed(list(known.above(name))):
            period = {"month": "30d", "week": "7d"}.get(one.period.kind, one.period.kind)
            found[one.name] = AccountSet(0.0, one.name, one.amount, one.currency, period, "UTC", one.parent)
    return list(found.values())


def payments(home: StateDirectory, paying: Mapping[str, Sequence[str]]) -> Iterator[Payment]:
    """All payments of jobs, which `paying` has with their innermost accounts, out of each of these."""
    if home.journal(1).exists():
        with contextlib.closing(Journal.read(home.journal(1))) as journal:
            for job, names in paying.items():
                for paid in journal.settlements(job) if names else ():
                    for name in names:
                        yield Payment(name, job, paid.until, paid.amount)
