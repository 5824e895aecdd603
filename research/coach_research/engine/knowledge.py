"""What policies know of a job's speed and remaining work."""

from __future__ import annotations

from coach_research.engine.job import SimJob
from coach_research.scheduling.api import Remaining


class PerfectKnowledge:
    """Policies know the true speeds (with all pods on one node) and the true work left."""

    def speed(self, job: SimJob, workers: int, servers: int, node: int) -> float:
        """See `Knowledge`."""
        return job.true_speed(((node, workers, servers),))

    def remaining(self, job: SimJob) -> Remaining:
        """See `Knowledge`."""
        left = job.work - job.done()
        return Remaining(left, left, left)
