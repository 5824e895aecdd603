"""A candidate for the speed model: averaged over the size of its deviations and over which measurements are spoiled.

`unseen_speeds` compares it with the present one (coach.core.estimation.kriging). It is not in the product: its
predictions and intervals are better, its decisions in `coach experiment coach-budget` are not (docs/decisions.md).

Measured speeds deviate from any formula by some 10 %, and not at random: the nodes of a job's servers have the same
effect with every number of workers. So the logarithm of speed is modelled as

    ln v(w, s) = -ln form(w, s; theta) + z(w, s) + noise,      theta >= 0,  theta ~ N(form.prior, form.doubt²)
    cov z = a² (SHARED · exp(-|ln w/w'| / REACH_WORKERS - |ln s/s'| / REACH_SERVERS) + (1 - SHARED) [same place])

with noise of variance NOISE² / weight. Eight points cannot say how large a is, nor which of them fell into a slow
minute of the machine. So each `Hypothesis` has a size `a` of SIZES and a set of spoiled points, whose noise is larger
by SPOILED_BY; its weight is its evidence (Laplace's approximation around theta). A prediction is the weighted mean
over the hypotheses; its interval has the quantiles of the mixture of their normal distributions, whose heavy tails
need no further factor. Far from the measurements z returns to 0 and the form alone predicts. What the data cannot
identify keeps the prior's proportion, and its uncertainty stays in the interval.

Theory: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), sections 2.7 (a basis with a prior)
and 5.2 (evidence); for each a `theta` is a bounded least-squares solution, whitened by the covariance of z + noise,
first of the relative error, then by one Gauss-Newton step of ln v.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coach.core.estimation.forms import PARAMETER_SERVER, FloatArray, Form
from coach.core.estimation.numerics import ndtr, nnls

#: Standard deviations of z that are compared; ln a ~ N(ln SIZE_EXPECTED, SIZE_WIDTH²).
SIZES = (0.03, 0.06, 0.12, 0.24, 0.48)
SIZE_EXPECTED, SIZE_WIDTH = 0.07, 0.6
REACH_WORKERS = 1.0  #: in ln workers
REACH_SERVERS = 0.3  #: in ln servers
SHARED = 0.8  #: the part of z's variance that near places have in common
NOISE = 0.03  #: standard deviation of ln v in one measurement of weight 1
#: Prior probability that a point is spoiled, and the standard deviation of ln v that it then has in addition.
SPOILED, SPOILED_BY = 0.1, 1.0
#: A point is suspected where it is slower than the others say by more than this many standard deviations, with this one
#: of SIZES: a large one would explain the point itself ...
SUSPECT, USUAL = 2.0, 2
#: ... if there are so many points; and so many of them at most.
MIN_TO_SUSPECT, MAX_SPOILED = 4, 2
#: Hypotheses of less weight are dropped.
NEGLIGIBLE = 1e-3
#: No time is below this share of the shortest measured one: far away the terms may sum to 0 ...
FLOOR = 0.02
#: ... and no prediction differs by more than this from the measured speeds, in ln speed (a factor of about 1000); the
#: bounds of an interval by as much again.
FURTHEST = 7.0
#: Halvings by which a quantile of the mixture is enclosed.
BISECTIONS = 25

#: The present form, and work that is divided among both workers and servers, 1/(w s).
FORM = Form(
    "parameter-server",
    lambda w, s: (*PARAMETER_SERVER.terms(w, s), 1.0 / (w * s)),
    np.array([0.357, 0.255, 0.102, 0.031, 0.004, 0.255, 0.0]),
    np.append(PARAMETER_SERVER.doubt, 0.6),
)
#: Shares outside the 80 % interval.
TAILS = (0.1, 0.9)
#: While at most so many places are measured, the next one is where the standard deviation of ln v is largest, if it is
#: larger than this: a gain that is computed from a wrong surface is none.
MAX_DOUBTED, DOUBTFUL = 5, 0.4
#: Minimum relative gain in speed that a probe must promise.
MIN_GAIN = 0.002


class Points(NamedTuple):
    """Measured speeds `v` (epochs/s) at workers `w` and servers `s`, all [n]; noise has variance NOISE² / `weight`."""

    w: FloatArray
    s: FloatArray
    v: FloatArray
    weight: FloatArray


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One fit: its share of the belief, the size of z, the spoiled points, the form's coefficients."""

    weight: float
    size: float
    spoiled: tuple[int, ...]
    theta: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Fits:
    """Fits of h hypotheses to n points: whitening [h, n, n], and what follows from it at the points."""

    size: FloatArray
    theta: FloatArray  #: [h, k], relative to exp(-scale) seconds/epoch
    whiten: FloatArray
    gradient: FloatArray  #: d ln v / d theta, whitened, [h, n, k]
    residual: FloatArray  #: whitened, [h, n]
    covariance: FloatArray  #: of theta, [h, k, k]


