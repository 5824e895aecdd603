"""One gang on one snapshot: a node for each required member, or none and the reason.

A gang is the pods of one job. Its pods never change: the *required* number of each role is a field of the gang
(`Gang.required`). The required members start all or none; members already bound count. Members queued beyond the
required ones are *optional*: they start where they fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from coach.core.cluster import Node, Pod, PodId, Resources, Role
from coach.core.gang.packing import Packing, Placements, how_many, pack, place_each
from coach.core.gang.snapshot import ROLES, ForeignPod, PodRequest, Snapshot

#: One scheduler, one server and one worker: the least that can run an epoch with servers (thesis section 4.1).
SMALLEST: Mapping[Role, int] = {role: 1 for role in Role}


class PendingReason(StrEnum):
    """Why a gang's required members have no nodes, in the order in which the reasons are checked."""

    MISCONFIGURED = "Misconfigured"  #: the gang contradicts itself; waiting does not help
    WAITING_MEMBERS = "WaitingMembers"  #: required members are not created yet
    PLACING = "Placing"  #: all have nodes, some are not bound yet
    NEVER_FITS = "NeverFits"  #: the required members do not fit even on the empty cluster
    SHADOW_RESERVED = "ShadowReserved"  #: the capacity is reserved for a gang ahead in the queue
    DRAINING = "Draining"  #: it fits as soon as pods that are terminating are gone
    WAITING_CAPACITY = "WaitingCapacity"  #: other pods hold the capacity


#: A gang that waits for one of these reasons has a claim on the capacity that the gangs behind it could take.
CLAIMS = (PendingReason.WAITING_CAPACITY, PendingReason.DRAINING)


@dataclass(frozen=True, slots=True)
class Gang:
    """A job's pods that need nodes, and how many of each role the job requires to run at all."""

    job: str
    members: tuple[PodRequest, ...]
    required: Mapping[Role, int] = field(default_factory=lambda: SMALLEST)
    #: Seconds for which it will hold its pods if it starts now; None if unknown.
    length: float | None = None


