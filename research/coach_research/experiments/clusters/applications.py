"""What was measured of models, in the form of Pollux's artifact (OSDI 2021), which Sia's has too, by kind of GPU.

Step times by placement and batch size (`placements.csv`, `scalability.csv`), and how far an epoch gets at each batch
size (`validation-*.csv`).
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy.interpolate import LinearNDInterpolator

from coach_research.workload import FloatArray, Plan

#: Epochs of each application.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
#: How many batch sizes are compared where a job adapts its own.
TRIED = 50
#: For whole numbers of samples.
SLACK = 1e-8

KEYS = ("progress", "grad_sqr", "grad_var")
TIMES = ("local_bsz", "step_time", "sync_time")


@dataclass(frozen=True, eq=False)
class Application:
    """What was measured of a model on GPUs of one kind, of which a node has `gpus`.

    `batches` [batch]: the batch sizes of its runs. `progress`, `sqr`, `var` [batch, epoch]: samples of the first batch
    size that an epoch's end is worth, and the squared norm and the variance of gradients. `smallest` and `largest`:
    samples of one GPU at once. `placed`: by counts on nodes, (samples, step seconds, of these in synchronisation).
    `slower`: by how much a real cluster was slower than this.
    """

    name: str
    batches: list[int]
    progress: FloatArray
    sqr: FloatArray
    var: FloatArray
    smallest: int
    largest: int
    placed: dict[tuple[int, ...], FloatArray]
    between: LinearNDInterpolator
    gpus: int = 4
    slower: float = 1.0

    def counts(self, plan: Plan) -> tuple[int, ...]:
        """GPUs on each node; more workers than a node has GPUs fill one node after the other."""
        return tuple(min(self.gpus, workers - at) for _, workers, _ in plan for at in range(0, workers, self.gpus))

    def step(self, counts: tuple[int, ...], samples: FloatArray | int) -> tuple[FloatArray, FloatArray]:
        """Seconds of a step at so many samples a GPU, and of its synchronisation; NaN where nothing was measured."""
        turned = min(counts[at:] + counts[:at] for at in range(len(counts)))
        if turned in self.placed:
            table = self.placed[turned]
            step, sync = (np.asarray(np.interp(samples, table[:, 0], table[:, column])) for column in (1, 2))
            return step, sync
        at = np.atleast_1d(samples)
        found = self.between(
            np.column_stack([np.full_like(at, min(16, len(counts))), np.full_like(at, sum(counts)), at])
        )
        return found[:, 0].reshape(np.shape(samples)), found[:, 1].reshape(np.shape(samples))

    def at_once(self, counts: tuple[int, ...]) -> int:
        """The most samples of one GPU that were measured there."""
        turned = min(counts[at:] + counts[:at] for at in range(len(counts)))
        most = int(self.placed[turned][-1, 0]) if turned in self.placed else self.largest
        return min(self.largest, most)

    def worth(self) -> FloatArray:
        """Steps of the first batch size that each epoch takes, [epoch]."""
        least: FloatArray = np.diff(self.progress.min(axis=0), prepend=0.0)
        return least

    def gain(self, batch: FloatArray) -> FloatArray:
        """How many steps of the first batch size one of these is worth, [batch, epoch]."""
        sqr, var = (
            np.column_stack([np.interp(batch, self.batches, epoch) for epoch in table.T])
            for table in (self.sqr, self.var)
        )
        found: FloatArray = (var + sqr) / (var * self.batches[0] / batch[:, None] + sqr)
        return found

    def steps(self, batch: int) -> float:
        """Steps of a job at a batch size: in each epoch its progress, by how much a step of this size is worth."""
        return float((self.worth() / self.gain(np.array([float(batch)]))[0]).sum())


@dataclass(frozen=True)
class Chosen:
    """Hundredths of a job a second, at a batch size that its user chose. `of`: its measurements on each node."""

    of: tuple[Application, ...]
    batch: int

    def __call__(self, plan: Plan) -> float:
        """See `coach_research.workload.Speed`."""
        there = self.of[plan[0][0]]
        return _chosen(there, self.batch, there.counts(plan))


@dataclass(frozen=True)
class Adapted:
    """Epochs a second of the `epoch`-th, at the batch size that is fastest then."""

    of: tuple[Application, ...]
    epoch: int

    def __call__(self, plan: Plan) -> float:
        """See `coach_research.workload.Speed`."""
        there = self.of[plan[0][0]]
        return _adapted(there, there.counts(plan))[self.epoch]


@cache
def _chosen(of: Application, batch: int, counts: tuple[int, ...]) -> float:
    workers = sum(counts)
    each = math.ceil(batch / workers - SLACK)
    more = math.ceil(each / of.at_once(counts) - SLACK) - 1
    if workers == 1 and batch > of.batches[0]:
        more = max(1, more)
    at_once = min(math.ceil(each / (more + 1) - SLACK), int(of.batches[-1] / (workers * (more + 1))))
    step, sync = (float(each) for each in of.step(counts, at_once))
    if math.isnan(step):
        raise ValueError(f"{of.name}: nothing was measured around {counts}, {at_once} samples")
    return 100.0 / (of.steps(workers * at_once * (more + 1)) * (step + more * (step - sync)) * of.slower)


@cache
def _adapted(of: Application, counts: tuple[int, ...]) -> list[float]:
    """Epochs a second in each epoch, 0 where it cannot run."""
    workers, largest = sum(counts), of.at_once(counts)
    low, high = max(of.batches[0], of.smallest * workers), of.batches[-1]
    if low > high:
        return [0.0] * of.progress.shape[1]
    each = np.geomspace(low, high, TRIED) / workers
    more = np.ceil(each / largest - SLACK) - 1
    if workers == 1:
        more = np.where(each > of.batches[0] + SLACK, np.maximum(1, more), more)
    at_once = np.minimum(np.ceil(each / (more + 1) - SLACK), high // (workers * (more + 1)))
    right = (of.smallest <= at_once) & (at_once <= largest)
    batch, more, at_once = (values[right] for values in (workers * at_once * (more + 1), more, at_once))
    step, sync = of.step(counts, at_once)
    known = ~np.isnan(step)
    if not known.any():
        return [0.0] * of.progress.shape[1]
    seconds = (step + more * (step - sync))[known]
    best = (of.gain(batch[known]) / seconds[:, None]).max(axis=0)
    rates: list[float] = (best / of.worth() / of.slower).tolist()
    return rates


@cache
def read(place: Path, kind: str = "", gpus: int = 4, largest: int = 0, slower: float = 1.0) -> Application:
    """An application of an artifact, on GPUs of a kind; `largest` where it is not what was measured."""
    epochs, suffix = EPOCHS[place.name], f"-{kind}" if kind else ""
    files = {int(path.stem.split("-")[1]): rows(path) for path in place.glob("validation-*.csv")}
    batches = sorted(files)
    progress, square, variance = (
        np.array([[float(row[key]) for row in files[batch][:epochs]] for batch in batches]) for key in KEYS
    )
    placed: dict[tuple[int, ...], list[list[float]]] = {}
    for row in rows(place / f"placements{suffix}.csv"):
        placed.setdefault(tuple(map(int, row["placement"])), []).append([float(row[key]) for key in TIMES])
    samples = [line[0] for lines in placed.values() for line in lines]
    points: dict[tuple[float, ...], list[list[float]]] = {}
    for counts, lines in placed.items():
        for line in lines:
            points.setdefault((len(counts), sum(counts), line[0]), []).append(line[1:])
    for row in rows(place / f"scalability{suffix}.csv"):
        points.setdefault((float(row["num_nodes"]), float(row["num_replicas"]), float(row["local_bsz"])), []).append(
            [float(row[key]) for key in TIMES[1:]]
        )
    return Application(
        place.name,
        batches,
        progress,
        square,
        variance,
        smallest=int(min(samples)),
        largest=largest or int(max(samples)),
        placed={counts: np.array(sorted(lines)) for counts, lines in placed.items()},
        between=LinearNDInterpolator(
            np.array(list(points)), np.array([np.mean(lines, axis=0) for lines in points.values()])
        ),
        gpus=gpus,
        slower=slower,
    )


def rows(path: Path) -> list[dict[str, str]]:
    """A table's lines."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
