"""The learning curve of a job, and when it reaches its target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from coach.core.estimation.first_passage import ending_times
from coach.core.estimation.forms import FloatArray
from coach.core.estimation.interval import Interval
from coach.core.estimation.mixture import Mixture, fit_mixture, likeliest
from coach.core.estimation.observations import CurvePoint, KnownCurve

__all__ = ["ConvergenceModel", "CurvePoint", "Metric", "fit_convergence", "likeliest_curve"]

#: A loss falls; an accuracy rises to the `ceiling`; a score rises, and its best value is not known.
Metric = Literal["loss", "accuracy", "score"]

#: The weight of a curve that never reaches the target is multiplied by this: users choose targets that they expect to
#: reach.
UNREACHED = 0.25
#: With a smaller probability of reaching the target, the result is "no solution".
MIN_CHANCE = 0.03
#: Probability outside the interval on either side. 0.12, not 0.1: on the small models (coach/simulation/data)
#: these bounds already hold the true value 80-90 % of the time.
TAIL = 0.12
#: Latest values whose distances are looked at.
GAPS = 6
#: A loss, a target or an x further from zero counts as one this far (float32 ends at 3e38): its square is finite.
FURTHEST = 1e100


def spacing(x: Sequence[float]) -> float:
    """How far values at `x` are apart, at least: an epoch, or more where a program reports more rarely."""
    return max(1.0, min(b - a for a, b in itertools.pairwise(x))) if len(x) > 1 else 1.0


def last_of(endings: tuple[FloatArray, FloatArray] | None) -> Interval | None:
    """The x of the last epoch needed, of what `ConvergenceModel.endings` gives."""
    if endings is None:
        return None
    times, chance = endings
    cumulated = np.cumsum(chance)
    low, expected, high = (
        float(times[min(int(np.searchsorted(cumulated, share)), len(times) - 1)]) for share in (TAIL, 0.5, 1.0 - TAIL)
    )
    return Interval(low, expected, high)


@dataclass(frozen=True, slots=True)
class ConvergenceModel:
    """All curves that explain the values measured so far, weighted by how well they explain them.

    JSON round trip through `to_dict` and `from_dict`; the curves follow from the points.
    """

    metric: Metric
    points: tuple[CurvePoint, ...]
    known: tuple[KnownCurve, ...] = ()  #: earlier runs of the same program
    ceiling: float = field(init=False)  #: the best value of an accuracy: 1, or 100 for per cent; 0 for a score
    curves: Mixture = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ceiling = 100.0 if max(p.value for p in self.points) > 1.0 else 1.0
        ceiling = 0.0 if self.metric == "score" else ceiling
        object.__setattr__(self, "ceiling", ceiling)
        values = self._falling([p.value for p in self.points])
        object.__setattr__(self, "curves", fitted(tuple(p.x for p in self.points), tuple(values.tolist()), self.known))

    def predict(self, x: float) -> float:
        """The metric expected at `x`, without noise."""
        return self._metric(float(self.curves.weight @ self.curves.values(np.array([x]))[:, 0]))

    def interval(self, x: float) -> Interval:
        """The 80 % interval of the value that would be measured at `x`."""
        values = self.curves.values(np.array([x]))[:, 0]
        # Nodes of the noise that match its mean and spread.
        noise = math.sqrt(2.0) * self.curves.noise
        noisy = np.concatenate([values - noise, values, values + noise])
        return self._interval(noisy, np.concatenate([self.curves.weight * share for share in (0.25, 0.5, 0.25)]))

    @property
    def asymptote(self) -> Interval:
        """The value at which the curve levels off."""
        return self._interval(self.curves.end, self.curves.weight)

    def chance(self, target: float) -> float:
        """Probability that the curve's mean ever reaches `target`."""
        return float(self._weights(target).sum())

    def chance_by(self, value: float, x: float) -> float:
        """Probability that the curve's mean is at `value`, or better, at `x`."""
        at = self.curves.values(np.array([x]))[:, 0]
        return float(self.curves.weight[at <= self._falling([value])[0]].sum() / self.curves.weight.sum())

    def epochs_to(self, target: float, consecutive_hits: int, x_now: float) -> Interval | None:
        """The x of the last epoch needed for `target` to hold `consecutive_hits` epochs; None = no solution.

        For a job that still trains: at least one more value, as far away as the latest ones are apart. The noise
        counts: values that fluctuate around the target take longer to stay below it than their mean takes to reach it.
        """
        return last_of(self.endings(target, consecutive_hits, x_now))

    def endings(self, target: float, consecutive_hits: int, x_now: float) -> tuple[FloatArray, FloatArray] | None:
        """The x at which `target` may have held so long, and the probability of each, [n]; None = no solution."""
        goal = float(self._falling([target])[0])
        seen = self._falling([p.value for p in self.points])
        streak = 0
        while streak < min(consecutive_hits - 1, len(seen)) and seen[-1 - streak] <= goal:
            streak += 1
        weight = self.curves.weight * np.where(np.isfinite(self.curves.crossings(goal)), 1.0, UNREACHED)
        step = spacing([p.x for p in self.points[-GAPS:]])
        times, chance = ending_times(
            self.curves, weight, goal, consecutive_hits, streak=streak, now=x_now, seen=seen, step=step
        )
        total = float(chance.sum())
        if total < MIN_CHANCE:
            return None
        return times, chance / total

    def epochs_of_new_run(self, target: float, consecutive_hits: int, chances: Sequence[float]) -> list[float | None]:
        """Epochs after which `target` has held in a new run like this one, with each of these probabilities.

        None: with that probability it never does.
        """
        goal = float(self._falling([target])[0])
        seen = self._falling([p.value for p in self.points])
        times, chance = ending_times(
            self.curves, self.curves.weight, goal, consecutive_hits, streak=0, now=0.0, seen=seen
        )
        cumulated = np.cumsum(chance)
        found = [int(np.searchsorted(cumulated, share)) for share in chances]
        return [float(times[at]) if at < len(times) else None for at in found]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        known = {"known": [list(one) for one in self.known]} if self.known else {}
        return {"metric": self.metric, "points": [[p.x, p.value] for p in self.points]} | known

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConvergenceModel:
        """The model that `to_dict` described."""
        known = tuple(KnownCurve(*one) for one in data.get("known", ()))
        return cls(data["metric"], tuple(CurvePoint(x, value) for x, value in data["points"]), known)

    def _weights(self, target: float) -> FloatArray:
        reached = np.isfinite(self.curves.crossings(float(self._falling([target])[0])))
        return self.curves.weight[reached]

    def _falling(self, values: Sequence[float]) -> FloatArray:
        """The falling quantity: the loss itself, or the ceiling minus the accuracy or score."""
        z = np.clip(np.array(values, dtype=np.float64), -FURTHEST, FURTHEST)
        return z if self.metric == "loss" else self.ceiling - z

    def _metric(self, z: float) -> float:
        return z if self.metric == "loss" else self.ceiling - z

    def _interval(self, z: FloatArray, weight: FloatArray) -> Interval:
        order = np.argsort(z, kind="stable")
        cumulated = np.cumsum(weight[order])
        bounds = [
            self._metric(float(z[order[min(int(np.searchsorted(cumulated, q)), len(z) - 1)]])) for q in (0.1, 0.5, 0.9)
        ]
        low, expected, high = sorted(bounds)
        return Interval(low, expected, high)


