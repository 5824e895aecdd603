"""One gang on one snapshot: a node for each needed member, or nothing and the reason.

A gang is the pods of one job. Nothing that changes lives on its pods: how many of each role are *needed* is said
beside them (`Gang.needed`). The needed members start all or nothing, members already bound count as present, and
the members queued beyond the needed ones are *wanted*: they come when there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from coach.core.cluster import Node, Pod, PodId, Resources, Role
from coach.core.gang.packing import Packing, Placements, pack, place_each
from coach.core.gang.rules import ForeignPod, PodRequest, queue_key
from coach.core.gang.snapshot import ROLES, Snapshot

#: One scheduler, one server and one worker: the least that can run an epoch (thesis section 4.1).
SMALLEST: Mapping[Role, int] = {role: 1 for role in Role}


class PendingReason(StrEnum):
    """Why a gang's needed members have no nodes, in the order in which the reasons are looked for."""

    MISCONFIGURED = "Misconfigured"  #: what is asked for contradicts itself; waiting does not help
    WAITING_MEMBERS = "WaitingMembers"  #: needed members are not created yet
    PLACING = "Placing"  #: all have nodes, some are still on their way there
    NEVER_FITS = "NeverFits"  #: not even the empty cluster holds the needed members
    SHADOW_RESERVED = "ShadowReserved"  #: the room is kept for a gang ahead in the queue
    DRAINING = "Draining"  #: it fits as soon as pods that are already leaving are gone
    WAITING_CAPACITY = "WaitingCapacity"  #: others hold the room


@dataclass(frozen=True, slots=True)
class Gang:
    """A job's pods that ask for nodes, and how many of each role the job needs to run at all."""

    job: str
    members: tuple[PodRequest, ...]
    required: Mapping[Role, int] = field(default_factory=lambda: SMALLEST)
    #: Seconds for which it will hold its room if it starts now; None where nobody can say.
    length: float | None = None

    @property
    def key(self) -> tuple[int, float, str]:
        """Queue order of gangs: that of the first member, but by job where pod names decide.

        By pod name alone the pods of jobs `a` and `a-t`, created at once, would alternate: `a-server-0`,
        `a-t-scheduler-0`, `a-worker-0`.
        """
        first = min((queue_key(member) for member in self.members), default=None)
        return (first.minus_priority, first.created, self.job) if first else (0, 0.0, self.job)


