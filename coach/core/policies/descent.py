"""Taking pods back from many jobs: always the cheapest step that any of them has next.

The steps down of one job follow one another whatever they lose. So taking the cheapest again and again, as from a
heap, comes to one sorted list: a step's place in it is that of the dearest step of its job up to it, for it comes
right after that one. The list is sorted in one go, the steps of all jobs in one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coach.core.cluster import Allocation
from coach.core.policies.room import Asks

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: A step down: (tiers lost, value lost for each share and each of what the value grows with, where it leads).
Down = tuple[int, float, Allocation]

#: For each step, from the pods taken by then [step] and what is used then [step, resource]: whether that is enough.
Enough = Callable[[FloatArray, FloatArray], BoolArray]

#: Columns of `Chain.table`: tiers and value lost by the dearest step so far, pods taken back, changes of resources.
TIERS, LOSS, PODS, CPU = range(4)

#: How many steps to look for at once.
AHEAD = 4


class Chain:
    """The steps down of a job from one allocation on, as far as anybody asked for them."""

    __slots__ = ("_at", "_rows", "ended", "steps", "table")

    def __init__(self, at: Allocation) -> None:
        #: What there was before each step, and the step.
        self.steps: list[tuple[Allocation, Down]] = []
        #: Whether there are no more than these.
        self.ended = False
        #: [step, column]
        self.table: FloatArray = np.zeros((0, CPU + 3))
        self._rows: list[Any] = []
        self._at = at

    def lengthen(self, asks: Asks, step: Callable[[Allocation], Down | None]) -> None:
        """Look for more of them: `step` says which one leads on from an allocation."""
        for _ in range(AHEAD):
            at, down = self._at, step(self._at)
            if down is None:
                self.ended = True
                break
            tiers, loss, to = down
            if self._rows:
                tiers, loss = max((tiers, loss), self._rows[-1][:PODS])
            changes = (after - before for before, after in zip(asks.needs(at), asks.needs(to), strict=True))
            self._rows.append((tiers, loss, sum(at) - sum(to), *changes))
            self.steps.append((at, down))
            self._at = to
        if self._rows:
            self.table = np.array(self._rows, dtype=float)


class Taken(NamedTuple):
    """Steps in the order in which they are taken: of which chain, which of its steps; and what is used after all."""

    chains: list[int]
    steps: list[int]
    used: list[float]


def cheapest(
    chains: Sequence[Chain], scales: Sequence[float], used: Sequence[float], enough: Enough
) -> Taken:
    """The cheapest steps of all `chains`, whose values grow with `scales`, until it is `enough`; now so much is `used`.

    Of equals the earlier chain's come first.
    """
    lengths = [len(chain.steps) for chain in chains]
    table = np.concatenate([chain.table for chain in chains])
    owners = np.repeat(np.arange(len(chains)), lengths)
    loss, tiers = table[:, LOSS] * np.array(scales)[owners], table[:, TIERS]
    order = np.lexsort((loss, tiers)) if tiers.any() else np.argsort(loss, kind="stable")
    table = table[order]
    # Summed one by one, as if each step were taken for itself.
    after = np.cumsum(np.vstack([used, table[:, CPU:]]), axis=0)
    done = np.flatnonzero(enough(np.cumsum(table[:, PODS]), after[1:]))
    count = int(done[0]) + 1 if len(done) else len(order)
    order = order[:count]
    of = owners[order]
    firsts = np.cumsum([0, *lengths[:-1]])
    return Taken(of.tolist(), (order - firsts[of]).tolist(), after[count].tolist())
