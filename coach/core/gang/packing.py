"""Putting pods onto nodes: the arithmetic under `plan` and `queue`.

Goals, in this order: all pods placed; as few pods as possible beside another job (the thesis's score, summed over
the pods, is greatest); as few nodes as possible; the tightest fit; the node's name. Packing vectors is NP-hard, so
the goals are met by a greedy, and only the first one is certain, on small instances:

1. *fill*: take the node of the best standing that can hold the most pods, fill it largest pod first, and go on;
2. *best fit decreasing*: each pod, largest first, to the node of the best standing with the tightest fit;
3. *count*: give up at once where the nodes, one by one, cannot hold that many pods of some size at all;
4. *search*: depth first over all placements, at most `SEARCH_STEPS` trials.

Guaranteed: no node is over-committed; and when the trials suffice (they do whenever nodes^1 + ... + nodes^pods
stays within `SEARCH_STEPS`, such as 6 pods on 6 nodes, counting only the pods to place and the nodes that hold at
least one of them), a placement is found if one exists. The result does not depend on the order of the input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

from coach.core.cluster import NOTHING, Node, Pod, PodId, Resources, Role
from coach.core.gang.rules import ForeignPod, PodRequest

#: Trials (one pod on one node) before the search gives up; 6 pods on 6 nodes need at most 55,986.
SEARCH_STEPS = 60_000

#: Gangs with more pods than this are not searched: each pod is a level of recursion, and so deep a search ends
#: at `SEARCH_STEPS` long before it has tried another place for the first pods.
SEARCH_PODS = 200

#: Role order where sizes tie.
ROLES = tuple(Role)

Placements = dict[PodId, str]


class Standing(IntEnum):
    """How welcome a node is to a job, best first. The first two have the thesis's score 100, the others 0."""

    OWN = 0  #: it holds this job and no other
    EMPTY = 1  #: it holds no job
    OWN_SHARED = 2  #: it holds this job and another
    FOREIGN = 3  #: it holds other jobs only


@dataclass(frozen=True, slots=True)
class Packing:
    """What a packing found: `placements` of all pods, or the largest part it met; `exhaustive` if no other exists."""

    placements: Placements
    complete: bool
    exhaustive: bool


class Snapshot:
    """The cluster at one instant: what is free on each node and which jobs stand there. Grows as plans are made."""

    def __init__(self, nodes: Iterable[Node], bound: Iterable[Pod | ForeignPod]) -> None:
        ordered = sorted(nodes, key=lambda node: node.name)
        self.nodes = tuple(ordered)
        self.bound = tuple(bound)
        self.room: dict[str, Resources] = {node.name: node.capacity for node in ordered}
        self.jobs: dict[str, set[str]] = {node.name: set() for node in ordered}
        self._held: dict[str, list[tuple[str, Resources]]] = {}
        #: The most of each resource that any node has; sizes are shares of it.
        self.largest = Resources(
            max((node.capacity.cpu for node in ordered), default=0.0),
            max((node.capacity.memory for node in ordered), default=0.0),
            max((node.capacity.gpu for node in ordered), default=0.0),
        )
        for pod in self.bound:
            # A pod on a node that is gone holds nothing any more.
            if pod.node in self.room:
                self.take(pod.node, pod.requests, None if isinstance(pod, ForeignPod) else pod.id.job)

    def copy(self) -> Snapshot:
        """An independent snapshot with the same content."""
        other = Snapshot((), ())
        other.nodes, other.bound = self.nodes, self.bound
        other.room = dict(self.room)
        other.jobs = {name: set(jobs) for name, jobs in self.jobs.items()}
        other._held = {job: list(held) for job, held in self._held.items()}
        other.largest = self.largest
        return other

    def take(self, node: str, requests: Resources, job: str | None) -> None:
        """Take `requests` from `node`, for a pod of `job` (None: a pod that is not ours)."""
        self.room[node] = self.room[node] - requests
        if job is not None:
            self.jobs[node].add(job)
            self._held.setdefault(job, []).append((node, requests))

    def give_back(self, job: str) -> None:
        """Free all that `job` holds."""
        for node, requests in self._held.pop(job, ()):
            self.room[node] = self.room[node] + requests
            self.jobs[node].discard(job)

    def holds(self, job: str) -> bool:
        """Whether `job` has a pod on any node."""
        return job in self._held

    def commit(self, pods: Iterable[PodRequest], placements: Mapping[PodId, str]) -> None:
        """Take the room of those `pods` that `placements` names."""
        for pod in pods:
            if pod.id in placements:
                self.take(placements[pod.id], pod.requests, pod.id.job)

    def standing(self, node: str, job: str) -> Standing:
        """How welcome `node` is to `job`."""
        jobs = self.jobs[node]
        if job in jobs:
            return Standing.OWN if len(jobs) == 1 else Standing.OWN_SHARED
        return Standing.FOREIGN if jobs else Standing.EMPTY

    def size(self, pod: Resources) -> float:
        """The largest of a pod's shares of the largest node."""
        return max(self._shares(pod))

    def slack(self, room: Resources) -> float:
        """How much `room` is: the sum of its shares of the largest node, rounded so that decimals tie."""
        return round(sum(self._shares(room)), 9)

    def _shares(self, amount: Resources) -> tuple[float, float, float]:
        """Cpu, memory and gpu as parts of the most that any node has; 0 of what none has, nine decimals."""
        most = self.largest
        return (
            round(amount.cpu / most.cpu, 9) if most.cpu else 0.0,
            round(amount.memory / most.memory, 9) if most.memory else 0.0,
            round(amount.gpu / most.gpu, 9) if most.gpu else 0.0,
        )