@dataclass(frozen=True, slots=True)
class GangPlan:
    """A node for every needed member that had none, and for the wanted members that found room."""

    job: str
    placements: Placements
    #: Wanted members without room for now.
    unplaced: tuple[PodId, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing of the gang was given a node. `message` says why in numbers."""

    job: str
    reason: PendingReason
    message: str
    #: Needed members without a node, by role.
    missing: Mapping[Role, int] = field(default_factory=dict)
    #: How many of these a partial placement held (which is not carried out).
    best_partial: int = 0
    #: Jobs in the way, by name.
    blocked_by: tuple[str, ...] = ()


def plan_gang(
    gang: Gang,
    nodes: Iterable[Node],
    bound: Iterable[Pod | ForeignPod],
    draining: Collection[str] = (),
) -> GangPlan | Pending:
    """Plan one gang on one snapshot: `nodes` with the pods `bound` there, in any order.

    `draining` names the jobs whose pods are already on their way out. Where no placement of the needed members is
    found nothing is reserved. What is guaranteed stands in `packing`.
    """
    return plan_on(gang, Snapshot(nodes, bound), draining)


def plan_on(gang: Gang, snapshot: Snapshot, draining: Collection[str] = ()) -> GangPlan | Pending:
    """`plan_gang` on a snapshot, which is changed."""
    snapshot.commit(gang.members, planned(gang, snapshot))
    plan = plan_required(gang, snapshot, draining)
    return plan if isinstance(plan, Pending) else add_optional(gang, plan, snapshot)


def planned(gang: Gang, snapshot: Snapshot) -> Placements:
    """The members that an earlier plan sent to a node of this snapshot; on a lost node a plan is void."""
    return {member.id: member.planned_node for member in gang.members if member.planned_node in snapshot.room}


def plan_required(gang: Gang, snapshot: Snapshot, draining: Collection[str] = ()) -> GangPlan | Pending:
    """Nodes for the needed members alone; their room is taken from `snapshot`.

    Where everything fits, the needed ones get the nodes they would have among all members, so that the wanted
    ones can join them.
    """
    mistake = _mistake(gang, snapshot)
    if mistake:
        return Pending(gang.job, PendingReason.MISCONFIGURED, mistake)
    on_the_way = planned(gang, snapshot)
    waiting = sorted(
        (member for member in gang.members if member.id not in on_the_way),
        key=lambda member: (member.id.index, ROLES.index(member.id.role)),
    )
    own = _standing(gang.job, snapshot)
    settled = Counter(pod.id.role for pod in own)
    present = settled + Counter(pod.role for pod in on_the_way)
    missing = {role: n for role in ROLES if (n := gang.required.get(role, 0) - present[role]) > 0}
    created = Counter(member.id.role for member in waiting)
    if any(created[role] < count for role, count in missing.items()):
        return _wait_members(gang, present + created)
    if not waiting and on_the_way:
        return _wait_placing(gang, settled, len(on_the_way))

    must = [member for role in missing for member in _of_role(waiting, role)[: missing[role]]]
    packing = pack(must, gang.job, snapshot)
    if packing.complete and len(must) < len(waiting):
        whole = pack(waiting, gang.job, snapshot)
        if whole.complete:
            packing = whole
    if not packing.complete:
        return _explain(gang, must, packing, snapshot, draining)
    placements = {member.id: packing.placements[member.id] for member in must}
    snapshot.commit(must, placements)
    return GangPlan(gang.job, placements)


def add_optional(gang: Gang, plan: GangPlan, snapshot: Snapshot) -> GangPlan:
    """Give nodes to the wanted members as far as there is room, and take it from `snapshot`.

    All of them together where they fit, else one by one by index, so that the roles grow evenly.
    """
    optional = sorted(
        (
            member
            for member in gang.members
            if member.id not in plan.placements and member.planned_node not in snapshot.room
        ),
        key=lambda member: (member.id.index, ROLES.index(member.id.role)),
    )
    packing = pack(optional, gang.job, snapshot)
    if packing.complete:
        placements = packing.placements
        snapshot.commit(optional, placements)
    else:
        placements = place_each(optional, gang.job, snapshot)
    unplaced = tuple(member.id for member in optional if member.id not in placements)
    return GangPlan(gang.job, plan.placements | placements, unplaced)


def _standing(job: str, snapshot: Snapshot) -> list[Pod]:
    """The pods of `job` on nodes that are still there."""
    return [pod for pod in snapshot.of(job) if pod.node in snapshot.room]


def _of_role(members: Iterable[PodRequest], role: Role) -> list[PodRequest]:
    return [member for member in members if member.id.role == role]


def _mistake(gang: Gang, snapshot: Snapshot) -> str | None:
    lacking = [role for role in ROLES if gang.required.get(role, 0) < 1]
    if lacking:
        return f"needs {gang.required.get(lacking[0], 0)} {lacking[0]}s, but at least 1 of each role runs an epoch"
    strangers = sorted(member.id.name for member in gang.members if member.id.job != gang.job)
    if strangers:
        return f"pod {strangers[0]} is not of job {gang.job}"
    ids = Counter(member.id for member in gang.members)
    ids.update(pod.id for pod in snapshot.of(gang.job))
    twice = sorted(pod.name for pod, count in ids.items() if count > 1)
    return f"pod {twice[0]} is there {ids.most_common(1)[0][1]} times" if twice else None


def _wait_members(gang: Gang, have: Counter[Role]) -> Pending:
    missing = {role: n for role in ROLES if (n := gang.required[role] - have[role]) > 0}
    counts = ", ".join(f"{have[role]} of {gang.required[role]} {role}s" for role in missing)
    return Pending(gang.job, PendingReason.WAITING_MEMBERS, f"{counts} created", missing)


def _wait_placing(gang: Gang, settled: Counter[Role], on_the_way: int) -> Pending:
    message = f"{settled.total()} members bound, {on_the_way} on their way to their nodes"
    return Pending(gang.job, PendingReason.PLACING, message)


def _explain(
    gang: Gang,
    must: Sequence[PodRequest],
    packing: Packing,
    snapshot: Snapshot,
    draining: Collection[str],
) -> Pending:
    """Why `must` has no placement: not even without any other pod, or who has to leave first."""
    missing = {role: len(group) for role in ROLES if (group := _of_role(must, role))}
    partial = len(packing.placements)

    def wait(reason: PendingReason, hindrance: str, blockers: tuple[str, ...] = ()) -> Pending:
        message = f"needs {_words(must)}, best partial fit {partial}, {hindrance}"
        return Pending(gang.job, reason, message, missing, partial, blockers)

    # Alone on the empty cluster the needed members that stand already could stand elsewhere too.
    alone = pack(_all_needed(gang, must, snapshot), gang.job, Snapshot(snapshot.nodes, ()), improve=False)
    if not alone.complete and alone.exhaustive:
        return wait(PendingReason.NEVER_FITS, f"and the largest node has {amount(snapshot.largest)}")

    leaving = tuple(sorted(job for job in draining if job != gang.job and snapshot.holds(job)))
    freed = snapshot.copy()
    for job in leaving:
        freed.give_back(job)
    if leaving and pack(must, gang.job, freed, improve=False).complete:
        return wait(PendingReason.DRAINING, f"until {_jobs(leaving)} gave back what is draining", leaving)

    useful = {
        node.name for node in snapshot.nodes if any(member.requests.fits(node.capacity) for member in must)
    }
    jobs = tuple(sorted({job for name in useful for job in snapshot.jobs[name]} - {gang.job}))
    others = sum(isinstance(pod, ForeignPod) and pod.node in useful for pod in snapshot.bound)
    who = [_jobs(jobs)] if jobs else []
    who += [f"{others} pods that are not ours"] if others else []
    hindrance = f"blocked by {' and '.join(who)}" if who else "no placement found in the time allowed"
    return wait(PendingReason.WAITING_CAPACITY, hindrance, jobs)


def _all_needed(gang: Gang, must: Sequence[PodRequest], snapshot: Snapshot) -> list[PodRequest]:
    """The needed members to place, and as many that stand already as the gang needs beside them."""
    standing = [PodRequest(pod.id, pod.requests) for pod in _standing(gang.job, snapshot)]
    standing += [member for member in gang.members if member.planned_node in snapshot.room]
    standing.sort(key=lambda pod: pod.id.index)
    required = list(must)
    for role in ROLES:
        spare = gang.required[role] - sum(member.id.role == role for member in must)
        required += _of_role(standing, role)[:spare]
    return required


def _jobs(jobs: Sequence[str]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + ", ".join(jobs)


def _words(members: Sequence[PodRequest]) -> str:
    """`1 scheduler x 0.1 cpu, 2 workers x 1 cpu 0.5 GiB`."""
    counts = Counter((ROLES.index(member.id.role), member.requests) for member in members)
    return ", ".join(
        f"{count} {ROLES[role]}{'s' if count > 1 else ''} x {amount(requests)}"
        for (role, requests), count in sorted(counts.items(), key=lambda item: item[0][0])
    )


def amount(resources: Resources) -> str:
    """`1.5 cpu 2 GiB 1 gpu`, without what is zero."""
    parts = ((resources.cpu, "cpu"), (resources.memory, "GiB"), (resources.gpu, "gpu"))
    return " ".join(f"{value:.10g} {unit}" for value, unit in parts if value) or "nothing"
