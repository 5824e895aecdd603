"""Pods that wait for a node, and pods that are not ours."""

from __future__ import annotations

from dataclasses import dataclass

from coach.core.cluster import PodId, Resources


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
