"""Which jobs a simulated cluster can never hold: the rule and the words of the live `NeverFits`."""

from __future__ import annotations

from functools import lru_cache

from coach.core.cluster import Resources, Role
from coach.core.gang.plan import never_fits
from coach_research.engine.cluster import Cluster
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.workload import NOTHING, ONE_WORKER, Work

#: (role, request of one pod, how many): the smallest gang of a job.
Pods = tuple[tuple[Role, Resources, int], ...]

#: Kinds of gangs whose answer is kept.
KEPT = 4096


class Feasibility:
    """Says of each job whether the cluster, all nodes up and empty, holds its smallest allocation."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kinds = sorted({(cpu, memory, gpu) for cpu, memory, gpu in cluster.capacity.tolist()})
        self._answer = lru_cache(KEPT)(self._ask)

    def never_fits(self, work: Work) -> str | None:
        """Why it never fits, as `coach why` says it of a live job; None where it fits."""
        if work.minimum == ONE_WORKER and work.scheduler is NOTHING:
            cpu, memory, gpu = (work.worker - TOLERANCE).tolist()
            if any(cpu <= a and memory <= b and gpu <= c for a, b, c in self._kinds):
                return None
        requests = ((Role.SCHEDULER, work.scheduler, int(work.scheduler.any())),
                    (Role.SERVER, work.server, work.minimum.servers),
                    (Role.WORKER, work.worker, work.minimum.workers))  # fmt: skip
        return self._answer(tuple((role, Resources(*each.tolist()), count) for role, each, count in requests if count))

    def _ask(self, pods: Pods) -> str | None:
        return never_fits({(role, each): count for role, each, count in pods}, self._cluster.nodes())
