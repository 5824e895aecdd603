"""What jobs a workload is made of. Generators, trace readers and journals all yield `Work`, in order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from coach.core.cluster import Allocation
from coach.core.policies.api.react import FloatArray, Plan, totals

NOTHING: FloatArray = np.zeros(3)
NOTHING.flags.writeable = False
ONE_WORKER = Allocation(1, 0)

#: True speed of a job under a plan, epochs/s, >= 0. It may look at where the pods are.
Speed = Callable[[Plan], float]
#: Loss (before noise) after so many epochs.
Curve = Callable[[float], float]


@dataclass(slots=True)
class Work:
    """One job of a workload: the truth that the engine lives and policies only predict.

    `work` is in epochs. Without `speed` the job is a task that trains `workers` epochs a second: with one worker,
    `work` is its execution time in seconds. `arrival` in seconds; a closed loop ignores it.
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
    loss: Curve | None = None
    #: Standard deviation of a measured loss.
    loss_noise: float = 0.0
    #: Seconds: grace period of a preemption, pause of a resize, pause of a migration.
    grace: float = 0.0
    rescale_seconds: float = 0.0
    migration_seconds: float = 0.0
    #: Epochs between checkpoints: what a lost node costs. 0: nothing is ever lost.
    checkpoint: float = 0.0


def by_counts(speed: Callable[[int, int], float]) -> Speed:
    """A speed that depends on the numbers of workers and servers alone."""

    def of(plan: Plan) -> float:
        return speed(*totals(plan))

    return of


#: Any iterable of jobs sorted by arrival; it is read as time goes by, so it may be endless or larger than memory.
Workload = Iterable[Work]
