"""Jobs that never ran: their job files, and dynamics from a table of measured speeds and a curve to the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from coach.core.spec.job import TrainingJob
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.dynamics.measured_speeds import MeasuredSpeed

#: Where a classifier starts: the loss and accuracy of guessing among ten classes.
FIRST_LOSS = math.log(10.0)
FIRST_ACCURACY = 0.1
#: Seconds that a program takes to start, as one that imports PyTorch on a machine without a free core, and to end.
PROGRAM_STARTS, PROGRAM_STOPS = 8.0, 2.0
#: The curve's asymptote lies this far below the target, as a share of the target.
BELOW = 0.2


@dataclass(frozen=True, slots=True)
class Scaled:
    """A relative speed scaled to `unit` epochs/s at one worker and one server."""

    shape: MeasuredSpeed
    unit: float

    def __call__(self, workers: int, servers: int) -> float:
        """Epochs/s."""
        return self.unit * self.shape(workers, servers)


@dataclass(frozen=True, slots=True)
class Hyperbola:
    """The metric `v = 1 / (b0 x + b1) + b2` (thesis section 4.2.3), or `offset + scale (v - about)`."""

    b0: float
    b1: float
    b2: float
    offset: float = 0.0
    scale: float = 1.0
    about: float = 0.0

    def __call__(self, x: float) -> float:
        """The metric after `x` epochs."""
        return self.offset + self.scale * (1.0 / (self.b0 * x + self.b1) + self.b2 - self.about)


def job_file(
    name: str,
    max_count: int,
    *,
    budget: float | None = None,
    worker: tuple[str, str] = ("2", "2Gi"),
    server: tuple[str, str] = ("1", "1Gi"),
    policy: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The file of a job with 1 to `max_count` workers and as many servers; `worker`, `server`: their cores and memory.

    `budget` in USD. The model file and the data do not exist; the reducer reads neither.
    """
    return {
        "apiVersion": "coach.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"file": "file:///model.py"},
            "data": {"format": "digits8x8"},
            "target": {"loss": 0.3},
            "budget": {"unlimited": True} if budget is None else {"amount": budget, "currency": "USD"},
            "workers": {"min": 1, "max": max_count},
            "servers": {"min": 1, "max": max_count},
            "resources": {
                "scheduler": {"cpu": "100m", "memory": "100Mi"},
                "server": dict(zip(("cpu", "memory"), server, strict=True)),
                "worker": dict(zip(("cpu", "memory"), worker, strict=True)),
            },
            **({} if policy is None else {"policy": policy}),
        },
    }


def falling(first: float, target: float, epochs: float, rising: bool = False) -> Hyperbola:
    """A metric that falls from `first` at the start to `target` after `epochs`, towards 80 % of the target."""
    end = target * (1.0 - BELOW)
    start = max(first, target * 1.5)
    b1 = 1.0 / (start - end)
    return Hyperbola((1.0 / (target - end) - b1) / epochs, b1, end, *((1.0, -1.0) if rising else ()))


def assumed(job: TrainingJob, shape: MeasuredSpeed, epoch_seconds: float, epochs: float) -> JobDynamics:
    """Dynamics for `job`: an epoch takes `epoch_seconds` at (1, 1), and the target is first reached after `epochs`.

    Without a target the loss is then a tenth of the first.
    """
    target = job.spec.target
    loss: Callable[[float], float] = falling(FIRST_LOSS, FIRST_LOSS / 10, epochs)
    accuracy = None
    if target is None:
        if job.spec.metric == "accuracy":
            accuracy = falling(1.0 - FIRST_ACCURACY, (1.0 - FIRST_ACCURACY) / 10, epochs, rising=True)
    elif job.spec.has_own_metric:
        loss = _own_metric(job, target.number, epochs)
    elif target.loss is not None:
        loss = falling(FIRST_LOSS, target.number, epochs)
    elif target.accuracy is not None:
        accuracy = falling(1.0 - FIRST_ACCURACY, 1.0 - target.number, epochs, rising=True)
    dynamics = JobDynamics(
        Scaled(shape, 1.0 / epoch_seconds),
        loss,
        accuracy,
        data_size=50_000,
        evaluate_seconds=0.02 * epoch_seconds,
        speed_noise=0.03,
        loss_noise=0.0,
    )
    if job.spec.program is None:
        return dynamics
    return replace(dynamics, new_group_seconds=PROGRAM_STARTS, release_seconds=PROGRAM_STOPS, same_group_seconds=0.0)


def _own_metric(job: TrainingJob, target: float, epochs: float) -> Callable[[float], float]:
    """A metric by name, of any size and sign, which first reaches `target` after `epochs`."""
    if job.spec.curve == "accuracy":
        return falling(1.0 - FIRST_ACCURACY, 1.0 - target, epochs, rising=True)
    scale = max(1.0, abs(target)) * (1.0 if job.spec.curve == "loss" else -1.0)
    return replace(falling(FIRST_LOSS, 1.0, epochs), offset=target, scale=scale, about=1.0)
