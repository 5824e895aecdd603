"""The least mean completion time of a few jobs that all start at once: every way to share the pods is tried.

For small instances, to judge policies by. Speeds and lengths are known, a change costs nothing, and shares change when
a job ends, as those of policies do that are asked then; a job may wait. Among the allocations of one size a job takes
the fastest, so a share is a number of pods.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coach.core.estimation.forms import FloatArray


def least_mean_completion(epochs: Sequence[float], speeds: Sequence[FloatArray], pods: int) -> float:
    """Seconds. `speeds`: of each job with 0, 1, ... `pods` pods, epochs/s; 0 where it cannot train with so few."""
    most = [np.maximum.accumulate(of) for of in speeds]
    return float(_total(np.array([epochs], dtype=np.float64), most, pods)[0]) / len(epochs)


def _total(left: FloatArray, speeds: list[FloatArray], pods: int) -> FloatArray:
    """The least sum of completion times [b] of jobs with `left` epochs [b, k]."""
    count = len(speeds)
    if count == 1:
        return np.asarray(left[:, 0] / speeds[0][pods])
    rates = np.array([[of[share] for of, share in zip(speeds, shares, strict=True)] for shares in _shares(count, pods)])
    with np.errstate(divide="ignore"):
        times = left[:, None, :] / rates
    step, first = times.min(axis=2), times.argmin(axis=2)
    rest = left[:, None, :] - step[:, :, None] * rates
    found = count * step
    for ended in range(count):
        places = np.nonzero(first == ended)
        if len(places[0]):
            others = [of for place, of in enumerate(speeds) if place != ended]
            remaining = np.maximum(np.delete(rest[places], ended, axis=1), 0.0)
            found[places] += _total(remaining, others, pods)
    return np.asarray(found.min(axis=1))


def _shares(count: int, pods: int) -> list[tuple[int, ...]]:
    """All ways to give away all `pods`."""
    if count == 1:
        return [(pods,)]
    return [(own, *rest) for own in range(pods + 1) for rest in _shares(count - 1, pods - own)]
