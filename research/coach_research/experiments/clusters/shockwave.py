"""Shockwave's cluster (Zheng et al., NSDI 2023, section 8): one trace of 120 jobs under six policies on 32 GPUs.

Inputs are in `data/shockwave`: the authors' trace, their measured speeds by model, batch size and number of GPUs, the
epochs at which a batch grows, and how long each job trained in each of their runs. An epoch is one pass over the
data; a job changes its batch at the end of an epoch, then stops, and starts again with the next round. Rounds are
decided half a round ahead.

How late a round begins after the end of the one before, and what a start takes, is fitted on the logs of the five
runs of the *other* policies (`habits`): nothing of a run that is judged is in its own figures but the seconds that
each job trained.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from coach.core.cluster import Allocation
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.engine.record import EngineRecord
from coach_research.policies.rounds.allox import AlloX
from coach_research.policies.rounds.gavel import Gavel
from coach_research.policies.rounds.rounds import Rounds
from coach_research.policies.rounds.shockwave import Outlook, Shockwave
from coach_research.policies.rounds.themis import Themis
from coach_research.policies.rounds.throughput import MaxThroughput, MinMakespan
from coach_research.scheduling.api import (
    EngineView,
    EpochEnded,
    JobId,
    JobState,
    Phase,
    Preempt,
    PreemptionCompleted,
    Reserve,
    SchedulingAction,
    SchedulingEvent,
    Start,
)
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import Work

#: Seconds of a round.
ROUND = 120.0

#: A job whose finish-time fairness is above this is unfairly treated, as the authors count.
UNFAIR = 1.05

#: Samples of each model's data, and its largest batch.
SAMPLES = {
    "ResNet-18": 50000,
    "ResNet-50": 100000,
    "Transformer": 10000,
    "LM": 59675,
    "Recommendation": 117907,
}
LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "Transformer": 128, "LM": 80, "Recommendation": 8192}


@dataclass(frozen=True)
class Job:
    """A job of the trace. `batches`: (from epoch, batch size), the first from epoch 0."""

    number: int
    model: str
    gpus: int
    epochs: int
    arrival: float
    batches: tuple[tuple[int, int], ...]

    def steps(self, batch: int) -> int:
        """Steps of an epoch."""
        return math.ceil(SAMPLES[self.model] / batch)

    def epoch_seconds(self, batch: int) -> float:
        """Seconds of an epoch, alone."""
        return self.steps(batch) / speeds()[self.model, batch, self.gpus]

    def parts(self) -> list[tuple[int, int]]:
        """(epochs, batch size), in order."""
        ends = [*(begin for begin, _ in self.batches[1:]), self.epochs]
        return [(end - begin, size) for (begin, size), end in zip(self.batches, ends, strict=True)]

    def seconds(self) -> float:
        """Seconds of all epochs, alone."""
        return sum(epochs * self.epoch_seconds(batch) for epochs, batch in self.parts())


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """All policies on the trace. Nothing is random, so one seed is enough."""
    del seed
    measures: dict[str, float] = {}
    for name in parameters["policies"]:
        record = run(name, parameters)
        finished, arrived = record.column("finished"), record.column("arrived")
        # As the authors count it: compared with a cluster that is divided by all jobs of the trace.
        part = min(1.0, parameters["nodes"] * parameters["gpus"] / len(finished))
        fairness = (finished - arrived) * part / np.array([job.seconds() for job in trace()])
        measures |= {
            f"{name}: makespan, s": float(finished.max()),
            f"{name}: mean completion, s": float((finished - arrived).mean()),
            f"{name}: worst finish-time fairness": float(fairness.max()),
            f"{name}: unfair jobs, %": 100.0 * float((fairness > UNFAIR).mean()),
            f"{name}: starts": float(record.column("preemptions").sum()) + len(finished),
        }
    return measures


def run(name: str, parameters: Mapping[str, Any]) -> EngineRecord:
    """The record of one policy's run."""
    cluster = Cluster.uniform(parameters["nodes"], 64, gpu=parameters["gpus"])
    habit = habits(name)
    policy = POLICIES[name](round=ROUND, lead=ROUND / 2)
    policy.late = habit.late
    record = EngineRecord(cluster)
    ran = measured(name) if parameters["as_they_ran"] else {}
    works = [work(job, habit.start_seconds, ran.get(job.number)) for job in trace()]
    Engine(cluster, works, NewBatches(policy), record=record).run()
    return record


