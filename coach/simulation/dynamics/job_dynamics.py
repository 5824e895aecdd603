"""How training really goes on the simulated platform: the truth that the reducer measures epoch by epoch."""

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
    """One job as it really behaves, alone on its nodes. Seconds, epochs/s; the curves by passes over the data."""

    speed: SpeedTable
    loss: Callable[[float], float]
    accuracy: Callable[[float], float] | None = None
    data_size: int = 10_000
    #: Samples of a step, of all workers together: whole steps are trained, and so at times a little more than asked.
    batch_size: int = 1
    #: Beside training and evaluating: in an epoch whose group is formed anew, and in one that stays formed.
    new_group_seconds: float = 0.4
    same_group_seconds: float = 0.05
    #: Of an epoch that is evaluated; by allocation where workers share the test data.
    evaluate_seconds: float | SpeedTable = 0.1
    #: From the order of a pod to its readiness, and from the end of a job's use of pods to their release.
    pod_seconds: float = 0.3
    release_seconds: float = 0.02
    #: From the order to stop an epoch to its end.
    stop_seconds: float = 0.0
    fit_seconds: float = 0.05
    #: Standard deviations of the logarithm of an epoch's training time, and of the measured loss.
    speed_noise: float = 0.0
    loss_noise: float = 0.0
    #: Cores in use while an epoch runs, per worker (of an allocation) and per server: what counts where nodes are
    #: shared beyond requests.
    worker_cores: float | SpeedTable = 1.0
    server_cores: float = 0.1
    #: Seconds that the first worker's busiest thread computes for a whole data set, in training: what reports tell of
    #: it. 0: they are not known, and no report has any.
    computing_seconds: float | SpeedTable = 0.0

    def evaluating(self, workers: int, servers: int) -> float:
        """Seconds of an evaluation."""
        seconds = self.evaluate_seconds
        return seconds(workers, servers) if callable(seconds) else seconds

    def computing(self, workers: int, servers: int) -> float:
        """Seconds that the first worker's busiest thread computes for a whole data set; 0 where they are not known."""
        seconds = self.computing_seconds
        return seconds(workers, servers) if callable(seconds) else seconds

    def cores_of_worker(self, workers: int, servers: int) -> float:
        """Cores that each of these workers uses while an epoch runs."""
        return self.worker_cores(workers, servers) if callable(self.worker_cores) else self.worker_cores

    def cores(self, workers: int, servers: int) -> float:
        """Cores in use while an epoch of these runs."""
        return workers * self.cores_of_worker(workers, servers) + servers * self.server_cores

    def samples(self, fraction: float, new_group: bool = False) -> int:
        """Samples of the whole steps that train this part of the data: MIN_STEPS in a new group, if it has them."""
        steps = math.ceil(round(fraction * self.data_size) / self.batch_size)
        least = min(MIN_STEPS if new_group else 1, math.ceil(self.data_size / self.batch_size))
        return self.batch_size * max(steps, least)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What fate has for one attempt at an epoch."""

    speed: float
    loss: float
    fails_at: float


def draw(seed: int, job: str, attempt: int, function_lost: float) -> Drawn:
    """The same for the same attempt of a job, whatever the other jobs and the policy do.

    `speed` is a standard normal number, `loss` too; `fails_at` seconds, exponential with mean `function_lost`.
    """
    dice = np.random.default_rng([seed, zlib.crc32(job.encode()), attempt])
    speed, loss = dice.standard_normal(2).tolist()
    fails = float(dice.exponential(function_lost)) if function_lost < math.inf else math.inf
    return Drawn(speed, loss, fails)
