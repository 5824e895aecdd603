"""Times of a job's epochs outside training: starts, evaluations, checkpoints, messages."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from coach.core.cluster import Allocation
from coach.core.estimation.interval import Interval
from coach.core.jobs.epoch import Epoch

#: Number of latest epochs that predict the next one's time outside training: one in six exceeds the largest of five.
RECENT_EPOCHS = 5
#: Seconds outside training that are assumed for an epoch before any is measured.
PRIOR_FIXED_SECONDS = Interval(2.0, 2.0, 2.0)
#: Seconds of training that a change of allocation costs, as assumed until the job's first epoch.
PRIOR_RESTART_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds outside training: median and range over the latest relevant epochs.

    `kept`: without the evaluation, of epochs whose group stayed as it was from the epoch before. `fresh`: the same, of
    all others; of a job whose elastic group was changed, only of those that began with a change. Each is None if there
    is no such epoch. `restart` is the additional time of an epoch of the second kind compared with one of the first or,
    as long as there is none, with a checkpoint. `evaluations`: time of an evaluation by the number of
    workers, which share the test data if `shared`.
    """

    kept: Interval | None
    fresh: Interval | None
    restart: float
    evaluations: Mapping[int, Interval]
    shared: bool = True

    @classmethod
    def of(cls, epochs: Iterable[Epoch], shared: bool = True) -> Times:
        """The times of a job with these epochs."""
        epochs = list(epochs)
        evaluations = _evaluations(epochs)
        hidden = [_hidden(epoch, _evaluation(evaluations, epoch.allocation.workers, shared)) for epoch in epochs]
        other = [max(0.0, epoch.other_seconds - less) for epoch, less in zip(epochs, hidden, strict=True)]
        kept: list[float] = []
        changed: list[float] = []
        formed = other[:1]
        for seconds, (before, epoch) in zip(other[1:], pairwise(epochs), strict=True):
            if epoch.report.workers_lost:
                continue  # its group changed while it trained
            same = epoch.group == before.group or bool(epoch.allocation.servers) != bool(before.allocation.servers)
            (kept if epoch.continues(before) else changed if same else formed).append(seconds)
        # An elastic group is formed once, and changed from then on; also from all-reduce to servers, by a new group.
        fresh = changed or formed
        restart = PRIOR_RESTART_SECONDS
        if fresh:
            usual = kept or [
                epoch.report.checkpoint_seconds - (less if epoch.report.loss is None else 0.0)
                for epoch, less in zip(epochs, hidden, strict=True)
            ]
            restart = max(0.0, statistics.median(fresh) - statistics.median(usual))
        return cls(_recent(kept) if kept else None, _recent(fresh) if fresh else None, restart, evaluations, shared)

    @classmethod
    def of_program(cls, epochs: Iterable[Epoch]) -> Times:
        """The times of a program: all is training but the starts, and the stops before them where its workers changed.

        What a start takes is the first interval less a later one with the same workers. `restart` is a change's whole
        price: from SIGTERM to the first report, less such an interval. Until the first change it is a start alone. A
        program that forms its group anew in the same process, so that its name stays, goes on meanwhile: its price is
        what the first interval of the new group took longer than a later one.
        """
        epochs = list(epochs)
        paces: dict[Allocation, list[float]] = {}
        for epoch in epochs:
            if not (epoch.starts or epoch.report.workers_lost):
                paces.setdefault(epoch.allocation, []).append(1.0 / epoch.epochs_per_second)
        starts, regrouped = list[tuple[float, float]](), list[float]()
        for before, epoch in zip([None, *epochs], epochs, strict=False):
            if not epoch.starts or epoch.allocation not in paces:
                continue
            expected = epoch.fraction * statistics.median(paces[epoch.allocation])
            if epoch.regrouped_after(before):
                regrouped.append(max(0.0, epoch.report.train_seconds - expected))
            else:
                starts.append((max(0.0, epoch.seconds - expected), epoch.report.stop_seconds))
        changes = [seconds + stopped for seconds, stopped in starts if stopped > 0.0]
        fresh = [seconds for seconds, _ in starts]
        if epochs and epochs[-1].report.regroups:
            fresh = changes = regrouped
        return cls(
            kept=Interval(0.0, 0.0, 0.0) if epochs else None,
            fresh=_recent(fresh) if fresh else None,
            restart=statistics.median(changes or fresh) if fresh else PRIOR_RESTART_SECONDS,
            evaluations={},
        )

    def evaluation(self, workers: int) -> Interval:
        """Of an evaluation by `workers`; 0 before the first. The nearest measured number of workers predicts others."""
        return _evaluation(self.evaluations, workers, self.shared)

    def without_evaluation(self, formed: bool = True) -> Interval:
        """Of the next epoch without its evaluation; `formed`: its group stays formed.

        Without an epoch of that kind, those of the other kind are used.
        """
        known = (self.kept or self.fresh) if formed else (self.fresh or self.kept)
        return known or PRIOR_FIXED_SECONDS

    def fixed(self, workers: int, formed: bool = True) -> Interval:
        """Of the next epoch, if `workers` evaluate it."""
        return self.without_evaluation(formed) + self.evaluation(workers)


def _evaluations(epochs: Iterable[Epoch]) -> dict[int, Interval]:
    """Seconds of the latest evaluations, by the number of workers."""
    seconds: dict[int, list[float]] = {}
    for epoch in epochs:
        if epoch.report.loss is not None:
            seconds.setdefault(epoch.allocation.workers, []).append(epoch.report.evaluate_seconds)
    return {workers: _recent(measured) for workers, measured in seconds.items()}


def _evaluation(known: Mapping[int, Interval], workers: int, shared: bool) -> Interval:
    if not known:
        return Interval(0.0, 0.0, 0.0)
    nearest = min(known, key=lambda count: (abs(count - workers), count))
    measured = known[nearest]
    if not shared or nearest == workers:
        return measured
    guess = measured * (nearest / workers)
    # In the worst case additional workers do not shorten it.
    return Interval(min(guess.low, measured.low), guess.expected, max(guess.high, measured.high))


def _hidden(epoch: Epoch, evaluation: Interval) -> float:
    """Seconds that `without_evaluation` leaves out: the evaluation, or the checkpoint time that it would have hidden.

    A checkpoint is stored during the evaluation; the report then has only the time that it took longer.
    """
    if epoch.report.loss is not None:
        return epoch.report.evaluate_seconds
    return min(epoch.report.checkpoint_seconds, evaluation.expected)


def _recent(seconds: list[float]) -> Interval:
    """Median and range of the latest of them."""
    last = seconds[-RECENT_EPOCHS:]
    return Interval(min(last), statistics.median(last), max(last))