def work(job: Job, start_seconds: float, ran: float | None) -> Work:
    """A job for the engine; `ran`: the seconds that it trained, if not those of the measured speeds."""
    slower = 1.0 if ran is None else ran / job.seconds()
    first = 1.0 / job.epoch_seconds(job.batches[0][1]) / slower
    count = Allocation(job.gpus, 0)
    return Work(
        job.arrival,
        job.epochs,
        np.array([0.0, 0.0, 1.0]),
        name=str(job.number),
        kind=job.model,
        minimum=count,
        maximum=count,
        speed=lambda plan: first,
        paces=tuple((begin, 1.0 / job.epoch_seconds(batch) / slower / first) for begin, batch in job.batches[1:]),
        start_seconds=start_seconds,
    )


# -- the trace ---------------------------------------------------------------------------------------------------


def _rows(name: str) -> list[dict[str, str]]:
    text = (resources.files("coach_research") / "data" / "shockwave" / name).read_text()
    return list(csv.DictReader(text.splitlines()))


@cache
def speeds() -> dict[tuple[str, int, int], float]:
    """Steps/s by model, batch size and number of GPUs."""
    return {
        (row["model"], int(row["batch"]), int(row["gpus"])): float(row["steps_per_second"])
        for row in _rows("speeds.csv")
    }


def measured(policy: str) -> dict[int, float]:
    """Seconds that each job trained in the physical run of a policy."""
    return {int(row["job"]): float(row[policy]) for row in _rows("ran.csv")}


@cache
def trace() -> tuple[Job, ...]:
    """The jobs in order of arrival."""
    grown: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for row in _rows("gns.csv"):
        kind = row["model"], int(row["batch"]), int(row["gpus"])
        grown.setdefault(kind, []).append((int(row["epoch"]), int(row["new_batch"])))
    jobs = []
    for row in _rows("jobs.csv"):
        model, batch, gpus = row["model"], int(row["batch"]), int(row["gpus"])
        epochs = math.ceil(int(row["steps"]) / math.ceil(SAMPLES[model] / batch))
        changes: list[tuple[int, int]] = []
        if row["mode"] == "gns":
            changes = grown.get((model, batch, gpus), [])
        elif row["mode"] == "accordion":
            changes = accordion(model, batch, epochs)
        batches = ((0, batch), *((epoch, size) for epoch, size in changes if epoch < epochs))
        jobs.append(Job(int(row["job"]), model, gpus, epochs, float(row["arrival"]), batches))
    return tuple(jobs)


def accordion(model: str, batch: int, epochs: int) -> list[tuple[int, int]]:
    """When Accordion changes a job's batch: outside critical epochs it is the model's largest.

    As the authors' training scripts have it: the first 30 % of the epochs are critical too.
    """
    if model == "Transformer":
        return []
    critical = {
        "ResNet-18": {*range(20 if batch == 256 else 10), *range(150, 160), *range(250, 260)},
        "ResNet-50": {epoch for epoch in range(600) if epoch % 30 < 10},
        "LM": {*range(10)},
        "Recommendation": {
            *range({512: 30, 1024: 30, 2048: 40}.get(batch, 10)),
            *range(60, 70),
            *range(80, 90),
        },
    }[model]
    sizes = [batch if epoch in critical or epoch <= 0.3 * epochs else LARGEST[model] for epoch in range(epochs)]
    return [(epoch, sizes[epoch]) for epoch in range(1, epochs) if sizes[epoch] != sizes[epoch - 1]]


# -- the cluster's habits ------------------------------------------------------------------------------------------


class Habits(NamedTuple):
    """Seconds: a round begins `late[0] + late[1] n` late where n jobs left; a start takes `start_seconds`."""

    late: tuple[float, float]
    start_seconds: float


def habits(policy: str) -> Habits:
    """From the logs of all runs but this policy's.

    Lateness by least squares over the runs. A start's seconds are those GPU-seconds that were given to jobs, in which
    they did not train, and that neither lateness explains nor the rests of rounds: half a round where a job changes
    its batch, and a whole one where it ends (half of it, and for half of the jobs the next one, which was decided
    already).
    """
    rows = [
        {name: float(value) for name, value in row.items() if name != "policy"}
        for row in _rows("runs.csv")
        if row["policy"] != policy
    ]
    late = [row["round_s"] - ROUND for row in rows]
    slope, base = np.polyfit([row["leave"] / row["rounds"] for row in rows], late, 1).tolist()
    rests = sum(job.gpus * (1.0 + (len(job.batches) - 1) / 2.0) for job in trace())
    idle = sum(
        row["round_s"] * (row["scheduled_gpu_rounds"] - rests) - row["trained_gpu_s"] - each * row["leave_gpus"]
        for row, each in zip(rows, late, strict=True)
    )
    return Habits((base, slope), idle / sum(row["start_gpus"] for row in rows))


