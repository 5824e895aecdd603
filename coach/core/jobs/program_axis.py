"""Where the reports of a program are on its learning curve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from coach.core.jobs.epoch import Epoch

#: Latest reports that are looked at to see whether a program reports several times in an epoch.
LOOKED_AT = 50


def last_epoch(epochs: Sequence[Epoch]) -> float | None:
    """The epoch that the last report named; None where it named none, or where several reports name the same."""
    named = [epoch.report.at_epoch for epoch in epochs[-LOOKED_AT:]]
    several = any(one == other for one, other in itertools.pairwise(named))
    return named[-1] if named and not several else None


class ProgramAxis:
    """Which reports of a program count, and how much of a pass over the data lies between two of them.

    A program that counts its epochs, from 0 or 1 on or in fractions, says after how many it reports. One that is
    started again may repeat epochs that it had reported: those do not count again, except where they reach the target.
    Such a report counts, whatever its epoch.
    One that starts to count anew while it runs (other data, the next fold) goes on from where it was. Where there is no
    epoch, or several reports of one, each report counts as one. Steps are never the axis: they depend on the workers.

    `after` is the epoch of its last report before this start; `begun`: there was a report at all.
    """

    def __init__(self, after: float | None, begun: bool) -> None:
        self._epoch = after
        self._begun = begun
        self._value = math.nan
        self._own = False  #: a report of this start has counted
        self._several = False

    def counts(self, epoch: float | None, value: float, reached: bool) -> bool:
        """Whether a report counts; `reached`: its value reaches the target."""
        if epoch is None or self._epoch is None or epoch > self._epoch or not math.isfinite(value):
            return True
        if self._own and epoch == self._epoch:
            return value != self._value
        return reached or (self._own and epoch <= 1.0)

    def take(self, epoch: float | None, value: float) -> float:
        """Count a report: the passes over the data since the last one that counted."""
        own, last, begun = self._own, self._epoch, self._begun
        self._own = self._begun = True
        self._value = value
        if epoch is None:
            return 1.0
        self._epoch = epoch
        self._several = self._several or (own and epoch == last)
        if self._several or (last is None and begun):
            return 1.0
        if last is None or (own and epoch < last):
            return epoch or 1.0
        return epoch - last if epoch > last else 1.0
