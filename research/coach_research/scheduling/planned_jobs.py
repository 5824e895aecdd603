"""Live jobs with what a scheduling policy has planned for them: its view of the jobs and the cluster.

The simulator's engine has a view of its own, fast enough for a million jobs; `api.validation.check` says what both
allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import JobView
from coach_research.scheduling.api import JobId, NodeId, Phase, Remaining
from coach_research.scheduling.incremental import take
from coach_research.workload import FloatArray, Plan, totals


class LiveJob(JobView, Protocol):
    """What a job provides in addition to `JobView` to policies that choose nodes."""

    @property
    def done(self) -> float:
        """Epochs trained."""

    @property
    def loss(self) -> float:
        """The last loss; NaN before the first."""

    @property
    def policy_state(self) -> Mapping[str, Any]:
        """What the policy last saved about it."""

    @property
    def standing(self) -> Mapping[str, Allocation]:
        """What it holds now on each node, by the node's name; the scheduler's node first."""


@dataclass(slots=True, eq=False)
class PlannedJob:
    """`JobState` of a live job."""

    id: JobId
    view: LiveJob
    arrived: float
    since: float
    worker: FloatArray
    server: FloatArray
    scheduler: FloatArray
    phase: Phase = Phase.WAITING
    plan: Plan = ()
    workers: int = 0
    servers: int = 0
    started: float = math.nan
    preemptions: int = 0
    migrations: int = 0
    resizes: int = 0
    seen: float = 0.0
    kind: str = ""
    #: The kind of each node of the cluster.
    kinds: tuple[str, ...] = ()
    has_epochs: bool = True
    has_loss: bool = True
    grace: float = 0.0
    #: Policies that choose nodes know no deadlines of live jobs.
    deadline: float = math.inf
    name: str = field(init=False)
    priority: int = field(init=False)
    minimum: Allocation = field(init=False)
    maximum: Allocation = field(init=False)
    rescale_seconds: float = field(init=False)
    migration_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self.look(self.view)

    def look(self, view: LiveJob) -> None:
        """Update from the job's present view."""
        self.view = view
        self.name, self.priority = view.id, view.priority
        self.minimum, self.maximum = view.minimum, view.maximum
        self.rescale_seconds = self.migration_seconds = view.restart_seconds

    @property
    def at_maximum(self) -> FloatArray:
        """What all pods of its maximum request together."""
        workers, servers = self.maximum
        return workers * self.worker + servers * self.server + self.scheduler

    def done(self) -> float:
        """Epochs trained."""
        return self.view.done

    def remaining(self) -> Remaining:
        """Predicted epochs; NaN while unknown."""
        left = self.view.remaining_epochs
        return Remaining(left.low, left.expected, left.high) if left else Remaining(*[math.nan] * 3)

    def speed(self, workers: int, servers: int, node: NodeId = 0, /) -> float:
        """Predicted epochs/s on nodes like `node`."""
        return self.view.speed(Allocation(workers, servers), self.kinds[node])

    def speed_now(self) -> float:
        """Predicted epochs/s with what it holds."""
        held = self.view.current
        return self.view.speed(held) if held and self.view.busy else 0.0

    def loss(self) -> float:
        """The last loss."""
        return self.view.loss


@dataclass(slots=True)
class PlannedCluster:
    """The `EngineView` of a policy that decides for live jobs."""

    now: float = 0.0
    prices: tuple[float, float, float] | None = None
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    capacity: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    free: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    jobs: dict[JobId, PlannedJob] = field(default_factory=dict)
    waiting: dict[JobId, PlannedJob] = field(default_factory=dict)
    running: dict[JobId, PlannedJob] = field(default_factory=dict)

    def count(self) -> None:
        """Set `free` to the capacity that no plan takes."""
        self.free = self.capacity.copy()
        for job in self.jobs.values():
            take(self.free, job, job.plan)

    def on_node(self, node: NodeId, /) -> Iterable[PlannedJob]:
        """See `EngineView.on_node`."""
        return [job for job in self.jobs.values() if any(part[0] == node for part in job.plan)]

    def put(self, job: PlannedJob, phase: Phase, plan: Plan) -> None:
        """Change a job's phase and plan."""
        if phase is not job.phase:
            job.since = self.now
        job.phase, job.plan = phase, plan
        job.workers, job.servers = totals(plan)
        for group, mine in ((self.waiting, Phase.WAITING), (self.running, Phase.RUNNING)):
            if phase is not mine:
                group.pop(job.id, None)
            elif job.id not in group:
                group[job.id] = job
        self.count()
