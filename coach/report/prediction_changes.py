"""When the prediction for a whole job changed by more than its interval, and why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from coach.core.cluster import Allocation
from coach.core.jobs import actions as act
from coach.core.jobs.epoch import JobForecast
from coach.core.jobs.job import Job
from coach.report import formatting

#: A change by less than this factor is no news, however narrow the interval was: near a job's end it is very narrow.
NEWS = 1.1


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was predicted of a whole job when a full epoch started, and from what.

    `epochs`: of the whole job; `epoch_seconds`: of an epoch with `allocation`.
    """

    whole: JobForecast
    allocation: Allocation
    epochs: float
    epoch_seconds: float

    @classmethod
    def of(cls, job: Job, order: act.RunEpoch) -> Self | None:
        """That of `order`, which `job` has just taken in; None where it has none."""
        if order.job_forecast is None or order.predicted_seconds is None or order.fraction != 1.0:
            return None
        seconds = order.predicted_seconds[1]
        left = max(0.0, order.job_forecast.seconds[1] - job.progress.run_seconds)
        epochs = job.epochs_trained + left / seconds if seconds > 0.0 else job.epochs_trained
        return cls(order.job_forecast, order.allocation, epochs, seconds)

    def narrower(self, other: Prediction) -> bool:
        """Whether this one's bounds of the seconds are at most as far apart, in proportion."""
        return _factor(*self.whole.seconds[::2]) <= _factor(*other.whole.seconds[::2])

    def changed(self, before: Prediction, currency: str) -> str | None:
        """What changed since `before`, in words; None where all expected values are still within its intervals."""
        said = [
            f"{_words(now, unit)}{after} instead of {_words(then, unit)}{after}"
            for now, then, unit, after in (
                (self.whole.seconds, before.whole.seconds, formatting.duration, ""),
                (self.whole.cost, before.whole.cost, formatting.amount, f" {currency}"),
            )
            if not then[0] <= now[1] <= then[2] and _factor(now[1], then[1]) > NEWS
        ]
        return f"the whole job is now predicted to take {' and '.join(said)}: {self._why(before)}" if said else None

    def _why(self, before: Prediction) -> str:
        """What changed most: the epochs, the seconds of one, or what a second costs."""
        now, then = (formatting.duration(one.epoch_seconds) for one in (self, before))
        if self.allocation != before.allocation:
            now, then = f"{now} with {self.allocation}", f"{then} with {before.allocation}"
        dearer = formatting.number(self.second / before.second if before.second else math.inf, 2)
        reasons = (
            (self.epochs, before.epochs, f"about {self.epochs:.0f} epochs instead of {before.epochs:.0f}"),
            (self.epoch_seconds, before.epoch_seconds, f"an epoch takes {now} instead of {then}"),
            (self.second, before.second, f"its seconds cost {dearer} times as much"),
        )
        return max(reasons, key=lambda reason: _factor(*reason[:2]))[2]

    @property
    def second(self) -> float:
        """Currency units that a second costs."""
        return self.whole.cost[1] / self.whole.seconds[1] if self.whole.seconds[1] > 0.0 else 0.0


class Predictions:
    """The narrowest prediction for each job since one was said to have changed."""

    def __init__(self) -> None:
        self._narrowest: dict[str, Prediction] = {}

    def changed(self, job: Job, order: act.RunEpoch) -> str | None:
        """What changed with an order, which `job` has just taken in; None where nothing did."""
        now, before = Prediction.of(job, order), self._narrowest.get(job.name)
        if now is None:
            return None
        said = now.changed(before, job.price_book.currency) if before else None
        if before is None or said or now.narrower(before):
            self._narrowest[job.name] = now
        return said


def _factor(one: float, other: float) -> float:
    """How many times as large the larger one is."""
    least, most = sorted((one, other))
    return most / least if least > 0.0 else math.inf if most > 0.0 else 1.0


def _words(values: tuple[float, float, float], unit: Callable[[float | None], str]) -> str:
    low, expected, high = values
    return formatting.bounded(expected, low, high, unit)
