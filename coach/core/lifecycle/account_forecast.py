"""What an account will have spent at its period's end, and when it runs out, if its jobs go on as predicted.

Until its running and waiting jobs end, they spend what is predicted of each (`forecast.remaining`), evenly over its
predicted time; from then on money is spent at the account's mean rate so far. The rate is that of jobs that come by
chance (a compound Poisson process): with x_j what each job has spent in the past E seconds, the next L seconds cost
(L/E) sum(x_j), with the variance (L/E)(1 + L/E) sum(x_j^2), of which the second part is the doubt about the rate.
It counts once a tenth of a period has passed since the first payment, without a period a day. A job of which nothing is
predicted is part of the rate alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coach.core.estimation.interval import Z80, Interval
from coach.core.jobs.accounts import Account, Accounts
from coach.core.jobs.job import Job
from coach.core.lifecycle import forecast
from coach.core.money import to_amount
from coach.core.periods import EVER, Period

#: The share of a period that must have passed since the first payment before the rate counts.
LEAST_SHARE = 0.1
#: When money runs out is looked for at so many instants up to the end; without a period, for a year.
STEPS, YEAR, DAY = 60, 365 * 86400.0, 86400.0


@dataclass(frozen=True, slots=True)
class AccountForecast:
    """`spent`: currency units spent in the period at its end, an 80 % interval, as if the amount did not end it.

    For an account for ever: when its present jobs have ended; for a rolling window: in the window that begins now.
    `runs_out`: when that is expected to exceed the amount, seconds since 1970; None where it does not.
    `unknown`: jobs that have not ended of which nothing is predicted.
    """

    spent: Interval
    runs_out: float | None
    unknown: int


def account_forecast(accounts: Accounts, account: Account, jobs: Sequence[Job], at: float) -> AccountForecast | None:
    """The forecast at `at` of an account that pays `jobs`, which have not ended; None if nothing is known."""
    rests = [rest for job in jobs if (rest := forecast.remaining(job).bounded) is not None]
    period = account.period
    length = _length(period, at)
    first = account.payments.times[0] if account.payments.times else at
    past = min(at - first, length)
    paid = [to_amount(one) for one in accounts.paid(account, at - past)] if past > 0 else []
    if past < (LEAST_SHARE * length if length < math.inf else DAY) or not paid:
        past, paid = math.inf, []
    if not rests and not paid:
        return None
    last = max((seconds.expected for seconds, _ in rests), default=0.0)
    horizon = last if period.kind == EVER else length if period.window else period.end(at) - at
    return AccountForecast(
        _at_end(to_amount(_stays(account, at, at + horizon)), rests, paid, past, horizon),
        _runs_out(account, rests, sum(paid) / past, at, YEAR if period.kind == EVER else horizon),
        len(jobs) - len(rests),
    )


def _length(period: Period, at: float) -> float:
    """Seconds of a period; infinite for ever."""
    return period.window or period.end(at) - period.start(at)


def _stays(account: Account, at: float, then: float) -> int:
    """What was spent by `at` and still counts at `then`, in the period of `at`."""
    window = account.period.window
    return account.payments.since(then - window if window else account.period.start(at))


def _at_end(
    spent: float,
    rests: Sequence[tuple[Interval, Interval]],
    paid: Sequence[float],
    past: float,
    horizon: float,
) -> Interval:
    """Sums of independent things: their deviations add in quadrature."""
    mean, up, down, last = spent, 0.0, 0.0, 0.0
    for seconds, cost in rests:
        share = _share(horizon, seconds.expected)
        mean += share * cost.expected
        up += (share * (cost.high - cost.expected)) ** 2
        down += (share * (cost.expected - cost.low)) ** 2
        last = max(last, seconds.expected)
    ratio = max(0.0, horizon - last) / past
    mean += ratio * sum(paid)
    doubt = Z80**2 * ratio * (1.0 + ratio) * sum(one**2 for one in paid)
    return Interval(max(spent, mean - math.sqrt(down + doubt)), mean, mean + math.sqrt(up + doubt))


def _runs_out(
    account: Account, rests: Sequence[tuple[Interval, Interval]], rate: float, at: float, horizon: float
) -> float | None:
    last = max((seconds.expected for seconds, _ in rests), default=0.0)

    def over(after: float) -> bool:
        new = sum(_share(after, seconds.expected) * cost.expected for seconds, cost in rests)
        new += rate * max(0.0, after - last)
        return new + to_amount(_stays(account, at, at + after)) > to_amount(account.amount)

    steps = (horizon * step / STEPS for step in range(STEPS + 1))
    before, found = 0.0, None
    for after in steps:
        if over(after):
            found = after
            break
        before = after
    if found is None:
        return None
    for _ in range(30):
        middle = (before + found) / 2
        before, found = (before, middle) if over(middle) else (middle, found)
    return at + found


def _share(after: float, seconds: float) -> float:
    """How much of a job of so many seconds is done by then."""
    return min(1.0, after / seconds) if seconds > 0 else 1.0
