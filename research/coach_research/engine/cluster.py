"""The simulated cluster: the capacity of each node, and how jobs on one node slow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coach.core.cluster import Node, Resources
from coach_research.workload import FloatArray


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes by number. `capacity` is [node, resource] in cores, GiB and devices.

    `contention` None: nodes are *reserved*. A job holds exactly what it requests. A number: nodes are *shared*. Jobs
    (usually without requests) divide a node equally, and each of n jobs trains at 1 / (n (1 + contention (n - 1)))
    of its speed alone; 0 is ideal processor sharing.
    """

    capacity: FloatArray
    contention: float | None = None
    names: tuple[str, ...] = ()
    #: The kind of each node; (): all are of one.
    kinds: tuple[str, ...] = ()

    @classmethod
    def uniform(
        cls, nodes: int, cpu: float, memory: float = 1e6, gpu: float = 0.0, contention: float | None = None
    ) -> Cluster:
        """A cluster of `nodes` equal nodes, each of `cpu` cores, `memory` GiB and `gpu` devices."""
        return cls(np.tile(np.array([cpu, memory, gpu], float), (nodes, 1)), contention)

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Cluster:
        """The cluster of these nodes."""
        rows = [(node.capacity.cpu, node.capacity.memory, node.capacity.gpu) for node in nodes]
        names, kinds = (tuple(getattr(node, key) for node in nodes) for key in ("name", "kind"))
        return cls(np.array(rows, float).reshape(-1, 3), names=names, kinds=kinds)

    def nodes(self) -> tuple[Node, ...]:
        """The nodes as the reducer and the platforms describe them."""
        names = self.names or tuple(f"node-{i}" for i in range(len(self.capacity)))
        kinds = self.kinds or ("",) * len(names)
        rows = zip(names, self.capacity.tolist(), kinds, strict=True)
        return tuple(Node(name, Resources(*row), kind=kind) for name, row, kind in rows)

    def share(self, jobs: int) -> float:
        """The share of its speed alone that each of `jobs` jobs on one shared node keeps."""
        return 1.0 / (jobs * (1.0 + (self.contention or 0.0) * (jobs - 1)))
