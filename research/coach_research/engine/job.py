"""A job in the engine: a `JobState` of `coach_research.scheduling.api`, with fields of the engine alone."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Protocol

from coach_research.scheduling.api import Phase, Remaining
from coach_research.workload import NOTHING, FloatArray, Plan, Work


class Knowledge(Protocol):
    """Answers `JobState.speed` and `JobState.remaining`."""

    def speed(self, job: SimJob, workers: int, servers: int, node: int) -> float:
        """Predicted epochs/s with all pods on nodes like `node`."""

    def remaining(self, job: SimJob) -> Remaining:
        """Predicted epochs to the end."""


class RunContext(Protocol):
    """What a job needs from its run."""

    now: float
    knowledge: Knowledge
    kinds: tuple[str, ...]

    def noise(self, job: SimJob) -> float:
        """A standard normal number for a measurement of this job now."""


class SimJob:
    """See `JobState`. Slots, because a trace may have a million jobs."""

    __slots__ = (
        "_at_maximum",
        "_noise_at",
        "_noise_value",
        "arrived",
        "cpu_seconds",
        "deadline",
        "done_at_mark",
        "dynamics",
        "executed",
        "gpu_seconds",
        "grace",
        "had",
        "has_epochs",
        "has_loss",
        "held",
        "held_since",
        "id",
        "kind",
        "mark",
        "maximum",
        "memory_seconds",
        "migration_seconds",
        "migrations",
        "minimum",
        "name",
        "need",
        "pace",
        "pace_ends",
        "paced",
        "phase",
        "plan",
        "preemptions",
        "priority",
        "rate",
        "rescale_seconds",
        "resizes",
        "run",
        "scheduler",
        "server",
        "servers",
        "since",
        "smallest",
        "solo",
        "started",
        "vacated",
        "version",
        "work",
        "worker",
        "workers",
    )

    def __init__(self, number: int, dynamics: Work, run: RunContext) -> None:
        self.id = number
        self.dynamics = dynamics
        self.run = run
        self.name = dynamics.name
        self.kind = dynamics.kind
        self.priority = dynamics.priority
        self.deadline = dynamics.deadline
        self.has_epochs = dynamics.speed is not None
        self.has_loss = dynamics.loss is not None
        self.worker = dynamics.worker
        self.server = dynamics.server
        self.scheduler = dynamics.scheduler
        self.minimum = dynamics.minimum
        self.maximum = dynamics.maximum
        self.grace = dynamics.grace
        self.rescale_seconds = dynamics.rescale_seconds
        self.migration_seconds = dynamics.migration_seconds
        self.work = dynamics.work
        self.arrived = self.since = run.now
        self.started = math.nan
        self.phase = Phase.WAITING
        self.plan: Plan = ()
        self.workers = self.servers = 0
        #: Workers and servers of the plan before.
        self.had = 0, 0
        self.preemptions = self.migrations = self.resizes = 0
        #: Epochs done at `mark`; after it they grow by `rate` epochs/s.
        self.done_at_mark = 0.0
        self.mark = 0.0
        self.rate = 0.0
        #: Its speed at the epochs done: `paced` times `pace`; and the epoch at which that changes.
        self.paced = dynamics.speed
        self.pace = 1.0
        self.pace_ends = dynamics.paces[0][0] if dynamics.paces else math.inf
        #: Epochs/s of the plan alone on its nodes; seconds of execution at that speed so far.
        self.solo = 0.0
        self.executed = 0.0
        #: Counts the changes of `rate`: a scheduled finish or boundary with another version is stale.
        self.version = 0
        #: Resources held now (sum over nodes; also as numbers), since when, and resource-seconds held so far.
        self.need: FloatArray = NOTHING
        self.held = (0.0, 0.0, 0.0)
        self.held_since = 0.0
        self.cpu_seconds = self.memory_seconds = self.gpu_seconds = 0.0
        #: Resources of its minimum allocation, counted by a closed loop.
        self.smallest = (0.0, 0.0, 0.0)
        #: When a preemption took its nodes; NaN if it was not preempted since it last ran.
        self.vacated = math.nan
        self._at_maximum: FloatArray | None = None
        self._noise_at = math.nan
        self._noise_value = 0.0

    @property
    def at_maximum(self) -> FloatArray:
        """See `JobState.at_maximum`."""
        if self._at_maximum is None:
            workers, servers = self.maximum
            self._at_maximum = workers * self.worker + servers * self.server + self.scheduler
        return self._at_maximum

    def settle(self, now: float) -> None:
        """Bring `done_at_mark` to `now` (a mark in the future is the end of a pause)."""
        passed = now - self.mark
        if passed > 0.0:
            if self.rate > 0.0:
                self.done_at_mark = min(self.work, self.done_at_mark + passed * self.rate)
                self.executed += passed * self.rate / self.solo
            self.mark = now

    def keep_pace(self) -> None:
        """Take the pace of the epochs done."""
        paces = self.dynamics.paces
        passed = bisect_right(paces, self.done_at_mark, key=lambda pace: pace[0])
        of = paces[passed - 1][1] if passed else 1.0
        self.paced, self.pace = (of, 1.0) if callable(of) else (self.dynamics.speed, of)
        self.pace_ends = paces[passed][0] if passed < len(paces) else math.inf

    def done(self) -> float:
        """See `JobState.done`."""
        passed = self.run.now - self.mark
        return min(self.work, self.done_at_mark + passed * self.rate) if passed > 0.0 else self.done_at_mark

    def remaining(self) -> Remaining:
        """See `JobState.remaining`."""
        return self.run.knowledge.remaining(self)

    def speed(self, workers: int, servers: int, node: int = 0, /) -> float:
        """See `JobState.speed`."""
        return self.run.knowledge.speed(self, workers, servers, node)

    def speed_now(self) -> float:
        """See `JobState.speed_now`."""
        return self.rate if self.run.now >= self.mark else 0.0

    def true_speed(self, plan: Plan) -> float:
        """Epochs/s under `plan`, alone on its nodes."""
        found = self.paced(plan) * self.pace if self.paced is not None else float(sum(part[1] for part in plan))
        if factors := self.dynamics.kinds:
            found *= min(factors.get(self.run.kinds[node], 1.0) for node, _, _ in plan)
        return found

    def loss(self) -> float:
        """See `JobState.loss`. It is measured once an instant, so that calls at the same time return the same."""
        if self.dynamics.loss is None:
            return math.nan
        exact = self.dynamics.loss(self.done())
        if not self.dynamics.loss_noise:
            return exact
        if self._noise_at != self.run.now:
            self._noise_at = self.run.now
            self._noise_value = self.run.noise(self)
        return exact + self.dynamics.loss_noise * self._noise_value
