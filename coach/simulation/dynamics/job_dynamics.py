"""The true dynamics of a simulated job: the speed and curve that the reducer measures epoch by epoch."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coach.core.lifecycle.probing import MIN_STEPS

#: Epochs/s (or cores, or seconds) by workers and servers.
SpeedTable = Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class JobDynamics:
    """The true behaviour of one job, alone on its nodes. Seconds, epochs/s; curves by epochs trained."""

    speed: SpeedTable
    loss: Callable[[float], float]
    accuracy: Callable[[float], float] | None = None
    data_size: int = 10_000
    #: Samples of a step, of all workers together. Only whole steps are trained, sometimes more than requested.
    batch_size: int = 1
    #: Overhead of an epoch outside training and evaluation: in a new group, and in the same group as before.
    new_group_seconds: float = 0.4
    same_group_seconds: float = 0.05
    #: What training waits for when workers or servers of a running job change, in place of a new group; None: for that.
    rescale_seconds: float | None = None
    #: Duration of an evaluation; by allocation if the workers share the test data.
    evaluate_seconds: float | SpeedTable = 0.1
    #: Whether it is a program that forms its group anew in the same process.
    regroups: bool = False
    #: From the creation of a pod to its readiness, and from the request to release pods to their release.
    pod_seconds: float = 0.3
    release_seconds: float = 0.02
    #: From the request to stop an epoch to its end.
    stop_seconds: float = 0.0
    fit_seconds: float = 0.05
    #: Standard deviations of the logarithm of an epoch's training time, and of the measured loss.
    speed_noise: float = 0.0
    loss_noise: float = 0.0
    #: Cores in use while an epoch runs, per worker (by allocation) and per server. They matter where one machine runs
    #: more pods than it has cores for.
    worker_cores: float | SpeedTable = 1.0
    server_cores: float = 0.1
    #: Seconds that the first worker's busiest thread computes in training on a whole data set, as reports give them.
    #: 0: unknown, and reports give none.
    computing_seconds: float | SpeedTable = 0.0

    def evaluating(self, workers: int, servers: int) -> float:
        """Seconds of an evaluation."""
        seconds = self.evaluate_seconds
        return seconds(workers, servers) if callable(seconds) else seconds

    def computing(self, workers: int, servers: int) -> float:
        """Seconds that the first worker's busiest thread computes for a whole data set; 0 if unknown."""
        seconds = self.computing_seconds
        return seconds(workers, servers) if callable(seconds) else seconds

    def cores_of_worker(self, workers: int, servers: int) -> float:
        """Cores that each of these workers uses while an epoch runs."""
        return self.worker_cores(workers, servers) if callable(self.worker_cores) else self.worker_cores

    def cores(self, workers: int, servers: int) -> float:
        """Cores in use by all workers and servers while an epoch runs."""
        return workers * self.cores_of_worker(workers, servers) + servers * self.server_cores

    def samples(self, fraction: float, new_group: bool = False) -> int:
        """Samples trained for this fraction of the data, in whole steps; at least MIN_STEPS of them in a new group.

        Never more than the steps of one epoch for that minimum.
        """
        steps = math.ceil(round(fraction * self.data_size) / self.batch_size)
        min_steps = min(MIN_STEPS if new_group else 1, math.ceil(self.data_size / self.batch_size))
        return self.batch_size * max(steps, min_steps)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The random draws of one attempt at an epoch."""

    speed: float
    loss: float
    fails_at: float


def draw(seed: int, job: str, attempt: int, function_lost: float) -> Drawn:
    """Draw the randomness of one attempt. It depends on neither the other jobs nor the policy.

    `speed` is a standard normal number, `loss` too; `fails_at` seconds, exponential with mean `function_lost`.
    """
    dice = np.random.default_rng([seed, zlib.crc32(job.encode()), attempt])
    speed, loss = dice.standard_normal(2).tolist()
    fails = float(dice.exponential(function_lost)) if function_lost < math.inf else math.inf
    return Drawn(speed, loss, fails)
