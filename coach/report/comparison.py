"""Jobs side by side: what each reached for the same money and in the same time, and what each level took."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coach.core.errors import UserError
from coach.core.jobs.job import Job
from coach.core.spec.program import Goal
from coach.report.accounting import Attempt, Balance, attempts, money, pauses
from coach.report.trackers import parameters

#: Rows of equal money and of equal time: up to what the job that used most has used.
ROWS = 5
#: Levels between the worst first epoch and the best of all: the later ones are the dear ones.
LEVELS = (0.5, 0.75, 0.9, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class Progress:
    """A job's best loss or accuracy so far, after each whole epoch, with the money and the seconds it took until then.

    Time that the job was suspended in is left out.
    """

    name: str
    money: tuple[float, ...]
    seconds: tuple[float, ...]
    best: tuple[float, ...]

    def at(self, used: Sequence[float], limit: float) -> float | None:
        """The best value with at most `limit` of `used` (`money` or `seconds`); None before the first epoch's end."""
        index = bisect.bisect_right(used, limit)
        return self.best[index - 1] if index else None


@dataclass(frozen=True, slots=True)
class Level:
    """A loss or accuracy, and the money and seconds with which each job was there; None where it never was."""

    value: float
    money: tuple[float | None, ...]
    seconds: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the job files that is not the same in all: what each job has; None where it is not given."""

    field: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of jobs, in the order in which they were named; every row has a value for each.

    `by_money` and `by_time`: an amount or seconds, and each job's best value with it.
    """

    metric: str
    lower: bool  #: whether less of it is better
    currency: str
    jobs: tuple[Progress, ...]
    levels: tuple[Level, ...]
    by_money: tuple[tuple[float, tuple[float | None, ...]], ...]
    by_time: tuple[tuple[float, tuple[float | None, ...]], ...]
    differences: tuple[Difference, ...]


def compare_jobs(found: Sequence[tuple[Job, Sequence[Any]]]) -> Comparison:
    """Of jobs and the records of each. Raises UserError where there is nothing to compare."""
    if len({job.name for job, _ in found}) < 2:
        raise UserError("comparing takes two jobs or more, as coach ps shows them")
    of = [progress(job, attempts(records, job.name), money(records, job.name), records) for job, records in found]
    return compare([job for job, _ in found], of)


def progress(job: Job, tried: Sequence[Attempt], purse: Sequence[Balance], records: Sequence[object]) -> Progress:
    """From a job's attempts, its money over time, and its records. Raises UserError without a whole epoch."""
    epochs = [each for each in job.full_epochs if each.report.value(job.metric) is not None]
    if not epochs:
        raise UserError(f"{job.name}: no whole epoch has ended yet, there is nothing to compare; coach why {job.name}")
    start, stops = tried[0].order.at, pauses(records, job.name)
    moments = [each.at for each in purse]
    better = min if job.spec.goal is Goal.MINIMIZE else max
    money, seconds, best = list[float](), list[float](), list[float]()
    for epoch in epochs:
        end = epoch.ended_at
        money.append(purse[bisect.bisect_right(moments, end) - 1].spent)
        stood = sum(max(0.0, min(until, end) - max(since, start)) for since, until in stops)
        seconds.append(end - start - stood)
        value = job.value(epoch)
        best.append(better(best[-1], value) if best else value)
    return Progress(job.name, tuple(money), tuple(seconds), tuple(best))


def compare(jobs: Sequence[Job], of: Sequence[Progress]) -> Comparison:
    """Raises UserError where the jobs have no measure or no currency in common."""
    for word, found in (
        ("measure", {job.name: job.metric for job in jobs}),
        ("currency", {job.name: job.price_book.currency for job in jobs}),
    ):
        if len(set(found.values())) > 1:
            each = ", ".join(f"{name} {value}" for name, value in found.items())
            raise UserError(f"these jobs differ in their {word}: {each}; compare those that have the same")
    lower = jobs[0].spec.goal is Goal.MINIMIZE
    first = (max if lower else min)(one.best[0] for one in of)
    best = (min if lower else max)(one.best[-1] for one in of)
    sign = 1.0 if lower else -1.0
    levels = []
    for part in LEVELS if first != best else LEVELS[-1:]:
        value = best if part == 1 else first + part * (best - first)
        reached = [bisect.bisect_left(one.best, -sign * value, key=lambda seen: -sign * seen) for one in of]
        levels.append(
            Level(
                value,
                tuple(_one(one.money, index) for one, index in zip(of, reached, strict=True)),
                tuple(_one(one.seconds, index) for one, index in zip(of, reached, strict=True)),
            )
        )
    amounts = [max(one.money[-1] for one in of) * (row / ROWS) for row in range(1, ROWS + 1)]
    times = [max(one.seconds[-1] for one in of) * (row / ROWS) for row in range(1, ROWS + 1)]
    return Comparison(
        jobs[0].metric,
        lower,
        jobs[0].spec.price_book.currency,
        tuple(of),
        tuple(levels),
        tuple((amount, tuple(one.at(one.money, amount) for one in of)) for amount in amounts),
        tuple((each, tuple(one.at(one.seconds, each) for one in of)) for each in times),
        _differences(jobs),
    )


def _differences(jobs: Sequence[Job]) -> tuple[Difference, ...]:
    given = [parameters(job.job_file, defaults=True) for job in jobs]
    for one in given:
        one |= {field: value[:12] for field, value in one.items() if field.endswith("sha256")}  # as git shortens them
    fields = dict.fromkeys(field for one in given for field in one)
    rows = [Difference(field, tuple(one.get(field) for one in given)) for field in fields]
    return tuple(row for row in rows if len(set(row.values)) > 1)


def _one(values: Sequence[float], index: int) -> float | None:
    return values[index] if index < len(values) else None
