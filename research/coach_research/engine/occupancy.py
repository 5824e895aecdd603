"""The occupancy of nodes: their capacity, what is free of it, and which jobs hold the rest."""

from __future__ import annotations

from coach.simulation.recorder import Record
from coach_research.engine.cluster import Cluster
from coach_research.engine.job import SimJob
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.scheduling.api import JobId, NodeId, PolicyError, SchedulingAction, demand
from coach_research.workload import NOTHING, FloatArray, Plan, totals


class Floor:
    """The nodes of a run. `free` and `capacity` are [node, resource]; `jobs` are the jobs on each node."""

    def __init__(self, cluster: Cluster, record: Record) -> None:
        self.cluster = cluster
        self.capacity = cluster.capacity.copy()
        self.free = cluster.capacity.copy()
        #: The rows of `free`: views, because to take one out of an array again and again is slow.
        self._rows = list(self.free)
        self.jobs: list[dict[JobId, SimJob]] = [{} for _ in range(len(self.free))]
        self._record = record

    def occupy(self, job: SimJob, plan: Plan, action: SchedulingAction, now: float) -> None:
        """Give `job`, which holds nothing, the nodes of `plan`. Raises PolicyError if a node has too little free."""
        if len(plan) == 1 and job.server is NOTHING and job.scheduler is NOTHING:
            node, workers, servers = plan[0]
            need = job.worker if workers == 1 else workers * job.worker
            self._take(job, node, need, action)
        else:
            workers, servers = totals(plan)
            need = NOTHING
            for node, part in demand(job, plan).items():
                self._take(job, node, part, action)
                need = need + part
        job.plan, job.workers, job.servers = plan, workers, servers
        cpu, memory, gpu = need.tolist()
        job.need, job.held, job.held_since = need, (cpu, memory, gpu), now
        self._record.took(now, self._held(job))

    def _take(self, job: SimJob, node: NodeId, need: FloatArray, action: SchedulingAction) -> None:
        row = self._rows[node]
        row -= need
        if min(row.tolist()) < -TOLERANCE:
            row += need
            raise PolicyError(f"{action}: node {node} has {row.tolist()} free, {need.tolist()} are requested")
        self.jobs[node][job.id] = job

    def vacate(self, job: SimJob, now: float) -> None:
        """Release all that `job` holds. Its work must be settled before."""
        plan = job.plan
        if len(plan) == 1:
            node = plan[0][0]
            row = self._rows[node]
            row += job.need
            del self.jobs[node][job.id]
        else:
            for node, need in demand(job, plan).items():
                self.free[node] += need
                del self.jobs[node][job.id]
        cpu, memory, gpu = job.held
        seconds = now - job.held_since
        job.cpu_seconds += cpu * seconds
        job.memory_seconds += memory * seconds
        job.gpu_seconds += gpu * seconds
        self._record.took(now, self._held(job), -1.0)
        job.had = job.workers, job.servers
        job.plan, job.workers, job.servers, job.need = (), 0, 0, NOTHING

    def _held(self, job: SimJob) -> tuple[float, ...]:
        """What a job holds, as a record counts it."""
        kinds = self._record.gpu_kinds
        if not kinds:
            return job.held
        gpus = dict.fromkeys(kinds, 0.0)
        for node, need in demand(job, job.plan).items():
            if need[2]:
                gpus[self.cluster.kinds[node]] += float(need[2])
        return (*job.held, *gpus.values())

    def lose(self, node: NodeId) -> None:
        """The node is lost; no job is left on it."""
        self.capacity[node] = 0.0
        self.free[node] = 0.0

    def restore(self, node: NodeId) -> None:
        """The node is back, empty."""
        self.capacity[node] = self.cluster.capacity[node]
        self.free[node] = self.capacity[node]
