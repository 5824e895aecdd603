"""A job as policies see it (`coach.core.policies.api.allocation.JobView`), with the predictions of this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache, cached_property, partial
from itertools import tee
from typing import Any

from coach.core.cluster import NOTHING, Allocation, PodId, Resources, Role
from coach.core.estimation.interval import Interval
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle import forecast, probing, stopping_rules
from coach.core.policies.api.allocation import Objective
from coach.core.spec.resources import JobObjective
from coach.core.spec.training import JobClass


class ReducerJobView:
    """Read-only. Results are cached: a new view is made when anything in its job changes.

    The reducer, too, reads what follows from the job alone here (`stop_decision`, `to_measure`, `probe_size`).
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._speeds: dict[Allocation, float] = {}
        #: What policies computed from it (`allocation.kept`).
        self.memory: dict[Any, Any] = {}
        self._factors = factors = job.spec.error_factors
        plan = cache(partial(forecast.spending_plan, job))
        self.epoch_cost = cache(lambda at: forecast.predicted_cost(job, at) * factors.cost)
        self.epoch_budget = cache(lambda at: forecast.epoch_budget(job, self.left, plan(), at))
        self.affordable = cache(partial(forecast.affordable, job))
        self.id = job.name
        self.created = job.progress.submitted_at
        self.priority = job.spec.priority
        self.trial = job.spec.job_class is JobClass.TRIAL_AND_ERROR
        self.minimum = job.minimum
        self.maximum = job.maximum
        self.busy = job.phase in (Phase.RUNNING, Phase.FITTING, Phase.DEPLOYING)
        self.grace = job.spec.grace_period
        limit = job.spec.time_limit
        self.deadline = None if limit is None else max(0.0, limit - job.progress.run_seconds)
        self.done = job.epochs_trained
        self.policy_state: Mapping[str, Any] = job.decision.policy_state
        self.requests: Mapping[Role, Resources] = {role: job.spec.resources.of(role) for role in Role}

    @cached_property
    def at_boundary(self) -> ReducerJobView:
        """The same as if it were not in the middle of an epoch."""
        view = copy(self)
        view.busy, view.memory = False, {}
        return view

    @cached_property
    def most(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Cores, GiB and devices of its maximum, or of what it holds where that is more; and the largest of any pod."""
        resources = self._job.spec.resources
        held = sum((held.pod.requests for held in self._job.gang.pods.values()), NOTHING)
        whole, pods = resources.total(self.maximum), resources.each
        return (
            (max(whole.cpu, held.cpu), max(whole.memory, held.memory), max(whole.gpu, held.gpu)),
            (max(pod.cpu for pod in pods), max(pod.memory for pod in pods), max(pod.gpu for pod in pods)),
        )

    @cached_property
    def stop_decision(self) -> tuple[Reason, str] | None:
        """Why the job ends now; None while it goes on."""
        return stopping_rules.stop_decision(self._job)

    @property
    def to_measure(self) -> Iterator[probing.Probe]:
        """The allocations worth measuring, the best first, on any cluster; computed as far as they are read."""
        return copy(self._to_measure)

    @cached_property
    def _to_measure(self) -> Iterator[probing.Probe]:
        # Copies of it share what was computed.
        return tee(probing.to_measure(self._job, self.left), 1)[0]

    @cached_property
    def probe_size(self) -> tuple[float, float | None] | None:
        """(fraction of the data, seconds or None) of its next mini-epoch; None once the share for probes is used up."""
        return probing.probe_size(self._job, self.left)

    @property
    def current(self) -> Allocation | None:
        """What it holds; while pods start or are released, what it will hold."""
        if self._job.phase is Phase.DEPLOYING:
            return self._job.decision.desired
        return self._job.gang.held if self._job.gang.pods else None

    @property
    def loss(self) -> float:
        """The last loss measured; NaN before the first."""
        last = self._job.last_evaluated
        return float("nan") if last is None or last.report.loss is None else last.report.loss

    @property
    def standing(self) -> dict[str, Allocation]:
        """Workers and servers on each node, the scheduler's node first; without pods being released."""
        nodes: dict[str, list[PodId]] = {}
        pods = [held.pod for held in self._job.gang.pods.values() if not held.releasing]
        for pod in sorted(pods, key=lambda pod: pod.id.role is not Role.SCHEDULER):
            nodes.setdefault(pod.node, []).append(pod.id)
        return {node: Allocation.of(ids) for node, ids in nodes.items()}

    @property
    def fixed(self) -> Allocation | None:
        """A probe under way, a program that stays as it is, the smallest allocation while no speed is known; else what
        was chosen with its nodes (`spec.spot`).
        """
        if (self.busy and self._job.decision.kind is EpochKind.PROBE) or self._job.stays:
            return self.current
        return self.minimum if self._job.speed is None else self._job.decision.on_allocation

    @cached_property
    def measured(self) -> frozenset[Allocation]:
        """Where it trained, or a probe failed to start."""
        return frozenset([*(epoch.allocation for epoch in self._job.epochs), *self._job.decision.missed])

    @property
    def begun(self) -> bool:
        """Whether it has trained more than mini-epochs."""
        return any(epoch.kind is EpochKind.FULL for epoch in self._job.epochs)

    @cached_property
    def left(self) -> forecast.Remaining:
        """What it still needs."""
        return forecast.remaining(self._job)

    @cached_property
    def remaining_epochs(self) -> Interval:
        """Epochs to the target."""
        return self.left.epochs * self._factors.convergence

    @property
    def objective(self) -> Objective:
        """As its file says; for the best model, speed where its bounds leave money for it (`forecast.epoch_budget`)."""
        by_cost = self._job.spec.objective is JobObjective.CHEAPEST
        return Objective.CHEAPEST if by_cost else Objective.SOONEST

    @cached_property
    def restart_seconds(self) -> float:
        """Seconds that a change costs this job, the wait that its cluster's queue expects included."""
        return self._job.change_seconds

    def speed(self, allocation: Allocation, kind: str | None = None, /) -> float:
        """Epochs/s as fitted, evaluation and checkpoint included."""
        if kind is not None and (factors := self._job.spec.speed_by_kind):
            change = factors.get(kind, 1.0) / self._job.pace
            if change != 1.0 and self._job.speed is not None:
                training = 1.0 / self._job.speed.predict(*allocation)
                there = self._factors.speed / self.speed(allocation) + training * (1.0 / change - 1.0)
                return self._factors.speed / there
        if allocation not in self._speeds:
            if not self._speeds and self._job.speed is not None:
                # A policy reads many of them next.
                self._job.speed.precompute(forecast.allocations(self._job))
            seconds = forecast.predicted_seconds(self._job, allocation, 1.0)
            speed = 1.0 / seconds.expected if seconds else 1.0
            self._speeds[allocation] = speed * self._factors.speed
        return self._speeds[allocation]