@lru_cache(maxsize=16)
def fitted(x: tuple[float, ...], falling: tuple[float, ...], known: tuple[KnownCurve, ...] = ()) -> Mixture:
    """Cached: a model is saved as its points and usually read again soon after."""
    return fit_mixture(np.clip(x, -FURTHEST, FURTHEST), np.array(falling), known=known)


def fit_convergence(points: Sequence[CurvePoint], metric: Metric, known: Sequence[KnownCurve] = ()) -> ConvergenceModel:
    """The curves through `points`, one or more; fitted again after every epoch (a few milliseconds).

    `known`: earlier runs of the same program. Raises ValueError without any finite point.
    """
    finite = sorted((p for p in points if math.isfinite(p.x) and math.isfinite(p.value)), key=lambda p: p.x)
    if not finite:
        raise ValueError(f"fit_convergence needs a finite point, got {len(points)} without")
    return ConvergenceModel(metric, tuple(finite), tuple(known))


@lru_cache(maxsize=256)
def likeliest_curve(points: tuple[CurvePoint, ...], metric: Metric) -> KnownCurve:
    """What a run with these points says to later runs of the same program. Raises ValueError as `fit_convergence`."""
    model = fit_convergence(points, metric)
    x = np.clip([p.x for p in model.points], -FURTHEST, FURTHEST)
    return likeliest(x, model._falling([p.value for p in model.points]))
