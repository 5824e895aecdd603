"""The thesis's three rules (section 4.5, algorithms 1-3), exactly: queue order, filter, score.

They decide pod by pod and do not count: a job with two workers passes the filter with one of them, and the score does
not distinguish an empty node from one that holds the job already. `coach.core.gang` corrects both; the rules are the
baseline. All three let pods pass that are not ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coach.core.cluster import Pod, Role
from coach.core.gang.snapshot import ForeignPod, PodRequest

#: The thesis's scores (algorithm 3).
BEST_SCORE = 100
WORST_SCORE = 0


class QueueKey(NamedTuple):
    """Sorts pods into queue order, the next one to be scheduled first. A pure function of fixed fields."""

    minus_priority: int
    created: float
    name: str


def queue_key(pod: PodRequest | ForeignPod) -> QueueKey:
    """Priority (higher first), then the job's creation time, then the pod's name (thesis algorithm 1).

    A pod that is not ours counts as a job of its own. The order is total, as pod names are unique.
    """
    if isinstance(pod, ForeignPod):
        return QueueKey(-pod.priority, pod.created, pod.name)
    return QueueKey(-pod.priority, pod.job_created, pod.id.name)


def all_types_present(
    pod: PodRequest | ForeignPod,
    queued: Iterable[PodRequest | ForeignPod],
    bound: Iterable[Pod | ForeignPod],
) -> bool:
    """Whether `pod` passes the filter (thesis algorithm 2).

    It passes only when its job's scheduler, server and worker types are all queued or scheduled; `pod` itself
    counts as queued. The rule reads the pods that exist now, instead of a map that only grows, so a job's state is
    cleared when its pods are gone. A pod that is not ours passes.
    """
    if isinstance(pod, ForeignPod):
        return True
    present = {pod.id.role}
    for other in (*queued, *bound):
        if not isinstance(other, ForeignPod) and other.id.job == pod.id.job:
            present.add(other.id.role)
    return present == set(Role)


def same_job_score(pod: PodRequest | ForeignPod, node: str, bound: Iterable[Pod | ForeignPod]) -> int:
    """The score of `node` for `pod`: 0 if it holds another job's pod, else 100 (thesis algorithm 3).

    Pods that are not ours neither lower a score nor get a lower one.
    """
    if isinstance(pod, ForeignPod):
        return BEST_SCORE
    shared = any(
        other.node == node and not isinstance(other, ForeignPod) and other.id.job != pod.id.job for other in bound
    )
    return WORST_SCORE if shared else BEST_SCORE
