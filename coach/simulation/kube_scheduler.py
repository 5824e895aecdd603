"""Default placement: pod by pod, as the stock kube-scheduler does it, without knowledge of jobs.

Simulated: pods wait in one queue, first come, first served. Pods that arrive at the same instant are in random order,
whatever their jobs (of six pods of two jobs "any choose three", thesis section 4.4). A pod that fits no node does not
block those behind it. Whenever resources are released, all waiting pods are tried again, the longest waiting first. Of
the nodes that it fits, a pod gets the one with the highest `LeastAllocated` score (kube-scheduler 1.35, plugin
NodeResourcesFit with its default resources: cores and memory, each of weight 1, whole points from 0 to 100). Ties are
broken at random.

Not simulated: other scores (balanced allocation, topology spread, image locality); back-off and the duration of a
placement; preemption, since Coach's pods have no priority class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from coach.core.cluster import Node, Pod, PodId, Resources
from coach.core.errors import UserError
from coach.core.policies.api.parameters import form, parsed
from coach.core.policies.api.scheduling import TOLERANCE, FloatArray


@dataclass(frozen=True, slots=True)
class Default:
    """The parameters of default placement, written `default` or `default:deadlock_timeout=1800`."""

    #: A job is cancelled if this many seconds after its first pod got a node others still have none. None: never.
    deadlock_timeout: float | None = None


class DefaultPlacement:
    """The queue of pods, and the free resources of each node."""

    def __init__(self, nodes: Sequence[Node], rng: np.random.Generator) -> None:
        """`rng` breaks ties between nodes, and orders pods that arrive at the same instant."""
        self._number = {node.name: number for number, node in enumerate(nodes)}
        self._names = [node.name for node in nodes]
        rows = [_vector(node.capacity) for node in nodes]
        self._capacity: FloatArray = np.array(rows, float).reshape(-1, 3)
        self._free: FloatArray = self._capacity.copy()
        self._rng = rng
        #: Pods in order of arrival; and those that arrived since the last `bind`.
        self._queue: dict[PodId, Pod] = {}
        self._new: dict[PodId, Pod] = {}

    @property
    def waiting(self) -> Collection[PodId]:
        """The pods without a node, the longest waiting first."""
        return self._queue.keys()

    def ask(self, pod: Pod) -> None:
        """Add a pod that needs a node: any, or the one that it names."""
        self._new[pod.id] = pod

    def leave(self, pod: Pod) -> None:
        """Remove a pod: release its node, or its place in the queue."""
        if pod.node:
            self._free[self._number[pod.node]] += _vector(pod.requests)
        else:
            self._queue.pop(pod.id, None)
            self._new.pop(pod.id, None)

    def bind(self, unavailable: Iterable[str] = ()) -> list[tuple[PodId, str]]:
        """Place the pods that fit now, as (pod, node); none on `unavailable` nodes."""
        new = list(self._new.values())
        self._new.clear()
        for number in self._rng.permutation(len(new)):
            self._queue[new[number].id] = new[number]
        available = np.ones(len(self._names), bool)
        available[[self._number[name] for name in unavailable]] = False
        bound: list[tuple[PodId, str]] = []
        refused: set[Resources] = set()
        for pod in list(self._queue.values()):
            # Free resources only shrink in this loop: requests that did not fit once do not fit again.
            if pod.requests in refused:
                continue
            named = np.arange(len(self._names)) == self._number[pod.node] if pod.node else True
            node = self._best(_vector(pod.requests), available & named)
            if node is None:
                if not pod.node:
                    refused.add(pod.requests)
                continue
            del self._queue[pod.id]
            self._free[node] -= _vector(pod.requests)
            bound.append((pod.id, self._names[node]))
        return bound

    def _best(self, demand: FloatArray, available: np.ndarray) -> int | None:
        fits = np.flatnonzero(available & (self._free >= demand - TOLERANCE).all(axis=1))
        if not len(fits):
            return None
        score = least_allocated(self._free[fits] - demand, self._capacity[fits])
        return int(self._rng.choice(fits[score == score.max()]))


def least_allocated(free: FloatArray, capacity: FloatArray) -> np.ndarray:
    """The score of nodes that would have `free` left: the mean free share of cores and memory.

    Both are [node, resource]. Whole points from 0 to 100, each rounded down, as in the kube-scheduler
    (`leastResourceScorer`). A resource that a node lacks does not count.
    """
    has = capacity[:, :2] > 0
    parts = np.divide(100.0 * free[:, :2], capacity[:, :2], out=np.zeros_like(free[:, :2]), where=has)
    points: np.ndarray = np.floor(np.maximum(parts, 0.0) + 1e-6).astype(int).sum(axis=1)
    score: np.ndarray = points // np.maximum(has.sum(axis=1), 1)
    return score


def parse_placement(text: str) -> Default | None:
    """Parse `gang` (None), or `default` with its parameters. Raises UserError."""
    name, _, argument = text.partition(":")
    found = parsed(Default, argument) if name == "default" else None
    if found is not None and found.get("deadlock_timeout") != 0:
        return Default(**found)
    if text == "gang":
        return None
    raise UserError(f"there is no placement {text!r}; use gang, or {form('default', Default)}")


def _vector(resources: Resources) -> FloatArray:
    return np.array([resources.cpu, resources.memory, resources.gpu])