@dataclass(frozen=True, slots=True)
class GangPlan:
    """A node for every required member that had none, and for the optional members that fit."""

    job: str
    placements: Placements
    #: Optional members that do not fit now.
    unplaced: tuple[PodId, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """No member of the gang got a node. `message` gives the reason, with numbers."""

    job: str
    reason: PendingReason
    message: str
    #: Required members without a node, by role.
    missing: Mapping[Role, int] = field(default_factory=dict)
    #: How many of these the largest partial placement holds (which is not carried out).
    best_partial: int = 0
    #: Names of the jobs that hold the capacity.
    blocked_by: tuple[str, ...] = ()


def plan_gang(
    gang: Gang,
    nodes: Iterable[Node],
    bound: Iterable[Pod | ForeignPod],
    draining: Collection[str] = (),
) -> GangPlan | Pending:
    """Plan one gang on one snapshot: `nodes` with the pods `bound` there, in any order.

    `draining` names the jobs whose pods are terminating. Where no placement of the required members is found nothing is
    reserved. `packing` says what is guaranteed.
    """
    return plan_on(gang, Snapshot(nodes, bound), draining)


def plan_on(gang: Gang, snapshot: Snapshot, draining: Collection[str] = ()) -> GangPlan | Pending:
    """`plan_gang` on a snapshot, which is changed."""
    snapshot.commit(gang.members, planned(gang, snapshot))
    plan = plan_required(gang, snapshot, draining)
    return plan if isinstance(plan, Pending) else add_optional(gang, plan, snapshot)


def planned(gang: Gang, snapshot: Snapshot) -> Placements:
    """The members that an earlier plan placed on a node of this snapshot; placements on lost nodes are void."""
    return {member.id: member.planned_node for member in gang.members if member.planned_node in snapshot.free}


def plan_required(gang: Gang, snapshot: Snapshot, draining: Collection[str] = ()) -> GangPlan | Pending:
    """Nodes for the required members alone; `snapshot` is changed to hold them.

    Where all members fit, the required ones get the nodes that they have in a placement of all members, so that the
    optional ones can join them.
    """
    mistake = _mistake(gang, snapshot)
    if mistake:
        return Pending(gang.job, PendingReason.MISCONFIGURED, mistake)
    on_the_way = planned(gang, snapshot)
    waiting = sorted(
        (member for member in gang.members if member.id not in on_the_way),
        key=lambda member: (member.id.index, ROLES.index(member.id.role)),
    )
    own = _bound(gang.job, snapshot)
    bound = Counter(pod.id.role for pod in own)
    present = bound + Counter(pod.role for pod in on_the_way)
    missing = {role: n for role in ROLES if (n := gang.required.get(role, 0) - present[role]) > 0}
    created = Counter(member.id.role for member in waiting)
    if any(created[role] < count for role, count in missing.items()):
        return _wait_members(gang, present + created)
    if not waiting and on_the_way:
        return _wait_placing(gang, bound, len(on_the_way))

    required = [member for role in missing for member in _of_role(waiting, role)[: missing[role]]]
    packing = pack(required, gang.job, snapshot)
    if packing.complete and len(required) < len(waiting):
        whole = pack(waiting, gang.job, snapshot)
        if whole.complete:
            packing = whole
    if not packing.complete:
        return _explain(gang, required, packing, snapshot, draining)
    placements = {member.id: packing.placements[member.id] for member in required}
    snapshot.commit(required, placements)
    return GangPlan(gang.job, placements)


def add_optional(gang: Gang, plan: GangPlan, snapshot: Snapshot) -> GangPlan:
    """Give nodes to the optional members that fit; `snapshot` is changed to hold them.

    All of them together where they fit, else one by one by index, so that the roles grow evenly.
    """
    optional = sorted(
        (
            member
            for member in gang.members
            if member.id not in plan.placements and member.planned_node not in snapshot.free
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


def _bound(job: str, snapshot: Snapshot) -> list[Pod]:
    """The pods of `job` on nodes that still exist."""
    return [pod for pod in snapshot.of(job) if pod.node in snapshot.free]


def _of_role(members: Iterable[PodRequest], role: Role) -> list[PodRequest]:
    return [member for member in members if member.id.role == role]


def _mistake(gang: Gang, snapshot: Snapshot) -> str | None:
    bound = snapshot.of(gang.job)
    ids = [member.id for member in gang.members] + [pod.id for pod in bound]
    # Jobs that train by all-reduce have no servers, programs no scheduler.
    there = {pod.role for pod in ids} | {Role.WORKER}
    roles = [role for role in ROLES if role in there]
    lacking = [role for role in roles if gang.required.get(role, 0) < 1]
    if lacking:
        return f"needs {gang.required.get(lacking[0], 0)} {lacking[0]}s, but at least 1 of each role runs an epoch"
    strangers = sorted(member.id.name for member in gang.members if member.id.job != gang.job)
    if strangers:
        return f"pod {strangers[0]} is not of job {gang.job}"
    counts = Counter(ids)
    duplicates = sorted(pod.name for pod, count in counts.items() if count > 1)
    return f"pod {duplicates[0]} is there {counts.most_common(1)[0][1]} times" if duplicates else None


def _wait_members(gang: Gang, have: Counter[Role]) -> Pending:
    missing = {role: n for role in ROLES if (n := gang.required.get(role, 0) - have[role]) > 0}
    counts = ", ".join(f"{have[role]} of {gang.required[role]} {role}s" for role in missing)
    return Pending(gang.job, PendingReason.WAITING_MEMBERS, f"{counts} created", missing)


def _wait_placing(gang: Gang, bound: Counter[Role], on_the_way: int) -> Pending:
    message = f"{bound.total()} members bound, {on_the_way} on their way to their nodes"
    return Pending(gang.job, PendingReason.PLACING, message)


def _explain(
    gang: Gang,
    required: Sequence[PodRequest],
    packing: Packing,
    snapshot: Snapshot,
    draining: Collection[str],
) -> Pending:
    """Why `required` has no placement: not even on the empty cluster, or which jobs hold the capacity."""
    missing = {role: len(group) for role in ROLES if (group := _of_role(required, role))}
    partial = len(packing.placements)

    lacking = _lacking_devices(required, snapshot)

    def wait(reason: PendingReason, hindrance: str, blockers: tuple[str, ...] = ()) -> Pending:
        message = lacking + _needs(Counter((pod.id.role, pod.requests) for pod in required), partial, hindrance)
        return Pending(gang.job, reason, message, missing, partial, blockers)

    # On the empty cluster the bound members are placed anew, too.
    alone = pack(_all_required(gang, required, snapshot), gang.job, Snapshot(snapshot.nodes, ()), improve=False)
    if not alone.complete and alone.exhaustive:
        return wait(PendingReason.NEVER_FITS, _too_small(snapshot, required))

    leaving = tuple(sorted(job for job in draining if job != gang.job and snapshot.holds(job)))
    freed = snapshot.copy()
    for job in leaving:
        freed.release(job)
    if leaving and pack(required, gang.job, freed, improve=False).complete:
        return wait(PendingReason.DRAINING, f"until {_jobs(leaving)} gave back what is draining", leaving)

    useful = {node.name for node in snapshot.nodes if any(member.requests.fits(node.capacity) for member in required)}
    jobs = tuple(sorted({job for name in useful for job in snapshot.jobs[name]} - {gang.job}))
    others = sum(isinstance(pod, ForeignPod) and pod.node in useful for pod in snapshot.bound)
    blockers = [_jobs(jobs)] if jobs else []
    blockers += [f"{others} pods that are not ours"] if others else []
    hindrance = f"blocked by {' and '.join(blockers)}" if blockers else _NOT_FOUND
    return wait(PendingReason.WAITING_CAPACITY, hindrance, jobs)


def _lacking_devices(pods: Iterable[PodRequest], snapshot: Snapshot) -> str:
    """`5 GPUs needed, 4 free: `, where all nodes together have too few free; else nothing."""
    needed = sum(pod.requests.gpu for pod in pods)
    free = sum(max(one.gpu, 0.0) for one in snapshot.free.values())
    return f"{needed:g} GPU{'' if needed == 1 else 's'} needed, {free:g} free: " if needed > free else ""


def never_fits(pods: Mapping[tuple[Role, Resources], int], nodes: Iterable[Node]) -> str | None:
    """Why the empty `nodes` hold no job of these `pods`, given by what each requests; None where they do.

    It is what `plan_gang` says of a gang on empty nodes, also for millions of pods: pods of one shape are only counted.
    """
    snapshot = Snapshot(nodes, ())
    free = snapshot.free.values()
    room = {shape: sum(how_many(shape[1], one, count) for one in free) for shape, count in pods.items()}
    fits = all(room[shape] >= count for shape, count in pods.items())
    if fits and len(pods) < 2:
        return None
    # One more than the nodes hold shows as much as a million more.
    members = [
        PodRequest(PodId("", role, index), requests)
        for (role, requests), count in pods.items()
        for index in range(min(count, room[role, requests] + 1))
    ]
    packing = pack(members, "", snapshot, improve=False)
    if packing.complete:
        return None
    return _needs(pods, len(packing.placements), _too_small(snapshot, members) if packing.exhaustive else _NOT_FOUND)


_NOT_FOUND = "no placement found in the time allowed"


def _too_small(snapshot: Snapshot, pods: Iterable[PodRequest]) -> str:
    if any(pod.requests.gpu for pod in pods) and not any(node.capacity.gpu for node in snapshot.nodes):
        return "and no node has a GPU"
    return f"and the largest node has {amount(snapshot.largest)}"


def _all_required(gang: Gang, missing: Sequence[PodRequest], snapshot: Snapshot) -> list[PodRequest]:
    """The missing required members, and as many placed ones as the gang requires in addition."""
    placed = [PodRequest(pod.id, pod.requests) for pod in _bound(gang.job, snapshot)]
    placed += [member for member in gang.members if member.planned_node in snapshot.free]
    placed.sort(key=lambda pod: pod.id.index)
    required = list(missing)
    for role in ROLES:
        rest = gang.required.get(role, 0) - sum(member.id.role == role for member in missing)
        required += _of_role(placed, role)[:rest]
    return required


def _jobs(jobs: Sequence[str]) -> str:
    return ("job " if len(jobs) == 1 else "jobs ") + ", ".join(jobs)


def _needs(pods: Mapping[tuple[Role, Resources], int], partial: int, hindrance: str) -> str:
    """`needs 1 scheduler x 0.1 cpu, 2 workers x 1 cpu 0.5 GiB, best partial fit 1, HINDRANCE`."""
    each = ", ".join(
        f"{count} {role}{'s' if count > 1 else ''} x {amount(requests)}"
        for (role, requests), count in sorted(pods.items(), key=lambda pod: ROLES.index(pod[0][0]))
    )
    return f"needs {each}, best partial fit {partial}, {hindrance}"


def amount(resources: Resources) -> str:
    """`1.5 cpu 2 GiB 1 gpu`, without what is zero."""
    parts = ((resources.cpu, "cpu"), (resources.memory, "GiB"), (resources.gpu, "gpu"))
    return " ".join(f"{round(value, 2):.10g} {unit}" for value, unit in parts if value) or "nothing"
