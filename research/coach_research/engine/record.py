"""What the engine writes into the record of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable

from coach.simulation.recorder import Record
from coach_research.engine.cluster import Cluster
from coach_research.engine.job import SimJob
from coach_research.workload import NOTHING, ONE_WORKER


class EngineRecord(Record):
    """Filled by the engine while it runs."""

    def __init__(self, cluster: Cluster, bucket: float = 1.0, prices: tuple[float, float, float] | None = None) -> None:
        """`prices`: of a second of each resource. See `Record`."""
        super().__init__(cluster.capacity, bucket, cluster.kinds)
        self.prices = prices

    def finished(self, job: SimJob, at: float, killed: bool) -> None:
        """A job left."""
        kind = self.kinds.setdefault(job.kind, len(self.kinds))
        cpu, memory, gpu = job.cpu_seconds, job.memory_seconds, job.gpu_seconds
        ended = math.nan if killed else at
        prices = self.prices
        money = math.nan if prices is None else cpu * prices[0] + memory * prices[1] + gpu * prices[2]
        self.add(
            (
                job.id, kind, job.arrived, job.started, ended, job.executed, job.work, job.preemptions,
                job.migrations, job.resizes, killed, cpu, memory, gpu, money, not math.isnan(ended),
                *((job.workers, job.servers) if job.plan else job.had), *_asked(job),
            ),
            job.name,
        )  # fmt: skip

    def end(self, at: float, left: Iterable[SimJob]) -> None:
        """The run is over; jobs in `left` did not finish. Another run may follow, from 0 s again."""
        self._take_changes()
        self.ended = max(self.ended, at)
        for job in left:
            job.settle(at)
            self.finished(job, math.nan, killed=False)


def _asked(job: SimJob) -> list[float]:
    """The resources of the job's smallest allocation."""
    workers, servers = job.minimum
    whole = job.worker
    if job.minimum != ONE_WORKER or job.scheduler is not NOTHING:
        whole = workers * job.worker + servers * job.server + job.scheduler
    asked: list[float] = whole.tolist()
    return asked
