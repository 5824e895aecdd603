"""The jobs and their pods between two changes: which jobs are active, what each holds, and what would fit.

A `ClusterState` is made from the reducer's state and thrown away at the next change. Until then it caches what all
waiting jobs need.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache

from coach.core.cluster import NOTHING, Allocation, CapacityType, Node, Placement, Pod, PodId, Resources, Role
from coach.core.gang.packing import place_each
from coach.core.gang.plan import CLAIMS, Gang, GangPlan, Pending, plan_gang, plan_on, plan_required
from coach.core.gang.snapshot import Occupancy, PodRequest, Snapshot
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle import giving_back
from coach.core.lifecycle.job_view import ReducerJobView
from coach.core.policies.api.allocation import AllocationDecision, ClusterView
from coach.core.policies.api.policy import Policy

#: Why a job waits that another's move may help.
FOR_ROOM = frozenset(Reason(claim.value) for claim in CLAIMS)
#: Workers and servers on each node, by its name; the scheduler is on the first.
NodeAllocations = Mapping[str, Allocation]


class ClusterState:
    """The state of all jobs at one instant, and what follows from it."""

    def __init__(
        self,
        jobs: Iterable[Job],
        nodes: tuple[Node, ...],
        occupancy: Occupancy,
        *,
        now: float,
        view: Callable[[Job], ReducerJobView],
        policy: Policy,
        allocate: Callable[[list[ReducerJobView], ClusterView], AllocationDecision],
        placement: Placement = Placement.GANG,
    ) -> None:
        """`allocate` is that of `policy`, measured."""
        #: The jobs that have not ended, in queue order.
        self.live = sorted((job for job in jobs if not job.ended), key=queue_key)
        self._nodes = nodes
        self._names = occupancy.names
        self._occupancy = occupancy
        self._at = now
        self._view = view
        self._policy, self._allocate = policy, allocate
        self._placement = placement
        self._holding = [job for job in self.live if job.gang.pods]
        self._draining = [job.name for job in self._holding if any(held.releasing for held in job.gang.pods.values())]
        #: Pending reasons of jobs that hold nothing, by what they request.
        self._waits: dict[tuple[tuple[Resources, ...], Allocation, frozenset[str]], Pending | None] = {}
        self._decision: AllocationDecision | None = None
        self._within_epochs: AllocationDecision | None = None
        self._has_ample: bool | None = None

    def others_hold(self, job: Job) -> bool:
        """Whether any other job holds a pod, or is releasing one."""
        return any(other is not job for other in self._holding)

    def plan(
        self,
        job: Job,
        allocation: Allocation,
        required: Allocation,
        *,
        shrunk: bool = False,
        on: NodeAllocations | None = None,
        look: bool = False,
    ) -> GangPlan | Pending:
        """Nodes for the pods that `job` lacks of `allocation`, given what all jobs hold now.

        `shrunk`: the pods of `job` that `allocation` does not keep count as released. `on`: these nodes, with exactly
        these counts where they fit.

        With default placement kube-scheduler chooses the nodes where `on` does not. The pods of the next epoch are then
        created without looking for free capacity (unless `look`), but those of a probe (`shrunk`) only where they fit
        as far as is known.
        """
        gang = desired_pods(job, allocation, on=on)
        missing = [pod for pod in gang if pod not in job.gang.pods]
        unbound = self._placement is Placement.DEFAULT and on is None
        if unbound and not look and not (shrunk and job.gang.pods):
            return GangPlan(job.name, dict.fromkeys(missing, ""))
        if not missing and self._suffices(job, required):
            return GangPlan(job.name, {})
        if on is None:
            snapshot = self._occupancy.snapshot()
            if shrunk:
                snapshot.keep_only(job.name, (held.pod for pod, held in job.gang.pods.items() if pod in gang))
            snapshot.bar(job.gang.barred)
            if self._placement is Placement.DEFAULT:
                self._expect(snapshot)
            return plan_on(_gang(job, missing, required), snapshot, self._draining)
        bound = [
            held.pod
            for other in self._holding
            for held in other.gang.pods.values()
            if not (shrunk and other is job and held.pod.id not in gang)
        ]
        if (placements := self._placements_on(job, missing, bound, on)) is not None:
            return GangPlan(job.name, placements)
        nodes = tuple(node for node in self._nodes if node.name in on)
        return plan_gang(_gang(job, missing, required), nodes, bound, self._draining)

    def _expect(self, snapshot: Snapshot, but: Job | None = None) -> None:
        """Take from `snapshot` what pods without a node will take; `but`: the others' than its, of spot nodes."""
        for other in self._holding:
            if but is not None and (other is but or other.decision.on is CapacityType.ON_DEMAND):
                continue
            unplaced = [pod for pod, held in other.gang.pods.items() if not held.pod.node and not held.releasing]
            if unplaced:
                place_each(_gang(other, unplaced, other.minimum).members, other.name, snapshot)

    def has_spot(self, job: Job) -> bool:
        """Whether its smallest gang has room on spot nodes, those included that it holds.

        Pods of it that wait for spot nodes show that it has none, whatever is known of these.
        """
        pods = (held.pod for held in job.gang.pods.values())
        waits = any(pod.capacity is CapacityType.SPOT and not pod.node for pod in pods)
        if waits and job.money.billed_resources == NOTHING:
            return False
        snapshot = self._occupancy.snapshot()
        snapshot.keep_only(job.name, ())
        snapshot.bar(node.name for node in self._nodes if not node.spot)
        if self._placement is Placement.DEFAULT:
            self._expect(snapshot, but=job)
        gang = _gang(job, desired_pods(job, job.minimum, fresh=True), job.minimum)
        return isinstance(plan_required(gang, snapshot), GangPlan)

    def _suffices(self, job: Job, required: Allocation) -> bool:
        """Whether the job has the required pods, and all its pods are on available nodes."""
        workers, servers = Allocation.of(job.gang.pods)
        enough = workers >= required.workers and servers >= required.servers
        return enough and all(held.pod.node in self._names for held in job.gang.pods.values())

    def _placements_on(
        self, job: Job, missing: Iterable[PodId], bound: Iterable[Pod], on: NodeAllocations
    ) -> dict[PodId, str] | None:
        """A node for each missing pod, with the counts of `on`; None where one does not fit."""
        free = {node.name: node.capacity for node in self._nodes}
        for pod in bound:
            if pod.node in free:
                free[pod.node] -= pod.requests
        left = _slots(on)
        left.subtract((held.pod.node, pod.role) for pod, held in job.gang.pods.items() if not held.releasing)
        placements: dict[PodId, str] = {}
        for pod_id in missing:
            requests = job.spec.resources.of(pod_id.role)
            node = next((node for node in on if left[node, pod_id.role] > 0), None)
            if node is None or node not in free or not requests.fits(free[node]):
                return None
            left[node, pod_id.role] -= 1
            free[node] -= requests
            placements[pod_id] = node
        return placements

    def pending_reason(self, job: Job) -> Pending | None:
        """Why not even the smallest gang of a job that holds nothing fits now; None where it fits."""
        of = job.spec.resources.of
        key = tuple(of(role) for role in Role), job.minimum, job.gang.barred
        if key not in self._waits:
            plan = self.plan(job, job.minimum, job.minimum)
            self._waits[key] = plan if isinstance(plan, Pending) else None
        wait = self._waits[key]
        return wait and replace(wait, job=job.name)

    def aside(self, job: Job, desired: Allocation) -> NodeAllocations | None:
        """Where `job` moves for the first job that waits, which then finds room; None where that is of no use.

        A policy decides what fits if all pods are placed anew. Those that run are not: a job may wait although the
        nodes together have room for it, because none of them has enough. As few pods move as possible: those of one
        node, else all.
        """
        if not job.gang.pods or job.stays or job.decision.on or self._placement is Placement.DEFAULT:
            return None
        waiting = next((one for one in self.live if not one.gang.pods and one.reason in FOR_ROOM), None)
        if waiting is None:
            return None
        if self._decision is not None and self._decision.allocations.get(waiting.name) is None:
            return None
        wait = self.pending_reason(waiting)
        if wait is None or wait.reason not in CLAIMS:
            return None
        wanted = _gang(waiting, desired_pods(waiting, waiting.minimum), waiting.minimum)
        gang = desired_pods(job, desired)
        held = [one.pod for pod, one in job.gang.pods.items() if pod in gang]
        on = Counter(pod.node for pod in held)
        ways = [[pod for pod in held if pod.node != node] for node in sorted(on, key=lambda node: (on[node], node))]
        for kept in (held, *ways, []):
            snapshot = self._occupancy.snapshot()
            snapshot.keep_only(job.name, kept)
            if isinstance(plan_required(wanted, snapshot, self._draining), Pending):
                continue
            if kept is held:
                return None  # it finds room where others shrink
            there = {pod.id: pod.node for pod in kept}
            plan = plan_on(_gang(job, [pod for pod in gang if pod not in there], desired), snapshot)
            if isinstance(plan, GangPlan) and not plan.unplaced:
                return _by_node({**there, **plan.placements})
        return None

    def decision(self, job: Job) -> AllocationDecision:
        """The policy's decision for `job` and all others, on the nodes without what ending jobs still hold.

        Where all jobs fit at their maximum at once, and the policy declares that it then decides on each job alone
        (`separable`), the policy sees only `job`. A barrier between mini-epochs needs all of them.
        """
        if self._decision is None and self._policy.separable and not self._policy.mini_epochs and self._ample():
            alone = self._allocate([self._view(job)], ClusterView(self._nodes, self._at))
            if alone.allocations[job.name] is not None:
                return alone
        if self._decision is None:
            self._decision = self._decide()
        return self._decision

    def _decide(self, movable: Container[str] = ()) -> AllocationDecision:
        """The policy's decision; as if the `movable` jobs were at the boundary of an epoch."""
        views, leaving = [], []
        for other in self.live:
            if other.phase is Phase.ENDING or other.stop.suspend or other.decision.on is CapacityType.NOTHING:
                leaving += [held.pod for held in other.gang.pods.values()]
            else:
                view = self._view(other)
                views.append(view.at_boundary if other.name in movable else view)
        free = {node.name: node.capacity for node in self._nodes}
        for pod in leaving:
            if pod.node in free:
                free[pod.node] = free[pod.node] - pod.requests
        nodes = (replace(node, capacity=free[node.name]) for node in self._nodes)
        return self._allocate(views, ClusterView(tuple(nodes), self._at))

    @cached_property
    def _donors(self) -> dict[str, Job]:
        """The elastic groups whose change costs them less than the rest of their epoch takes."""
        rests = ((job, giving_back.rest(job, self._at)) for job in self._holding)
        return {job.name: job for job, rest in rests if rest > 0 and rest > job.times.restart}

    def gifts(self, job: Job) -> dict[str, tuple[PodId, ...]]:
        """Pods that elastic groups give before their epochs end to `job`, which holds nothing, by job.

        Those that the policy would take from them for it at the end of an epoch, where its smallest gang then has room.
        None while pods are being released: their room is not yet given. A policy that has state, or chooses nodes, is
        asked at ends of epochs only.
        """
        of_boundaries = self._policy.stateful or self._policy.chooses_nodes
        if job.gang.pods or self._draining or of_boundaries or not self._donors:
            return {}
        if self._within_epochs is None:
            self._within_epochs = self._decide(self._donors)
        decided = self._within_epochs.allocations
        if decided.get(job.name) is None:
            return {}
        snapshot = self._occupancy.snapshot()
        snapshot.bar(job.gang.barred)
        wanted = _gang(job, desired_pods(job, job.minimum), job.minimum)
        gifts: dict[str, tuple[PodId, ...]] = {}
        for other in sorted(self._donors.values(), key=lambda one: (one.times.restart, one.name)):
            if isinstance(plan_required(wanted, snapshot), GangPlan):
                return gifts
            less = decided[other.name]
            kept = set() if less is None else set(desired_pods(other, less))
            if giving_back.may_shrink(other, less, self._at) and kept <= other.gang.pods.keys():
                gifts[other.name] = tuple(pod for pod in sorted(other.gang.pods) if pod not in kept)
                snapshot.keep_only(other.name, (held.pod for pod, held in other.gang.pods.items() if pod in kept))
        return gifts if isinstance(plan_required(wanted, snapshot), GangPlan) else {}

    def _ample(self) -> bool:
        """Whether all jobs fit at their maximum, on whichever nodes their pods are.

        A pod fits on some node as long as the nodes hold, on average, less than a node's capacity minus that pod.
        """
        if self._has_ample is None:
            demands = [self._view(job).most for job in self.live]
            largest = [max((pod[i] for _, pod in demands), default=0.0) for i in range(3)]
            self._has_ample = all(
                sum(demand[i] for demand, _ in demands) <= usable
                for i, usable in enumerate(_usable(self._nodes, *largest))
            )
        return self._has_ample


