"""Single tasks on nodes, quickly: policies over hundreds of thousands of jobs spend their time here."""

from __future__ import annotations

import numpy as np

from coach.core.policies.api.react import TOLERANCE, FloatArray, JobState, NodeId, Plan


def single(job: JobState) -> bool:
    """Whether it is one worker, whatever happens."""
    return job.maximum == (1, 0) and job.scheduler.tolist() == [0.0, 0.0, 0.0]


def weights(capacity: FloatArray) -> FloatArray:
    """What a unit of each resource counts: 1 / the most that any node has of it; shape (3,)."""
    most = capacity.max(axis=0)
    weight: FloatArray = np.divide(1.0, most, out=np.zeros(3), where=most > 0)
    return weight


def best_fit(room: FloatArray, job: JobState, weight: FloatArray) -> Plan:
    """The node on which a single task leaves the least, the first of equals; () where there is no room.

    `room` is [node, resource], `weight` what a unit of each resource counts (`weights`).
    """
    cpu, memory, gpu = job.worker.tolist()
    fits = (
        (room[:, 0] >= cpu - TOLERANCE) & (room[:, 1] >= memory - TOLERANCE) & (room[:, 2] >= gpu - TOLERANCE)
    )
    nodes = fits.nonzero()[0]
    if len(nodes) < 2:
        return ((int(nodes[0]), 1, 0),) if len(nodes) else ()
    # What is left over is least where there is least now.
    return ((int(nodes[(room[nodes] @ weight).argmin()]), 1, 0),)


def still_fits(room: FloatArray, job: JobState, nodes: tuple[NodeId, ...]) -> Plan:
    """As `best_fit`, but for the first of `nodes` only: for a task that fitted nowhere before room came free
    there."""
    cpu, memory, gpu = job.worker.tolist()
    for node in nodes:
        has_cpu, has_memory, has_gpu = room[node].tolist()
        if has_cpu >= cpu - TOLERANCE and has_memory >= memory - TOLERANCE and has_gpu >= gpu - TOLERANCE:
            return ((node, 1, 0),)
    return ()
