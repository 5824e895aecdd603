"""Allocation: jobs and the cluster in, workers and servers of each job out.

A policy decides for all jobs at once how many workers and servers each should have:

    decision = policy.allocate(jobs, cluster)
    decision.allocations["lenet"]        # Allocation(2, 1), or None: the job must wait
    decision.steps                       # why, step by step

It is pure: it reads the views, keeps no state between calls that changes a decision, and has no clock. What it draws
comes from its field `rng`, as `coach.core.policies.api.parameters` says. The order of `jobs` does not matter. It sees
what an epoch may cost, but it does not reserve money: the driver checks the budget again when it reserves, so no
policy can overspend.

When it is called: `cadence` None means whenever a job is at the boundary of an epoch, arrives or ends. The driver
passes all jobs that have not ended, also those in the middle of an epoch (`busy`). The allocation of a busy job is for
its next boundary, where the policy is called again. The allocations of the others can start now: they fit in addition
to what the busy ones hold. A job whose allocation is None releases what it holds and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from coach.core.cluster import Allocation, Node, Resources, Role
from coach.core.jobs.decision import DecisionStep, StepKind


class Estimate(Protocol):
    """A predicted number with its interval, `low <= expected <= high`."""

    @property
    def low(self) -> float:
        """Lower end."""

    @property
    def expected(self) -> float:
        """The best single guess."""

    @property
    def high(self) -> float:
        """Upper end."""


class Objective(StrEnum):
    """The objective of a job, or of a whole policy."""

    SOONEST = "soonest"  #: the target as soon as the budget allows
    CHEAPEST = "cheapest"  #: the target at the lowest cost, within the deadline if there is one
    MEAN_COMPLETION = "mean-completion"  #: for one job as `SOONEST`; for all the shortest mean completion time


class JobView(Protocol):
    """One job at the time of the call, read only. Cheap to read: policies read it often."""

    @property
    def id(self) -> str:
        """Unique among the jobs of a call."""

    @property
    def created(self) -> float:
        """Seconds on the driver's clock."""

    @property
    def priority(self) -> int:
        """Higher is more important."""

    @property
    def trial(self) -> bool:
        """A trial-and-error job: its user waits for its first epochs. The others are best-effort (FitGpp)."""

    @property
    def grace(self) -> float:
        """Seconds of grace that it needs when it is preempted."""

    @property
    def minimum(self) -> Allocation:
        """The smallest allocation that can run an epoch, at least (1, 1)."""

    @property
    def maximum(self) -> Allocation:
        """The largest allocation to use; it also bounds how finely the data is divided among workers."""

    @property
    def current(self) -> Allocation | None:
        """What the job holds now; None while it holds nothing."""

    @property
    def fixed(self) -> Allocation | None:
        """An allocation that the policy must not change now, such as a probe's; None: the policy chooses.

        The job gets exactly this or nothing; whether it is affordable is not checked.
        """

    @property
    def busy(self) -> bool:
        """In the middle of an epoch: it holds `current` until its next boundary, whatever is decided."""

    @property
    def requests(self) -> Mapping[Role, Resources]:
        """The requests of one pod of each role. Each job has one scheduler."""

    @property
    def remaining_epochs(self) -> Estimate | None:
        """Predicted epochs to the target; None while unknown."""

    @property
    def deadline(self) -> float | None:
        """Seconds from now in which the job should end; None without a deadline."""

    @property
    def objective(self) -> Objective:
        """The job's own objective: `SOONEST` or `CHEAPEST`."""

    @property
    def measured(self) -> Collection[Allocation]:
        """The allocations at which its driver measured its speed, or tried to in vain."""

    @property
    def begun(self) -> bool:
        """Whether it has trained a whole epoch, or needs no mini-epochs before one."""

    @property
    def restart_seconds(self) -> float:
        """Seconds in which the job does not train when its allocation changes."""

    def speed(self, allocation: Allocation, kind: str | None = None, /) -> float:
        """Predicted epochs/s, above zero; constant during a call.

        `kind`: on nodes of this kind; None: where it is, or on the slowest where it may be.
        """

    def epoch_cost(self, allocation: Allocation, /) -> float:
        """Predicted currency units of one epoch; in a trace without prices, seconds times the nodes that it fills."""

    def epoch_budget(self, allocation: Allocation, /) -> float | None:
        """Currency units that the next epoch may cost with this allocation; None without a budget."""

    def affordable(self, allocation: Allocation, /) -> bool:
        """Whether the remaining money covers the reservation of one epoch."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The nodes with their capacity for our jobs, that is without pods that are not ours.

    What the jobs of the call hold counts as free here: the policy allocates it anew.
    """

    nodes: tuple[Node, ...]
    #: Seconds on the driver's clock.
    now: float = 0.0
    #: What policies computed from the nodes (`kept`): a driver reuses the view while the nodes are the same.
    memory: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)


