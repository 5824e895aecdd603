"""Putting pods onto nodes: the arithmetic under `plan` and `queue`.

Goals, in this order: all pods placed; as few pods as possible beside another job (the thesis's score, summed over
the pods, is greatest); as few nodes as possible; the tightest fit; the node's name. Packing vectors is NP-hard, so
greedy ways come first and a bounded search second:

1. *fill*: take the node of the best standing that can hold the most pods, fill it largest pod first, and go on;
2. *best fit decreasing*: each pod, largest first, to the node of the best standing with the tightest fit;
3. *count*: give up at once where the nodes, one by one, cannot hold that many pods of some size at all;
4. *search*: depth first over all placements, for a first one at most `SEARCH_STEPS` trials of one pod on one node, for
   a better one than is known at most `IMPROVE_STEPS` more.

Guaranteed: no node is over-committed; where the trials suffice, a placement is found if one exists, and it has the
fewest pods beside another job and among those the fewest nodes. They suffice whenever nodes^1 + ... + nodes^pods stays
within them, counting only the pods to place and the nodes that can hold one of them: at least 6 pods on 6 nodes for a
first placement, 5 pods on 5 nodes for the best. The result does not depend on the order of the input.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from coach.core.cluster import NOTHING, PodId, Resources
from coach.core.gang.rules import PodRequest
from coach.core.gang.snapshot import OWN, ROLES, NodePreference, Snapshot

#: Trials (one pod on one node) before the search gives up; 6 pods on 6 nodes need at most 55,986.
SEARCH_STEPS = 60_000

#: Trials for a better placement than the one in hand; 5 pods on 5 nodes need at most 3,905.
IMPROVE_STEPS = 4_000

#: Such a search only where pods times nodes are at most so many: beyond, its trials would not come far.
IMPROVE_SIZE = 400

#: Gangs with more pods than this are not searched: each pod is a level of recursion, and so deep a search ends
#: at `SEARCH_STEPS` long before it has tried another place for the first pods.
SEARCH_PODS = 200

Placements = dict[PodId, str]


@dataclass(frozen=True, slots=True)
class Packing:
    """What a packing found: `placements` of all pods, or the largest part it met; `exhaustive` if no other exists."""

    placements: Placements
    complete: bool
    exhaustive: bool


def pack(pods: Collection[PodRequest], job: str, snapshot: Snapshot, *, improve: bool = True) -> Packing:
    """Place all `pods` of `job` on `snapshot`, which is left as it is.

    Without `improve` the first complete placement will do: for whoever asks only whether there is one.
    """
    if not pods:
        return Packing({}, complete=True, exhaustive=True)
    ordered = sorted(
        pods, key=lambda pod: (-snapshot.size(pod.requests), ROLES.index(pod.id.role), pod.id.index)
    )
    best: Placements = {}
    for way in (_fill, _best_fit):
        placements = way(ordered, job, snapshot)
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
    """A better placement than `known`, which is complete, if the search finds one."""
    if len(ordered) * len(snapshot.room) > IMPROVE_SIZE:
        return known
    standing = {name: snapshot.standing(name, job) for name in snapshot.room}
    cost = (
        sum(standing[node] >= NodePreference.OWN_SHARED for node in known.values()),
        len({node for node in known.values() if standing[node] not in OWN}),
    )
    apart = [room for name, room in snapshot.room.items() if standing[name] < NodePreference.OWN_SHARED]
    least = sum(not any(pod.requests.fits(room) for room in apart) for pod in ordered)
    settled = any(own in OWN for own in standing.values())
    if cost <= (least, 0 if settled else 1):
        return known
    return Search(ordered, job, snapshot, IMPROVE_STEPS, cost).found or known


def place_each(pods: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    """Place those of `pods` that fit, one after the other in the given order, and take their room."""
    placements: Placements = {}
    for pod in pods:
        candidates = [name for name, room in snapshot.room.items() if pod.requests.fits(room)]
        if candidates:
            placements[pod.id] = min(candidates, key=lambda name: _rank(name, pod.requests, job, snapshot))
            snapshot.take(placements[pod.id], pod.requests, job)
    return placements


def _rank(node: str, requests: Resources, job: str, snapshot: Snapshot) -> tuple[NodePreference, float, str]:
    return snapshot.standing(node, job), snapshot.slack(snapshot.room[node] - requests), node


def _best_fit(ordered: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    return place_each(ordered, job, snapshot.copy())


def _fill(ordered: Sequence[PodRequest], job: str, snapshot: Snapshot) -> Placements:
    # Pods of one shape are interchangeable, so a node is weighed by how many of each shape it takes.
    waiting = [
        (shape, list(group)) for shape, group in groupby(ordered, key=lambda pod: (pod.id.role, pod.requests))
    ]
    placements: Placements = {}
    # Nodes with the same room and standing differ in name only, and the first name is taken first.
    kinds: dict[tuple[Resources, NodePreference], list[str]] = {}
    for node, room in reversed(snapshot.room.items()):
        kinds.setdefault((room, snapshot.standing(node, job)), []).append(node)
    while any(group for _, group in waiting):
        best: tuple[tuple[NodePreference, int, float, str], list[int], list[str]] | None = None
        for (room, standing), names in kinds.items():
            takes = []
            if not names:
                continue
            for (_, requests), group in waiting:
                takes.append(_how_many(requests, room, len(group)))
                room = room - requests * takes[-1]  # noqa: PLW2901
            if any(takes):
                key = (standing, -sum(takes), snapshot.slack(room), names[-1])
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
        # What one node lacks (foreign pods may hold more than it has) is not taken from another one's room.
        room += Resources(max(free.cpu, 0.0), max(free.memory, 0.0), max(free.gpu, 0.0))
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
        standing = {name: snapshot.standing(name, job) for name in snapshot.room}
        names = sorted(
            (name for name, room in snapshot.room.items() if any(pod.requests.fits(room) for pod in ordered)),
            key=lambda name: (standing[name], -snapshot.slack(snapshot.room[name]), name),
        )
        self._pods = ordered
        self._names = names
        self._standing = [standing[name] for name in names]
        self._room = [snapshot.room[name] for name in names]
        self._members = [int(standing[name] in OWN) for name in names]
        self._chosen: list[int] = []
        self._largest: list[int] = []
        self._steps = steps
        #: (pods beside another job, new nodes) that a placement has to stay below.
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
        """The best full placement, else the first of the largest parts met."""
        return self.found or self._placements(self._largest)

    def _placements(self, chosen: Sequence[int]) -> Placements:
        return {pod.id: self._names[at] for pod, at in zip(self._pods, chosen, strict=False)}

    def _descend(self, beside: int, opened: int) -> None:
        depth = len(self._chosen)
        if self._below is not None and (beside, opened) >= self._below:
            return
        if depth > len(self._largest):
            self._largest = list(self._chosen)
        if depth == len(self._pods):
            if not self.found:
                self._steps = min(self._steps, IMPROVE_STEPS)
            self.found, self._below = self._placements(self._chosen), (beside, opened)
            return
        requests = self._pods[depth].requests
        # Equal pods in node order only: their permutations are one placement. Equal nodes: one trial stands for all.
        twin = depth > 0 and self._pods[depth - 1].requests == requests
        tried: set[tuple[Resources, NodePreference, bool]] = set()
        for at in range(self._chosen[-1] if twin else 0, len(self._names)):
            before, standing, members = self._room[at], self._standing[at], self._members[at]
            if not requests.fits(before) or (kind := (before, standing, members > 0)) in tried:
                continue
            if self._steps <= 0:
                return
            self._steps -= 1
            tried.add(kind)
            self._room[at] = before - requests
            self._members[at] += 1
            self._chosen.append(at)
            self._descend(beside + (standing >= NodePreference.OWN_SHARED), opened + (members == 0))
            self._chosen.pop()
            self._members[at] -= 1
            self._room[at] = before
