"""What an allocation policy sees and answers. The live driver and the simulator call the same policies.

A policy is asked for all jobs at once and says how many workers and servers each should have:

    decision = policy.allocate(jobs, cluster)
    decision.allocations["lenet"]        # Allocation(2, 1), or None: the job has to wait
    decision.steps                       # why, step by step

It is pure: it reads the views, keeps nothing between calls that changes an answer, and has no clock and no
randomness. The order of `jobs` does not matter. Money is not in its hands: it sees what an epoch may cost, and the
driver checks the budget again when it reserves, so no policy can overspend.

When to ask: `cadence` None means whenever a job is at the boundary of an epoch, arrives or ends. The driver passes
every job that lives, also those in the middle of an epoch (`busy`): what is decided for a busy job is what it
should have at its next boundary, so ask again there; what is decided for the others can be started now, beside what
the busy ones hold. A job for which None is decided gives back what it holds and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from coach.core.cluster import Allocation, Node, Resources, Role


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
    """What a job, or a whole policy, is after."""

    SOONEST = "soonest"  #: the target as soon as the budget allows
    CHEAPEST = "cheapest"  #: the target for the least money, within the deadline where there is one
    MEAN_COMPLETION = "mean-completion"  #: alone as `SOONEST`; together the shortest mean completion time


class JobView(Protocol):
    """One job, read only, as it stands when the policy is asked. Cheap to read: policies read it often."""

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
        """A trial-and-error job: somebody waits for its first epochs. The others are best-effort (FitGpp)."""

    @property
    def grace(self) -> float:
        """Seconds that it asks for when it is preempted."""

    @property
    def minimum(self) -> Allocation:
        """The smallest allocation that can run an epoch, at least (1, 1)."""

    @property
    def maximum(self) -> Allocation:
        """The largest allocation to use; it also keeps each worker's part of the data sensible."""

    @property
    def current(self) -> Allocation | None:
        """What the job holds now; None while it holds nothing."""

    @property
    def fixed(self) -> Allocation | None:
        """A demand that is not up for negotiation now, such as a probe's; None: the policy chooses.

        It is given as it is or not at all; whether it can be paid is not asked.
        """

    @property
    def busy(self) -> bool:
        """In the middle of an epoch: it holds `current` until its next boundary, whatever is decided."""

    @property
    def requests(self) -> Mapping[Role, Resources]:
        """What one pod of each role asks for. Each job has one scheduler."""

    @property
    def remaining_epochs(self) -> Estimate | None:
        """Predicted epochs to the target; None while nothing is known."""

    @property
    def deadline(self) -> float | None:
        """Seconds from now in which the job should end; None without a deadline."""

    @property
    def objective(self) -> Objective:
        """What the job itself asks for: `SOONEST` or `CHEAPEST`."""

    @property
    def restart_seconds(self) -> float:
        """What changing the allocation costs the job: seconds in which it does not train."""

    def speed(self, allocation: Allocation, /) -> float:
        """Predicted epochs/s, above zero. The same answer for the same question during a call."""

    def epoch_cost(self, allocation: Allocation, /) -> float:
        """Predicted currency units of one epoch."""

    def epoch_budget(self, allocation: Allocation, /) -> float | None:
        """Currency units that the next epoch may cost if it is one with this allocation; None without a budget."""

    def affordable(self, allocation: Allocation, /) -> bool:
        """Whether the money left could pay the reservation of one epoch."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The nodes with what they can give to our jobs: their capacity less pods that are not ours.

    What the jobs of the call hold counts as free here: the policy hands it out anew.
    """

    nodes: tuple[Node, ...]
    #: Seconds on the driver's clock.
    now: float = 0.0
    #: What policies worked out of the nodes (`kept`): a driver that asks again about the same ones keeps the view.
    memory: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)


