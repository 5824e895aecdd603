"""What a job's epochs took beside training: starts, evaluations, checkpoints, messages."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from coach.core.estimation.interval import Interval
from coach.core.jobs.epoch import Epoch

#: So many epochs say what the next one takes outside training: one in six is above the most of five.
RECENT_EPOCHS = 5
#: Seconds outside training taken for an epoch before one has been measured.
PRIOR_FIXED_SECONDS = Interval(2.0, 2.0, 2.0)
#: Seconds of training lost by changing an allocation, until the job's first epoch has shown it.
PRIOR_RESTART_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds outside training: median and range of the last epochs that tell.

    `kept`: beside an evaluation, of epochs whose group stayed formed from the one before; `fresh`: of the others; None
    without one. `restart` is what a new group costs over one that stays formed: as long as none has, over a checkpoint.
    `evaluations`: of an evaluation, by the number of workers, who share the test data if `shared`.
    """

    kept: Interval | None
    fresh: Interval | None
    restart: float
    evaluations: Mapping[int, Interval]
    shared: bool = True

    @classmethod
    def of(cls, epochs: Iterable[Epoch], shared: bool = True) -> Times:
        """Those of a job with these epochs."""
        epochs = list(epochs)
        evaluations = _evaluations(epochs)
        hidden = [
            _hidden(epoch, _evaluation(evaluations, epoch.allocation.workers, shared)) for epoch in epochs
        ]
        beside = [max(0.0, epoch.other_seconds - less) for epoch, less in zip(epochs, hidden, strict=True)]
        stayed = [False, *(before.group == epoch.group for before, epoch in pairwise(epochs))]
        kept = [other for other, formed in zip(beside, stayed, strict=False) if formed]
        fresh = [other for other, formed in zip(beside, stayed, strict=False) if not formed]
        restart = PRIOR_RESTART_SECONDS
        if fresh:
            usual = kept or [
                epoch.report.checkpoint_seconds - (less if epoch.report.loss is None else 0.0)
                for epoch, less in zip(epochs, hidden, strict=True)
            ]
            restart = max(0.0, statistics.median(fresh) - statistics.median(usual))
        return cls(
            _recent(kept) if kept else None, _recent(fresh) if fresh else None, restart, evaluations, shared
        )

    def evaluation(self, workers: int) -> Interval:
        """Of an evaluation by so many workers; 0 before the first. What none took follows from the nearest number."""
        return _evaluation(self.evaluations, workers, self.shared)

    def beside(self, formed: bool = True) -> Interval:
        """Of the next epoch beside its evaluation; `formed`: its group stays.

        Epochs of the other kind count while there is none.
        """
        known = (self.kept or self.fresh) if formed else (self.fresh or self.kept)
        return known or PRIOR_FIXED_SECONDS

    def fixed(self, workers: int, formed: bool = True) -> Interval:
        """Of the next epoch, if it is evaluated by so many workers."""
        beside, evaluation = self.beside(formed), self.evaluation(workers)
        return Interval(
            beside.low + evaluation.low,
            beside.expected + evaluation.expected,
            beside.high + evaluation.high,
        )


def _evaluations(epochs: Iterable[Epoch]) -> dict[int, Interval]:
    """Seconds of the last evaluations by the number of workers."""
    seconds: dict[int, list[float]] = {}
    for epoch in epochs:
        if epoch.report.loss is not None:
            seconds.setdefault(epoch.allocation.workers, []).append(epoch.report.evaluate_seconds)
    return {workers: _recent(some) for workers, some in seconds.items()}


def _evaluation(known: Mapping[int, Interval], workers: int, shared: bool) -> Interval:
    if not known:
        return Interval(0.0, 0.0, 0.0)
    nearest = min(known, key=lambda count: (abs(count - workers), count))
    measured = known[nearest]
    if not shared or nearest == workers:
        return measured
    guess = measured * (nearest / workers)
    # At worst those that come bring nothing.
    return Interval(min(guess.low, measured.low), guess.expected, max(guess.high, measured.high))


def _hidden(epoch: Epoch, evaluation: Interval) -> float:
    """Seconds outside training that are not beside an evaluation: its own, or those in which a checkpoint waited alone.

    A checkpoint is stored while the epoch is evaluated, and only what takes longer is in the report then.
    """
    if epoch.report.loss is not None:
        return epoch.report.evaluate_seconds
    return min(epoch.report.checkpoint_seconds, evaluation.expected)


def _recent(seconds: list[float]) -> Interval:
    """Median and range of the last of them."""
    last = seconds[-RECENT_EPOCHS:]
    return Interval(min(last), statistics.median(last), max(last))