def pack(pods: Collection[PodRequest], job: str, snapshot: Snapshot) -> Packing:
    """Place all `pods` of `job` on `snapshot`, which is left as it is."""
    ordered = sorted(
        pods, key=lambda pod: (-snapshot.size(pod.requests), ROLES.index(pod.id.role), pod.id.index)
    )
    best: Placements = {}
    for way in (_fill, _best_fit):
        placements = way(ordered, job, snapshot)
        if len(placements) == len(ordered):
            return Packing(placements, complete=True, exhaustive=True)
        best = max(best, placements, key=len)
    if _too_many(ordered, snapshot):
        return Packing(best, complete=False, exhaustive=True)
    if len(ordered) > SEARCH_PODS:
        return Packing(best, complete=False, exhaustive=False)
    found, exhaustive = _search(ordered, job, snapshot)
    best = max(best, found, key=len)
    return Packing(best, len(best) == len(ordered), exhaustive)


def place_each(pods: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    """Place those of `pods` that fit, one after the other in the given order, and take their room."""
    placements: Placements = {}
    for pod in pods:
        candidates = [name for name, room in snapshot.room.items() if pod.requests.fits(room)]
        if candidates:
            placements[pod.id] = min(candidates, key=lambda name: _rank(name, pod.requests, job, snapshot))
            snapshot.take(placements[pod.id], pod.requests, job)
    return placements


def _rank(node: str, requests: Resources, job: str, snapshot: Snapshot) -> tuple[Standing, float, str]:
    return snapshot.standing(node, job), snapshot.slack(snapshot.room[node] - requests), node


def _best_fit(ordered: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    return place_each(ordered, job, snapshot.copy())


def _fill(ordered: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    # Pods of one shape are interchangeable, so a node is weighed by how many of each shape it takes.
    waiting = [
        (shape, list(group)) for shape, group in groupby(ordered, key=lambda pod: (pod.id.role, pod.requests))
    ]
    placements: Placements = {}
    unused = dict(snapshot.room)
    while any(group for _, group in waiting):
        best: tuple[tuple[Standing, int, float, str], list[int]] | None = None
        for node, room in unused.items():
            takes = []
            for (_, requests), group in waiting:
                takes.append(_how_many(requests, room, len(group)))
                room = room - requests * takes[-1]  # noqa: PLW2901
            if any(takes):
                key = (snapshot.standing(node, job), -sum(takes), snapshot.slack(room), node)
                if best is None or key < best[0]:
                    best = key, takes
        if best is None:
            break
        (*_, node), takes = best
        del unused[node]
        for (_, group), taken in zip(waiting, takes, strict=True):
            for pod in group[:taken]:
                placements[pod.id] = node
            del group[:taken]
    return placements


def _how_many(requests: Resources, room: Resources, most: int) -> int:
    """How many pods of `requests` fit into `room`, at most `most`."""
    count = most
    for need, have in (
        (requests.cpu, room.cpu),
        (requests.memory, room.memory),
        (requests.gpu, room.gpu),
    ):
        if need > 0:
            count = min(count, int((have + 1e-9) / need))
        elif have < -1e-9:
            return 0
    return max(count, 0)


def _too_many(ordered: Sequence[PodRequest], snapshot: Snapshot) -> bool:
    """Whether the sum is short, or there are more pods of some size or larger than such places on all nodes."""
    room = NOTHING
    for free in snapshot.room.values():
        room += free
    need = NOTHING
    for pod in ordered:
        need += pod.requests
    if not need.fits(room):
        return True
    for shape in {pod.requests for pod in ordered}:
        count = sum(shape.fits(pod.requests) for pod in ordered)
        if count > sum(_how_many(shape, free, count) for free in snapshot.room.values()):
            return True
    return False


def _search(ordered: Sequence[PodRequest], job: str, snapshot: Snapshot) -> tuple[Placements, bool]:
    """The first full placement in a fixed order of trials, else the largest part met; and whether all was tried."""
    names = sorted(
        (name for name, room in snapshot.room.items() if any(pod.requests.fits(room) for pod in ordered)),
        key=lambda name: (snapshot.standing(name, job), -snapshot.slack(snapshot.room[name]), name),
    )
    room = [snapshot.room[name] for name in names]
    chosen: list[int] = []
    best: list[int] = []
    trials = 0

    def descend() -> bool:
        nonlocal best, trials
        depth = len(chosen)
        if depth > len(best):
            best = list(chosen)
        if depth == len(ordered):
            return True
        requests = ordered[depth].requests
        # Equal pods in node order only: their permutations are one placement. Equal rooms: one trial stands for all.
        twin = depth > 0 and ordered[depth - 1].requests == requests
        tried: set[Resources] = set()
        for at in range(chosen[-1] if twin else 0, len(names)):
            if trials >= SEARCH_STEPS:
                return False
            if room[at] in tried or not requests.fits(room[at]):
                continue
            trials += 1
            tried.add(room[at])
            before = room[at]
            room[at] = before - requests
            chosen.append(at)
            if descend():
                return True
            chosen.pop()
            room[at] = before
        return False

    descend()
    placements = {pod.id: names[at] for pod, at in zip(ordered, best, strict=False)}
    return placements, trials < SEARCH_STEPS
