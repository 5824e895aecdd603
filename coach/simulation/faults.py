"""Random failures of nodes and functions, each from its own generator.

All policies of a comparison lose the same nodes at the same times. A job's functions fail at the same rate under all of
them, and at the same times as long as its allocation changes at the same times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Faults:
    """Exponential times between failures, in seconds. Infinity: never.

    A node is lost on average every `node_lost` seconds and comes back after `node_back`; a job that trains loses a
    function every `function_lost` seconds on average. Each node and each job has its own random stream.
    """

    seed: int
    node_lost: float = math.inf
    node_back: float = 600.0
    function_lost: float = math.inf
    _nodes: dict[int, np.random.Generator] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, seed: int, node_lost: float, function_lost: float) -> Faults | None:
        """The faults of a run; None if nothing ever fails."""
        never = min(node_lost, function_lost) == math.inf
        return None if never else cls(seed, node_lost, function_lost=function_lost)

    def _node(self, node: int) -> np.random.Generator:
        if node not in self._nodes:
            self._nodes[node] = np.random.default_rng([self.seed, 1, node])
        return self._nodes[node]

    def lost_after(self, node: int) -> float:
        """Seconds from now until a node is lost."""
        return float(self._node(node).exponential(self.node_lost)) if self.node_lost < math.inf else math.inf

    def back_after(self, node: int) -> float:
        """Seconds until a lost node is back."""
        return float(self._node(node).exponential(self.node_back))

    def function_after(self, job: int, stamp: int) -> float:
        """Seconds until a job loses a function, from a change of its rate (memoryless: each change draws again)."""
        if self.function_lost == math.inf:
            return math.inf
        return float(np.random.default_rng([self.seed, 2, job, stamp]).exponential(self.function_lost))
