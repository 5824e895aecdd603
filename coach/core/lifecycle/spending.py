"""What the next epoch may cost: money for the epochs that may remain, the rest for speed where it saves most.

How many epochs remain is a distribution. Epochs that the money would not pay for even with the cheapest allocation are
left out of it: such a job ends without its target whatever is decided now, so it decides nothing. Of what is left, all
but the chance of running out that the job accepts is provided for at the cheapest. The rest buys upgrades, over all
epochs that may come, by the seconds that a currency unit saves, weighed by the probability that the epoch is needed at
all. The next epoch gets what falls to it. All of it is worked out anew before each epoch.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval
from coach.core.estimation.numerics import ndtr

#: Epochs that are looked ahead.
HORIZON = 240
#: At least this share of all possible numbers of epochs is provided for, payable or not: without it, what is left out
#: anew before each epoch would use up the money of the last ones.
PROVIDED_OF_ALL = 0.7
#: A bound of the remaining epochs is not exceeded with this many standard deviations (88 %).
BOUND = 1.175
#: The cheapest allocation for this purpose has the least cost x seconds ** PACE: a little dearer may be far faster.
PACE = 0.15
#: Kept of the cheapest's cost of all expected epochs: predicted costs of all epochs err together.
MARGIN = 0.03
#: Earlier jobs' number of epochs does not count where the curve leaves it less probability than this.
EXCLUDED = 1e-6
#: Less probability than this that the money is enough, and nothing but the cheapest is bought.
HOPELESS = 1e-3


@dataclass(frozen=True, slots=True)
class Spending:
    """`epoch`: what the next epoch may cost. `provided` epochs are paid for at `cheapest` each; `spare` is the rest."""

    epoch: float
    provided: int
    cheapest: float
    spare: float


def at_least(epochs: Interval) -> FloatArray:
    """Probability that 1, 2, ... HORIZON epochs or more remain: log-normal on either side of the expected number."""
    expected = max(epochs.expected, 1.0)
    below = math.log(expected / max(min(epochs.low, expected), 1e-3)) / BOUND
    above = math.log(max(epochs.high, expected) / expected) / BOUND
    off = np.log((np.arange(HORIZON) + 0.5) / expected)
    spread = np.where(off < 0.0, max(below, 1e-3), max(above, 1e-3))
    found = 1.0 - ndtr(np.clip(off / spread, -30.0, 30.0))
    found[0] = 1.0
    return np.asarray(found)


def at_least_of(times: FloatArray, chance: FloatArray, now: float) -> FloatArray:
    """The same of a job that ends at one of `times` (epochs trained) with these probabilities [n]; it is at `now`."""
    more = np.clip(np.ceil(times - now - 1e-9), 1, HORIZON).astype(np.intp)
    ends = np.bincount(more, chance, HORIZON + 1)
    return np.asarray(1.0 - np.concatenate([[0.0], np.cumsum(ends[1:HORIZON])]))


def as_before(times: FloatArray, chance: FloatArray, known: float, spread: float) -> FloatArray:
    """The probabilities `chance` of ending at `times` [n], of a job like earlier ones that took `known` epochs.

    `spread`: at most so many times as many (log-normal, at BOUND). Where the curve excludes that, it alone counts.
    """
    off = np.log(np.maximum(times, 1e-3) / max(known, 1e-3)) * BOUND / math.log(spread)
    both = chance * np.exp(-0.5 * off * off)
    return both / both.sum() if both.sum() > EXCLUDED else chance


def plan(  # noqa: PLR0917
    left: float, seconds: FloatArray, costs: FloatArray, remain: FloatArray, reserve: float, chance: float
) -> Spending:
    """Of the money `left`, with allocations whose epochs take `seconds` and `costs` [m].

    `remain`: the probability that 1, 2, ... epochs or more remain. `reserve`: kept for what one epoch may take beyond
    its expectation, and for changes of the allocation. `chance`: the probability of running out that is accepted, of
    the numbers of epochs that the money pays for.
    """
    steps = _steps(seconds, costs)
    cheapest = steps[0][0]
    payable = int(max(0.0, (left - reserve) / cheapest)) if cheapest > 0 else HORIZON
    enough = 1.0 - (remain[payable] if payable < HORIZON else 0.0)
    if enough < HOPELESS:
        return Spending(cheapest, payable, cheapest, 0.0)
    needed = np.maximum(remain - (1.0 - enough), 0.0) / enough
    share = 1.0 - chance
    provided = max(_quantile(needed, share), _quantile(remain, min(share, PROVIDED_OF_ALL)))
    spare = left - reserve - (MARGIN * float(needed.sum()) + provided) * cheapest
    if spare <= 0.0:
        return Spending(cheapest, provided, cheapest, spare)
    saved = np.array([before[1] - after[1] for before, after in itertools.pairwise(steps)])
    more = np.array([after[0] - before[0] for before, after in itertools.pairwise(steps)])
    if not len(more):
        return Spending(cheapest, provided, cheapest, spare)
    value = needed[:provided, None] * (saved / more)
    order = np.argsort(-value.ravel(), kind="stable")
    paid = np.cumsum(np.broadcast_to(more, value.shape).ravel()[order])
    bought = order[: int(np.searchsorted(paid, spare, side="right"))]
    taken = int((bought < len(more)).sum())  # the first row is the next epoch
    # What no epoch needs may be tried out: a dearer allocation is measured, and may turn out faster.
    free = spare - float(paid[-1]) if len(bought) == len(order) else 0.0
    return Spending(steps[taken][0] + free, provided, cheapest, spare)


def _quantile(remain: FloatArray, share: float) -> int:
    """The number of epochs that is not exceeded with probability `share`."""
    return int((remain > 1.0 - share).sum())


def _steps(seconds: FloatArray, costs: FloatArray) -> list[tuple[float, float]]:
    """(cost, seconds) from the cheapest upwards: the lower convex hull, each step saving less a currency unit."""
    first = int(np.argmin(costs * np.maximum(seconds, 1e-9) ** PACE))
    hull = [(float(costs[first]), float(seconds[first]))]
    for cost, second in sorted(zip(costs.tolist(), seconds.tolist(), strict=True)):
        if cost <= hull[0][0] or second >= hull[-1][1]:
            continue
        while len(hull) > 1:
            (c0, t0), (c1, t1) = hull[-2:]
            if (t0 - t1) * (cost - c1) > (t1 - second) * (c1 - c0):
                break
            hull.pop()
        hull.append((cost, second))
    return hull
