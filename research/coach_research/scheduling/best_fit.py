"""Fast placement of single tasks: policies over hundreds of thousands of jobs spend their time here."""

from __future__ import annotations

import numpy as np

from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.scheduling.api import JobState, NodeId
from coach_research.workload import FloatArray, Plan


def single(job: JobState) -> bool:
    """Whether the job is always one worker."""
    return job.maximum == (1, 0) and job.scheduler.tolist() == [0.0, 0.0, 0.0]


def weights(capacity: FloatArray) -> FloatArray:
    """The weight of a unit of each resource: 1 / the maximum of it over the nodes; shape (3,)."""
    most = capacity.max(axis=0)
    weight: FloatArray = np.divide(1.0, most, out=np.zeros(3), where=most > 0)
    return weight


def best_fit(room: FloatArray, job: JobState, weight: FloatArray) -> Plan:
    """The node on which a single task leaves the least free, the first of equals; () where it fits on none.

    `room` is the free capacity [node, resource], `weight` that of a unit of each resource (`weights`).
    """
    cpu, memory, gpu = job.worker.tolist()
    fits = room[:, 0] >= cpu - TOLERANCE
    fits &= room[:, 1] >= memory - TOLERANCE
    fits &= room[:, 2] >= gpu - TOLERANCE
    nodes = fits.nonzero()[0]
    if len(nodes) < 2:
        return ((int(nodes[0]), 1, 0),) if len(nodes) else ()
    # The node with the least free now has the least left over.
    return ((int(nodes[(room.take(nodes, axis=0) @ weight).argmin()]), 1, 0),)


def still_fits(room: FloatArray, job: JobState, nodes: tuple[NodeId, ...]) -> Plan:
    """As `best_fit`, but the first of `nodes` that fits: for a task that fitted on none before pods were released."""
    cpu, memory, gpu = job.worker.tolist()
    for node in nodes:
        has_cpu, has_memory, has_gpu = room[node].tolist()
        if has_cpu >= cpu - TOLERANCE and has_memory >= memory - TOLERANCE and has_gpu >= gpu - TOLERANCE:
            return ((node, 1, 0),)
    return ()
