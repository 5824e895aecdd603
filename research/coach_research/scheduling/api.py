"""Scheduling: events in, actions out.

A policy gets each event once, in the order of virtual (or real) time, and answers with actions:

    class Fifo(SchedulingPolicy):
        def schedule(self, event, view):
            while job := first(view.waiting):    # in the order in which they came to the queue
                nodes = fitting(view.free, job.worker)
                if not len(nodes):
                    return                       # no job passes the head of the queue
                yield Start(job.id, ((int(nodes[0]), 1, 0),))

**Write `schedule` as a generator where you can.** The driver carries out each action before it resumes the generator:
after `yield Start(...)` the view already shows the job running on its nodes. The mappings of the view are the driver's
own: to iterate over one while jobs change, iterate over `list(view.waiting.values())`. A list instead of a generator
works too: it is carried out in order.

Rules:

* A policy is deterministic. It has no clock (`view.now`) and no randomness of its own: all its random numbers come from
  a `numpy.random.Generator` that it gets when it is made, so that workload and faults are the same for all policies.
* It may keep state between events (queues, categories, arrays) about a job from `Arrived` to `Finished`. It must remove
  it then, or memory grows without bound.
* It reads the view and never changes it. `view.free` and the vectors of a job are the driver's own arrays, not copies.
* It never over-commits. An action that cannot be carried out (not enough free capacity, unknown job, a job in a wrong
  phase, counts outside `minimum`..`maximum`) is an error of the policy: `PolicyError`, with the action and the state.
* It does not handle budgets; the driver does not start what the money does not cover.

Phases of a job, and their transitions:

    WAITING --Start--> RUNNING --(work done)--> finished
    WAITING --Reserve--> HOLDING --Start--> RUNNING          HOLDING --Reserve(job, ())--> WAITING
    RUNNING --Resize, Migrate--> RUNNING (pauses, holding the new plan)
    RUNNING --Preempt--> DRAINING --(grace period over)--> WAITING, event PreemptionCompleted
    RUNNING, HOLDING, DRAINING --(a node is lost)--> WAITING, event NodeChanged
    any --Kill--> gone (not completed), event Finished(killed=True)

Units: seconds; resources are (cpu cores, memory GiB, gpu devices); work is in epochs, speed in epochs/s. A job without
epochs (tasks of a given execution time) has no boundaries; its work is the sum of its tasks' seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coach.core.cluster import Allocation
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.workload import FloatArray, Plan

IntArray = NDArray[np.intp]

#: Jobs are numbered in the order of their arrival, nodes from 0.
JobId = int
NodeId = int

#: Columns of every resource vector.
RESOURCES = ("cpu", "memory", "gpu")

#: `JobState.kind` of a job whose user waits for its first epochs; all others are best-effort (FitGpp).
TRIAL = "trial-and-error"

#: Up to this many nodes plain numbers are faster than arrays.
FEW = 4


class PolicyError(Exception):
    """A policy's action cannot be carried out; the message gives the action and the state."""


# -- events: what has happened ---------------------------------------------------------------------------------


class Arrived(NamedTuple):
    """A job arrived; it is in `view.waiting`, last."""

    job: JobId


class Finished(NamedTuple):
    """A job did all its work (or was killed). What it held (`plan`) is free already; it is not in the view any more.

    `state` is its last state.
    """

    job: JobId
    plan: Plan
    state: JobState
    killed: bool = False


class PreemptionCompleted(NamedTuple):
    """A preempted job's grace period is over: what it held (`plan`) is free, and it waits again, last in the queue."""

    job: JobId
    plan: Plan


class EpochEnded(NamedTuple):
    """A running job ended its `epoch`-th epoch and goes on with the next. Only for policies that want it (`wants`)."""

    job: JobId
    epoch: int


class NodeChanged(NamedTuple):
    """A node was lost or came back. `jobs` were on it and wait again, with the work of their last checkpoint."""

    node: NodeId
    up: bool
    jobs: tuple[JobId, ...] = ()


class TimerFired(NamedTuple):
    """The time of a `ScheduleTimer`. Samples are taken here: read `view.jobs[...].loss()`, `.speed_now()`."""

    at: float


SchedulingEvent = Arrived | Finished | PreemptionCompleted | EpochEnded | NodeChanged | TimerFired


# -- actions: what to do ---------------------------------------------------------------------------------------


class Start(NamedTuple):
    """Run a waiting (or holding) job on these nodes. What it held before is released first."""

    job: JobId
    plan: Plan


class Resize(NamedTuple):
    """Give a running job another plan. It pauses for `job.rescale_seconds` and holds the new plan at once.

    The same plan again is no change and costs nothing.
    """

    job: JobId
    plan: Plan


class Migrate(NamedTuple):
    """Move a running job: as `Resize`, but it pauses for `job.migration_seconds` and counts as a migration."""

    job: JobId
    plan: Plan


class Preempt(NamedTuple):
    """Remove a running job from its nodes: for `job.grace` seconds it holds them without progress.

    Then comes `PreemptionCompleted`.
    """

    job: JobId


class Reserve(NamedTuple):
    """Reserve capacity for a waiting job without running it (a gang's first pods, a node kept for a preemptor).

    Replaces what it held; an empty plan releases all. The counts may be below the job's minimum.
    """

    job: JobId
    plan: Plan


class Kill(NamedTuple):
    """End a job at once, in any phase. Reported as killed, not as completed."""

    job: JobId


class ScheduleTimer(NamedTuple):
    """Send `TimerFired` at `at` seconds (virtual time; not before now). Each ScheduleTimer gives one TimerFired."""

    at: float


