"""The cluster at one instant, for planning: its nodes, pods that wait for one, and pods that are not ours."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from coach.core.cluster import Node, Pod, PodId, Resources, Role

#: Role order where nothing else decides.
ROLES = tuple(Role)


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A pod of ours in the scheduling queue. All fields but `planned_node` are fixed when it is created."""

    id: PodId
    requests: Resources
    priority: int = 0
    #: When its job was created, seconds on the driver's clock; the same for all pods of a job.
    job_created: float = 0.0
    #: The node that a plan gave it, until it is bound there: it counts as present and holds its requests.
    planned_node: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod that is not ours. It holds its requests on its `node`."""

    name: str
    requests: Resources
    priority: int = 0
    created: float = 0.0
    node: str | None = None


class NodePreference(IntEnum):
    """A job's preference for a node, best first. The first two have the thesis's score 100, the others 0."""

    OWN = 0  #: it holds this job and no other
    EMPTY = 1  #: it holds no job
    OWN_SHARED = 2  #: it holds this job and another
    FOREIGN = 3  #: it holds other jobs only


#: The preferences for nodes that hold a pod of the job already.
OWN = (NodePreference.OWN, NodePreference.OWN_SHARED)


class Snapshot:
    """The cluster at one instant: the free resources and the jobs of each node. Plans are added to it."""

    def __init__(self, nodes: Iterable[Node], bound: Iterable[Pod | ForeignPod]) -> None:
        ordered = sorted(nodes, key=lambda node: node.name)
        self.nodes = tuple(ordered)
        self.bound = tuple(bound)
        self.free: dict[str, Resources] = {node.name: node.capacity for node in ordered}
        self.jobs: dict[str, set[str]] = {node.name: set() for node in ordered}
        self._held: dict[str, list[tuple[str, Resources]]] = {}
        self._of: dict[str, list[Pod]] = {}
        #: The maximum of each resource over the nodes; sizes are shares of it.
        self.largest = Resources(
            max((node.capacity.cpu for node in ordered), default=0.0),
            max((node.capacity.memory for node in ordered), default=0.0),
            max((node.capacity.gpu for node in ordered), default=0.0),
        )
        for pod in self.bound:
            # A pod on a node that is gone holds nothing.
            if pod.node in self.free:
                self.take(pod.node, pod.requests, None if isinstance(pod, ForeignPod) else pod.id.job)
            if isinstance(pod, Pod):
                self._of.setdefault(pod.id.job, []).append(pod)

    def copy(self) -> Snapshot:
        """An independent snapshot with the same content."""
        other = Snapshot((), ())
        other.nodes, other.bound = self.nodes, self.bound
        other.free = dict(self.free)
        other.jobs = {name: set(jobs) for name, jobs in self.jobs.items()}
        other._held = {job: list(held) for job, held in self._held.items()}
        other._of = dict(self._of)
        other.largest = self.largest
        return other

    def of(self, job: str) -> Sequence[Pod]:
        """The pods of `job` that were bound when the snapshot was taken, also those on nodes that are gone."""
        return self._of.get(job, ())

    def keep_only(self, job: str, pods: Iterable[Pod]) -> None:
        """Free all pods of `job` except `pods`."""
        kept = set(pods)
        for pod in self.of(job):
            if pod not in kept and pod.node in self.free:
                self.free[pod.node] += pod.requests
        self._of[job] = [pod for pod in self.of(job) if pod in kept]
        held = [(pod.node, pod.requests) for pod in self._of[job] if pod.node in self.free]
        for node, _ in self._held.pop(job, ()):
            self.jobs[node].discard(job)
        if held:
            self._held[job] = held
        for node, _ in held:
            self.jobs[node].add(job)

    def take(self, node: str, requests: Resources, job: str | None) -> None:
        """Take `requests` from `node`, for a pod of `job` (None: a pod that is not ours)."""
        self.free[node] = self.free[node] - requests
        if job is not None:
            self.jobs[node].add(job)
            self._held.setdefault(job, []).append((node, requests))

    def release(self, job: str) -> None:
        """Free all that `job` holds."""
        for node, requests in self._held.pop(job, ()):
            self.free[node] = self.free[node] + requests
            self.jobs[node].discard(job)

    def bar(self, nodes: Iterable[str]) -> None:
        """Let nothing more be placed on these nodes."""
        for name in self.free.keys() & set(nodes):
            self.free[name] = Resources(0.0, 0.0)

    def holds(self, job: str) -> bool:
        """Whether `job` has a pod on any node."""
        return job in self._held

    def commit(self, pods: Iterable[PodRequest], placements: Mapping[PodId, str]) -> None:
        """Add those `pods` that `placements` names, on the nodes it gives."""
        for pod in pods:
            if pod.id in placements:
                self.take(placements[pod.id], pod.requests, pod.id.job)

    def preference(self, node: str, job: str) -> NodePreference:
        """The preference of `job` for `node`."""
        jobs = self.jobs[node]
        if job in jobs:
            return NodePreference.OWN if len(jobs) == 1 else NodePreference.OWN_SHARED
        return NodePreference.FOREIGN if jobs else NodePreference.EMPTY

    def size(self, pod: Resources) -> float:
        """The largest of a pod's shares of the largest node."""
        return max(self._shares(pod))

    def slack(self, free: Resources) -> float:
        """The size of `free`: the sum of its shares of the largest node, rounded so that decimals tie."""
        return round(sum(self._shares(free)), 9)

    def _shares(self, amount: Resources) -> tuple[float, float, float]:
        """Cpu, memory and gpu as shares of `largest`; 0 of what no node has, nine decimals."""
        largest = self.largest
        return (
            round(amount.cpu / largest.cpu, 9) if largest.cpu else 0.0,
            round(amount.memory / largest.memory, 9) if largest.memory else 0.0,
            round(amount.gpu / largest.gpu, 9) if largest.gpu else 0.0,
        )


class Occupancy:
    """The pods of all jobs on their nodes, updated as they come and go, so that a snapshot is only a copy."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._now = Snapshot(nodes, ())
        self._capacity = dict(self._now.free)
        self._on: dict[str, dict[PodId, Pod]] = {name: {} for name in self._capacity}

    @property
    def names(self) -> Collection[str]:
        """The nodes' names."""
        return self._capacity.keys()

    def hold(self, job: str, pods: list[Pod]) -> None:
        """Replace the pods of `job` by `pods`."""
        now, before = self._now, self._now.of(job)
        if pods == before:
            return
        touched = []
        for pod in before:
            if pod.node in self._on and self._on[pod.node].pop(pod.id, None) is not None:
                touched.append(pod.node)
        for pod in pods:
            if pod.node in self._on:
                self._on[pod.node][pod.id] = pod
                touched.append(pod.node)
        now._of[job] = pods
        now._held[job] = [(pod.node, pod.requests) for pod in pods if pod.node in self._on]
        for table in (now._of, now._held):
            if not table[job]:
                del table[job]
        for node in dict.fromkeys(touched):
            # Computed from the capacity each time: adding and subtracting the same pod would leave rounding errors.
            free = self._capacity[node]
            for pod in self._on[node].values():
                free -= pod.requests
            now.free[node] = free
            now.jobs[node] = {pod.job for pod in self._on[node]}

    def snapshot(self) -> Snapshot:
        """An independent snapshot."""
        return self._now.copy()
