"""KOD2's experiments, Figures 7 and 8: ten TFJobs on three nodes, under tf-operator and under KOD2.

The paper gives the cluster, the models, the batch sizes and one job every 30 s. It does not give the jobs' workers,
their resources or their training times. A job takes `seconds` with one worker on the node of its server at a batch of
128. A batch of b samples takes b + `overhead` units of time, and `link` more if worker and server are on different
nodes. Training is asynchronous, so the workers' speeds add up (Figure 4), and a far worker with a small batch hardly
helps. Pods that wait for others of their job use no CPU; one measure says what it would be with `waiting_cores` each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coach.core.cluster import Allocation
from coach.core.policies.api.policy import Policy
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.engine.job import SimJob
from coach_research.engine.record import EngineRecord
from coach_research.policies.kod2 import KOD2
from coach_research.policies.tf_operator import TFOperator
from coach_research.scheduling.api import (
    EngineView,
    Finished,
    JobId,
    Reserve,
    SchedulingAction,
    SchedulingEvent,
    Start,
)
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import FloatArray, Plan, Work

#: The batch size for which a model's `seconds` are given.
REFERENCE_BATCH = 128


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Run ten jobs, as each model at each batch size, under both operators. Parameters: see the scenarios."""
    measures: dict[str, float] = {}
    lower, best, killed = 0, -math.inf, 0.0
    for model in parameters["models"]:
        for batch in parameters["batches"]:
            found = compare(parameters, model, batch, seed)
            measures |= {f"{model}, batch {batch}: {name}": value for name, value in found.items()}
            lower += found[REDUCED] > 0
            best = max(best, found[REDUCED])
            killed += found["killed under tf-operator, %"]
    pairs = len(parameters["models"]) * len(parameters["batches"])
    return measures | {
        "model and batch pairs with a lower mean JCT, %": 100.0 * lower / pairs,
        "best model and batch pair: mean JCT reduced, %": best,
        "all pairs: killed under tf-operator, %": killed / pairs,
    }


REDUCED = "mean JCT reduced, %"


def compare(parameters: Mapping[str, Any], model: str, batch: int, seed: int) -> dict[str, float]:
    """The numbers of one bar of Figure 7 and one panel of Figure 8; per cent of tf-operator's value.

    A killed job's JCT lasts until it was killed; `completed by both` leaves such jobs out for both operators.
    """
    # A new generator with the same seed: all models and batches have the same ten jobs.
    works = workload(parameters, model, batch, np.random.default_rng([seed, 0]))
    operator = Waiting(
        TFOperator(np.random.default_rng([seed, 1]), parameters["deadlock_timeout"], parameters["random_retry"])
    )
    theirs = operate(works, operator, parameters)
    ours = operate(works, KOD2(parameters["starve_limit"]), parameters)
    arrived = np.array([work.arrival for work in works])
    before, after = theirs.left - arrived, ours.left - arrived
    both = ~theirs.killed
    window = float(ours.left.max())
    cores = float(_capacity(parameters)[0])
    # KOD2 reserves resources only for jobs that train.
    polling = parameters["waiting_cores"] * operator.pod_seconds(window)
    before_busy = burnt(works, theirs, window) / (window * cores)
    after_busy = float(ours.column("cpu_seconds").sum()) / (window * cores)
    return {
        REDUCED: 100.0 * float(1.0 - after.mean() / before.mean()),
        "completed by both: mean JCT reduced, %": 100.0 * float(1.0 - after[both].mean() / before[both].mean())
        if both.any()
        else math.nan,
        "killed under tf-operator, %": 100.0 * float(theirs.killed.mean()),
        "mean JCT under tf-operator, s": float(before.mean()),
        "mean JCT under KOD2, s": float(after.mean()),
        "tf-operator's run is longer, s": float(theirs.left.max() - window),
        "CPU utilisation under tf-operator, %": 100.0 * before_busy,
        "CPU utilisation under KOD2, %": 100.0 * after_busy,
        "CPU utilisation increased, %": 100.0 * (after_busy / before_busy - 1.0),
        "CPU utilisation increased if waiting pods use CPU, %": 100.0
        * (after_busy / (before_busy + polling / (window * cores)) - 1.0),
    }


def workload(parameters: Mapping[str, Any], model: str, batch: int, rng: np.random.Generator) -> list[Work]:
    """Ten jobs of one server and min..max workers, one every `gap` seconds."""
    seconds, link = parameters["models"][model]
    overhead = parameters["overhead"]
    slower = (1.0 + overhead / batch) / (1.0 + overhead / REFERENCE_BATCH)
    far = (batch + overhead) / (batch + overhead + link)
    works = []
    for number in range(parameters["jobs"]):
        low = int(rng.choice(parameters["min_workers"]))
        high = low + int(rng.choice(parameters["more_workers"]))
        cpu, memory = (
            float(rng.choice(parameters["worker_cpu"])),
            float(rng.choice(parameters["worker_memory"])),
        )
        works.append(
            Work(
                number * float(parameters["gap"]),
                seconds * slower,
                np.array([cpu, memory, 0.0]),
                np.array([*parameters["server"], 0.0]),
                kind=model,
                minimum=Allocation(low, 1),
                maximum=Allocation(high, 1),
                speed=_Asynchronous(far),
                rescale_seconds=parameters["rescale_seconds"],
            )
        )
    return works


