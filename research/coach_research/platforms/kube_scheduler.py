"""Placement pod by pod: as the stock kube-scheduler does it, without knowledge of jobs, or with the thesis's rules.

Simulated: pods wait in one queue, first come, first served. Pods that arrive at the same instant are in random order,
whatever their jobs (of six pods of two jobs "any choose three", thesis section 4.4). A pod that fits no node does not
block those behind it. Whenever resources are released, all waiting pods are tried again, the longest waiting first. Of
the nodes that it fits, a pod gets the one with the highest `LeastAllocated` score (kube-scheduler 1.35, plugin
NodeResourcesFit with its default resources: cores and memory, each of weight 1, whole points from 0 to 100). Ties are
broken at random.

With `backoff` a pod that found no node waits before it is tried again: 1 s, then twice as long each time, up to
`backoff` seconds (kube-scheduler: 10). It is tried again only after something was released, or a node came back. Pods
tried at one instant keep the order in which they failed.

The thesis's rules (`thesis`, section 4.5): pods are tried in the order of algorithm 1; a pod whose job lacks a type of
pod is refused, until another pod of its job is created (algorithm 2); 100 points or none for a node without another
job's pods (algorithm 3) are added to the stock score.

Not simulated: other scores (balanced allocation, topology spread, image locality); the duration of a placement;
preemption, since Coach's pods have no priority class.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coach.core.cluster import CapacityType, Node, Pod, PodId, Resources
from coach.core.errors import UserError
from coach.core.gang.snapshot import PodRequest
from coach.core.policies.api.parameters import form, parsed
from coach_research.platforms.gang_rules import all_types_present, queue_key, same_job_score

FloatArray = NDArray[np.float64]
#: Tolerance when demands are compared with free capacity, for rounding in sums.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Default:
    """The parameters of default placement, written `default` or `default:deadlock_timeout=1800`."""

    #: A job is cancelled if this many seconds after its first pod got a node others still have none. None: never.
    deadlock_timeout: float | None = None
    #: The longest that a pod waits before it is tried again, s. 0: it is tried whenever something is released.
    backoff: float = 0.0
    #: Pods of one order are created at random within this many seconds. 0: at one instant.
    creation: float = 0.0


@dataclass(frozen=True)
class Thesis(Default):
    """The parameters of the thesis's placement, written `thesis` or `thesis:backoff=10`."""

    #: Pods of a job in the order of their numbers; otherwise by name, so all servers before the first worker.
    by_number: bool = False


