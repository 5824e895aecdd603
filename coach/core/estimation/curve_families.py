"""The shapes of a learning curve: its progress from its first value (0) to its end (1).

Each is `1 - g(u)`. g falls from 1 at u = 0 towards 0; u is time in units of the span measured so far:

* power law `g = (1 + r·u)^-p`; p = 1 is the thesis's (and Optimus's) hyperbola 1/(b0·x + b1) + b2, written so that
  the origin of x does not matter; p = 0.5 is slower and p = 2 faster;
* exponential `g = exp(-r·u)`;
* logistic `g = (1 + exp(-r·m)) / (1 + exp(r·(u - m)))`: a slow start, its steepest point at u = m.

Rates are relative to the span, so no unit and no length of training is preferred.

Earlier runs of the same program with other arguments add their own shapes (`with_known`). How far they fell is known,
how fast is not: an argument such as the learning rate changes that by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from coach.core.estimation.forms import FloatArray, IndexArray
from coach.core.estimation.observations import KnownCurve

# Prior probability of each family, not normalized; leaving any one out, or doubling it, changes the errors of
# docs/advanced/estimation.md little.
POWER_SHARES = {1.0: 1.0, 0.5: 0.25, 2.0: 0.75}
EXPONENTIAL_SHARE = 1.5
LOGISTIC_SHARE = 1.2
RATES = np.geomspace(0.08, 20.0, 20)
LOGISTIC_RATES = (2.0, 4.0, 8.0, 16.0)
LOGISTIC_MIDDLES = (0.3, 0.6, 1.0, 1.6)
# Of earlier runs, chosen on three tasks of TaskSet (`python -m benchmarks.knowledge` measures on nine others).
#: A run may be so many times as fast as an earlier one, all alike probable.
TEMPOS = np.geomspace(1 / 32, 32.0, 9)
#: k earlier runs have k / (k + this) of the prior probability.
RUNS_DOUBTED = 5.0
#: Standard deviation of a run's fall, as a share of the earlier run's.
FALL_DOUBT = 0.5
#: A later time counts as this one, at which nothing is left of any shape.
LATEST = 1e100


@dataclass(frozen=True, slots=True)
class Shapes:
    """m shapes: `power` p (0: none), `rate` r, `midpoint` (nan: exponential), prior `share`, all [m].

    `fall` is what the whole curve is expected to fall; nan: in proportion to what was seen.
    """

    power: FloatArray
    rate: FloatArray
    midpoint: FloatArray
    share: FloatArray
    fall: FloatArray

    def take(self, which: IndexArray) -> Shapes:
        """The shapes at the indices `which`, repeats allowed."""
        return Shapes(*(getattr(self, field.name)[which] for field in fields(Shapes)))

    def with_known(self, known: Sequence[KnownCurve], span: float) -> Shapes:
        """Also those of earlier runs, for a curve of which `span` epochs were seen."""
        if not known:
            return self
        power, rate, midpoint, fall = (np.repeat(column, len(TEMPOS)) for column in np.array(known).T)
        tempo = np.tile(TEMPOS, len(known))
        theirs = len(known) / (len(known) + RUNS_DOUBTED)
        return Shapes(
            np.append(self.power, power),
            np.append(self.rate, rate * span * tempo),
            np.append(self.midpoint, np.where(midpoint > 0, midpoint / span / tempo, np.nan)),
            np.append(self.share * (1.0 - theirs), np.full(len(tempo), theirs / len(tempo))),
            np.append(self.fall, fall),
        )

    def remaining(self, u: FloatArray) -> FloatArray:
        """g of every shape at every time `u` [n], or at times of its own [m, n], u >= 0: [m, n]."""
        u = np.broadcast_to(np.minimum(u, LATEST), (len(self.rate), u.shape[-1]))
        g = np.empty(u.shape)
        powers, logistic = self.power > 0, ~np.isnan(self.midpoint)
        exponential = ~powers & ~logistic
        rate = self.rate[:, None]
        g[powers] = (1.0 + rate[powers] * u[powers]) ** -self.power[powers, None]
        g[exponential] = np.exp(-rate[exponential] * u[exponential])
        r, m = rate[logistic], self.midpoint[logistic, None]
        g[logistic] = (1.0 + np.exp(-r * m)) / (1.0 + np.exp(np.minimum(r * (u[logistic] - m), 60.0)))
        return g

    def time_of(self, g: FloatArray) -> FloatArray:
        """The u at which each shape has `g` [m] left: 0 where g >= 1, infinite where g <= 0."""
        inside = np.clip(g, 1e-12, 1.0)
        powers, logistic = self.power > 0, ~np.isnan(self.midpoint)
        u = -np.log(inside) / self.rate
        u[powers] = (inside[powers] ** (-1.0 / self.power[powers]) - 1.0) / self.rate[powers]
        r, m = self.rate[logistic], self.midpoint[logistic]
        u[logistic] = m + np.log(((1.0 - inside[logistic]) + np.exp(-r * m)) / inside[logistic]) / r
        return np.where(g > 0, np.maximum(u, 0.0), np.inf)


def _all_shapes() -> Shapes:
    rows = [(p, rate, np.nan, share / len(RATES)) for p, share in POWER_SHARES.items() for rate in RATES]
    rows += [(0.0, rate, np.nan, EXPONENTIAL_SHARE / len(RATES)) for rate in RATES]
    logistic = [(r, m) for r in LOGISTIC_RATES for m in LOGISTIC_MIDDLES]
    rows += [(0.0, r, m, LOGISTIC_SHARE / len(logistic)) for r, m in logistic]
    power, rate, midpoint, share = np.array(rows, dtype=np.float64).T
    return Shapes(power, rate, midpoint, share / share.sum(), np.full(len(rows), np.nan))


SHAPES = _all_shapes()
