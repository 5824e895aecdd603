"""The cluster's use: what each node has free, who holds the rest, and the queue in its order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from coach.core.cluster import Node, Role
from coach.core.jobs.job import Job
from coach.report.formatting import iso, starting
from coach.report.why import free_on
from coach.service import schemas


def node_rows(nodes: tuple[Node, ...], jobs: Mapping[str, Job]) -> list[schemas.NodeRow]:
    """The nodes with what jobs hold of them."""
    return [_node(node, jobs) for node in nodes]


def _node(node: Node, jobs: Mapping[str, Job]) -> schemas.NodeRow:
    used = node.capacity - free_on(node, jobs)
    held_by = []
    for job in jobs.values():
        roles = Counter(pod.role for pod, held in job.gang.pods.items() if held.pod.node == node.name)
        if roles:
            held_by.append(
                schemas.Holding(
                    job=job.name,
                    workers=roles[Role.WORKER],
                    servers=roles[Role.SERVER],
                    schedulers=roles[Role.SCHEDULER],
                )
            )
    return schemas.NodeRow(
        name=node.name,
        cpu=node.capacity.cpu,
        memory=node.capacity.memory,
        gpu=node.capacity.gpu,
        cpu_used=round(used.cpu, 6),
        memory_used=round(used.memory, 6),
        gpu_used=used.gpu,
        held_by=held_by,
        price=node.price,
    )


def queue_rows(jobs: Sequence[Job], first: int) -> list[schemas.QueueRow]:
    """Jobs that wait, in the order of the queue; the first has position `first`."""
    rows = []
    for position, job in enumerate(jobs, first):
        smallest = job.spec.resources.total(job.minimum)
        rows.append(
            schemas.QueueRow(
                position=position,
                job=job.name,
                priority=job.spec.priority,
                since=iso(job.progress.submitted_at),
                workers=job.minimum.workers,
                servers=job.minimum.servers,
                cpu=smallest.cpu,
                memory=smallest.memory,
                reason=job.reason.value,
                reason_text=job.reason.words,
                message=starting(job.message),
            )
        )
    return rows
