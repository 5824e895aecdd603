"""Default placement: pod by pod, as the stock kube-scheduler does it, which knows nothing of jobs.

What is simulated: pods wait in one queue, first come first served; those that come at the same instant, whatever their
jobs, stand in a drawn order (of six pods of two jobs "any choose three", thesis section 4.4). One that finds no room
does not hold up those behind it; whenever room comes free all that wait are tried again, the longest waiting first. Of
the nodes with room a pod goes to the one with the highest `LeastAllocated` score (kube-scheduler 1.35, plugin
NodeResourcesFit with its default resources: cores and memory, each of weight 1, whole points from 0 to 100); of equal
ones to a drawn one.

What is not: the scores beside that one (balanced allocation, topology spread, image locality); back-off, and the
seconds that a placement takes; preemption, since Coach's pods have no priority class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from coach.core.cluster import Node, Pod, PodId, Resources
from coach.core.errors import UserError
from coach.core.policies.api.parameters import form, parsed
from coach.core.policies.api.react import TOLERANCE, FloatArray


@dataclass(frozen=True, slots=True)
class Default:
    """How default placement is written: `default`, or `default:deadlock_timeout=1800`."""

    #: Seconds after its first pod has a node until a job that still lacks others is cancelled. None: it waits for ever.
    deadlock_timeout: float | None = None


class DefaultPlacement:
    """The queue of pods, and what is free on each node."""

    def __init__(self, nodes: Sequence[Node], rng: np.random.Generator) -> None:
        """`rng` decides between equal nodes, and between pods that come at the same instant."""
        self._number = {node.name: number for number, node in enumerate(nodes)}
        self._names = [node.name for node in nodes]
        rows = [_vector(node.capacity) for node in nodes]
        self._capacity: FloatArray = np.array(rows, float).reshape(-1, 3)
        self._free: FloatArray = self._capacity.copy()
        self._rng = rng
        #: In the order in which they came; and those that came since the last `bind`.
        self._queue: dict[PodId, Pod] = {}
        self._new: dict[PodId, Pod] = {}

    @property
    def waiting(self) -> Collection[PodId]:
        """The pods that found no node, the longest waiting first."""
        return self._queue.keys()

    def ask(self, pod: Pod) -> None:
        """This pod wants a node from now on."""
        self._new[pod.id] = pod

    def leave(self, pod: Pod) -> None:
        """This pod wants none any more, or gives its room back."""
        if pod.node:
            self._free[self._number[pod.node]] += _vector(pod.requests)
        else:
            self._queue.pop(pod.id, None)
            self._new.pop(pod.id, None)

    def bind(self, unavailable: Iterable[str] = ()) -> list[tuple[PodId, str]]:
        """The pods that get a node now, and which; nodes `unavailable` take none."""
        new = list(self._new.values())
        self._new.clear()
        for number in self._rng.permutation(len(new)):
            self._queue[new[number].id] = new[number]
        there = np.ones(len(self._names), bool)
        there[[self._number[name] for name in unavailable]] = False
        bound: list[tuple[PodId, str]] = []
        refused: set[Resources] = set()
        for pod in list(self._queue.values()):
            # Room only shrinks while they are tried: what found none once finds none again.
            if pod.requests in refused:
                continue
            node = self._best(_vector(pod.requests), there)
            if node is None:
                refused.add(pod.requests)
                continue
            del self._queue[pod.id]
            self._free[node] -= _vector(pod.requests)
            bound.append((pod.id, self._names[node]))
        return bound

    def _best(self, demand: FloatArray, there: np.ndarray) -> int | None:
        fits = np.flatnonzero(there & (self._free >= demand - TOLERANCE).all(axis=1))
        if not len(fits):
            return None
        score = least_allocated(self._free[fits] - demand, self._capacity[fits])
        return int(self._rng.choice(fits[score == score.max()]))


def least_allocated(free: FloatArray, capacity: FloatArray) -> np.ndarray:
    """The score of nodes on which so much would be left `free`: the mean free part of cores and memory.

    Both are [node, resource]. In whole points of a hundred, each rounded down, as the kube-scheduler counts
    (`leastResourceScorer`); what a node does not have does not count there.
    """
    has = capacity[:, :2] > 0
    parts = np.divide(100.0 * free[:, :2], capacity[:, :2], out=np.zeros_like(free[:, :2]), where=has)
    points: np.ndarray = np.floor(np.maximum(parts, 0.0) + 1e-6).astype(int).sum(axis=1)
    score: np.ndarray = points // np.maximum(has.sum(axis=1), 1)
    return score


def parse_placement(text: str) -> Default | None:
    """What `gang` (None) or `default` with its parameters says. Raises UserError."""
    name, _, argument = text.partition(":")
    found = parsed(Default, argument) if name == "default" else None
    if found is not None and found.get("deadlock_timeout") != 0:
        return Default(**found)
    if text == "gang":
        return None
    raise UserError(f"there is no placement {text!r}; right would be gang, or {form('default', Default)}")


def _vector(resources: Resources) -> FloatArray:
    return np.array([resources.cpu, resources.memory, resources.gpu])
