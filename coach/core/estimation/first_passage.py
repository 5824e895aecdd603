"""When a noisy falling curve will have been at or below a target several epochs in a row."""

from __future__ import annotations

import numpy as np

from coach.core.estimation.forms import FloatArray
from coach.core.estimation.mixture import Mixture
from coach.core.estimation.numerics import ndtr

#: Curves followed epoch by epoch, and for how many epochs; what has not ended then ends where its mean crosses.
FOLLOWED = 100
HORIZON = 192
CHUNK = 32
#: Values needed to tell noise from a bend.
MIN_TO_TELL = 5
#: Noise shrinks with the value by this power: between constant (0) and proportional (1).
SHRINKS = 0.5
#: So many standard deviations from the target a value is certainly on its side, as far as float64 can say.
CERTAIN = 40.0


def most_noise(seen: FloatArray) -> float:
    """Twice the noise that the last ten values' second differences show; infinite with too few to tell.

    A mixture believes in some noise always, for no formula is true; a smooth curve has none to wait out.
    """
    if len(seen) < MIN_TO_TELL:
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
) -> tuple[FloatArray, FloatArray]:
    """The epochs (x) at which `target` may have held `consecutive_hits` times, and their probabilities, both [n].

    Epochs are `now` + 1, + 2, ...; the last `streak` of those seen were at or below the target. The noise
    is each curve's own, but no more than `seen`, the values measured so far, shows. The probabilities sum to less
    than 1 by that of never ending; `weight` replaces the curves' own.
    """
    crossing = curves.crossings(target)
    order = np.argsort(crossing, kind="stable")
    spread = np.searchsorted(np.cumsum(weight[order]) / weight.sum(), (np.arange(FOLLOWED) + 0.5) / FOLLOWED)
    which = np.asarray(order[np.minimum(spread, len(order) - 1)], dtype=np.intp)
    followed, crossing = curves.take(which), crossing[which]
    level = float(np.median(seen[-max(3, len(seen) // 2) :]))
    shrink = min(max(target, 0.05 * level) / level, 1.0) ** SHRINKS if level > 0 else 1.0
    noise = np.maximum(np.minimum(followed.noise, most_noise(seen)) * shrink, 1e-300)[:, None]

    # state[i] is the probability, curve by curve, of i epochs in a row so far.
    state = np.zeros((consecutive_hits, FOLLOWED))
    state[min(streak, consecutive_hits - 1)] = 1.0 / FOLLOWED
    ended: list[float] = []
    possible = np.isfinite(crossing)
    while len(ended) < HORIZON and float(state[:, possible].sum()) > 0.01 * np.mean(possible):
        epochs = now + len(ended) + np.arange(1.0, CHUNK + 1.0)
        away = target - followed.values(epochs)
        below = ndtr(np.clip(away, -CERTAIN * noise, CERTAIN * noise) / noise)
        for held in below.T:
            ended.append(float(state[-1] @ held))
            missed = state.sum(axis=0) * (1.0 - held)
            state[1:] = state[:-1] * held
            state[0] = missed
    last = now + len(ended)
    late = np.maximum(crossing[possible] + consecutive_hits - 1, last + 1)
    times = np.concatenate([now + 1.0 + np.arange(len(ended)), late])
    chance = np.concatenate([ended, state[:, possible].sum(axis=0)])
    order = np.argsort(times, kind="stable")
    return times[order], chance[order]
