"""What a job does whose accounts do not cover its next epoch: it waits, or ends where waiting never helps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from coach.core.cluster import Allocation
from coach.core.jobs.accounts import Account, Accounts
from coach.core.jobs.job import Job
from coach.core.lifecycle import forecast
from coach.core.money import Money, to_amount

#: Jobs that are named as those that have money reserved, at most.
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Shortage:
    """`account` does not cover the next epoch. It does at `until`, or when another job ends; or `never`."""

    account: Account
    message: str
    until: float
    never: bool
    used_up: bool  #: nothing is reserved in it that may come back

    @property
    def helps(self) -> str:
        """The command that gives it more; an amount follows."""
        return f"coach budget set {self.account.name}"


def shortage(
    accounts: Accounts, job: Job, at: float, fits: Callable[[Allocation], bool] = lambda _: True
) -> Shortage | None:
    """Which of its accounts keeps a job from its cheapest next epoch, by what; None where none does.

    `fits`: whether the cluster can hold an allocation.
    """
    points = [point for point in forecast.allocations(job) if fits(point)] or [job.minimum]
    needed, point = min((forecast.minimum_reservation(job, point)[1], point) for point in points)
    for account in accounts.of(job):
        left = accounts.left(account, at) + job.money.ledger.reserved
        if left < needed:
            return _shortage(accounts, account, job, at, (needed, point))
    return None


def _shortage(accounts: Accounts, account: Account, job: Job, at: float, epoch: tuple[Money, Allocation]) -> Shortage:
    needed, point = epoch
    left = accounts.left(account, at) + job.money.ledger.reserved
    held = account.held - job.money.ledger.reserved
    lacks = (
        f"the next epoch at {point} needs {_amount(needed)} {account.currency}; account {account.name} has "
        f"{_amount(max(0, left))} left of {account.written()}: {_amount(accounts.spent(account, at))} spent, "
        f"{_amount(held)} reserved{_by(account, job)}"
    )
    if needed > accounts.ever(account, at):
        return Shortage(account, lacks, math.inf, never=True, used_up=held == 0)
    until = accounts.when(account, needed - left, at)
    comes = [f"at {account.period.written(until)}"] if until < math.inf else []
    if held:
        comes.append("when a job releases money")
    return Shortage(account, f"{lacks}; goes on {' or '.join(comes)}", until, never=False, used_up=held == 0)


def _by(account: Account, job: Job) -> str:
    names = sorted(name for name in account.reserved if name != job.name)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f" by {', '.join(names[:MAX_NAMED])}{more}" if names else ""


def _amount(money: Money) -> str:
    """`12.3400`, `0.01234`, `0.0000`: four digits from the first that is not 0."""
    amount = to_amount(money)
    places = 4 if amount == 0.0 else max(4, 3 - math.floor(math.log10(amount)))
    return f"{amount:.{places}f}"


def same_wait(before: str, now: str) -> bool:
    """Whether two messages differ in amounts alone: its wait has not changed then, but for another job's epochs."""
    (numbers, _, ends), (later, _, then) = before.rpartition("; "), now.rpartition("; ")
    return ends == then and re.sub("[0-9.]+", "", numbers) == re.sub("[0-9.]+", "", later)