class PodByPodPlacement:
    """The queue of pods, and the free resources of each node."""

    def __init__(self, nodes: Sequence[Node], rng: np.random.Generator, kind: Default | None = None) -> None:
        """`rng` breaks ties between nodes, and orders pods that arrive at the same instant."""
        self._kind = kind or Default()
        self._number = {node.name: number for number, node in enumerate(nodes)}
        self._names = [node.name for node in nodes]
        rows = [_vector(node.capacity) for node in nodes]
        self._spot = np.array([node.spot for node in nodes], bool)
        self._capacity: FloatArray = np.array(rows, float).reshape(-1, 3)
        self._free: FloatArray = self._capacity.copy()
        self._rng = rng
        #: Pods in order of arrival or, with back-off, of their last failure; and those since the last `bind`.
        self._queue: dict[PodId, Pod] = {}
        self._new: dict[PodId, Pod] = {}
        self._bound: dict[PodId, Pod] = {}
        self._created: dict[str, float] = {}
        #: With back-off: how often each waiting pod failed, and when last; and those for which nothing changed since.
        self._failed: dict[PodId, tuple[int, float]] = {}
        self._unschedulable: set[PodId] = set()
        self._unavailable: frozenset[str] = frozenset()

    @property
    def waiting(self) -> Collection[PodId]:
        """The pods without a node, the longest waiting first."""
        return self._queue.keys()

    @property
    def due(self) -> float:
        """When the next back-off ends; infinity: none is under way."""
        waiting = (self._eligible(pod) for pod in self._queue if pod not in self._unschedulable)
        return min(waiting, default=math.inf) if self._kind.backoff else math.inf

    def ask(self, pod: Pod, created: float = 0.0) -> None:
        """Add a pod that needs a node: any, or the one that it names. `created`: when its job was."""
        self._new[pod.id] = pod
        self._created[pod.id.job] = created
        self._unschedulable -= {other for other in self._unschedulable if other.job == pod.id.job}

    def leave(self, pod: Pod) -> None:
        """Remove a pod: release its node, or its place in the queue."""
        if pod.node:
            self._free[self._number[pod.node]] += _vector(pod.requests)
            self._bound.pop(pod.id, None)
            self._unschedulable.clear()
        else:
            self._queue.pop(pod.id, None)
            self._new.pop(pod.id, None)
            self._failed.pop(pod.id, None)

    def bind(self, unavailable: Iterable[str] = (), now: float = 0.0) -> list[tuple[PodId, str]]:
        """Place the pods that fit now, as (pod, node); none on `unavailable` nodes."""
        self._enqueue(frozenset(unavailable))
        available = np.ones(len(self._names), bool)
        available[[self._number[name] for name in self._unavailable]] = False
        bound: list[tuple[PodId, str]] = []
        refused: set[tuple[Resources, CapacityType | None]] = set()
        for pod in self._in_order(now):
            # Free resources only shrink in this loop: requests that did not fit once do not fit again.
            node = None
            if (pod.requests, pod.capacity) not in refused and self._passes(pod):
                named = np.arange(len(self._names)) == self._number[pod.node] if pod.node else True
                kind = True if pod.capacity is None else self._spot == (pod.capacity is CapacityType.SPOT)
                node = self._best(pod, available & named & kind)
                if node is None and not pod.node:
                    refused.add((pod.requests, pod.capacity))
            if node is None:
                self._fail(pod, now)
                continue
            del self._queue[pod.id]
            self._failed.pop(pod.id, None)
            self._free[node] -= _vector(pod.requests)
            self._bound[pod.id] = replace(pod, node=self._names[node])
            bound.append((pod.id, self._names[node]))
        return bound

    def _enqueue(self, unavailable: frozenset[str]) -> None:
        new = list(self._new.values())
        self._new.clear()
        for number in self._rng.permutation(len(new)):
            self._queue[new[number].id] = new[number]
        if unavailable != self._unavailable:
            self._unavailable = unavailable
            self._unschedulable.clear()

    def _in_order(self, now: float) -> list[Pod]:
        """The pods to try now, the first one first."""
        pods = list(self._queue.values())
        if self._kind.backoff:
            pods = [p for p in pods if p.id not in self._unschedulable and self._eligible(p.id) <= now + TOLERANCE]
        if not isinstance(self._kind, Thesis):
            return pods
        if self._kind.by_number:
            return sorted(pods, key=lambda pod: (self._created[pod.id.job], pod.id.job, pod.id.index, pod.id.role))
        return sorted(pods, key=lambda pod: queue_key(self._request(pod)))

    def _request(self, pod: Pod) -> PodRequest:
        return PodRequest(pod.id, pod.requests, job_created=self._created[pod.id.job])

    def _eligible(self, pod: PodId) -> float:
        """When the back-off of a waiting pod ends."""
        tries, last = self._failed.get(pod, (0, -math.inf))
        return last + min(self._kind.backoff, 2.0 ** min(tries - 1, 9))

    def _fail(self, pod: Pod, now: float) -> None:
        if self._kind.backoff:
            self._queue[pod.id] = self._queue.pop(pod.id)
            self._failed[pod.id] = self._failed.get(pod.id, (0, 0.0))[0] + 1, now
            self._unschedulable.add(pod.id)

    def _passes(self, pod: Pod) -> bool:
        """The thesis's filter; all pods pass the stock scheduler's."""
        if not isinstance(self._kind, Thesis):
            return True
        queued = [self._request(other) for other in self._queue.values()]
        return all_types_present(self._request(pod), queued, self._bound.values())

    def _best(self, pod: Pod, available: np.ndarray) -> int | None:
        demand = _vector(pod.requests)
        fits = np.flatnonzero(available & (self._free >= demand - TOLERANCE).all(axis=1))
        if not len(fits):
            return None
        score = least_allocated(self._free[fits] - demand, self._capacity[fits])
        if isinstance(self._kind, Thesis):
            request, bound = self._request(pod), list(self._bound.values())
            score = score + [same_job_score(request, self._names[node], bound) for node in fits]
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


#: The placements pod by pod, by name.
KINDS: dict[str, type[Default]] = {"default": Default, "thesis": Thesis}


def parse_placement(text: str) -> Default | None:
    """Parse `gang` (None), or `default` or `thesis` with their parameters. Raises UserError."""
    name, _, argument = text.partition(":")
    kind = KINDS.get(name)
    found = parsed(kind, argument) if kind else None
    if kind is not None and found is not None and found.get("deadlock_timeout") != 0:
        return kind(**found)
    if text == "gang":
        return None
    forms = "; or ".join(form(name, kind) for name, kind in KINDS.items())
    raise UserError(f"there is no placement {text!r}; use gang, or {forms}")


def _vector(resources: Resources) -> FloatArray:
    return np.array([resources.cpu, resources.memory, resources.gpu])
