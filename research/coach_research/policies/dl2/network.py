"""The network of DL² (Peng et al., IEEE TPDS 2021), in NumPy, in the form that Coach trains.

One small network with shared weights looks at each job i, and at the sum over all jobs:

    h_i = relu(x_i w0 + b0)        g = sum of h_i / 20        k_i = relu(h_i w1 + g wg + b1)
    job i's three scores = k_i w2 + b2        the score of "void" = (sum of k_i / 20) w3 + b3

The three are: a worker more, a server more, one of each. After an inference one job has changed: only its part is
computed again. (The paper's network takes all jobs in one vector, and has to learn each kind of job at each place.)
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Weights = dict[str, Array]

#: Version of the file.
FORMAT = 1
#: What a sum over the jobs is divided by.
TYPICAL = np.float32(20)
#: Columns of a job's features after those of its kind: the remaining time, workers, servers.
MORE = 3
#: Workers and servers that the three actions on a job add.
STEPS = ((1, 0), (0, 1), (1, 1))
#: The arrays of the network.
NAMES = ("w0", "b0", "w1", "wg", "b1", "w2", "b2", "w3", "b3")
#: Those of the network as published (`coach_research.policies.dl2.flat`).
FLAT_NAMES = ("w0", "b0", "w1", "b1", "w2", "b2")


def fresh(kinds: int, width: int, outputs: int, rng: np.random.Generator) -> Weights:
    """Random weights; those of the last layer are a tenth of the usual."""

    def layer(rows: int, columns: int, scale: float = 1.0) -> Array:
        found: Array = (rng.standard_normal((rows, columns)) * scale * np.sqrt(2 / rows)).astype(np.float32)
        return found

    zeros = np.zeros(width, np.float32)
    return {
        "w0": layer(kinds + MORE, width), "b0": zeros, "w1": layer(width, width), "wg": layer(width, width),
        "b1": zeros.copy(), "w2": layer(width, outputs, 0.1), "b2": np.zeros(outputs, np.float32),
        "w3": layer(width, 1, 0.1), "b3": np.zeros(1, np.float32),
    }  # fmt: skip


class Inference:
    """The scores for several states at once; a state is the features [job, column] of its jobs.

    Rows of jobs that are not there count as nothing.
    """

    def __init__(self, weights: Weights, states: int, jobs: int) -> None:
        self.weights = weights
        width = len(weights["b0"])
        self._own = np.zeros((states, jobs, width), np.float32)  # h
        self._mixed = np.zeros((states, jobs, width), np.float32)  # h w1
        self._sum = np.zeros((states, width), np.float32)  # g
        self._there = np.zeros((states, jobs, 1), np.float32)

    def start(self, state: int, features: Array, there: NDArray[np.bool_]) -> None:
        """Look at all jobs of a state."""
        w = self.weights
        own = np.maximum(features @ w["w0"] + w["b0"], 0) * there[:, None]
        self._own[state], self._mixed[state] = own, own @ w["w1"]
        self._sum[state] = own.sum(axis=0) / TYPICAL
        self._there[state, :, 0] = there

    def change(self, states: NDArray[np.intp], jobs: NDArray[np.intp], features: Array) -> None:
        """Look again at one job of each of `states`; `features` [state, column]."""
        w = self.weights
        own = np.maximum(features @ w["w0"] + w["b0"], 0)
        self._sum[states] += (own - self._own[states, jobs]) / TYPICAL
        self._own[states, jobs], self._mixed[states, jobs] = own, own @ w["w1"]

    def scores(self) -> tuple[Array, Array]:
        """The outputs of each job [state, job, output], and of void [state]."""
        w = self.weights
        second = self._mixed + (self._sum @ w["wg"] + w["b1"])[:, None]
        np.maximum(second, 0, out=second)
        second *= self._there
        void = (second.sum(axis=1) / TYPICAL) @ w["w3"] + w["b3"]
        return second @ w["w2"] + w["b2"], void[:, 0]


@dataclass(frozen=True, eq=False)
class Network:
    """A trained network, and what it was trained for."""

    weights: Weights
    #: The kinds of jobs: their names, and each one's part of a job that a slot does, [kind, workers, servers].
    kinds: tuple[str, ...]
    progress: Array
    #: Seconds between two decisions.
    slot: float
    #: The largest number of workers, and of servers, in training.
    most: int
    #: How many jobs get more than their minimum in a decision: the oldest.
    window: int
    #: Whether it is of the form of `coach_research.policies.dl2.flat`.
    flat: bool = False
    #: Where it comes from: workload, seed, command, results on validation traces.
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As a file `.npz`."""
        about = {
            "format": FORMAT, "kinds": self.kinds, "slot": self.slot, "most": self.most, "window": self.window,
            **({"flat": True} if self.flat else {}), **self.about,
        }  # fmt: skip
        file = io.BytesIO()
        arrays: dict[str, Any] = {
            "about": np.array(json.dumps(about)),
            "progress": self.progress,
            **self.weights,
        }
        np.savez(file, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Network:
        """Read what `to_bytes` wrote. Raises ValueError for anything else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = json.loads(str(arrays.pop("about")))
            number = about.pop("format")
        except Exception as error:
            raise ValueError(f"it is no file of `coach train dl2` ({type(error).__name__}: {error})") from error
        if number != FORMAT:
            raise ValueError(f"its format is {number}, wanted {FORMAT}")
        try:
            flat = bool(about.pop("flat", False))
            made = cls(
                {name: arrays[name].astype(np.float32) for name in (FLAT_NAMES if flat else NAMES)},
                tuple(about.pop("kinds")), arrays["progress"],
                float(about.pop("slot")), int(about.pop("most")), int(about.pop("window")), flat, about,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"it is no file of `coach train dl2` ({type(error).__name__}: {error})") from error
        width, side = len(made.weights["b0"]), made.most + 1
        shapes = (made.weights["w0"].shape, made.weights["w2"].shape, made.progress.shape)
        inputs, outputs = len(made.kinds) + MORE, len(STEPS)
        if flat:
            inputs, outputs = 6 * made.window, len(STEPS) * made.window + 1
        wanted = ((inputs, width), (width, outputs), (len(made.kinds), side, side))
        if shapes != wanted:
            raise ValueError(f"its arrays have the shapes {shapes}, wanted {wanted}")
        if not (made.slot > 0 and made.window >= 1):
            raise ValueError(f"its slot is {made.slot} s and its window {made.window}, wanted more than 0")
        if not all(np.isfinite(array).all() for array in made.weights.values()):
            raise ValueError("not all of its weights are numbers")
        return made


def job_features(
    kinds: int, kind: NDArray[np.intp], slots: NDArray[np.float64], counts: NDArray[np.intp], most: int
) -> Array:
    """Features [job, column]: its kind, its remaining time, and its workers and servers (`counts`) of at most `most`.

    `slots`: the time in slots that it would take with one worker and one server.
    """
    rows = np.zeros((len(kind), kinds + MORE), np.float32)
    rows[np.arange(len(kind)), kind] = 1
    rows[:, kinds] = np.log1p(slots) / 4
    rows[:, kinds + 1 :] = counts / most
    return rows
