"""Placing a whole job on as few nodes as possible, the idlest first (KOD2 section 4.1; SpeCon's fallback)."""

from __future__ import annotations

import numpy as np

from coach.core.cluster import Allocation
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.scheduling.api import IntArray, JobState, NodeId, fitting
from coach_research.scheduling.incremental import most
from coach_research.workload import FloatArray, Plan


def whole(job: JobState, counts: Allocation) -> FloatArray:
    """What `counts` workers and servers and the job's scheduler take together; shape (3,)."""
    return counts.workers * job.worker + counts.servers * job.server + job.scheduler


def idleness(free: FloatArray, capacity: FloatArray, nodes: IntArray) -> FloatArray:
    """The idle share of the resources of each of `nodes`, summed over resources; that of a lost node is 0."""
    room, whole = free.take(nodes, axis=0), capacity.take(nodes, axis=0)
    idle: FloatArray = np.divide(room, whole, out=np.zeros_like(room), where=whole > 0).sum(axis=1)
    return idle


def fewest_nodes(job: JobState, counts: Allocation, free: FloatArray, capacity: FloatArray) -> Plan | None:
    """Nodes for `counts`: one that holds all, else several "in order of nodes with the idlest resources".

    Of the nodes that hold all, the idlest (the paper does not say which; most workers can be added there later). The
    servers come first, on the first node of the plan that holds one. None: they do not all fit.
    """
    alone = fitting(free, whole(job, counts))
    if len(alone):
        return ((int(alone[idleness(free, capacity, alone).argmax()]), counts.workers, counts.servers),)
    if sum(counts) == 1:
        return None
    slack = free + TOLERANCE
    some = (most(slack, job.worker) > 0) | (most(slack, job.server) > 0 if counts.servers else False)
    nodes = some.nonzero()[0]
    order = nodes[np.argsort(-idleness(free, capacity, nodes), kind="stable")]
    plan: list[tuple[NodeId, int, int]] = []
    workers, servers = counts
    for node in order.tolist():
        room = free[node] - (0 if plan else job.scheduler)
        if (room < -TOLERANCE).any():
            continue
        here_servers = min(servers, count_in(room, job.server))
        here_workers = min(workers, count_in(room - here_servers * job.server, job.worker))
        if here_servers or here_workers:
            plan.append((node, here_workers, here_servers))
            workers, servers = workers - here_workers, servers - here_servers
        if not workers and not servers:
            return tuple(plan)
    return None


def count_in(room: FloatArray, demand: FloatArray) -> int:
    """How many times `demand` fits into `room`; a huge number where it is zero."""
    needed = demand > 0
    return int(np.floor((room[needed] + TOLERANCE) / demand[needed]).min()) if needed.any() else 1 << 30
