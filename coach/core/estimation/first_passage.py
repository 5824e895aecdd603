"""When a noisy falling curve will have been at or below a target several epochs in a row."""

from __future__ import annotations

import numpy as np

from coach.core.estimation.forms import FloatArray
from coach.core.estimation.mixture import Mixture
from coach.core.estimation.numerics import ndtr

#: Curves followed epoch by epoch, and for how many epochs; a curve that has not ended then ends where its mean crosses.
FOLLOWED = 100
HORIZON = 192
CHUNK = 32
#: Values needed to distinguish noise from a bend.
MIN_VALUES = 5
#: Noise shrinks with the value by this power: between constant (0) and proportional (1).
SHRINKS = 0.5
#: Beyond this many standard deviations from the target a probability is 0 or 1 in float64.
CERTAIN = 40.0


def max_noise(seen: FloatArray) -> float:
    """Twice the noise in the second differences of the last ten values; infinite with too few values.

    A mixture always assumes some noise, as no formula is exact; a smooth curve has none.
    """
    if len(seen) < MIN_VALUES:
        return np.inf
    return 2.0 * float(np.sqrt(np.mean(np.diff(seen[-10:], 2) ** 2) / 6.0))


def ending_times(
    curves: Mixture,
    weight: FloatArray,
    target: float,
    consecutive_hits: int,
    *,
    streak: int,
    now: float,
    seen: FloatArray,
    step: float = 1.0,
) -> tuple[FloatArray, FloatArray]:
    """The epochs (x) at which `target` may have held `consecutive_hits` times, and their probabilities, both [n].

    Values come at `now` + `step`, + 2 `step`, ...; the last `streak` of those seen were at or below the target. The
    noise is each curve's own, but at most that of `seen`, the values measured so far. The probabilities sum to 1 minus
    that of never ending. `weight` replaces the curves' own weights.
    """
    crossing = curves.crossings(target)
    order = np.argsort(crossing, kind="stable")
    spread = np.searchsorted(np.cumsum(weight[order]) / weight.sum(), (np.arange(FOLLOWED) + 0.5) / FOLLOWED)
    which = np.asarray(order[np.minimum(spread, len(order) - 1)], dtype=np.intp)
    followed, crossing = curves.take(which), crossing[which]
    level = float(np.median(seen[-max(3, len(seen) // 2) :]))
    shrink = min(max(target, 0.05 * level) / level, 1.0) ** SHRINKS if level > 0 else 1.0
    noise = np.maximum(np.minimum(followed.noise, max_noise(seen)) * shrink, 1e-300)[:, None]

    # state[i] is the probability, curve by curve, of i epochs in a row so far.
    state = np.zeros((consecutive_hits, FOLLOWED))
    state[min(streak, consecutive_hits - 1)] = 1.0 / FOLLOWED
    ended: list[float] = []
    possible = np.isfinite(crossing)
    while len(ended) < HORIZON and float(state[:, possible].sum()) > 0.01 * np.mean(possible):
        epochs = now + step * (len(ended) + np.arange(1.0, CHUNK + 1.0))
        distance = target - followed.values(epochs)
        below = ndtr(np.clip(distance, -CERTAIN * noise, CERTAIN * noise) / noise)
        for held in below.T:
            ended.append(float(state[-1] @ held))
            missed = state.sum(axis=0) * (1.0 - held)
            state[1:] = state[:-1] * held
            state[0] = missed
    last = now + step * len(ended)
    late = np.maximum(crossing[possible] + step * (consecutive_hits - 1), last + step)
    times = np.concatenate([now + step * (1.0 + np.arange(len(ended))), late])
    chance = np.concatenate([ended, state[:, possible].sum(axis=0)])
    order = np.argsort(times, kind="stable")
    return times[order], chance[order]
