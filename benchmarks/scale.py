"""How fast decisions and simulations of many jobs are: the goals of the plan in one table, in CPU seconds.

    python -m benchmarks.scale [--jobs 100000] [--write results/simulation]

* Shockwave's trace under ten policies (`benchmarks.decisions.simulation --only shockwave`); target: 10 s together.
* The trace of `benchmarks.decisions.traces` with 100,000 jobs under six policies, two at a time; target: 300 s of wall
  time on two cores.
* One decision: 10,000 jobs of 1 to 8 workers on 4,000 nodes of 8 GPUs, which hold two thirds of what the jobs would
  like. Allocation policies are asked once without anything known from before, and once more; policies that choose nodes
  decide, and start the jobs in the engine. Target: 1 s.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.decisions import traces
from benchmarks.decisions.simulation import TEN
from coach import collector, plugins
from coach.core.cluster import Allocation, Node, Resources
from coach.core.policies.api.allocation import ClusterView
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.experiments.clusters import shockwave
from coach_research.scheduling.api import Arrived
from coach_research.scheduling.node_placement import EngineJobView, by_events, price_of
from coach_research.workload import Work, by_counts

SIX = ("fifo", "srtf", "drf", "optimus", "coach", "backfill")
ALLOCATING = ("coach", "coach:mean-completion", "drf", "srtf", "optimus", "tetris")
PLACING = ("backfill", "tiresias", "gavel", "themis", "max-throughput")
JOBS, NODES, GPUS = 10_000, 4_000, 8


def waiting_jobs(jobs: int) -> list[Work]:
    """Jobs that all arrive at once: an hour with one worker, and a speed that levels off."""
    dice = np.random.default_rng(1)
    found = []
    for number in range(jobs):
        knee, hours = float(dice.uniform(4.0, 32.0)), float(dice.exponential(1.0)) + 0.1
        found.append(
            Work(
                0.0,
                10.0,
                np.array([1.0, 4.0, 1.0]),
                name=f"job-{number}",
                maximum=Allocation(int(dice.choice([1, 4, 8])), 0),
                speed=by_counts(
                    lambda workers, _, knee=knee, hours=hours: workers / (1 + workers / knee) / hours / 360.0
                ),  # type: ignore[misc]
            )
        )
    return found


class Idle:
    """Lets all jobs wait."""

    wants: frozenset[type] = frozenset()

    def schedule(self, *_: object) -> tuple[()]:
        """Nothing."""
        return ()


def all_waiting(jobs: int, nodes: int, whole: bool) -> Engine:
    """A cluster to which all jobs have come; `whole`: they want their maximum or nothing."""
    works = waiting_jobs(jobs)
    for work in works:
        work.minimum = work.maximum if whole else work.minimum
    engine = Engine(Cluster.uniform(nodes, 64, 512, GPUS), works, Idle())
    engine.run(until=0.0)
    return engine


def allocated(name: str, jobs: int, nodes: int) -> tuple[float, float]:
    """CPU seconds of a policy's first answer, and of the next one."""
    policy, engine = plugins.policy(name), all_waiting(jobs, nodes, whole=False)
    views = [EngineJobView(job, price_of(engine)) for job in engine.jobs.values()]
    rows = enumerate(engine.capacity.tolist())
    cluster = ClusterView(tuple(Node(f"node-{at:05d}", Resources(*row)) for at, row in rows))
    seconds = []
    for _ in range(2):
        for view in views:
            view.look(False, engine.now)
        began = time.process_time()
        decision = policy.allocate(views, cluster)
        seconds.append(time.process_time() - began)
        assert len(decision.allocations) == jobs
    return seconds[0], seconds[1]


def placed(name: str, jobs: int, nodes: int) -> float:
    """CPU seconds until a policy that chooses nodes has started its first jobs."""
    engine = all_waiting(jobs, nodes, whole=True)
    engine.policy = by_events(plugins.policy(name))
    began = time.process_time()
    engine._send(Arrived(jobs - 1))
    engine.run(until=0.0)
    assert engine.running
    return time.process_time() - began


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--decision-jobs", type=int, default=JOBS)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    collector.look_seldom()  # as in all of `coach`
    lines = ["| what | CPU s | wall s | target |", "| --- | ---: | ---: | ---: |"]

    def show(what: str, cpu: float, wall: float | None = None, target: str = "") -> None:
        lines.append(f"| {what} | {cpu:.2f} | {'' if wall is None else f'{wall:.1f}'} | {target} |")
        print(lines[-1], flush=True)

    print(*lines, sep="\n", flush=True)
    began = time.process_time()
    for name in TEN:
        works = [shockwave.work(job, 0.0, None) for job in shockwave.trace()]
        Engine(Cluster.uniform(8, 64, gpu=4), works, plugins.policy(name)).run()
    show("Shockwave's trace, ten policies", time.process_time() - began, None, "10 s of CPU")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2, max_tasks_per_child=1) as pool:
        path, wall, cpu = Path(folder) / "trace.csv", time.perf_counter(), 0.0
        traces.write_trace(path, options.jobs)
        for row in pool.map(traces.run, [path] * len(SIX), SIX, [options.jobs] * len(SIX)):
            show(f"{options.jobs:,} jobs, `{row['policy']}`", row["cpu_seconds"])
            cpu += row["cpu_seconds"]
        show(f"**{options.jobs:,} jobs, six policies**", cpu, time.perf_counter() - wall, "300 s of wall time")
    nodes = options.decision_jobs * NODES // JOBS
    of = f"{options.decision_jobs:,} jobs on {nodes:,} nodes"
    for name in ALLOCATING:
        first, again = allocated(name, options.decision_jobs, nodes)
        show(f"{of}, `{name}`: first decision", first, None, "1 s")
        show(f"{of}, `{name}`: again", again, None, "1 s")
    for name in PLACING:
        show(f"{of}, `{name}`: first round", placed(name, options.decision_jobs, nodes), None, "1 s")
    if options.write:
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        head = f"`python -m benchmarks.scale`, two cores; load of the machine {load}."
        (options.write / "scale.md").write_text("\n".join(["# How fast many jobs are", "", head, "", *lines, ""]))


if __name__ == "__main__":
    sys.exit(main())
