"""Pollux (Qiao et al., OSDI 2021, section 4.2): the harmonic mean of all jobs' speedups is as large as possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from coach_research.policies.rounds.rounds import width
from coach_research.policies.rounds.sia import Sia
from coach_research.scheduling.api import EngineView, JobState
from coach_research.workload import FloatArray


@dataclass
class Pollux(Sia):
    """A configuration is worth its speed, as a multiple of the job's speed with a fair share of the cluster.

    Found by Sia's integer program in place of the authors' genetic search: on nodes of one kind, with `p` = 1, it has
    the same objective. A job may have any number of workers, at most twice as many as before. Not taken over: of the
    jobs on a node only one may be on other nodes too.
    """

    p: float = 1.0
    waits: float = 1000.0
    registered: ClassVar[str] = "pollux"

    def counts(self, a_node: int, nodes: int) -> range:
        """See `Sia`."""
        return range(1, a_node * nodes + 1)

    def base(self, job: JobState, speeds: FloatArray, jobs: int, view: EngineView) -> float:
        """See `Sia`; a job of which nothing is known is taken to scale perfectly."""
        fair = math.ceil(job.maximum.workers / width(job, view) / jobs)
        if job.id not in self._most:
            return float(fair)
        return job.speed(min(fair, job.maximum.workers), job.maximum.servers) or float(speeds.min())

    def cost(self, worth: float) -> float:
        """See `Sia`."""
        return 1.0 / (worth + 1e-3)
