"""FitGpp's simulation (section 3, Figure 1): trial-and-error (TE) and best-effort (BE) jobs on 84 nodes.

The paper gives the means of execution times and grace periods and the limits of their truncation. Standard deviations
and all demands are only in a figure (Figure 2), so they are parameters of the scenarios. "The jobs were submitted at
such a rate that the cluster load would be kept at 2.0 if they were scheduled by FIFO" can be read in two ways:

- `A`: the next job is submitted whenever the demand of all jobs is below 2.0 times the cluster under FIFO. The other
  policies get the same jobs at the same times.
- `B`: the same rule under each policy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from coach.plugins import policy
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.scheduling.api import (
    TRIAL,
    EngineView,
    JobId,
    Preempt,
    SchedulingAction,
    SchedulingEvent,
    Start,
)
from coach_research.scheduling.node_placement import EventPolicy, by_events
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import FloatArray, Work

BEST_EFFORT = "best-effort"

#: A node (section 3): cores, GiB, devices.
NODE = (32.0, 256.0, 8.0)
MEMORY = 1

MINUTE = 60.0


@dataclass(frozen=True)
class Jobs:
    """The jobs of a run as columns: time to execute and grace period in seconds, demand [job, resource]."""

    trial: FloatArray
    execution: FloatArray
    grace: FloatArray
    demand: FloatArray

    @classmethod
    def drawn(cls, parameters: Mapping[str, Any], seed: int) -> Jobs:
        """`jobs` jobs; a share of `trials` is TE. Normal distributions, truncated by drawing again.

        `te_execution`, `be_execution`, `grace`: [mean, standard deviation, maximum] in minutes. `te_demand`,
        `be_demand`: [mean, standard deviation] of the cores, of the GiB and of the devices, each at most a node's.
        """
        rng = np.random.default_rng([seed, 0])
        count = int(parameters["jobs"])
        trial = rng.random(count) < parameters["trials"]

        def of_kind(te: FloatArray, be: FloatArray) -> FloatArray:
            return np.where(trial, te, be)

        execution = of_kind(*(_minutes(rng, count, parameters[kind]) for kind in ("te_execution", "be_execution")))
        grace = _minutes(rng, count, parameters["grace"])
        demand = [
            of_kind(*(_amounts(rng, count, parameters[kind], kept) for kind in ("te_demand", "be_demand")))
            for kept in range(len(NODE))
        ]
        return cls(trial, execution, grace, np.stack(demand, axis=1))

    def works(self, arrivals: FloatArray | None = None) -> Iterator[Work]:
        """The jobs for the engine, at `arrivals` (seconds); None: the engine's closed loop submits them."""
        kinds = (BEST_EFFORT, TRIAL)
        for place in range(len(self.trial)):
            yield Work(
                0.0 if arrivals is None else float(arrivals[place]),
                float(self.execution[place]),
                self.demand[place],
                kind=kinds[int(self.trial[place])],
                grace=float(self.grace[place]),
            )


def _minutes(rng: np.random.Generator, count: int, of: tuple[float, float, float]) -> FloatArray:
    mean, deviation, most = of
    return MINUTE * _truncated(rng, count, (mean, deviation), (1.0 / 60.0, most))


def _amounts(rng: np.random.Generator, count: int, of: Sequence[tuple[float, float]], kept: int) -> FloatArray:
    """Amounts of the resource at index `kept`. Cores and devices are whole; a job needs a core, and maybe no device."""
    least = (1.0, 0.001, 0.0)[kept]
    return _truncated(rng, count, of[kept], (least, NODE[kept]), whole=kept != MEMORY)


def _truncated(
    rng: np.random.Generator,
    count: int,
    shape: tuple[float, float],
    limits: tuple[float, float],
    *,
    whole: bool = False,
) -> FloatArray:
    """Normal numbers of (mean, standard deviation) within the limits. Numbers outside are drawn again."""
    (mean, deviation), (low, high) = shape, limits
    values = np.empty(count)
    missing = np.arange(count)
    while len(missing):
        drawn = rng.normal(mean, deviation, len(missing))
        values[missing] = np.rint(drawn) if whole else drawn
        missing = missing[(values[missing] < low) | (values[missing] > high)]
    return values


@dataclass
class Watched(SchedulingPolicy):
    """`policy`, with a record of the time from each preemption of a job to its next start."""

    policy: EventPolicy

    def __post_init__(self) -> None:
        self.wants = self.policy.wants
        self.intervals = array("d")
        self._away: dict[JobId, float] = {}

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        for action in self.policy.schedule(event, view):
            yield action
            if self._away and type(action) is Start and action.job in self._away:
                self.intervals.append(view.now - self._away.pop(action.job))
            elif type(action) is Preempt:
                self._away[action.job] = view.now


@dataclass(frozen=True)
class Run:
    """The results of one run: slowdowns by kind, intervals in minutes, share of BE jobs preempted, arrivals."""

    trials: FloatArray
    others: FloatArray
    intervals: FloatArray
    preempted: float
    arrivals: FloatArray
    events: int