@dataclass(frozen=True, slots=True)
class _Asynchronous:
    """Speeds of workers add up; a worker on a node without a server counts `far`."""

    far: float

    def __call__(self, plan: Plan) -> float:
        return sum(workers * (1.0 if servers else self.far) for _, workers, servers in plan)


class Operated(EngineRecord):
    """A record that also has the times at which jobs were killed."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._left: dict[int, tuple[float, bool]] = {}

    def finished(self, job: SimJob, at: float, killed: bool) -> None:
        """See `EngineRecord.finished`."""
        super().finished(job, at, killed)
        self._left[job.id] = at, killed

    @property
    def left(self) -> FloatArray:
        """When each job ended or was killed."""
        return np.array([self._left[job][0] for job in sorted(self._left)])

    @property
    def killed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which jobs were killed."""
        return np.array([self._left[job][1] for job in sorted(self._left)])


@dataclass
class Waiting(SchedulingPolicy):
    """`policy`, with a record of the pods that are placed and wait for others of their job."""

    policy: TFOperator

    def __post_init__(self) -> None:
        #: Of each job that waits: since when so many of its pods are placed; and what is over: (begin, end, pods).
        self._since: dict[JobId, tuple[float, int]] = {}
        self._over: list[tuple[float, float, int]] = []

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        if isinstance(event, Finished):
            self._end(event.job, view.now)
        for action in self.policy.schedule(event, view):
            if isinstance(action, Reserve | Start):
                self._end(action.job, view.now)
            if isinstance(action, Reserve):
                pods = sum(workers + servers for _, workers, servers in action.plan)
                self._since[action.job] = view.now, pods
            yield action

    def _end(self, job: JobId, now: float) -> None:
        if job in self._since:
            begin, pods = self._since.pop(job)
            self._over.append((begin, now, pods))

    def pod_seconds(self, until: float) -> float:
        """Seconds that pods waited until `until`, in all."""
        return sum(pods * max(0.0, min(end, until) - begin) for begin, end, pods in self._over)


def burnt(works: list[Work], record: Operated, until: float) -> float:
    """Core-seconds that jobs of fixed size used until `until` while they trained."""
    cores = np.array([work.maximum.workers * work.worker[0] + work.maximum.servers * work.server[0] for work in works])
    started = record.column("started")
    trained = np.clip(until, None, record.left) - started
    return float((cores * np.nan_to_num(np.maximum(trained, 0.0))).sum())


def operate(works: list[Work], policy: Policy, parameters: Mapping[str, Any]) -> Operated:
    """Run the jobs under an operator until all have left."""
    capacity = np.tile([*_node(parameters), 0.0], (parameters["nodes"], 1))
    cluster = Cluster(capacity)
    record = Operated(cluster)
    Engine(cluster, works, policy, record=record).run()
    return record


def _node(parameters: Mapping[str, Any]) -> tuple[float, float]:
    cpu, memory = parameters["node"]
    less_cpu, less_memory = parameters["reserved"]
    return cpu - less_cpu, memory - less_memory


def _capacity(parameters: Mapping[str, Any]) -> FloatArray:
    capacity: FloatArray = parameters["nodes"] * np.array(_node(parameters))
    return capacity


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Figure 7 as reductions: a panel for each model, all jobs and those that both operators completed."""
    figure = Figure(figsize=(9.0, 2.8), layout="constrained")
    panels = figure.subplots(1, len(parameters["models"]), sharey=True, squeeze=False)[0]
    batches = parameters["batches"]
    for axes, model in zip(panels, parameters["models"], strict=True):
        for name, label in ((REDUCED, "all jobs"), ("completed by both: " + REDUCED, "completed by both")):
            values = np.array([results[f"{model}, batch {batch}: {name}"] for batch in batches])
            middle = np.nanmean(values, axis=1)
            spread = np.abs(np.array([np.nanmin(values, axis=1), np.nanmax(values, axis=1)]) - middle)
            axes.errorbar(range(len(batches)), middle, spread, marker="o", capsize=3, label=label)
        axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        axes.set_title(model, fontsize="medium")
        axes.set_xlabel("batch")
        axes.axhline(0.0, color="0.6", linewidth=0.8)
    panels[0].set_ylabel("mean JCT reduced, %\n(mean and range of all runs)")
    panels[0].legend(fontsize="small", loc="lower left")
    return {"completion": figure}