SchedulingAction = Start | Resize | Migrate | Preempt | Reserve | Kill | ScheduleTimer


# -- the view: the state -----------------------------------------------------------------------------------------


class Phase(StrEnum):
    """The phase of a job."""

    WAITING = "waiting"  #: holds nothing
    HOLDING = "holding"  #: holds capacity, does not run
    RUNNING = "running"  #: holds capacity and trains (or pauses for a change of its plan)
    DRAINING = "draining"  #: preempted: holds capacity until its grace period is over


class Remaining(NamedTuple):
    """Predicted epochs to the end, `low <= expected <= high`; all equal where the true number is known."""

    low: float
    expected: float
    high: float


class JobState(Protocol):
    """One job, read only. Attributes are plain and quick to read, for policies over hundreds of thousands of jobs."""

    # Its requests: constant.
    id: JobId
    name: str
    #: Its kind in its workload: a model ("vgg-16"), "trial-and-error", "best-effort".
    kind: str
    #: False for a task of a given execution time: it has no boundaries, and may change whenever something happens.
    has_epochs: bool
    #: False: `loss` is NaN for ever.
    has_loss: bool
    #: Seconds.
    arrived: float
    #: Higher is more important.
    priority: int
    #: Seconds after its arrival in which it should end; inf: none.
    deadline: float
    #: Request of one worker, of one server, and of the job's scheduler (zeros where there is none); each of shape (3,).
    worker: FloatArray
    server: FloatArray
    scheduler: FloatArray
    #: Fewest and most workers and servers to run with. A single task: (1, 0) and (1, 0).
    minimum: Allocation
    maximum: Allocation

    @property
    def at_maximum(self) -> FloatArray:
        """What all pods of its maximum and its scheduler request together; shape (3,)."""

    #: Seconds of the grace period, of the pause for a resize and for a migration.
    grace: float
    rescale_seconds: float
    migration_seconds: float

    # Its state: changes.
    phase: Phase
    #: What it holds; () while waiting.
    plan: Plan
    #: Totals of the plan.
    workers: int
    servers: int
    #: When it entered its phase, seconds.
    since: float
    #: When it first started; NaN before.
    started: float
    preemptions: int
    migrations: int
    resizes: int

    def done(self) -> float:
        """Epochs of work done by now."""

    def remaining(self) -> Remaining:
        """Predicted epochs to the end, with this run's `Knowledge`."""

    def speed(self, workers: int, servers: int, node: NodeId = 0, /) -> float:
        """Predicted epochs/s with `workers` and `servers` on nodes like `node`, >= 0.

        Constant until there is a new measurement.
        """

    def speed_now(self) -> float:
        """Epochs/s at which it trains at this moment (measured): 0 while paused, less on a shared node."""

    def loss(self) -> float:
        """The loss as measured now (its noise included); NaN for jobs that have no curve."""


class EngineView(Protocol):
    """The cluster and its jobs at this moment: live, read only, never copied."""

    #: Seconds.
    now: float
    #: [node, resource]: what each node has; a lost node has zeros.
    capacity: FloatArray
    #: The kind of each node, "" where that is not known.
    kinds: tuple[str, ...]
    #: Currency units of a second of each resource; None: nothing has a price.
    prices: tuple[float, float, float] | None
    #: [node, resource]: what is not held. On shared nodes (`share` of the cluster) requests may be zero: then all fit.
    free: FloatArray

    @property
    def jobs(self) -> Mapping[JobId, JobState]:
        """All jobs that arrived and have not finished."""

    @property
    def waiting(self) -> Mapping[JobId, JobState]:
        """Jobs in phase WAITING, in the order in which they entered the queue (arrival, or a preemption's end)."""

    @property
    def running(self) -> Mapping[JobId, JobState]:
        """Jobs in phase RUNNING, in the order of their starts."""

    def on_node(self, node: NodeId, /) -> Iterable[JobState]:
        """The jobs that hold capacity on a node, in the order in which they took it."""


#: What the policies of a run know about speeds and remaining work; the driver computes `JobState.speed` and
#: `.remaining` accordingly. `true`: the true values (perfect knowledge, as FitGpp's LRTP has). `fitted`: estimates from
#: measurements.
Knowledge = Literal["true", "fitted"]


# -- small helpers -----------------------------------------------------------------------------------------------


def fitting(room: FloatArray, demand: FloatArray) -> IntArray:
    """The nodes whose `room` [node, resource] holds `demand` [resource], ascending."""
    cpu, memory, gpu = (demand - TOLERANCE).tolist()
    if len(room) <= FEW:
        # A few plain numbers take less time than arrays of them.
        rows = enumerate(room.tolist())
        return np.array([n for n, (a, b, c) in rows if a >= cpu and b >= memory and c >= gpu], np.intp)
    nodes: IntArray = ((room[:, 0] >= cpu) & (room[:, 1] >= memory) & (room[:, 2] >= gpu)).nonzero()[0]
    return nodes


def first(jobs: Mapping[JobId, JobState]) -> JobState | None:
    """The first of `jobs`; None if there are none."""
    return next(iter(jobs.values()), None)


def demand(job: JobState, plan: Plan) -> dict[NodeId, FloatArray]:
    """What `plan` takes on each node, by node: vectors of shape (3,)."""
    taken: dict[NodeId, FloatArray] = {}
    for place, (node, workers, servers) in enumerate(plan):
        need = workers * job.worker
        if servers:
            need = need + servers * job.server
        if place == 0:
            need = need + job.scheduler
        taken[node] = taken[node] + need if node in taken else need
    return taken
