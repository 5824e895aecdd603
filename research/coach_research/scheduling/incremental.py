"""A job's plan with fewer or more pods: those that stay keep their nodes, new ones go to few nodes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coach.core.cluster import Allocation
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.scheduling.api import IntArray, JobState, demand
from coach_research.workload import NOTHING, FloatArray, Plan


def shrink(plan: Plan, to: Allocation) -> Plan:
    """`plan` with at most as many workers and servers as `to`: pods on the nodes with the fewest are removed first."""
    workers, servers = sum(p[1] for p in plan) - to.workers, sum(p[2] for p in plan) - to.servers
    kept = {node: [w, s] for node, w, s in plan}
    for node, w, s in sorted(plan[1:], key=lambda part: (part[1] + part[2], -part[0])) + list(plan[:1]):
        less_workers, less_servers = min(w, max(0, workers)), min(s, max(0, servers))
        kept[node][0] -= less_workers
        kept[node][1] -= less_servers
        workers -= less_workers
        servers -= less_servers
    # The first node keeps the scheduler, even without another pod.
    return tuple((node, w, s) for at, (node, (w, s)) in enumerate(kept.items()) if at == 0 or w or s)


def grow(room: FloatArray, job: JobState, kept: Plan, to: Allocation, *, whole: bool) -> Plan:
    """`kept` with more pods, up to `to`, in the remaining `room`; () if `whole` and they do not all fit.

    To use few nodes, those that the job is on come first, then the one that takes the most pods, of equals the
    tightest.
    """
    plan = {node: [w, s] for node, w, s in kept}
    missing = [to.workers - sum(p[1] for p in kept), to.servers - sum(p[2] for p in kept)]
    first = not plan
    slack = room + TOLERANCE  # a copy
    while sum(missing) > 0:
        takes = _takes(slack, job, missing, scheduler=first)
        counts = takes[0] + takes[1] if missing[1] > 0 else takes[0]
        node = max(plan, key=lambda n: counts[n], default=-1)
        if node < 0 or not counts[node]:
            best = np.flatnonzero(counts == counts.max())
            if not counts[best[0]]:
                break
            node = _tightest(slack, best) if len(best) > 1 else int(best[0])
        workers, servers = int(takes[0][node]), int(takes[1][node])
        part = plan.setdefault(node, [0, 0])
        part[0] += workers
        part[1] += servers
        missing[0] -= workers
        missing[1] -= servers
        slack[node] -= workers * job.worker + servers * job.server + (job.scheduler if first else 0.0)
        first = False
    if whole and sum(missing) > 0:
        return ()
    return tuple((node, w, s) for node, (w, s) in plan.items())


def _tightest(slack: FloatArray, nodes: IntArray) -> int:
    """The one of `nodes` with the least left, the first of equals."""
    cpu, memory, gpu = slack.take(nodes, axis=0).T
    return int(nodes[(cpu + memory + gpu).argmin()])


def _takes(slack: FloatArray, job: JobState, missing: Iterable[int], *, scheduler: bool) -> tuple[IntArray, IntArray]:
    """How many of the missing workers and of the missing servers each node takes, servers and workers evenly."""
    # A node that has less than nothing of a resource takes no first pods.
    scheduler = scheduler and (job.scheduler is not NOTHING or (slack.size > 0 and bool(slack.min() < 0.0)))
    left = slack - job.scheduler if scheduler else slack
    workers, servers = missing
    none: IntArray = np.zeros(len(slack), int)
    of_workers = of_servers = none
    if servers > 0:
        of_servers = np.minimum(servers, most(left, job.server))
        if workers > 0:
            # At least one worker on the servers' node if it fits.
            pair = most(left, job.worker + job.server)
            of_servers = np.minimum(of_servers, np.maximum(1, pair)) * (of_servers > 0)
        left = left - of_servers[:, None] * job.server
    if workers > 0:
        of_workers = np.minimum(workers, most(left, job.worker))
    if scheduler:
        short = (slack < job.scheduler).any(axis=1)
        of_workers, of_servers = np.where(short, 0, of_workers), np.where(short, 0, of_servers)
    return of_workers, of_servers


def most(room: FloatArray, need: FloatArray) -> IntArray:
    """How many times `need` [resource] fits into each row of `room` [node, resource]; whole numbers."""
    least: FloatArray | None = None
    for resource, each in enumerate(need.tolist()):
        if each > 0:
            times = room[:, resource] / each
            least = times if least is None else np.minimum(least, times, out=least)
    if least is None:
        return np.full(len(room), 1_000_000)
    # The floor of the least is the least of the floors.
    counts: IntArray = np.maximum(0, np.floor(least, out=least), out=least).astype(np.intp)
    return counts


def take(room: FloatArray, job: JobState, plan: Plan) -> None:
    """Subtract what `plan` holds from `room`."""
    for node, need in demand(job, plan).items():
        room[node] -= need


def give(room: FloatArray, job: JobState, plan: Plan) -> None:
    """Add what `plan` holds to `room`."""
    for node, need in demand(job, plan).items():
        room[node] += need
