"""The gradient of `coach_research.policies.dl2.network`, by hand, and Adam (Kingma and Ba 2015)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from coach_research.policies.dl2.network import TYPICAL, Array, Weights


@dataclass
class Forward:
    """The outputs for a batch of states, features [state, job, column], and what the gradient needs of the way."""

    weights: Weights
    features: Array
    #: 1 where there is a job, [state, job, 1].
    there: Array

    def __post_init__(self) -> None:
        w = self.weights
        states, jobs, columns = self.features.shape
        flat = self.features.reshape(-1, columns)
        there = self.there.reshape(-1, 1)
        self.first = np.maximum(flat @ w["w0"] + w["b0"], 0) * there
        self.sum = self.first.reshape(states, jobs, -1).sum(axis=1) / TYPICAL
        mixed = (self.first @ w["w1"]).reshape(states, jobs, -1) + (self.sum @ w["wg"] + w["b1"])[:, None]
        self.second = np.maximum(mixed.reshape(states * jobs, -1), 0) * there
        self.total = self.second.reshape(states, jobs, -1).sum(axis=1) / TYPICAL
        self.outputs = (self.second @ w["w2"] + w["b2"]).reshape(states, jobs, -1)
        self.void = (self.total @ w["w3"] + w["b3"])[:, 0]

    def backward(self, outputs: Array, void: Array) -> Weights:
        """The gradient of the weights from that of the outputs [state, job, output] and of void [state]."""
        w = self.weights
        states, jobs, columns = self.features.shape
        out = outputs.reshape(states * jobs, -1)
        back = (out @ w["w2"].T).reshape(states, jobs, -1) + (void[:, None] * w["w3"][:, 0] / TYPICAL)[:, None]
        back = back.reshape(states * jobs, -1) * (self.second > 0)
        of_sum = back.reshape(states, jobs, -1).sum(axis=1)
        first = (back @ w["w1"].T).reshape(states, jobs, -1) + (of_sum @ w["wg"].T / TYPICAL)[:, None]
        first = first.reshape(states * jobs, -1) * (self.first > 0)
        return {
            "w0": self.features.reshape(-1, columns).T @ first, "b0": first.sum(axis=0), "w1": self.first.T @ back,
            "wg": self.sum.T @ of_sum, "b1": of_sum.sum(axis=0), "w2": self.second.T @ out, "b2": out.sum(axis=0),
            "w3": self.total.T @ void[:, None], "b3": void.sum(keepdims=True),
        }  # fmt: skip


@dataclass
class Adam:
    """Changes `weights` in place."""

    weights: Weights
    rate: float
    largest: float = 1.0  #: longer gradients are shortened to this norm
    steps: int = 0
    mean: Weights = field(default_factory=dict)
    square: Weights = field(default_factory=dict)

    def step(self, gradient: Weights, rate: float | None = None) -> None:
        """One step down the gradient."""
        self.steps += 1
        norm = float(np.sqrt(sum(float((g * g).sum()) for g in gradient.values())))
        scale = np.float32(min(1.0, self.largest / norm)) if norm > 0 else np.float32(1)
        size = (self.rate if rate is None else rate) * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        for name, found in gradient.items():
            g = found * scale
            m = self.mean[name] = np.float32(0.9) * self.mean.get(name, np.float32(0)) + np.float32(0.1) * g
            s = self.square[name] = np.float32(0.999) * self.square.get(name, np.float32(0)) + np.float32(0.001) * g * g
            self.weights[name] -= np.float32(size) * m / (np.sqrt(s) + np.float32(1e-8))
