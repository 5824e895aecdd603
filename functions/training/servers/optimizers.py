"""Optimizers as PyTorch defines them, in place on one slice, in NumPy."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Rule:
    """What a step does with a sum of gradients. The names of PyTorch's arguments, where it has them."""

    name: str
    lr: float
    #: What a sum is multiplied by: 1 / batch size, where gradients are sums over samples.
    scale: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: Sequence[float] = (0.9, 0.999)
    eps: float = 1e-8
    #: As torch.nn.utils.clip_grad_value_ and clip_grad_norm_.
    clip_value: float | None = None
    clip_norm: float | None = None

    @property
    def states(self) -> int:
        """How many arrays of state a slice has in addition to its weights."""
        return int(self.momentum > 0) if self.name == "sgd" else 2


class Rules(NamedTuple):
    """What a step does with one slice: parameters may have rules of their own."""

    #: Of the whole model; all of one optimizer, and clipped alike.
    rules: Sequence[Rule]
    #: Where each part of the slice ends, and the number of its rule.
    parts: Sequence[Sequence[int]]

    @property
    def clip_norm(self) -> float | None:
        """See Rule."""
        return self.rules[0].clip_norm


def parts(runs: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
    """Rules.parts of a slice: `runs` are the numbers of elements of each rule, one after the other."""
    ends = enumerate(itertools.accumulate(runs))
    return [(min(end, stop) - start, n) for n, end in ends if end > start and end - runs[n] < stop]


def add_up(gradients: Sequence[np.ndarray]) -> np.ndarray:
    """Their sum in this order, in an array of its own where there are several. Shape (n,), float32."""
    if len(gradients) == 1:
        return gradients[0]
    total = gradients[0] + gradients[1]
    for gradient in gradients[2:]:
        total += gradient
    return total


def clip_factor(rule: Rule, squares: float) -> float:
    """What torch.nn.utils.clip_grad_norm_ multiplies gradients by; `squares` is the sum of squares of unscaled sums."""
    if rule.clip_norm is None:
        return 1.0
    return min(1.0, rule.clip_norm / (math.sqrt(squares) * rule.scale + 1e-6))


def apply_all(rules: Rules, arrays: list[np.ndarray], gradient: np.ndarray, count: int, factor: float) -> None:
    """See apply(), for each part of a slice."""
    while len(arrays) < 1 + max(rule.states for rule in rules.rules):
        arrays.append(np.zeros_like(arrays[0]))
    start = 0
    for stop, number in rules.parts:
        apply(rules.rules[number], [each[start:stop] for each in arrays], gradient[start:stop], count, factor)
        start = stop


def apply(rule: Rule, arrays: list[np.ndarray], gradient: np.ndarray, count: int, factor: float = 1.0) -> None:
    """Step `count` (from 1) on `arrays`: the weights, then the state, which is added where it is not there yet.

    `factor`: of clip_factor(). All arrays are (n,), float32.
    """
    weights = arrays[0]
    while len(arrays) < 1 + rule.states:
        arrays.append(np.zeros_like(weights))
    change = np.multiply(gradient, np.float32(rule.scale * factor))
    if rule.clip_value is not None:
        np.clip(change, -rule.clip_value, rule.clip_value, out=change)
    if rule.name == "adamw":
        weights *= np.float32(1 - rule.lr * rule.weight_decay)
    elif rule.weight_decay:
        change += np.float32(rule.weight_decay) * weights
    if rule.name == "sgd":
        _sgd(rule, arrays, change)
    else:
        _adam(rule, arrays, change, count)


def _sgd(rule: Rule, arrays: list[np.ndarray], change: np.ndarray) -> None:
    if rule.momentum:
        velocity = arrays[1]
        velocity *= np.float32(rule.momentum)
        velocity += change
        if rule.nesterov:
            change += np.float32(rule.momentum) * velocity
        else:
            np.copyto(change, velocity)
    change *= np.float32(rule.lr)
    arrays[0] -= change


def _adam(rule: Rule, arrays: list[np.ndarray], change: np.ndarray, count: int) -> None:
    weights, mean, square = arrays
    first, second = rule.betas
    mean *= np.float32(first)
    mean += np.float32(1 - first) * change
    square *= np.float32(second)
    np.multiply(change, change, out=change)
    change *= np.float32(1 - second)
    square += change
    np.sqrt(square, out=change)
    change /= np.float32(math.sqrt(1 - second**count))
    change += np.float32(rule.eps)
    np.divide(mean, change, out=change)
    change *= np.float32(rule.lr / (1 - first**count))
    weights -= change
