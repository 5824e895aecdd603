"""The thesis's three rules (section 4.5, algorithms 1-3), exactly: queue order, filter, score.

They decide pod by pod and do not count: a job with two workers passes the filter with one of them, and the score does
not distinguish an empty node from one that holds the job already. `plan` corrects both; the rules are the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from coach.core.cluster import Pod, PodId, Resources, Role

#: The thesis's scores (algorithm 3).
BEST_SCORE = 100
WORST_SCORE = 0


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
    """A pod that is not ours. It holds its requests on its `node`; all three rules let it pass."""

    name: str
    requests: Resources
    priority: int = 0
    created: float = 0.0
    node: str | None = None


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