class Late(Rounds):
    """A round that begins late, by the checkpoints and the RPCs of the jobs that leave."""

    late: tuple[float, float] = (0.0, 0.0)

    def switch_seconds(self, leaving: int) -> float:
        """See `Rounds`."""
        return self.late[0] + self.late[1] * leaving


class LateGavel(Late, Gavel):
    """Max-min fairness."""


class LateThemis(Late, Themis):
    """Finish-time fairness."""


class LateAlloX(Late, AlloX):
    """AlloX."""


class LateMinMakespan(Late, MinMakespan):
    """Minimum total duration."""


class LateMaxThroughput(Late, MaxThroughput):
    """Maximum sum of throughput: of steps, as the authors count it."""

    def speed(self, job: JobState) -> float:
        """See `MaxThroughput`."""
        of = trace()[int(job.name)]
        batch = [size for begin, size in of.batches if begin <= job.done() + 1e-6][-1]
        return job.speed(*job.maximum) * of.steps(batch)


class LateShockwave(Late, Shockwave):
    """Shockwave, with what its authors know of a job: its epochs, its batch sizes, and the seconds measured for each.

    It does not know when a batch grows. How many epochs a size has left is what a Dirichlet distribution expects: at
    first each size has as many, and every epoch that is seen counts (section 5.2). Rounds count 120 s, however late.
    """

    def clock(self, view: EngineView) -> float:
        """See `Shockwave`."""
        del view
        return ROUND * self._at

    def outlook(self, job: JobState) -> Outlook:
        """See `Shockwave`."""
        of = trace()[int(job.name)]
        sizes = [size for epochs, size in of.parts() for _ in range(epochs)]
        done = min(of.epochs, math.floor(job.done() + 1e-6))
        seconds = {size: max(1.0, round(of.epoch_seconds(size))) for size in dict.fromkeys(sizes)}
        seen = [sizes[min(epoch, of.epochs - 1)] for epoch in range(done + 1)]
        expected = {size: of.epochs / len(seconds) + seen.count(size) for size in seconds}
        scale = of.epochs / sum(expected.values())
        left = {size: count * scale for size, count in expected.items()}
        for size in seen:
            left[size] -= left[size] >= 1.0
        counted = max(int(sum(left.values()) + 1), of.epochs - done)
        rest = sum(count * seconds[size] for size, count in left.items()) * (of.epochs - done) / counted
        past = [seconds[size] for size in seen]
        return Outlook(of.epochs, done, sum(past) / len(past), sum(past[:done]), rest if done < of.epochs else 1.0)


POLICIES: dict[str, Any] = {
    "max_min_fairness": LateGavel,
    "finish_time_fairness": LateThemis,
    "allox": LateAlloX,
    "max_sum_throughput_perf": LateMaxThroughput,
    "min_total_duration": LateMinMakespan,
    "shockwave": LateShockwave,
}


@dataclass
class NewBatches(SchedulingPolicy):
    """`policy`, where a job that changes its batch stops, keeps its GPUs, and starts again with the next round."""

    policy: Late
    wants = frozenset({EpochEnded})

    _speeds: dict[JobId, float] = field(default_factory=dict, init=False)
    _stopped: set[JobId] = field(default_factory=set, init=False)

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        match event:
            case EpochEnded(number):
                job = view.jobs[number]
                speed = job.speed(*job.maximum)
                if speed != self._speeds[number] and job.phase is Phase.RUNNING:
                    self._speeds[number] = speed
                    self._stopped.add(number)
                    self.policy.stop(number)
                    yield Preempt(number)
                return
            case PreemptionCompleted(number, plan) if number in self._stopped:
                self._stopped.remove(number)
                yield Reserve(number, plan)
                return
        for action in self.policy.schedule(event, view):
            yield action
            if isinstance(action, Start):
                job = view.jobs[action.job]
                self._speeds[action.job] = job.speed(*job.maximum)
