"""What a job's epochs took beside training: starts, evaluations, checkpoints, messages."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from coach.core.estimation.interval import Interval

if TYPE_CHECKING:
    from coach.core.jobs.job import Epoch

#: So many epochs say what the next one takes outside training: one in six is above the most of five.
RECENT_EPOCHS = 5
#: Seconds outside training taken for an epoch before one has been measured.
PRIOR_FIXED_SECONDS = Interval(2.0, 2.0, 2.0)
#: Seconds of training lost by changing an allocation, until the job's first epoch has shown it.
PRIOR_RESTART_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds outside training of an epoch that is evaluated: median and range of the last like it, None without one.

    `kept`: of epochs whose group stayed formed from the one before; `fresh`: of the others. `restart` is what a new
    group costs over one that stays formed: as long as none has, over an evaluation and a checkpoint. `evaluate` is what
    an evaluation takes (0 before the first).
    """

    kept: Interval | None
    fresh: Interval | None
    restart: float
    evaluate: float

    @classmethod
    def of(cls, epochs: Iterable[Epoch]) -> Times:
        """Those of a job with these epochs."""
        epochs = list(epochs)
        evaluations = [epoch.report.evaluate_seconds for epoch in epochs if epoch.report.loss is not None]
        evaluate = statistics.median(evaluations[-RECENT_EPOCHS:]) if evaluations else 0.0
        seconds = [epoch.other_seconds + (evaluate if epoch.report.loss is None else 0.0) for epoch in epochs]
        stayed = [False, *(before.group == epoch.group for before, epoch in pairwise(epochs))]
        kept = [other for other, formed in zip(seconds, stayed, strict=False) if formed]
        fresh = [other for other, formed in zip(seconds, stayed, strict=False) if not formed]
        restart = PRIOR_RESTART_SECONDS
        if fresh:
            checkpoint = statistics.median(epoch.report.checkpoint_seconds for epoch in epochs)
            usual = statistics.median(kept) if kept else evaluate + checkpoint
            restart = max(0.0, statistics.median(fresh) - usual)
        return cls(_range(kept[-RECENT_EPOCHS:]), _range(fresh[-RECENT_EPOCHS:]), restart, evaluate)

    def fixed(self, formed: bool = True) -> Interval:
        """Of the next epoch; `formed`: its group stays. Epochs of the other kind count while there is none."""
        known = (self.kept or self.fresh) if formed else (self.fresh or self.kept)
        return known or PRIOR_FIXED_SECONDS


def _range(seconds: list[float]) -> Interval | None:
    return Interval(min(seconds), statistics.median(seconds), max(seconds)) if seconds else None
