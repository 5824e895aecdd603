"""Placing pods on nodes, for `plan` and `queue`.

Goals, in this order: all pods placed; as few pods as possible on nodes shared with another job (which maximizes the
thesis's score, summed over the pods); as few nodes as possible; the tightest fit; the node's name. Packing vectors is
NP-hard, so greedy methods come first and a bounded search second:

1. *fill*: take the node of the best preference that can hold the most pods, fill it largest pod first, repeat;
2. *best fit decreasing*: each pod, largest first, to the node of the best preference with the tightest fit;
3. *count*: stop at once where the nodes, one by one, cannot hold that many pods of some size at all;
4. *search*: depth first over all placements, with at most `SEARCH_STEPS` trials of one pod on one node for a first
   placement and at most `IMPROVE_STEPS` more for a better one.

Guaranteed: no node is over-committed. Where the trials suffice, a placement is found if one exists, with the fewest
pods on shared nodes and among those the fewest nodes. They suffice whenever nodes^1 + ... + nodes^pods is at most their
number, counting only the pods to place and the nodes that can hold one of them: at least 6 pods on 6 nodes for a first
placement, 5 pods on 5 nodes for the best. The result does not depend on the order of the input.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from coach.core.cluster import NOTHING, PodId, Resources
from coach.core.gang.snapshot import OWN, ROLES, NodePreference, PodRequest, Snapshot

#: Trials (one pod on one node) before the search gives up; 6 pods on 6 nodes need at most 55,986.
SEARCH_STEPS = 60_000

#: Trials for a better placement than the known one; 5 pods on 5 nodes need at most 3,905.
IMPROVE_STEPS = 4_000

#: A better placement is searched only up to this product of pods and nodes: beyond, the trials cover too little.
IMPROVE_SIZE = 400

#: Gangs with more pods than this are not searched: each pod is a level of recursion, and a search that deep ends
#: at `SEARCH_STEPS` long before it has tried another node for the first pods.
SEARCH_PODS = 200

Placements = dict[PodId, str]


@dataclass(frozen=True, slots=True)
class Packing:
    """`placements` of all pods, or of the largest part found; `exhaustive` if no larger one exists."""

    placements: Placements
    complete: bool
    exhaustive: bool


def pack(pods: Collection[PodRequest], job: str, snapshot: Snapshot, *, improve: bool = True) -> Packing:
    """Place all `pods` of `job` on `snapshot`, which is not changed.

    Without `improve` the first complete placement suffices: to find out only whether one exists.
    """
    if not pods:
        return Packing({}, complete=True, exhaustive=True)
    ordered = sorted(pods, key=lambda pod: (-snapshot.size(pod.requests), ROLES.index(pod.id.role), pod.id.index))
    best: Placements = {}
    for method in (_fill, _best_fit):
        placements = method(ordered, job, snapshot)
        if len(placements) == len(ordered):
            if improve:
                placements = _improve(placements, ordered, job, snapshot)
            return Packing(placements, complete=True, exhaustive=True)
        best = max(best, placements, key=len)
    if _too_many(ordered, snapshot):
        return Packing(best, complete=False, exhaustive=True)
    if len(ordered) > SEARCH_PODS:
        return Packing(best, complete=False, exhaustive=False)
    search = Search(ordered, job, snapshot, SEARCH_STEPS)
    best = max(best, search.largest, key=len)
    return Packing(best, len(best) == len(ordered), search.exhaustive)


def _improve(known: Placements, ordered: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    """A better placement than `known`, which is complete, if the search finds one; else `known`."""
    if len(ordered) * len(snapshot.free) > IMPROVE_SIZE:
        return known
    preference = {name: snapshot.preference(name, job) for name in snapshot.free}
    cost = (
        sum(preference[node] >= NodePreference.OWN_SHARED for node in known.values()),
        len({node for node in known.values() if preference[node] not in OWN}),
    )
    unshared = [free for name, free in snapshot.free.items() if preference[name] < NodePreference.OWN_SHARED]
    min_shared = sum(not any(pod.requests.fits(free) for free in unshared) for pod in ordered)
    has_node = any(own in OWN for own in preference.values())
    if cost <= (min_shared, 0 if has_node else 1):
        return known
    return Search(ordered, job, snapshot, IMPROVE_STEPS, cost).found or known


def place_each(pods: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    """Place those of `pods` that fit on `snapshot`, one after the other in the given order."""
    placements: Placements = {}
    for pod in pods:
        candidates = [name for name, free in snapshot.free.items() if pod.requests.fits(free)]
        if candidates:
            placements[pod.id] = min(candidates, key=lambda name: _rank(name, pod.requests, job, snapshot))
            snapshot.take(placements[pod.id], pod.requests, job)
    return placements


def _rank(node: str, requests: Resources, job: str, snapshot: Snapshot) -> tuple[NodePreference, float, str]:
    return snapshot.preference(node, job), snapshot.slack(snapshot.free[node] - requests), node


def _best_fit(ordered: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    return place_each(ordered, job, snapshot.copy())


def _fill(ordered: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    # Pods of one shape are interchangeable, so a node is ranked by how many of each shape it takes.
    waiting = [(shape, list(group)) for shape, group in groupby(ordered, key=lambda pod: (pod.id.role, pod.requests))]
    placements: Placements = {}
    # Nodes with the same free resources and preference differ in name only, and the first name is taken first.
    kinds: dict[tuple[Resources, NodePreference], list[str]] = {}
    for node, free in reversed(snapshot.free.items()):
        kinds.setdefault((free, snapshot.preference(node, job)), []).append(node)
    while any(group for _, group in waiting):
        best: tuple[tuple[NodePreference, int, float, str], list[int], list[str]] | None = None
        for (free, preference), names in kinds.items():
            takes = []
            if not names:
                continue
            for (_, requests), group in waiting:
                takes.append(how_many(requests, free, len(group)))
                free = free - requests * takes[-1]  # noqa: PLW2901
            if any(takes):
                key = (preference, -sum(takes), snapshot.slack(free), names[-1])
                if best is None or key < best[0]:
                    best = key, takes, names
        if best is None:
            break
        _, takes, names = best
        node = names.pop()
        for (_, group), taken in zip(waiting, takes, strict=True):
            for pod in group[:taken]:
                placements[pod.id] = node
            del group[:taken]
    return placements


def how_many(requests: Resources, free: Resources, limit: int) -> int:
    """How many pods of `requests` fit into `free`, at most `limit`."""
    count = limit
    for need, have in (
        (requests.cpu, free.cpu),
        (requests.memory, free.memory),
        (requests.gpu, free.gpu),
    ):
        if need > 0:
            count = int(min(count, (have + 1e-9) / need))
        elif have < -1e-9:
            return 0
    return max(count, 0)


def _too_many(ordered: Sequence[PodRequest], snapshot: Snapshot) -> bool:
    """Whether the pods cannot fit: by the sum of all requests, or by the number of pods of some size or larger."""
    total = NOTHING
    for free in snapshot.free.values():
        # An over-committed node (by foreign pods) does not reduce what other nodes have.
        total += Resources(max(free.cpu, 0.0), max(free.memory, 0.0), max(free.gpu, 0.0))
    need = NOTHING
    for pod in ordered:
        need += pod.requests
    if not need.fits(total):
        return True
    for shape in {pod.requests for pod in ordered}:
        count = sum(shape.fits(pod.requests) for pod in ordered)
        if count > sum(how_many(shape, free, count) for free in snapshot.free.values()):
            return True
    return False


class Search:
    """Depth first over the placements of `ordered`, in a fixed order of trials; runs when it is made."""

    def __init__(
        self,
        ordered: Sequence[PodRequest],
        job: str,
        snapshot: Snapshot,
        steps: int,
        below: tuple[int, int] | None = None,
    ) -> None:
        preference = {name: snapshot.preference(name, job) for name in snapshot.free}
        names = sorted(
            (name for name, free in snapshot.free.items() if any(pod.requests.fits(free) for pod in ordered)),
            key=lambda name: (preference[name], -snapshot.slack(snapshot.free[name]), name),
        )
        self._pods = ordered
        self._names = names
        self._preference = [preference[name] for name in names]
        self._free = [snapshot.free[name] for name in names]
        self._members = [int(preference[name] in OWN) for name in names]
        self._chosen: list[int] = []
        self._largest: list[int] = []
        self._steps = steps
        #: (pods on shared nodes, new nodes) that a placement must stay below.
        self._below = below
        #: The best full placement; empty if none was found.
        self.found: Placements = {}
        self._descend(0, 0)

    @property
    def exhaustive(self) -> bool:
        """Whether the trials sufficed."""
        return self._steps > 0

    @property
    def largest(self) -> Placements:
        """The best full placement, else the first of the largest partial ones."""
        return self.found or self._placements(self._largest)

    def _placements(self, chosen: Sequence[int]) -> Placements:
        return {pod.id: self._names[at] for pod, at in zip(self._pods, chosen, strict=False)}

    def _descend(self, shared: int, opened: int) -> None:
        depth = len(self._chosen)
        if self._below is not None and (shared, opened) >= self._below:
            return
        if depth > len(self._largest):
            self._largest = list(self._chosen)
        if depth == len(self._pods):
            if not self.found:
                self._steps = min(self._steps, IMPROVE_STEPS)
            self.found, self._below = self._placements(self._chosen), (shared, opened)
            return
        requests = self._pods[depth].requests
        # Equal pods in node order only: their permutations are one placement. Of equal nodes only one is tried.
        twin = depth > 0 and self._pods[depth - 1].requests == requests
        tried: set[tuple[Resources, NodePreference, bool]] = set()
        for at in range(self._chosen[-1] if twin else 0, len(self._names)):
            before, preference, members = self._free[at], self._preference[at], self._members[at]
            if not requests.fits(before) or (kind := (before, preference, members > 0)) in tried:
                continue
            if self._steps <= 0:
                return
            self._steps -= 1
            tried.add(kind)
            self._free[at] = before - requests
            self._members[at] += 1
            self._chosen.append(at)
            self._descend(shared + (preference >= NodePreference.OWN_SHARED), opened + (members == 0))
            self._chosen.pop()
            self._members[at] -= 1
            self._free[at] = before