@lru_cache(maxsize=16)
def _usable(nodes: tuple[Node, ...], *largest: float) -> tuple[float, ...]:
    """Cores, GiB and devices of all nodes, each less those of the `largest` pod."""
    rows = [(node.capacity.cpu, node.capacity.memory, node.capacity.gpu) for node in nodes]
    return tuple(sum(max(0.0, row[i] - largest[i]) for row in rows) for i in range(3))


def _by_node(placements: Mapping[PodId, str]) -> NodeAllocations:
    """Workers and servers by node; first the scheduler's."""
    roles = sorted((pod.role is not Role.SCHEDULER, node, pod.role) for pod, node in placements.items())
    counts = Counter((node, role) for _, node, role in roles)
    nodes = dict.fromkeys(node for _, node, _ in roles)
    return {node: Allocation(counts[node, Role.WORKER], counts[node, Role.SERVER]) for node in nodes}


def plan_alone(job: Job, allocation: Allocation, nodes: tuple[Node, ...]) -> GangPlan | Pending:
    """Nodes for `allocation` on the empty cluster."""
    return plan_gang(_gang(job, desired_pods(job, allocation, fresh=True), allocation), nodes, ())


def desired_pods(
    job: Job, allocation: Allocation, *, fresh: bool = False, on: NodeAllocations | None = None
) -> list[PodId]:
    """The pods of `allocation`: held pods are kept, ready ones first; new pods get the lowest free indices.

    `fresh`: as if it held nothing. `on`: only pods on the nodes it names, up to its counts, are kept.
    """
    elsewhere = misplaced(job, on)
    schedulers = job.spec.resources.schedulers
    counts = {Role.SCHEDULER: schedulers, Role.SERVER: allocation.servers, Role.WORKER: allocation.workers}
    held = [
        (not h.ready, pod.index, pod)
        for pod, h in job.gang.pods.items()
        if not (fresh or h.releasing or pod in elsewhere)
    ]
    gang: list[PodId] = []
    for role, count in counts.items():
        kept = [pod for _, _, pod in sorted(held) if pod.role is role][:count]
        ids = (PodId(job.name, role, index) for index in itertools.count())
        gang += [*kept, *itertools.islice((pod for pod in ids if pod not in kept), count - len(kept))]
    return gang


