"""Speed of a job as a function of its workers and servers: fit, predict with an interval, choose the next probe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from coach.core.estimation.drift import at_present_level, merged
from coach.core.estimation.forms import ALL_REDUCE, EITHER, FORMS, NO_SERVERS, PARAMETER_SERVER, FloatArray, FormName
from coach.core.estimation.interval import Interval, log_normal
from coach.core.estimation.kriging import NOISE, Fit, fit_form
from coach.core.estimation.numerics import ndtr
from coach.core.estimation.observations import SpeedPoint

__all__ = ["SpeedModel", "SpeedPoint", "fit_speed"]

#: The computed variance is that of coefficients of any sign. As they are not negative, the true speed is less uncertain
#: by this factor. On the models of tests/data/ps-speed, from 8 points that Coach chose, 80 % intervals then hold 90 %
#: of the true speeds, 84 % with measurements off by 5 % (results/estimators).
CALIBRATION = 0.75
#: Share of measurements in a slow minute of the machine, and the largest factor by which that slows them down.
SLOW_MINUTES = 0.1
MAX_SLOWED = 4.0
#: A pod must speed a job up by at least this part of its pods' average contribution. With one worker and one server
#: that is 2.5 %; two mini-epochs in a row differ by more.
MIN_EFFICIENCY = 0.05
#: Epochs/s without a known limit: finite, for logarithms.
FASTEST = 1e300
#: Speeds (epochs/s) and weights beyond these are no measurements; products of those between them are finite.
MEASURABLE = (1e-30, 1e30)
#: A part of an epoch that counts as zero.
MIN_PART = 1e-30


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """A fitted surface: a form, and the points it was fitted to (one a configuration).

    Where nothing was measured it is never above the bound that the workers' computing sets (`upper_bound`).

    JSON round trip through `to_dict` and `from_dict`, which fits nothing: commands that only read start without SciPy.
    """

    form: FormName
    points: tuple[SpeedPoint, ...]
    #: Variance of ln speed in one measurement of this job, from its repeated ones.
    noise: float = NOISE**2
    #: The fit's `theta`, where it is known; it follows from form and points.
    theta: tuple[float, ...] | None = field(default=None, repr=False, compare=False)
    fit: Fit = field(init=False, repr=False, compare=False)
    #: Cached intervals and speeds: each decision reads many of them again.
    _known: dict[tuple[int, int], Interval] = field(init=False, repr=False, compare=False, default_factory=dict)
    _speeds: dict[tuple[int, int], float] = field(init=False, repr=False, compare=False, default_factory=dict)
    _expected: dict[tuple[tuple[int, int], ...], FloatArray] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    #: Means and variances of ln speed at the places that were last read together: with and without the measurements
    #: there.
    _beliefs: dict[tuple[bool, tuple[tuple[int, int], ...]], tuple[FloatArray, FloatArray]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "fit", fitted(self.form, self.points, self.theta))

    def times(self, pace: float) -> SpeedModel:
        """The same surface, `pace` times as fast everywhere."""
        faster = tuple(replace(point, epochs_per_second=point.epochs_per_second * pace) for point in self.points)
        return SpeedModel(self.form, faster, self.noise, tuple(self.fit.theta.tolist()))

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The form's coefficients (coach.core.estimation.forms), in seconds/epoch."""
        return tuple((self.fit.theta / self.fit.scale).tolist())

    def predict(self, workers: int, servers: int) -> float:
        """Epochs/s with `workers` and `servers`; always positive and finite."""
        found = self._speeds.get((workers, servers))
        if found is None:
            found = self.fit.predict_one(float(workers), _fitted_servers(servers))
            for limit in self._limits([(workers, servers)]):
                found = min(found, limit.expected)
            self._speeds[workers, servers] = found
        return found

    def parametric(self, workers: int, servers: int) -> float:
        """Epochs/s by the form alone, without the measured deviations from it: smooth, one peak along each axis."""
        return self.fit.predict_one(float(workers), _fitted_servers(servers), parametric=True)

    def predict_all(self, where: Sequence[tuple[int, int]]) -> FloatArray:
        """`predict` at many (workers, servers) at once, [m]."""
        speeds = np.asarray(np.exp(self.fit.log_mean(*_places(where))))
        limits = [limit.expected for limit in self._limits(where)]
        return np.asarray(np.minimum(speeds, limits)) if limits else speeds

    def upper_bound(self, where: Sequence[tuple[int, int]]) -> list[Interval]:
        """An upper bound of the speed at each of `where`, epochs/s, from the workers' measured computing.

        Where an epoch takes T and a worker's busiest thread computes for a part c of it, with (w, s),

            T(w', s') >= T (c + (1 - c) s/s') min(1, w/w'),   w' >= w, s' >= s:

        a server cannot take over a worker's computing, twice as many servers at most halve its waiting, and twice as
        many workers are at most twice as fast. With fewer of either T c min(1, w/w') remains. Without servers s = s'.
        The interval follows from the bounds of the measured speeds; FASTEST where no computing was measured.
        """
        bounds = np.full((3, len(where)), FASTEST)
        busy = [point for point in self.points if point.computing_part > 0.0]
        if busy:
            w, s = _places(where)
            speeds = self._fitted([(point.workers, point.servers) for point in busy])
            for point, speed in zip(busy, speeds, strict=True):
                servers = _fitted_servers(point.servers)
                more = (w >= point.workers) & (s >= servers)
                waiting = np.where(more, (1.0 - point.computing_part) * servers / s, 0.0)
                part = (point.computing_part + waiting) * np.minimum(1.0, point.workers / w)
                part = np.maximum(part, MIN_PART)
                bounds = np.minimum(bounds, np.array([*speed])[:, None] / part)
        return [Interval(*of_place) for of_place in bounds.T.tolist()]

    def _limits(self, where: Sequence[tuple[int, int]]) -> list[Interval]:
        """`upper_bound` without a limit for what was measured; empty where no computing was measured."""
        if not any(point.computing_part > 0.0 for point in self.points):
            return []
        measured = {(point.workers, point.servers) for point in self.points}
        free = Interval(FASTEST, FASTEST, FASTEST)
        return [
            free if place in measured else bound for place, bound in zip(where, self.upper_bound(where), strict=True)
        ]

    def interval(self, workers: int, servers: int) -> Interval:
        """The 80 % interval of the speed that would be measured, epochs/s."""
        if (workers, servers) not in self._known:
            self._known[workers, servers] = self.intervals([(workers, servers)])[0]
        return self._known[workers, servers]

    def precompute(self, where: Sequence[tuple[int, int]]) -> None:
        """Compute the intervals at all of `where` at once, before most of them are read."""
        if not self._known.keys() >= set(where):
            self._known.update(zip(where, self.intervals(where), strict=True))

    def expected(self, where: tuple[tuple[int, int], ...]) -> FloatArray:
        """The expected value of `interval` at each of `where`, [m], epochs/s."""
        if where not in self._expected:
            self.precompute(where)
            self._expected[where] = np.array([self._known[place].expected for place in where])
        return self._expected[where]

    def intervals(self, where: Sequence[tuple[int, int]]) -> list[Interval]:
        """`interval` at many (workers, servers) at once: the same, to the bit, as one by one."""
        found, limits = self._fitted(where), self._limits(where)
        if not limits:
            return found
        return [Interval(*map(min, fit, limit)) for fit, limit in zip(found, limits, strict=True)]

    def _fitted(self, where: Sequence[tuple[int, int]]) -> list[Interval]:
        """`intervals` by the fit alone."""
        # A product with all rows at once may round differently from one with each row.
        w, s = (counts[:, None] for counts in _places(where))
        spread = np.sqrt(CALIBRATION**2 * self.fit.log_variance(w, s) + self.noise)
        mean = self.fit.log_mean(w, s)
        return [
            log_normal(math.exp(m), sd) for m, sd in zip(mean.ravel().tolist(), spread.ravel().tolist(), strict=True)
        ]

    def improvement(self, where: Sequence[tuple[int, int]], above: float | Sequence[float]) -> FloatArray:
        """The expected improvement, in ln speed, of a measurement at each of `where` over `above` (epochs/s), [m].

        `above` is one speed, or one for each place.
        """
        mean, variance = self._believed(tuple(where), left_out=False)
        return _improvement(mean, np.sqrt(variance), np.log(np.asarray(above, dtype=np.float64)))

    def _believed(self, where: tuple[tuple[int, int], ...], *, left_out: bool) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of ln speed at each of `where` [m]; `left_out`: from measurements at other places only."""
        key = left_out, where
        if key not in self._beliefs:
            # Only the last one of each kind is read again, until there is a new measurement.
            for old in [old for old in self._beliefs if old[0] is left_out]:
                del self._beliefs[old]
            if left_out:
                mean, variance = self._left_out(where)
            else:
                mean, variance = self.fit.log_mean(*_places(where)), self.fit.log_variance(*_places(where))
            self._beliefs[key] = mean, variance
        return self._beliefs[key]

    def _left_out(self, where: Sequence[tuple[int, int]]) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of ln speed at each measured place of `where` [m], by a fit to all other points."""
        columns = np.array(_columns(self.points))
        index = {(p.workers, p.servers): i for i, p in enumerate(self.points)}
        found = []
        for at in map(index.__getitem__, where):
            fit = fit_form(self.fit.form, *np.delete(columns, at, axis=1))
            w, s = columns[:2, at : at + 1]
            found.append((fit.log_mean(w, s)[0], fit.log_variance(w, s)[0]))
        mean, variance = np.array(found).T
        return mean, variance

    def improvement_again(self, where: Sequence[tuple[int, int]], above: float | Sequence[float]) -> FloatArray:
        """`improvement` by measuring each of `where` a second time, as its one measurement may be an outlier, [m].

        An outlier is a measurement in a slow minute: with probability SLOW_MINUTES it is slower than the true speed by
        a factor of up to MAX_SLOWED, all factors equally likely. Its probability follows from the other measurements'
        prediction for the place. The result is 0 where there are none, or where the place was not measured itself.
        """
        index = {(p.workers, p.servers): i for i, p in enumerate(self.points)}
        levels = np.log(np.broadcast_to(np.asarray(above, dtype=np.float64), len(where)))
        known = [place for place in where if place in index]
        best = np.array([level for place, level in zip(where, levels.tolist(), strict=True) if place in index])
        if len(self.points) < 2 or not known:
            return np.zeros(len(where))
        columns = _columns(self.points)
        at = np.array([index[place] for place in known])
        mean, variance = self._believed(tuple(known), left_out=True)
        spread = np.sqrt(variance)
        off = (np.log(columns[2][at]) - mean) / spread
        slowed = (ndtr(off + math.log(MAX_SLOWED) / spread) - ndtr(off)) / math.log(MAX_SLOWED)
        noisy = np.sqrt(variance + NOISE**2 / columns[3][at])
        plain = np.exp(-0.5 * (off * spread / noisy) ** 2) / (noisy * math.sqrt(2.0 * math.pi))
        mistaken = SLOW_MINUTES * slowed
        share = mistaken / np.maximum(mistaken + (1.0 - SLOW_MINUTES) * plain, 1e-300)
        gains = dict(zip(known, (share * _improvement(mean, spread, best)).tolist(), strict=True))
        return np.array([gains.get(place, 0.0) for place in where])

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        points = [
            [
                p.workers,
                p.servers,
                p.epochs_per_second,
                p.weight,
                *([p.computing_part] if p.computing_part else []),
            ]
            for p in self.points
        ]
        return {"form": self.form, "points": points, "noise": self.noise, "theta": self.fit.theta.tolist()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SpeedModel:
        """The model that `to_dict` described."""
        points = tuple(SpeedPoint(*point) for point in data["points"])
        form = _form(points, data["form"] == EITHER.name)
        theta = data.get("theta")  # old journals have none, or one of another form
        known = tuple(theta) if theta and data["form"] == form else None
        return cls(form, points, data.get("noise", NOISE**2), known)


@lru_cache(maxsize=64)
def fitted(form: FormName, points: tuple[SpeedPoint, ...], theta: tuple[float, ...] | None) -> Fit:
    """The fit to `points`, cached: a model is often read again soon after."""
    return fit_form(FORMS[form], *_columns(points), None if theta is None else np.array(theta))


def fit_speed(points: Sequence[SpeedPoint], either: bool = False) -> SpeedModel:
    """The surface through one or more `points`, in the order measured: parameter servers, or all-reduce without any.

    `either`: of a job that may have servers or none, whatever was measured so far.
    They are scaled to the present level (`at_present_level`), and those of one configuration are combined (`merged`).
    Points with a speed or weight outside MEASURABLE are left out. Raises ValueError when none is left.
    """
    low, high = MEASURABLE
    usable = [p for p in points if low <= p.epochs_per_second <= high and low <= p.weight <= high]
    if not usable:
        raise ValueError(f"fit_speed needs a point with a positive speed, got {len(points)} without")
    now, noise = at_present_level(usable)
    known = merged(now)
    return SpeedModel(_form(known, either), known, noise)


def _form(points: Sequence[SpeedPoint], either: bool) -> FormName:
    served = {point.servers > 0 for point in points}
    if either or len(served) > 1:
        return EITHER.name
    return (PARAMETER_SERVER if True in served else ALL_REDUCE).name


def _improvement(mean: FloatArray, spread: FloatArray, best: float | FloatArray) -> FloatArray:
    ahead = (mean - best) / spread
    density = np.exp(-0.5 * ahead * ahead) / math.sqrt(2.0 * math.pi)
    return np.asarray(spread * (ahead * ndtr(ahead) + density))


def _fitted_servers(servers: int) -> float:
    """The servers that a model is fitted with."""
    return float(servers or NO_SERVERS)


def _places(where: Sequence[tuple[int, int]]) -> tuple[FloatArray, FloatArray]:
    w, s = np.array(where, dtype=np.float64).reshape(-1, 2).T
    return w, np.maximum(s, NO_SERVERS)


def _columns(points: Sequence[SpeedPoint]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    w, s, v, weight = np.array(
        [(p.workers, _fitted_servers(p.servers), p.epochs_per_second, p.weight) for p in points],
        dtype=np.float64,
    ).T
    return w, s, v, weight
