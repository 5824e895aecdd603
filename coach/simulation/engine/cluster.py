"""The simulated cluster: what each node has, and how jobs on one node disturb each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coach.core.cluster import Node, Resources
from coach.core.policies.api.react import FloatArray


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes by number. `capacity` is [node, resource] in cores, GiB and devices.

    `contention` None: nodes are *reserved*: a job holds what it requests and has it alone. A number: nodes are
    *shared*: jobs (usually without requests) divide a node equally, and each of n jobs trains at
    1 / (n (1 + contention (n - 1))) of its speed alone; 0 is ideal processor sharing.
    """

    capacity: FloatArray
    contention: float | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def uniform(
        cls, nodes: int, cpu: float, memory: float = 1e6, gpu: float = 0.0, contention: float | None = None
    ) -> Cluster:
        """`nodes` equal nodes of `cpu` cores, `memory` GiB and `gpu` devices."""
        return cls(np.tile(np.array([cpu, memory, gpu], float), (nodes, 1)), contention)

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Cluster:
        """The cluster that live drivers describe with `nodes`."""
        rows = [(node.capacity.cpu, node.capacity.memory, node.capacity.gpu) for node in nodes]
        return cls(np.array(rows, float).reshape(-1, 3), names=tuple(node.name for node in nodes))

    def nodes(self) -> tuple[Node, ...]:
        """As the live drivers describe it."""
        names = self.names or tuple(f"node-{i}" for i in range(len(self.capacity)))
        return tuple(
            Node(name, Resources(*row)) for name, row in zip(names, self.capacity.tolist(), strict=True)
        )

    def share(self, jobs: int) -> float:
        """The part of its speed alone that each of `jobs` jobs on one shared node keeps."""
        return 1.0 / (jobs * (1.0 + (self.contention or 0.0) * (jobs - 1)))
