"""Freeze-thaw: the next epoch goes where a unit of money is expected to improve the best value most.

For each trial its curve is predicted, k = 1, 2, 3, 5 ... epochs ahead (coach.core.estimation.mixture), as a mean and a
standard deviation. With b, the best value of the search so far, its index is

    max over k of  E[max(0, b - y(k))] / (k · cost of an epoch + cost of its start)

and the trial with the largest index gets an epoch. A new trial is taken for one like those that have started (a kernel
density of their curves); it need not be trained to the end: of those that begin, only a part q, the best, goes on
after FIRST epochs. Its index is the largest over k and q.

Ideas: Swersky, Snoek, Adams 2014 (Freeze-Thaw); Wistuba et al. 2022 (DyHPO: expected improvement one step ahead, by
deep kernels); Rakotoarison et al. 2024 (ifBO: a random number of steps ahead).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from coach.core.estimation.forms import FloatArray
from coach.core.estimation.mixture import fit_mixture
from coach.core.estimation.numerics import ndtr
from coach.core.search.trials import End, Next, Search, SearchPolicy, Trial

#: Epochs ahead at which a curve is predicted.
AHEAD = np.array([1.0, 2, 3, 5, 8, 13, 21, 34, 55, 89])
#: Epochs that a trial has before it is judged: one value says nothing of a curve.
FIRST = 2
#: Trials that begin before any is compared with a new one.
LEAST_TRIALS = 8
#: Parts of the trials that begin which go on.
PARTS = np.array([1.0, 1 / 3, 1 / 9])
#: Trials differ from those that started: the bandwidth of a kernel density of J values is this times their deviation
#: times J ** -0.2 (Silverman's rule).
BANDWIDTH = 1.06
#: Centres and width of the functions of a parameter.
CENTRES = np.linspace(0.0, 1.0, 5)
WIDTH = 0.25
#: Mean sum of squares of the functions of one parameter is about 1.77 of 5.
BASIS_NORM = 2.8
#: Parts of the variance between curves that the parameters may leave unexplained; the likeliest is taken.
RESTS = (0.1, 0.3, 0.6, 0.95)
#: The search ends when all money left is expected to improve the best value by less than this part of the fall so far.
WORTH = 2e-3


class _Curve(NamedTuple):
    """Predicted mean and deviation `AHEAD` of the last epoch, and those of an equal trial `AHEAD` of its start."""

    epochs: int
    mean: FloatArray
    deviation: FloatArray
    new_mean: FloatArray
    new_deviation: FloatArray


@dataclass(frozen=True, slots=True)
class FreezeThaw(SearchPolicy):
    """Expected improvement per unit of money."""

    name: ClassVar[str] = "freeze-thaw"
    optimism: float = 2.0  #: deviations count this much, so that what is little known is tried
    _curves: dict[int, _Curve] = field(default_factory=dict, repr=False, compare=False)

    def next(self, search: Search) -> Next | End:
        """See `SearchPolicy`."""
        ready = search.ready
        costs = [one.cost + one.start for one in ready] + [search.new_cost] * (search.new >= 1)
        if costs and min(costs) > search.money:
            return End(f"the money left, {search.money:.4g}, covers no further epoch")
        young = [one for one in ready if len(one.values) < FIRST]
        if young:
            return Next(young[0].number, f"its first {FIRST} epochs")
        if search.new >= 1 and len(search.trials) < LEAST_TRIALS:
            return Next(None, f"the first {LEAST_TRIALS} trials begin")
        new = self._new(search)
        _, trial, gain = max([*self._indices(search, ready), *new], default=(0.0, None, 0.0), key=lambda one: one[0])
        if trial is None and not (ready or search.new >= 1):
            return End("no trial is left that can go on")
        fall = max((one.values[0] for one in search.trials if one.values), default=0.0) - search.best
        if gain <= 5.0 * WORTH * fall and self.outlook(search, search.money) <= WORTH * fall:
            return End(f"no improvement of more than {WORTH * fall:.2g} is to be expected")
        who = "a new trial" if trial is None else f"trial {trial}"
        chosen = max(range(len(new)), key=lambda at: new[at][0], default=0)
        return Next(trial, f"{who} is expected to gain most for its money: {gain:.3g}", chosen)

    def outlook(self, search: Search, money: float) -> float:
        """How much `money` more currency units are expected to improve the best value."""
        more, expects = replace(search, money=money), FreezeThaw(1.0, self._curves)
        found = [*expects._indices(more, search.ready), *expects._new(more)]
        return max((gain for _, _, gain in found), default=0.0)

    def _indices(self, search: Search, ready: list[Trial]) -> list[tuple[float, int | None, float]]:
        """Index, number, and the gain that all money left may bring, of each trial."""
        judged = [one for one in ready if len(one.values) >= FIRST]
        if not judged:
            return []
        curves = [self._curve(one) for one in judged]
        gains = self._gains(search.best, np.array([c.mean for c in curves]), np.array([c.deviation for c in curves]))
        cost = np.array([[one.cost] for one in judged]) * AHEAD + np.array([[one.start] for one in judged])
        left = np.array([[search.left(one)] for one in judged])
        gains = np.where((left >= AHEAD) & (cost <= search.money), gains, 0.0)
        rates = (gains / cost).max(axis=1)
        return [(float(r), one.number, float(g)) for r, one, g in zip(rates, judged, gains.max(axis=1), strict=True)]

    def _new(self, search: Search) -> list[tuple[float, int | None, float]]:
        """The same of each candidate for a new trial."""
        known = [one for one in search.trials if len(one.values) >= FIRST]
        if search.new < 1 or not known:
            return []
        curves = [self._curve(one) for one in known]
        mean, deviation = np.array([c.new_mean for c in curves]), np.array([c.new_deviation for c in curves])
        means, spread = _candidates(search, known, mean, deviation)
        return [
            self._of_new(search, each, np.hypot(deviation, doubt)) for each, doubt in zip(means, spread, strict=True)
        ]

    def _of_new(self, search: Search, mean: FloatArray, deviation: FloatArray) -> tuple[float, None, float]:
        """Of one that is like one of these, any [J, AHEAD]."""
        count = len(mean)
        gains = self._gains(search.best, mean, deviation)
        most = search.max_epochs or np.inf
        total = np.cumsum(-np.sort(-gains, axis=0), axis=0) / count  # of the best 1, 2, ... of them
        index = gain = 0.0
        for part in PARTS:
            some = max(1, round(part * count))
            epochs = np.where(FIRST < AHEAD, FIRST + some / count * (AHEAD - FIRST), AHEAD)
            cost = search.new_cost * epochs
            found = np.where((most >= AHEAD) & (cost <= search.money), total[some - 1], 0.0)
            index = max(index, float((found / cost).max()))
            # All the money left pays for several, whose gains add up to no more than that of the best one.
            several = np.clip(search.money / cost, 1.0, search.new)
            gain = max(gain, float(np.minimum(found * several, gains.max(axis=0)).max()))
        return index, None, gain

    def _gains(self, best: float, mean: FloatArray, deviation: FloatArray) -> FloatArray:
        """Expected improvement on `best` of normal values, any shape."""
        spread = np.maximum(self.optimism * deviation, 1e-12)
        z = (best - mean) / spread
        return np.asarray((best - mean) * ndtr(z) + spread * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi))

    def _curve(self, trial: Trial) -> _Curve:
        """Its prediction, which follows from its values alone."""
        known = self._curves.get(trial.number)
        if known is None or known.epochs != len(trial.values):
            known = self._curves[trial.number] = _predicted(trial.values)
        return known


def _candidates(
    search: Search, known: list[Trial], mean: FloatArray, deviation: FloatArray
) -> tuple[list[FloatArray], list[FloatArray]]:
    """For each candidate the curves [J, AHEAD] that it may have, and how far each is off [AHEAD].

    A regression on the parameters, a sum of smooth functions of each, explains a part of the known curves `mean`. A
    candidate has what it says of its parameters, plus the rest that one of the known curves has. Without parameters,
    or where they explain nothing, it is taken for one of the known curves.
    """
    count = len(known)
    if not search.candidates or {len(one.at) for one in known} != {len(search.candidates[0])}:
        return [mean], [BANDWIDTH * mean.std(axis=0) * count**-0.2]
    basis, other = _basis(np.array([one.at for one in known])), _basis(np.array(search.candidates))
    centre = mean.mean(axis=0)
    scale = np.sqrt(((mean - centre) ** 2).mean(axis=0)) + 1e-9
    z, noise = (mean - centre) / scale, (deviation / scale) ** 2
    half = z.shape[1] // 2
    rest = max(RESTS, key=lambda one: _regression(basis, z[:, half], noise[:, half] + one, 1.0 - one)[0])
    found = [_regression(basis, z[:, k], noise[:, k] + rest, 1.0 - rest) for k in range(z.shape[1])]
    coefficients = np.array([weights for _, weights, _ in found]).T
    doubts = np.array([np.einsum("ij,jk,ik->i", other, covariance, other) for _, _, covariance in found]).T
    unexplained = scale * (z - basis @ coefficients)
    bandwidth = BANDWIDTH * unexplained.std(axis=0) * count**-0.2
    says = centre + scale * (other @ coefficients)
    return [one + unexplained for one in says], [np.hypot(bandwidth, scale * np.sqrt(one)) for one in doubts]


def _regression(
    basis: FloatArray, z: FloatArray, variance: FloatArray, explained: float
) -> tuple[float, FloatArray, FloatArray]:
    """Bayesian linear regression of `z` [J], each with its `variance`: log evidence, coefficients, their covariance.

    The prior of the coefficients is such that `basis` is expected to explain a variance of `explained`.
    """
    from scipy.linalg import cho_factor, cho_solve

    prior = explained / basis.shape[1] * BASIS_NORM
    factor = cho_factor((basis.T / variance) @ basis + np.eye(basis.shape[1]) / prior, lower=True)
    right = basis.T @ (z / variance)
    coefficients = cho_solve(factor, right)
    evidence = 0.5 * (right @ coefficients - (z * z / variance).sum() - np.log(variance).sum())
    evidence -= np.log(np.diag(factor[0])).sum() + 0.5 * basis.shape[1] * np.log(prior)
    return float(evidence), coefficients, cho_solve(factor, np.eye(basis.shape[1]))


def _basis(at: FloatArray) -> FloatArray:
    """Smooth functions of each parameter, [n, parameters * CENTRES]."""
    return np.exp(-0.5 * ((at[:, :, None] - CENTRES) / WIDTH) ** 2).reshape(len(at), -1)


def _predicted(values: tuple[float, ...]) -> _Curve:
    n = len(values)
    z = np.array(values)
    curves = fit_mixture(np.arange(1.0, n + 1.0), z)
    at = curves.values(np.concatenate([n + AHEAD, AHEAD]))
    mean = curves.weight @ at
    deviation = np.sqrt(np.maximum(curves.weight @ (at * at) - mean * mean, 0.0))
    seen = n >= AHEAD
    lowest = np.minimum.accumulate(z)[np.minimum(AHEAD, n).astype(int) - 1]
    size = len(AHEAD)
    return _Curve(
        n, mean[:size], deviation[:size], np.where(seen, lowest, mean[size:]), np.where(seen, 0.0, deviation[size:])
    )