def misplaced(job: Job, on: NodeAllocations | None) -> set[PodId]:
    """The pods of the job on nodes where `on` has no place for them."""
    out = {
        pod
        for pod, held in job.gang.pods.items()
        if not held.releasing and (held.pod.node in job.gang.barred or held.pod.capacity not in (None, job.decision.on))
    }
    if on is None:
        return out
    left = _slots(on)
    for pod, held in sorted(job.gang.pods.items(), key=lambda item: (not item[1].ready, item[0])):
        if not held.releasing:
            left[held.pod.node, pod.role] -= 1
            if left[held.pod.node, pod.role] < 0:
                out.add(pod)
    return out


def _slots(on: NodeAllocations) -> Counter[tuple[str, Role]]:
    """How many pods of each role each node should have; the scheduler on the first."""
    slots: Counter[tuple[str, Role]] = Counter()
    for node, (workers, servers) in on.items():
        slots[node, Role.WORKER], slots[node, Role.SERVER] = workers, servers
    slots[next(iter(on)), Role.SCHEDULER] = 1
    return slots


def queue_key(job: Job) -> tuple[int, float, str]:
    """Sorts jobs as the gang queue does: priority (higher first), submission, name."""
    return -job.spec.priority, job.progress.submitted_at, job.name


def _gang(job: Job, pods: Iterable[PodId], required: Allocation) -> Gang:
    of, priority = job.spec.resources.of, job.spec.priority
    members = tuple(PodRequest(pod, of(pod.role), priority, job.progress.submitted_at) for pod in pods)
    schedulers = job.spec.resources.schedulers
    counts = {Role.SCHEDULER: schedulers, Role.SERVER: required.servers, Role.WORKER: required.workers}
    return Gang(job.name, members, counts)
