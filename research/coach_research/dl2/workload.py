"""The jobs of DL²'s simulation (section 6.2), with the numbers of the simulator that its authors published."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import cycle, islice
from typing import Any

import numpy as np
from scipy.interpolate import RBFInterpolator

from coach.core.cluster import Allocation
from coach_research.workload import FloatArray, Work, by_counts

#: Seconds of a time slot (Figure 8a).
SLOT = 1200.0

#: A server of the cluster (section 6.2: 2 GPUs; the published simulator has 8 cores): cores, GiB, devices.
NODE = (8.0, 0.0, 2.0)

#: By model, as published: samples of an epoch (in their unit), epochs relative to the longest, devices of a worker.
MODELS: dict[str, tuple[float, float, float]] = {
    "resnet-50": (115, 0.30, 1),
    "vgg-16": (115, 0.96, 1),
    "resnext-110": (390, 0.05, 1),
    "inception-bn": (120, 0.54, 1),
    "seq2seq": (780, 0.95, 1),
    "cnn-text-classification": (193, 0.46, 0),
    "dssm": (349, 0.33, 0),
    "wlm": (165, 0.23, 1),
}


#: By model, of the published simulator's analytic speeds: seconds of a step at a worker, MB of parameters, MB/s between
#: nodes and within one.
ANALYTIC: dict[str, tuple[float, float, float, float]] = {
    "resnet-50": (0.449, 102.2, 91.875, 306.5),
    "vgg-16": (0.535, 553.4, 233.0, 427.75),
    "resnext-110": (0.226, 6.92, 59.5, 63.0),
    "inception-bn": (0.815, 42.1, 145.875, 1082.125),
    "seq2seq": (0.075, 36.5, 120.125, 181.125),
    "cnn-text-classification": (0.585, 24.0, 60.75, 159.625),
    "dssm": (0.567, 6.0, 92.125, 65.625),
    "wlm": (0.154, 19.2, 10.375, 22.875),
}


def analytic_epochs_per_second(model: str, workers: int, servers: int) -> float:
    """Epochs/s as the published simulator computes them for offline training, with each pod on a node of its own.

    A step is the computation and two transfers of the parameters: each worker's link is shared by all servers, each
    server's by all workers.
    """
    compute, size, between, within = ANALYTIC[model]
    part = 2.0 * size / servers
    step = compute + max(part * max(workers, servers) / between, part / within)
    return workers / step / MODELS[model][0]


@cache
def epochs_per_second(model: str) -> MeasuredEpochs:
    """The measured speed of a model."""
    return MeasuredEpochs(model, MODELS[model][0])


@dataclass(frozen=True)
class MeasuredEpochs:
    """Epochs/s by workers and servers, as the published simulator has them.

    A linear radial basis through all measured points, the holes of the table included, also beyond the largest counts
    that were measured. At least a thousandth of the model's largest speed.
    """

    model: str
    epoch_size: float
    _known: dict[tuple[int, int], float] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, workers: int, servers: int) -> float:
        """Epochs/s."""
        at = workers, servers
        if at not in self._known:
            self._known[at] = self.several(np.array([at], float)).item() / self.epoch_size
        return self._known[at]

    def several(self, counts: FloatArray) -> FloatArray:
        """The speed in the table's unit at each row (workers, servers) of `counts`."""
        fit, largest = _interpolations()[self.model]
        speeds: FloatArray = np.maximum(fit(counts), 1e-3 * largest)
        return speeds


@cache
def _interpolations() -> dict[str, tuple[RBFInterpolator, float]]:
    """By model: the interpolation of its published speeds, and the largest of them. VGG-16 has a file of its own."""
    data = resources.files("coach.simulation") / "data"
    points: dict[str, list[tuple[int, int, float]]] = {model: [] for model in MODELS}
    for name in ("ps_speed.csv", "ps_speed_vgg16.csv"):
        for row in csv.DictReader((data / name).read_text().splitlines()):
            speed = sum(map(float, row["worker_speed"].split(";")))
            points[row["model"]].append((int(row["workers"]), int(row["servers"]), speed))
    arrays = {model: np.array(found) for model, found in points.items()}
    return {
        model: (
            RBFInterpolator(found[:, :2], found[:, 2], kernel="linear", degree=-1),
            float(found[:, 2].max()),
        )
        for model, found in arrays.items()
    }


def workload(parameters: Mapping[str, Any], rng: np.random.Generator) -> Iterator[Work]:
    """`jobs` jobs of random models. `arrivals` is the number of jobs in each slot, from a random one of its first
    five on; or {"poisson": mean}, or {"uniform": most}.

    A job trains its model's share of `epochs`, with 1 to `most` workers and as many servers. With `variation` its speed
    at each allocation differs from its model's by a random part of at most that.
    """
    arriving = _arriving(parameters["arrivals"], rng)
    most = int(parameters["most"])
    variation = float(parameters.get("variation", 0.0))
    (varying,) = rng.spawn(1)  # The jobs are the same with and without.
    models = list(MODELS)
    worker, server = np.array([2.0, 0.0, 1.0]), np.array([2.0, 0.0, 0.0])
    left = int(parameters["jobs"])
    slot = 0
    while left:
        for _ in range(min(left, next(arriving))):
            model = models[int(rng.integers(len(models)))]
            _, part, devices = MODELS[model]
            left -= 1
            speed: Callable[[int, int], float] = epochs_per_second(model)
            if variation:
                speed = _varied(speed, 1.0 + variation * varying.uniform(-1.0, 1.0, (most + 1, most + 1)))
            yield Work(
                slot * SLOT,
                part * parameters["epochs"],
                worker if devices else server,
                server,
                kind=model,
                minimum=Allocation(1, 1),
                maximum=Allocation(most, most),
                speed=by_counts(speed),
            )
        slot += 1


def _arriving(arrivals: Sequence[int] | Mapping[str, float], rng: np.random.Generator) -> Iterator[int]:
    """Jobs of one slot after another."""
    if not isinstance(arrivals, Mapping):
        offset = int(rng.integers(5))
        return islice(cycle(arrivals), offset, None)
    ((kind, number),) = arrivals.items()
    if kind == "poisson":
        return iter(lambda: int(rng.poisson(number)), None)
    return iter(lambda: int(rng.integers(int(number) + 1)), None)


def _varied(speed: Callable[[int, int], float], factors: FloatArray) -> Callable[[int, int], float]:
    return lambda workers, servers: speed(workers, servers) * float(factors[workers, servers])