@dataclass(frozen=True, slots=True)
class Surface:
    """The hypotheses [h] that are left of a fit to n points."""

    form: Form
    points: Points
    scale: float  #: ln of the speed that theta is relative to
    floor: float
    bounds: tuple[float, float]  #: minimum and maximum ln speed
    hypotheses: tuple[Hypothesis, ...]
    _fits: _Fits
    _weight: FloatArray
    _betas: FloatArray  #: weight of each point in the expected z, [n]

    def log_mean(self, w: FloatArray, s: FloatArray, *, parametric: bool = False) -> FloatArray:
        """Expected ln speed at `w`, `s` [m]; with `parametric` by the form alone."""
        total = np.maximum((self.form.columns(w, s)[:, None, :] @ self._fits.theta.T)[:, 0, :], self.floor)
        mean = self.scale - (np.log(total) * self._weight).sum(axis=1)
        if not parametric:
            mean = mean + (_kernel(w, s, self.points.w, self.points.s) * self._betas).sum(axis=1)
        return np.asarray(np.clip(mean, *self.bounds))

    def believed(self, w: FloatArray, s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of ln speed (not of a new measurement of it) at `w`, `s` [m] by each hypothesis, [m, h]."""
        fits = self._fits
        near = _kernel(w, s, self.points.w, self.points.s)[:, None, :] * (fits.size**2)[:, None]
        half = _products(near, fits.whiten.transpose(0, 2, 1))
        columns = self.form.columns(w, s)
        total = np.maximum((columns[:, None, :] @ fits.theta.T)[:, 0, :], self.floor)
        rest = -columns[:, None, :] / total[:, :, None] - _products(half, fits.gradient)
        spread = (_products(rest, fits.covariance) * rest).sum(axis=-1)
        variance = (fits.size**2) - (half * half).sum(axis=-1) + spread
        mean = self.scale - np.log(total) + (half * fits.residual).sum(axis=-1)
        return np.clip(mean, *self.bounds), np.maximum(variance, 1e-9)

    def quantiles(self, w: FloatArray, s: FloatArray, shares: Sequence[float], noise: float) -> FloatArray:
        """Of ln speed as it would be measured with noise of this variance, at `w`, `s` [m], [shares, m]."""
        mean, variance = self.believed(w, s)
        spread = np.sqrt(variance + noise)
        found = []
        for share in shares:
            low, high = (mean - 5.0 * spread).min(axis=1), (mean + 5.0 * spread).max(axis=1)
            for _ in range(BISECTIONS):
                middle = 0.5 * (low + high)
                below = (ndtr((middle[:, None] - mean) / spread) * self._weight).sum(axis=1) < share
                low, high = np.where(below, middle, low), np.where(below, high, middle)
            found.append(np.clip(0.5 * (low + high), self.bounds[0] - FURTHEST, self.bounds[1] + FURTHEST))
        return np.array(found)

    def doubt(self, w: FloatArray, s: FloatArray) -> FloatArray:
        """The standard deviation of ln speed at `w`, `s` [m], within and between the hypotheses, [m]."""
        mean, variance = self.believed(w, s)
        middle = (mean * self._weight).sum(axis=1)
        return np.asarray(np.sqrt(((variance + (mean - middle[:, None]) ** 2) * self._weight).sum(axis=1)))

    def improvement(self, w: FloatArray, s: FloatArray, above: FloatArray | float) -> FloatArray:
        """The expected improvement in ln speed of a measurement at `w`, `s` [m] over `above` (ln epochs/s), [m].

        Jones, Schonlau and Welch (1998), equation 15, averaged over the hypotheses.
        """
        mean, variance = self.believed(w, s)
        gains = _improvement(mean, np.sqrt(variance), _column(above, len(w)))
        return np.asarray((gains * self._weight).sum(axis=1))


def fit(speeds: Mapping[tuple[int, int], float]) -> Surface:
    """The surface through measured speeds, epochs/s by (workers, servers)."""
    w, s = np.array(list(speeds), dtype=np.float64).T
    points = Points(w, s, np.array(list(speeds.values())), np.ones(len(speeds)))
    return surface(FORM, points, fit_surface(FORM, points))


def next_probe(
    speeds: Mapping[tuple[int, int], float], candidates: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """The place to measure next; None where none promises a gain.

    First the smallest; then, while few were measured, the one most in doubt; then that of the largest expected
    improvement over the measured place with the highest predicted speed.
    """
    new = [at for at in candidates if at not in speeds]
    if not speeds or not new:
        return min(new, key=lambda at: (at[0] * at[1], at), default=None)
    found, places = fit(speeds), np.array(new, dtype=np.float64).T
    if len(speeds) <= MAX_DOUBTED:
        doubt = found.doubt(*places)
        if doubt.max() > DOUBTFUL:
            return new[int(np.argmax(doubt))]
    best = float(found.log_mean(found.points.w, found.points.s).max())
    gain = found.improvement(*places, best)
    first = int(np.argmax(gain))
    return new[first] if gain[first] >= MIN_GAIN else None


def fit_surface(form: Form, points: Points) -> tuple[Hypothesis, ...]:
    """The hypotheses that explain one or more points, those of negligible weight left out."""
    problem, sizes = _Problem.of(form, points), np.array(SIZES)
    found, evidence = list[Hypothesis](), list[float]()
    sets: list[tuple[int, ...]] = [()]
    for spoiled in sets:  # grows meanwhile
        whiten = problem.whitening(sizes, [spoiled] * len(sizes))
        theta = problem.coefficients(whiten)
        fits = problem.fits(sizes, theta, whiten)
        found += [Hypothesis(0.0, a, spoiled, tuple(t)) for a, t in zip(SIZES, theta.tolist(), strict=True)]
        evidence += _evidence(form, fits, len(spoiled)).tolist()
        if len(points.v) < MIN_TO_SUSPECT or len(spoiled) == MAX_SPOILED:
            continue
        above, variance = (each[USUAL] for each in _left_out(fits))
        scores = above / np.sqrt(variance)
        scores[list(spoiled)] = 0.0
        slowest = [int(point) for point in np.argsort(scores)[:MAX_SPOILED] if scores[point] < -SUSPECT]
        for more in ([*spoiled, point] for point in slowest):
            if tuple(sorted(more)) not in sets:
                sets.append(tuple(sorted(more)))
    belief = np.exp(np.array(evidence) - max(evidence))
    belief /= belief.sum()
    kept = belief > NEGLIGIBLE
    belief /= belief[kept].sum()
    return tuple(
        Hypothesis(weight, each.size, each.spoiled, each.theta)
        for each, weight, keep in zip(found, belief.tolist(), kept.tolist(), strict=True)
        if keep
    )


def surface(form: Form, points: Points, hypotheses: tuple[Hypothesis, ...]) -> Surface:
    """The surface of these hypotheses, which `fit_surface` found for the same points."""
    problem = _Problem.of(form, points)
    size = np.array([each.size for each in hypotheses])
    whiten = problem.whitening(size, [each.spoiled for each in hypotheses])
    fits = problem.fits(size, np.array([each.theta for each in hypotheses]), whiten)
    weight = np.array([each.weight for each in hypotheses])
    alpha = (whiten.transpose(0, 2, 1) @ fits.residual[:, :, None])[:, :, 0]
    betas = ((weight * size**2)[:, None] * alpha).sum(axis=0)
    log_v = np.log(points.v)
    return Surface(
        form=form,
        points=points,
        scale=problem.scale,
        floor=problem.floor,
        bounds=(float(log_v.min()) - FURTHEST, float(log_v.max()) + FURTHEST),
        hypotheses=hypotheses,
        _fits=fits,
        _weight=weight,
        _betas=betas,
    )


def _kernel(w: FloatArray, s: FloatArray, to_w: FloatArray, to_s: FloatArray) -> FloatArray:
    """The correlation of z between [m] and [n] places, [m, n]."""
    w, s = w[:, None], s[:, None]
    apart = (
        np.abs(np.log(w) - np.log(to_w)) / REACH_WORKERS + np.abs(np.log(s) - np.log(to_s)) / REACH_SERVERS
    )
    return np.asarray(SHARED * np.exp(-apart) + (1.0 - SHARED) * ((w == to_w) & (s == to_s)))


@dataclass(frozen=True, slots=True)
class _Problem:
    """What all hypotheses about n points share. `log_v` is relative to `scale`, so that no unit matters."""

    form: Form
    columns: FloatArray
    log_v: FloatArray
    noise: FloatArray
    correlation: FloatArray
    scale: float
    floor: float  #: the shortest time that is computed with

    @classmethod
    def of(cls, form: Form, points: Points) -> _Problem:
        columns, log_v = form.columns(points.w, points.s), np.log(points.v)
        scale = float((log_v + np.log(columns @ form.prior)).mean())
        relative = np.clip(log_v - scale, -FURTHEST, FURTHEST)
        correlation = _kernel(points.w, points.s, points.w, points.s)
        floor = FLOOR * math.exp(-float(relative.max()))
        return cls(form, columns, relative, NOISE**2 / points.weight, correlation, scale, floor)

    def whitening(self, size: FloatArray, spoiled: Sequence[tuple[int, ...]]) -> FloatArray:
        """Inverse Cholesky factors of cov(z + noise), [h, n, n]."""
        covariance = (size**2)[:, None, None] * self.correlation
        diagonal = np.arange(len(self.log_v))
        covariance[:, diagonal, diagonal] += self.noise
        for each, of_it in zip(covariance, spoiled, strict=True):
            for point in of_it:
                each[point, point] += SPOILED_BY**2
        return np.linalg.inv(np.linalg.cholesky(covariance))

    def coefficients(self, whiten: FloatArray) -> FloatArray:
        """Theta of each whitening, [h, k]."""
        count, width = len(self.log_v), len(self.form.prior)
        rows = np.empty((len(whiten), count + width, width))
        values = np.empty((len(whiten), count + width))
        rows[:, count:] = np.diag(1.0 / self.form.doubt)
        values[:, count:] = self.form.prior / self.form.doubt
        rows[:, :count] = whiten @ (self.columns * np.exp(self.log_v)[:, None])
        values[:, :count] = whiten.sum(axis=2)
        theta = np.array([nnls(*each) for each in zip(rows, values, strict=True)])
        total = np.maximum(theta @ self.columns.T, self.floor)
        sensitivity = self.columns / total[:, :, None]
        wanted = (sensitivity @ theta[:, :, None])[:, :, 0] - self.log_v - np.log(total)
        rows[:, :count] = whiten @ sensitivity
        values[:, :count] = (whiten @ wanted[:, :, None])[:, :, 0]
        return np.array([nnls(*each) for each in zip(rows, values, strict=True)])

    def fits(self, size: FloatArray, theta: FloatArray, whiten: FloatArray) -> _Fits:
        """The fits with these coefficients."""
        total = np.maximum(theta @ self.columns.T, self.floor)
        gradient = -whiten @ (self.columns / total[:, :, None])
        residual = (whiten @ (self.log_v + np.log(total))[:, :, None])[:, :, 0]
        information = gradient.transpose(0, 2, 1) @ gradient + np.diag(self.form.doubt**-2.0)
        return _Fits(size, theta, whiten, gradient, residual, np.asarray(np.linalg.inv(information)))


def _evidence(form: Form, fits: _Fits, spoiled: int) -> FloatArray:
    """The logarithm of each hypothesis's evidence, but for a constant, [h]."""
    _, log_determinant = np.linalg.slogdet(fits.covariance)
    return np.asarray(
        -0.5 * (fits.residual**2).sum(axis=1)
        - 0.5 * (((fits.theta - form.prior) / form.doubt) ** 2).sum(axis=1)
        + np.log(np.diagonal(fits.whiten, axis1=1, axis2=2)).sum(axis=1)
        + 0.5 * log_determinant
        - 0.5 * (np.log(fits.size / SIZE_EXPECTED) / SIZE_WIDTH) ** 2
        + spoiled * math.log(SPOILED / (1.0 - SPOILED))
    )


def _left_out(fits: _Fits) -> tuple[FloatArray, FloatArray]:
    """By how much ln v of each point is above what the others predict; the variance of that prediction, [h, n] both."""
    whiten, gradient = fits.whiten, fits.gradient
    explained = np.eye(whiten.shape[1]) - gradient @ fits.covariance @ gradient.transpose(0, 2, 1)
    precision = np.diagonal(whiten.transpose(0, 2, 1) @ explained @ whiten, axis1=1, axis2=2)
    variance = 1.0 / np.maximum(precision, 1e-12)
    return (whiten.transpose(0, 2, 1) @ fits.residual[:, :, None])[:, :, 0] * variance, variance


def _density(error: FloatArray, variance: FloatArray) -> FloatArray:
    """Of normal errors, but for a constant; positive."""
    return np.maximum(np.exp(-0.5 * error**2 / variance) / np.sqrt(variance), 1e-300)


def _products(rows: FloatArray, matrices: FloatArray) -> FloatArray:
    """`rows` [m, h, i] by `matrices` [h, i, j], [m, h, j]: to the bit the same for all places at once and for each."""
    total = np.zeros((*rows.shape[:2], matrices.shape[2]))
    for i in range(matrices.shape[1]):
        total += rows[:, :, i, None] * matrices[:, i]
    return total


def _column(above: FloatArray | float, length: int) -> FloatArray:
    return np.broadcast_to(np.asarray(above, dtype=np.float64), length)[:, None]


def _improvement(mean: FloatArray, spread: FloatArray, best: FloatArray) -> FloatArray:
    ahead = (mean - best) / spread
    density = np.exp(-0.5 * ahead * ahead) / math.sqrt(2.0 * math.pi)
    return np.asarray(spread * (ahead * ndtr(ahead) + density))
