"""The network of DL² as published: all jobs of the window in one vector, two layers, three scores a job and void's.

Of each job, in the order of arrival: the number of its kind from 1 on, slots since it arrived, the part of it that is
left, its dominant share, its workers, its servers; six zeros where there is no job.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coach_research.policies.dl2.network import STEPS, Array, Weights

#: Columns of a job.
COLUMNS = 6


def flat_features(
    kind: NDArray[np.intp],
    waited: NDArray[np.float64],
    left: NDArray[np.float64],
    share: NDArray[np.float64],
    counts: NDArray[np.intp],
) -> Array:
    """Features [job, column]; `waited` in slots, `counts` [job, workers and servers]."""
    rows = np.column_stack([kind + 1, waited, left, share, counts])
    found: Array = rows.astype(np.float32)
    return found


def outputs(w: Weights, inputs: Array) -> tuple[Array, Array, Array]:
    """Of inputs [state, input]: both hidden layers, and the scores [state, action]; void's is the last."""
    first: Array = np.maximum(inputs @ w["w0"] + w["b0"], 0)
    second: Array = np.maximum(first @ w["w1"] + w["b1"], 0)
    scores: Array = second @ w["w2"] + w["b2"]
    return first, second, scores


class FlatInference:
    """Answers as `Inference`, for a window of `jobs` places."""

    def __init__(self, weights: Weights, states: int, jobs: int) -> None:
        self.weights = weights
        self._features: Array = np.zeros((states, jobs, COLUMNS), np.float32)

    def start(self, state: int, features: Array, there: NDArray[np.bool_]) -> None:
        """See `Inference`; there may be fewer jobs than places."""
        self._features[state] = 0
        self._features[state, : len(features)] = features * there[:, None]

    def change(self, states: NDArray[np.intp], jobs: NDArray[np.intp], features: Array) -> None:
        """See `Inference`."""
        self._features[states, jobs] = features

    def scores(self) -> tuple[Array, Array]:
        """See `Inference`."""
        states, jobs, _ = self._features.shape
        *_, found = outputs(self.weights, self._features.reshape(states, -1))
        return found[:, :-1].reshape(states, jobs, len(STEPS)), found[:, -1]
