"""Whether all jobs fit at their maximum at once on the empty nodes, kept up to date job by job.

The proof is a placement of more than there is: pods rounded up, and some of each more than there are. As long as no
more pods come than were placed, they fit. So a job that comes or goes costs time only for its own pods, but for the
seldom case that a new placement has to be found (first fit, the largest first).
"""

from __future__ import annotations

import math
from collections import Counter

from coach.core.cluster import Node
from coach.core.policies.sharing.capacity import Ground, Vector

#: Pods are rounded up to this part of the largest node.
PART = 64

#: A placement is looked for with so many of each pod more: this part of them, and at least so many.
MORE, LEAST_MORE = 8, 2

#: With more sorts of pods no placement of the pods as they are is looked for.
SORTS = 512


class Ample:
    """The pods of all jobs at their maximum, and whether they fit."""

    def __init__(self, nodes: tuple[Node, ...], pods: Counter[Vector]) -> None:
        """`pods`: how many there are already, by their requests."""
        self.nodes = nodes
        self._ground = Ground(nodes)
        self._grid = [most / PART for most in self._ground.largest]
        self.pods = pods
        self._rounded = Counter[Vector]()
        self._sum = [0.0, 0.0, 0.0]
        #: More pods than there are, which fit.
        self._placed = Counter[Vector]()
        self._fits, self._look_again = False, True
        for pod, count in pods.items():
            self._count(pod, count)

    def come(self, pods: Counter[Vector]) -> None:
        """These pods are there from now on."""
        for pod, count in pods.items():
            self.pods[pod] += count
            self._count(pod, count)

    def go(self, pods: Counter[Vector]) -> None:
        """These pods are not there any more."""
        for pod, count in pods.items():
            self.pods[pod] -= count
            if not self.pods[pod]:
                del self.pods[pod]
            self._count(pod, -count)
        self._look_again |= not self._fits

    def fits(self) -> bool:
        """Whether all pods fit on the nodes at once."""
        if self._look_again:
            self._fits, self._look_again = self._look(), False
        return self._fits

    def _count(self, pod: Vector, count: int) -> None:
        up = self._up(pod)
        self._rounded[up] += count
        # Where they did not fit, they do not fit with more.
        self._look_again |= self._fits and self._rounded[up] > self._placed[up]
        self._sum = [total + count * need for total, need in zip(self._sum, pod, strict=True)]

    def _up(self, pod: Vector) -> Vector:
        cpu, memory, gpu = (
            math.ceil(need / part - 1e-9) * part if part else need for need, part in zip(pod, self._grid, strict=True)
        )
        return cpu, memory, gpu

    def _look(self) -> bool:
        """Look for a placement."""
        if any(need > total * (1 + 1e-9) for need, total in zip(self._sum, self._ground.total, strict=True)):
            return False
        there = +self._rounded
        more = Counter({pod: count + max(LEAST_MORE, count // MORE) for pod, count in there.items()})
        for placed in (more, there):
            if not self._ground.spread(placed)[1]:
                self._placed = placed
                return True
        self._placed.clear()
        return len(self.pods) <= SORTS and not self._ground.spread(self.pods)[1]
