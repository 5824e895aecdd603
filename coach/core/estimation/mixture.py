"""A learning curve as a mixture of all shapes and noises that could explain it.

For each shape (coach.core.estimation.curve_families) and each kind of noise, the curve is a straight line in h, the
share of its way that the shape has covered:

    z(x) = start - drop · h(x) + noise,    h = (1 - g(x)) / (1 - g(now)),    end = start - drop / (1 - g(now))

so its posterior and its evidence are closed formulas (conjugate Bayesian regression with two coefficients). Scaled
by the drop seen so far nothing depends on the unit of loss. The posterior of all 96 shapes x 21 kinds of noise, by
evidence, is then represented by weighted samples (3 x 3 Gauss-Hermite nodes a component): curves that explain the data,
from which all predictions are computed, deterministically. That is done for several memories, which count alike.

Shapes of earlier runs of the same program expect the fall that those had, whatever was seen of this one: a curve that
rests at its beginning may drop later.

`z` is the falling quantity: the loss, or 1 - accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from coach.core.estimation.curve_families import FALL_DOUBT, SHAPES, Shapes
from coach.core.estimation.forms import FloatArray, IndexArray
from coach.core.estimation.observations import KnownCurve

# Round numbers from a range in which the errors on three groups of curves (LeNet, ResNet-18, small models) are flat:
# the table "settings, last epoch" of results/estimators has each times 2/3 and 3/2, and the choice when one group is
# left out.
#: Late points weigh more: the i-th of n has weight (i / n) ** late. How much a curve's past says of its future differs
#: from job to job, so three memories count alike, each with its `late` and the share of the last values that it sees.
MEMORIES = ((2.0, 1.0), (8.0, 1.0), (2.0, 0.5))
#: Values of which a half is fitted alone.
MIN_TO_HALVE = 12
#: Neighbouring residuals are not independent: n points count as this share of n.
TEMPER = 0.8
#: No formula is exact: a value d above the latest ones has an error of this share of d in addition to its noise. So a
#: smooth curve is followed closely at its end, and loosely at its start.
OUTLIERS = (0.0, 0.1, 0.2)
#: Noises considered, as shares of the drop seen so far, each with every one of OUTLIERS.
NOISES = np.repeat(np.geomspace(0.01, 1.0, 7), len(OUTLIERS))
OUTLIER = np.tile(OUTLIERS, len(NOISES) // len(OUTLIERS))
#: Median and width (in ln) of the noise expected.
NOISE_EXPECTED, NOISE_WIDTH = 0.1, 1.0
#: Standard deviations of start (around the first value) and drop (around the drop seen), as shares of the latter.
START_DOUBT, DROP_DOUBT = 0.8, 1.0
#: Components kept: the likeliest, which hold nearly all of the probability.
KEPT = 100
#: A curve seen n times is assumed to have fallen by at least this share of its value / n².
MIN_DROP = 0.3

_NODE = np.sqrt(3.0)
_FIRST, _SECOND = (grid.ravel() for grid in np.meshgrid([-_NODE, 0.0, _NODE], [-_NODE, 0.0, _NODE], indexing="ij"))
_NODE_WEIGHTS = np.outer([1 / 6, 2 / 3, 1 / 6], [1 / 6, 2 / 3, 1 / 6]).ravel()


@dataclass(frozen=True, slots=True)
class Mixture:
    """Weighted curves z(x) = start - drop · (1 - g((x - origin) / span)) / done; all [m]."""

    origin: FloatArray
    span: FloatArray
    shapes: Shapes
    done: FloatArray  #: 1 - g(now)
    start: FloatArray
    drop: FloatArray
    noise: FloatArray  #: standard deviation of one measured value
    weight: FloatArray  #: sums to 1

    @property
    def end(self) -> FloatArray:
        """The value at which each curve levels off, [m]."""
        return self.start - self.drop / self.done

    def values(self, x: FloatArray) -> FloatArray:
        """Each curve at each `x` [n], [m, n]."""
        u = np.maximum((x - self.origin[:, None]) / self.span[:, None], 0.0)
        share = (1.0 - self.shapes.remaining(u)) / self.done[:, None]
        return np.asarray(self.start[:, None] - self.drop[:, None] * share)

    def crossings(self, target: float) -> FloatArray:
        """The x at which each curve comes down to `target`, infinite where it never does, [m]."""
        left = 1.0 - (self.start - target) * self.done / self.drop
        return np.asarray(self.origin + self.span * self.shapes.time_of(left))

    def take(self, which: IndexArray) -> Mixture:
        """The curves at the indices `which`, equally weighted."""
        kept = {name: getattr(self, name)[which] for name in _COLUMNS}
        return Mixture(**kept, shapes=self.shapes.take(which), weight=np.full(len(which), 1.0 / len(which)))


_COLUMNS = [field.name for field in fields(Mixture) if field.name not in {"shapes", "weight"}]


def fit_mixture(x: FloatArray, z: FloatArray, shapes: Shapes = SHAPES, known: Sequence[KnownCurve] = ()) -> Mixture:
    """The curves of `shapes` that explain `z` at `x`, both [n], n >= 1, x not falling: what each of MEMORIES sees.

    `known`: earlier runs of the same program, whose shapes are added.
    """
    found = []
    for late, share in MEMORIES:
        seen = math.ceil(share * len(z))
        if seen == len(z) or len(z) >= MIN_TO_HALVE:
            found.append(_remembered(x[-seen:], z[-seen:], shapes, late, known))
    return _pooled(found)


def likeliest(x: FloatArray, z: FloatArray) -> KnownCurve:
    """The shape that explains `z` at `x` best, as in `fit_mixture`, for later runs of the same program."""
    curves = _remembered(x, z, SHAPES, MEMORIES[0][0])
    at = int(np.argmax(curves.weight))
    span, shapes = curves.span[at], curves.shapes
    found = shapes.power[at], shapes.rate[at] / span, np.nan_to_num(shapes.midpoint[at]) * span
    return KnownCurve(*map(float, (*found, curves.drop[at] / curves.done[at])))


def _pooled(mixtures: Sequence[Mixture]) -> Mixture:
    """Curves of several mixtures, which count alike."""
    return Mixture(
        shapes=Shapes(
            *(np.concatenate([getattr(one.shapes, field.name) for one in mixtures]) for field in fields(Shapes))
        ),
        weight=np.concatenate([one.weight / len(mixtures) for one in mixtures]),
        **{name: np.concatenate([getattr(one, name) for one in mixtures]) for name in _COLUMNS},
    )


def _remembered(x: FloatArray, z: FloatArray, shapes: Shapes, late: float, known: Sequence[KnownCurve] = ()) -> Mixture:
    """The curves that explain `z` at `x`, with weights that rise with `late`."""
    n = len(z)
    span = max(float(x[-1] - x[0]), 1.0)
    shapes = shapes.with_known(known, span)
    quarter = n // 4 + 1
    unit = max(float(z[:quarter].max() - z[-quarter:].min()), MIN_DROP / n**2 * float(np.abs(z).max()), 1e-12)
    left = shapes.remaining(np.append((x - x[0]) / span, 1.0))
    done = 1.0 - np.minimum(left[:, -1], 1.0 - 1e-9)
    share = (1.0 - left[:, :-1]) / done[:, None]
    y = (z - z[0]) / unit
    weights = TEMPER * (np.arange(1, n + 1) / n) ** late
    away = np.abs(z - np.median(z[-quarter:])) / unit
    variance = NOISES[:, None] ** 2 + (OUTLIER[:, None] * away) ** 2
    sure = weights / variance

    # Posterior of (start, drop) for every shape [m] and noise [k], [m, k]: precision [[p11, p12], [p12, p22]].
    expected = np.where(np.isnan(shapes.fall), 1.0, np.clip(shapes.fall * done / unit, 1e-9, 1e9))
    doubt = np.where(np.isnan(shapes.fall), DROP_DOUBT, FALL_DOUBT * expected)
    prior = doubt[:, None] ** -2.0
    p11 = START_DOUBT**-2.0 + sure.sum(axis=1)
    p12 = -share @ sure.T
    p22 = prior + (share * share) @ sure.T
    b1 = sure @ y
    b2 = prior * expected[:, None] - share @ (sure * y).T
    determinant = p11 * p22 - p12 * p12
    start, drop = (p22 * b1 - p12 * b2) / determinant, (p11 * b2 - p12 * b1) / determinant
    misfit = sure @ (y * y) + prior * expected[:, None] ** 2 - (start * b1 + drop * b2)
    belief = (
        -0.5 * misfit
        - 0.5 * np.log(determinant)
        - 0.5 * np.log(variance) @ weights
        - 0.5 * (np.log(NOISES / NOISE_EXPECTED) / NOISE_WIDTH) ** 2
        + np.log(shapes.share / doubt)[:, None]
    )
    kept = np.argsort(-belief, axis=None)[:KEPT]
    shape, noise = np.unravel_index(kept, belief.shape)
    weight = np.exp(belief[shape, noise] - belief.max())

    # Nodes along the Cholesky factor of each component's covariance.
    at = (shape, noise)
    l11 = np.sqrt(p22[at] / determinant[at])
    l21 = -p12[at] / determinant[at] / l11
    l22 = 1.0 / np.sqrt(p22[at])
    starts = z[0] + unit * (start[at][:, None] + l11[:, None] * _FIRST)
    drops = unit * (drop[at][:, None] + l21[:, None] * _FIRST + l22[:, None] * _SECOND)
    repeated = np.repeat(shape, len(_NODE_WEIGHTS))
    curves = Mixture(
        origin=np.full(len(repeated), x[0]),
        span=np.full(len(repeated), span),
        shapes=shapes.take(repeated),
        done=done[repeated],
        start=starts.ravel(),
        drop=drops.ravel(),
        noise=np.repeat(NOISES[noise] * unit, len(_NODE_WEIGHTS)),
        weight=(weight[:, None] * _NODE_WEIGHTS).ravel(),
    )
    return _possible(curves, positive=bool(z.min() > 0))


def _possible(curves: Mixture, *, positive: bool) -> Mixture:
    """Without the curves that rise, and without those that end below zero though every value seen was above."""
    weight = np.where(curves.drop > 0, curves.weight, 0.0)
    if positive:
        bounded = np.where(curves.end >= 0, weight, 0.0)
        weight = bounded if bounded.sum() > 0 else weight
    if weight.sum() <= 0:  # every explanation rises: keep the flattest
        weight = np.where(curves.drop == curves.drop.max(), 1.0, 0.0)
    which = np.flatnonzero(weight)
    kept = curves.take(which)
    drop = np.maximum(kept.drop, 1e-12 * np.maximum(np.abs(kept.start), 1.0))
    return replace(kept, drop=drop, weight=weight[which] / weight.sum())