def run(jobs: Jobs, parameters: Mapping[str, Any], spec: str, seed: int, arrivals: FloatArray | None) -> Run:
    """Run all jobs under the policy `spec`, submitted at `arrivals` or in a closed loop."""
    watched = Watched(by_events(policy(spec, np.random.default_rng([seed, 1]))))
    engine = Engine(
        Cluster.uniform(int(parameters["nodes"]), *NODE),
        jobs.works(arrivals),
        watched,
        closed_load=parameters["load"] if arrivals is None else None,
    )
    record = engine.run()
    # 1 + waiting time / execution time. A grace period counts as waiting: the job does not progress.
    slowdown = (record.column("finished") - record.column("arrived")) / record.column("work")
    trial = record.column("kind") == record.kinds[TRIAL]
    return Run(
        slowdown[trial],
        slowdown[~trial],
        np.array(watched.intervals) / MINUTE,
        100.0 * float((record.column("preemptions")[~trial] > 0).mean()),
        record.column("arrived"),
        engine.events,
    )


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """FIFO, then each of `policies` (label: name of the policy), on the same jobs.

    A label that ends in `*4` is the mean of four runs that differ only in the policy's own draws, as the paper does
    for RAND.
    """
    jobs = Jobs.drawn(parameters, seed)
    fifo = run(jobs, parameters, "fifo", seed, None)
    arrivals = fifo.arrivals if parameters["reading"] == "A" else None
    measures = {f"fifo: {name}": value for name, value in _levels(fifo).items()}
    found: dict[str, dict[str, float]] = {}
    for label, spec in parameters["policies"].items():
        name, _, times = label.partition("*")
        runs = [_changes(run(jobs, parameters, spec, seed * 100 + n, arrivals), fifo) for n in range(int(times or 1))]
        found[name] = {key: float(np.mean([one[key] for one in runs])) for key in runs[0]}
        measures |= {f"{name}: {key}": value for key, value in found[name].items()}
    for other, theirs in found.items():
        if other.startswith(("LRTP", "RAND")) and (ours := found.get("FitGpp")):
            for key in ("interval median", "interval p95", "BE jobs preempted"):
                measures[f"FitGpp against {other}: {key}"] = _percent(ours[_unit(key)], theirs[_unit(key)])
    return measures


def _unit(key: str) -> str:
    return f"{key}, %" if key == "BE jobs preempted" else f"{key}, min"


def _percent(value: float, base: float) -> float:
    """The change from `base` to `value`, in per cent."""
    return 100.0 * (value / base - 1.0) if base else float("nan")


def _levels(run: Run) -> dict[str, float]:
    return {
        "TE median slowdown": float(np.percentile(run.trials, 50)),
        "TE p95 slowdown": float(np.percentile(run.trials, 95)),
        "TE p99 slowdown": float(np.percentile(run.trials, 99)),
        "BE median slowdown": float(np.percentile(run.others, 50)),
        "BE p95 slowdown": float(np.percentile(run.others, 95)),
        "BE p99 slowdown": float(np.percentile(run.others, 99)),
    }


def _changes(run: Run, fifo: Run) -> dict[str, float]:
    now, before = _levels(run), _levels(fifo)
    changes = {f"{name}, %": _percent(now[name], before[name]) for name in before}
    away = run.intervals if len(run.intervals) else np.array([np.nan])
    return now | changes | {
        "interval median, min": float(np.percentile(away, 50)),
        "interval p95, min": float(np.percentile(away, 95)),
        "BE jobs preempted, %": run.preempted,
        "preemptions a BE job": len(run.intervals) / len(run.others),
    }  # fmt: skip


#: The table's columns for each policy.
COLUMNS = (
    "TE p95 slowdown, %", "BE median slowdown, %", "BE p95 slowdown, %", "interval median, min", "interval p95, min",
    "BE jobs preempted, %",
)  # fmt: skip


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """A row for each policy: means over the seeds; slowdowns are changes against FIFO."""
    lines = [f"| policy | {' | '.join(COLUMNS)} |", f"| --- |{' ---: |' * len(COLUMNS)}"]
    for label in parameters["policies"]:
        name = label.partition("*")[0]
        cells = (f"{float(np.nanmean(results[f'{name}: {key}'])):.4g}" for key in COLUMNS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Slowdowns against FIFO and intervals, for each policy: the mean over the seeds, and all of them as a line."""
    labels = [label.partition("*")[0] for label in parameters["policies"]]
    panels = {
        "TE p95 slowdown, %": "TE p95 slowdown against FIFO, %",
        "BE median slowdown, %": "BE median slowdown against FIFO, %",
        "BE p95 slowdown, %": "BE p95 slowdown against FIFO, %",
        "interval median, min": "preemption to restart, median, min",
        "interval p95, min": "preemption to restart, p95, min",
        "BE jobs preempted, %": "BE jobs preempted, %",
    }
    figure = Figure(figsize=(9.0, 1.4 + 0.5 * len(labels)), layout="constrained")
    grid = cast(Any, figure.subplots(2, 3, sharey=True))
    for axes, (key, title) in zip(grid.flat, panels.items(), strict=True):
        values = [results[f"{label}: {key}"] for label in labels]
        axes.barh(labels, [v.mean() for v in values], color="0.75")
        for place, v in enumerate(values):
            axes.plot([v.min(), v.max()], [place, place], color="black", linewidth=1.5)
        axes.set_title(title, fontsize=8)
        axes.tick_params(labelsize=8)
    grid[0, 0].invert_yaxis()
    return {"slowdowns": figure}