class Reason(StrEnum):
    """Why a step was taken."""

    FIXED = "fixed"  #: the job's allocation was fixed
    SPEED = "speed"  #: the predicted speed grows
    COST = "cost"  #: the predicted cost of the rest falls
    EPOCH_BUDGET = "epoch-budget"  #: towards an epoch that the budget covers
    DEADLINE = "deadline"  #: towards ending in time
    CPU = "cpu"  #: taken back: more cores are requested than there are
    MEMORY = "memory"
    GPU = "gpu"
    FRAGMENTATION = "fragmentation"  #: taken back: the sum fits, but the pods do not fit on the nodes
    HELD = "held"  #: taken back for now: jobs in the middle of an epoch still hold the capacity
    RESTART = "restart"  #: kept: the change gains less than its own restart costs
    ROOM = "room"  #: returned: it fits after all after others' reductions
    PLANNED = "planned"  #: planned by a policy that chooses nodes too
    QUEUE = "queue"  #: first come, first served: it is its turn, or it waits for its turn
    FAIR = "fair"  #: the smallest dominant share is served first
    SHORTEST = "shortest"  #: the shortest remaining time is served first
    PACKING = "packing"  #: fits best into what is free, with little work left
    PREEMPTED = "preempted"  #: is preempted by a trial-and-error job
    UTILITY = "utility"  #: the remaining time that a pod saves, for each share of the cluster
    LEARNED = "learned"  #: a trained network gives it
    BARRIER = "other jobs train their mini-epochs first"  #: waits until all jobs have theirs
    FALLBACK = "fallback"  #: the network does not decide; the smallest dominant share is served first
    TOO_SLOW = "fallback, too slow"  #: as before, for a network that takes too long
    UNAFFORDABLE = "unaffordable"  #: waits: the money does not cover an epoch of even the smallest allocation
    NEVER_FITS = "never-fits"  #: waits: the smallest allocation does not fit on the empty cluster
    OVER_BUDGET = "over-epoch-budget"  #: not taken: better, but an epoch costs more than its budget
    LATE = "late"  #: not taken: cheaper, but the job would miss its deadline
    TOO_LITTLE = "too-little"  #: not taken: faster, but by too little for its pods


#: Why a step was not taken.
NOT_TAKEN = frozenset({Reason.OVER_BUDGET, Reason.LATE, Reason.TOO_LITTLE})


class Step(NamedTuple):
    """One step of a decision: `job` changes from `before` to `after` (None: it waits), or does not (`NOT_TAKEN`)."""

    job: str
    before: Allocation | None
    after: Allocation | None
    reason: Reason
    #: What the step gains (or, if taken back, loses), in `unit`; 0 where gain did not decide.
    gain: float = 0.0
    unit: str = ""
    #: Predicted currency units of an epoch after the step.
    cost: float | None = None
    #: What a restart for the change costs, in `unit`.
    restart: float | None = None

    def recorded(self) -> DecisionStep:
        """The step as the journal keeps it."""
        kind = StepKind.REFUSED if self.reason in NOT_TAKEN else StepKind.TAKEN
        return DecisionStep(
            kind, self.before, self.after, str(self.reason), self.gain, self.unit, self.cost, self.restart
        )

    def __str__(self) -> str:
        return self.recorded().text(self.job)


@dataclass(frozen=True, slots=True)
class AllocationDecision:
    """An allocation, or None for waiting, for every job of the call, and the steps that led to it."""

    allocations: Mapping[str, Allocation | None]
    steps: tuple[Step, ...] = field(default=(), repr=False)

    def why(self, job: str) -> tuple[Step, ...]:
        """The steps that concern one job."""
        return tuple(step for step in self.steps if step.job == job)


T = TypeVar("T")


def kept(view: JobView | ClusterView, key: Hashable, make: Callable[[], T]) -> T:
    """`make()`, cached in `view`, from which alone it follows, if the view has a `memory` (a dictionary).

    Drivers reuse a view until its job changes. Most jobs do not change between two decisions.
    """
    memory: dict[Any, Any] | None = getattr(view, "memory", None)
    if memory is None:
        return make()
    try:
        found: T = memory[key]
    except KeyError:
        found = memory[key] = make()
    return found


def queue_order(job: JobView) -> tuple[int, float, str]:
    """Sorts jobs as the gang queue does: priority (higher first), creation time, id."""
    return -job.priority, job.created, job.id