class Reason(StrEnum):
    """Why a step was taken."""

    FIXED = "fixed"  #: the job's demand was not up for negotiation
    SPEED = "speed"  #: the predicted speed grows
    COST = "cost"  #: the predicted cost of the rest falls
    EPOCH_BUDGET = "epoch-budget"  #: towards an epoch that the budget covers
    DEADLINE = "deadline"  #: towards ending in time
    CPU = "cpu"  #: taken back: more cores asked for than there are
    MEMORY = "memory"
    GPU = "gpu"
    FRAGMENTATION = "fragmentation"  #: taken back: the sum fits, but not in pieces on the nodes
    HELD = "held"  #: taken back for now: jobs in the middle of an epoch still hold the room
    RESTART = "restart"  #: kept as it was: the change does not pay for its own restart
    ROOM = "room"  #: given back: others' reductions left room after all
    PLANNED = "planned"  #: as a policy planned it that decides on nodes too
    QUEUE = "queue"  #: first come, first served: its turn has come, or it waits for it
    FAIR = "fair"  #: the least dominant share is served first
    SHORTEST = "shortest"  #: the shortest remaining time is served first
    PACKING = "packing"  #: fits best into what is left, with little work left
    PREEMPTED = "preempted"  #: gives way to a trial-and-error job
    UTILITY = "utility"  #: the remaining time that a pod saves, for each share of the cluster
    UNAFFORDABLE = "unaffordable"  #: waits: not even the smallest allocation's next epoch can be paid
    NEVER_FITS = "never-fits"  #: waits: the smallest allocation is more than the empty cluster has
    OVER_BUDGET = "over-epoch-budget"  #: not taken: better, but an epoch costs more than it may
    LATE = "late"  #: not taken: cheaper, but the job would end too late
    TOO_LITTLE = "too-little"  #: not taken: faster, but by too little for its pods


#: Why a step was not taken.
NOT_TAKEN = frozenset({Reason.OVER_BUDGET, Reason.LATE, Reason.TOO_LITTLE})


class Step(NamedTuple):
    """One step of a decision: `job` went from `before` to `after` (None: it waits), or might have (`NOT_TAKEN`)."""

    job: str
    before: Allocation | None
    after: Allocation | None
    reason: Reason
    #: What the step brings (or, taken back, loses), in `unit`; 0 where it was no matter of gain.
    gain: float = 0.0
    unit: str = ""
    #: Predicted currency units of an epoch after the step.
    cost: float | None = None

    def __str__(self) -> str:
        """`job a 2x1 -> 3x1: speed, 0.004 epochs/s, an epoch costs 0.012`."""
        arrow = ", not" if self.reason in NOT_TAKEN else " ->"
        words = f"job {self.job} {self.before or 'nothing'}{arrow} {self.after or 'waits'}: {self.reason}"
        if self.unit:
            words += f", {self.gain:.4g} {self.unit}"
        if self.cost is not None:
            words += f", an epoch costs {self.cost:.4g}"
        return words


@dataclass(frozen=True, slots=True)
class AllocationDecision:
    """An allocation, or None for waiting, for every job of the call, and the steps that led there."""

    allocations: Mapping[str, Allocation | None]
    steps: tuple[Step, ...] = field(default=(), repr=False)

    def why(self, job: str) -> tuple[Step, ...]:
        """The steps that concern one job."""
        return tuple(step for step in self.steps if step.job == job)


T = TypeVar("T")


def kept(view: JobView | ClusterView, key: Hashable, make: Callable[[], T]) -> T:
    """`make()`, which follows from `view` alone: made once where the driver keeps it as long as its job is as it is.

    Such a view has a `memory`, an empty dictionary at first. Of most jobs nothing changes between two decisions.
    """
    memory: dict[Any, Any] | None = getattr(view, "memory", None)
    if memory is None:
        return make()
    try:
        found: T = memory[key]
    except KeyError:
        found = memory[key] = make()
    return found


class AllocationPolicy(Protocol):
    """Decides how many workers and servers each job has.

    For every job: `minimum <= allocation <= maximum`, or `fixed` itself, or None. All allocations together fit
    on the nodes, and those of the jobs that are not busy fit beside what the busy ones hold now.
    """

    @property
    def name(self) -> str:
        """As `policy()` of this package parses it."""

    @property
    def cadence(self) -> float | None:
        """Seconds between two decisions; None: at epoch boundaries, arrivals and ends."""

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """Decide for all `jobs`."""


@runtime_checkable
class ChoosesNodes(Protocol):
    """An allocation policy that also says where: the driver asks right after `allocate`."""

    @property
    def places(self) -> Mapping[str, Mapping[str, Allocation]]:
        """What each job should have on which nodes, as decided last; jobs that are not in it may stand anywhere."""


@runtime_checkable
class Remembers(Protocol):
    """An allocation policy that remembers things of jobs from one decision to the next.

    The driver keeps them with the job and shows them to the policy that a new handler has, as `policy_state` of its
    view.
    """

    def memory(self, job: str) -> dict[str, Any]:
        """What is to be known of a job that was decided for, in values that JSON has; {}: nothing."""


def queue_order(job: JobView) -> tuple[int, float, str]:
    """Sorts jobs as the gang queue does: priority (higher first), creation time, id."""
    return -job.priority, job.created, job.id
