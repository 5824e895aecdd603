"""The queue of the kube-scheduler's plugins in Python: gangs in order, and which may pass one that waits for capacity.

Required members come first, gang by gang in queue order. Optional members come after all required ones, so that no job
grows into the capacity in which the next one could start. A gang that waits for something other than capacity (members
that are not created, a request that no node can hold) blocks no other gang.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from coach.core.cluster import Node, Pod
from coach.core.gang.packing import Placements, pack
from coach.core.gang.plan import CLAIMS, Gang, GangPlan, Pending, PendingReason, add_optional, plan_required, planned
from coach.core.gang.snapshot import ForeignPod, PodRequest, Snapshot
from coach_research.platforms.gang_rules import queue_key


class Backfill(StrEnum):
    """Which gangs may take capacity while a gang ahead in the queue (the head) waits for it."""

    STRICT = "strict"  #: none
    #: Those that end before the head could start, or leave the head its nodes (EASY backfilling). Without predicted
    #: ends it is strict.
    EASY = "easy"
    ANY = "any"  #: all that fit: no capacity idles, and a large gang may wait for ever


@dataclass(frozen=True, slots=True)
class _Head:
    """The first gang that waits for capacity, and its earliest predicted start."""

    gang: Gang
    wait: Pending
    required: tuple[PodRequest, ...]
    #: Seconds until it fits; infinite where it does not fit after all predicted ends.
    start: float
    #: The cluster at that instant.
    shadow: Snapshot | None


def gang_key(gang: Gang) -> tuple[int, float, str]:
    """Queue order of gangs: that of their first members, with the job's name in place of the pod's.

    By pod name the pods of jobs `a` and `a-t`, created at once, would alternate: `a-server-0`, `a-t-scheduler-0`,
    `a-worker-0`.
    """
    first = min((queue_key(member) for member in gang.members), default=None)
    return (first.minus_priority, first.created, gang.job) if first else (0, 0.0, gang.job)


def schedule_queue(
    gangs: Iterable[Gang],
    nodes: Iterable[Node],
    bound: Iterable[Pod | ForeignPod],
    *,
    backfill: Backfill = Backfill.STRICT,
    ends: Mapping[str, float] | None = None,
    draining: Collection[str] = (),
) -> dict[str, GangPlan | Pending]:
    """Plan all `gangs` on one snapshot; the result is in queue order and does not depend on that of the input.

    `ends`: in how many seconds each job that holds pods is predicted to release them (for `Backfill.EASY`).
    """
    ordered = sorted(gangs, key=gang_key)
    snapshot = Snapshot(nodes, bound)
    for gang in ordered:
        snapshot.commit(gang.members, planned(gang, snapshot))
    results: dict[str, GangPlan | Pending] = {}
    head: _Head | None = None
    for gang in ordered:
        after = snapshot.copy() if head else snapshot
        result = plan_required(gang, after, draining)
        if isinstance(result, Pending):
            if head is None and result.reason in CLAIMS and backfill is not Backfill.ANY:
                known = _all_ends(ends, results, ordered) if backfill is Backfill.EASY else {}
                head = _head(gang, result, snapshot, known)
        elif head is not None:
            if _may_pass(gang, result.placements, head):
                snapshot = after
            else:
                result = _reserved(gang, result, head)
        results[gang.job] = result
    for gang in ordered:
        plan = results[gang.job]
        if isinstance(plan, Pending):
            continue
        after = snapshot.copy() if head else snapshot
        grown = add_optional(gang, plan, after)
        joining = {pod: node for pod, node in grown.placements.items() if pod not in plan.placements}
        if head is None or _may_pass(gang, joining, head):
            results[gang.job], snapshot = grown, after
        else:
            results[gang.job] = GangPlan(gang.job, plan.placements, (*joining, *grown.unplaced))
    return results


def _all_ends(
    ends: Mapping[str, float] | None, results: Mapping[str, GangPlan | Pending], gangs: Sequence[Gang]
) -> dict[str, float]:
    """Predicted ends of the running jobs, and of those that this round starts."""
    lengths = {
        gang.job: gang.length
        for gang in gangs
        if gang.length is not None and isinstance(results.get(gang.job), GangPlan)
    }
    return lengths | dict(ends or {})


def _head(gang: Gang, wait: Pending, snapshot: Snapshot, ends: Mapping[str, float]) -> _Head:
    required = tuple(
        member
        for role, count in wait.missing.items()
        for member in sorted(
            (m for m in gang.members if m.id.role == role and m.planned_node not in snapshot.free),
            key=lambda member: member.id.index,
        )[:count]
    )
    shadow = snapshot.copy()
    for job, end in sorted(ends.items(), key=lambda item: (item[1], item[0])):
        shadow.release(job)
        if pack(required, gang.job, shadow).complete:
            return _Head(gang, wait, required, end, shadow)
    return _Head(gang, wait, required, math.inf, None)


def _may_pass(gang: Gang, placements: Placements, head: _Head) -> bool:
    """Whether `placements` of `gang` do not delay the head's predicted start."""
    if not placements:
        return True
    if head.shadow is None:
        return False
    if gang.length is not None and gang.length <= head.start:
        return True
    after = head.shadow.copy()
    after.commit(gang.members, placements)
    if not pack(head.required, head.gang.job, after).complete:
        return False
    head.shadow.commit(gang.members, placements)
    return True


def _reserved(gang: Gang, plan: GangPlan, head: _Head) -> Pending:
    start = f"in about {head.start:.0f} s" if math.isfinite(head.start) else "when others make room"
    missing = {role: count for role in gang.required if (count := sum(pod.role == role for pod in plan.placements))}
    message = f"fits, but job {head.gang.job} is ahead: it {head.wait.message} and starts {start}"
    return Pending(gang.job, PendingReason.SHADOW_RESERVED, message, missing, len(plan.placements), (head.gang.job,))
