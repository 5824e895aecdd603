"""The jobs of a workload. Generators, trace readers and journals all yield `Work`, in order of arrival."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coach.core.cluster import Allocation

FloatArray = NDArray[np.float64]

#: How many workers and servers on which nodes: (node, workers, servers), each node at most once. The job's scheduler,
#: where it has one, is on the first node named. A single task is one worker: ((node, 1, 0),).
Plan = tuple[tuple[int, int, int], ...]

NOTHING: FloatArray = np.zeros(3)
NOTHING.flags.writeable = False
ONE_WORKER = Allocation(1, 0)

#: True speed of a job under a plan, epochs/s, >= 0. It may depend on the pods' nodes.
Speed = Callable[[Plan], float]
#: Loss (without noise) by epochs trained.
Curve = Callable[[float], float]


@dataclass(slots=True)
class Work:
    """One job of a workload with its true speed and curve, which policies can only predict.

    `work` is in epochs. Without `speed` the job is one of tasks without epochs: `work` is its execution time in seconds
    with one worker, and n workers do it in the n-th part (n tasks of t seconds each: n t). `arrival` in seconds; a
    closed loop ignores it.
    """

    arrival: float
    work: float
    worker: FloatArray
    server: FloatArray = field(default_factory=lambda: NOTHING)
    scheduler: FloatArray = field(default_factory=lambda: NOTHING)
    name: str = ""
    kind: str = ""
    priority: int = 0
    minimum: Allocation = ONE_WORKER
    maximum: Allocation = ONE_WORKER
    speed: Speed | None = None
    #: How fast it is on nodes of a kind, times `speed`; a gang is as fast as the slowest of its nodes. Others: 1.
    kinds: Mapping[str, float] = field(default_factory=dict)
    #: A batch that grows as it trains: (from this whole epoch on, times `speed`, or the speed then), ascending.
    paces: tuple[tuple[int, float | Speed], ...] = ()
    loss: Curve | None = None
    #: Standard deviation of a measured loss.
    loss_noise: float = 0.0
    #: Seconds: pause after each start (its process begins, and reads its checkpoint), grace period of a preemption,
    #: pause of a resize, pause of a migration.
    start_seconds: float = 0.0
    grace: float = 0.0
    rescale_seconds: float = 0.0
    migration_seconds: float = 0.0
    #: Epochs between checkpoints; work since the last is lost with a node. 0: no work is ever lost.
    checkpoint: float = 0.0
    #: Seconds after its arrival in which it should end.
    deadline: float = math.inf
    #: The nodes that it may have, where a cluster is divided; "": those of its `kind`.
    partition: str = ""

    def check(self) -> None:
        """Raises ValueError for an arrival or an amount of work that no job has."""
        if not 0.0 < self.work < math.inf:
            raise ValueError(f"job {self.name!r}: its work is {self.work}; a job has a finite amount of work above 0")
        if not math.isfinite(self.arrival):
            raise ValueError(f"job {self.name!r}: it arrives at {self.arrival} s; a job arrives at a finite time")


def by_counts(speed: Callable[[int, int], float]) -> Speed:
    """A speed that depends only on the numbers of workers and servers."""

    def of(plan: Plan) -> float:
        return speed(*totals(plan))

    return of


def totals(plan: Plan) -> Allocation:
    """Workers and servers of a plan."""
    return Allocation(sum(part[1] for part in plan), sum(part[2] for part in plan))


#: Any iterable of jobs sorted by arrival. It is read as time passes, so it may be endless or larger than memory.
Workload = Iterable[Work]
