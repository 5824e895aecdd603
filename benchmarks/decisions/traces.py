"""How fast traces of tasks are simulated, at `trace` fidelity, under each policy.

    python -m benchmarks.decisions.traces [--jobs 2000] [--policies fifo,srtf,...] [--processes 2] [--write FOLDER]

The trace: 8 nodes of 32 cores and 256 GiB; tasks of 1 to 4 workers of 1 to 8 cores, 60 s each on average (exponential),
a third of them trial-and-error with a third of that; Poisson arrivals that would keep 70 % of the cores in use without
any waiting (load 0.7); seed 1. Targets on two cores: 2,000 jobs under seven policies in 20 s; 100,000 jobs under fifo,
srtf, drf, optimus and coach in 600 s.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import write_csv
from coach import collector
from coach.core.cluster import Node, Resources
from coach_research.trace_simulation import replay

NODES = tuple(Node(f"node-{n}", Resources(32.0, 256.0)) for n in range(8))
LOAD = 0.7
POLICIES = "fifo,srtf,drf,tetris,optimus,coach,fitgpp"
COLUMNS = ("job", "arrival", "work", "kind", "cpu", "memory", "min_workers", "max_workers")


def write_trace(path: Path, jobs: int, seed: int = 1) -> None:
    """Write the trace of the module's description, in the schema of `coach simulate --trace`."""
    dice = np.random.default_rng([seed, 0])
    workers, cores = dice.choice([1, 1, 1, 2, 4], jobs), dice.integers(1, 9, jobs)
    trial = dice.random(jobs) < 1 / 3
    seconds = dice.exponential(np.where(trial, 20.0, 60.0))
    demand = float((workers * cores * seconds).mean())
    total = sum(node.capacity.cpu for node in NODES)
    arrivals = np.cumsum(dice.exponential(demand / (LOAD * total), jobs))
    kinds = np.where(trial, "trial-and-error", "best-effort").tolist()
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for n in range(jobs):
            count, each = int(workers[n]), int(cores[n])
            out.writerow((f"job-{n}", float(arrivals[n]), float(seconds[n]), kinds[n], each, 4 * each, count, count))


def run(path: Path, policy: str, jobs: int) -> dict[str, Any]:
    """One policy on a trace; the digest is of all completion times."""
    collector.look_seldom()  # as in all of `coach`
    result = replay(str(path), NODES, policy, 1, (math.inf, math.inf))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "policy": policy,
        "jobs": jobs,
        "events": result.events,
        "seconds": round(result.seconds, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "rss_mib": round(usage.ru_maxrss / 1024),
        "completion_mean": float(np.nanmean(result.completion)),
        "preemptions": int(result.columns["preemptions"].sum()),
        "digest": hashlib.sha256(result.columns["finished"].tobytes()).hexdigest()[:16],
    }


def main() -> None:
    """Print a line for each policy, and write them where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    policies = options.policies.split(",")
    began, rows = time.perf_counter(), []
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.processes, max_tasks_per_child=1) as pool,
    ):
        path = Path(folder) / "trace.csv"
        write_trace(path, options.jobs)
        for row in pool.map(run, [path] * len(policies), policies, [options.jobs] * len(policies)):
            print(*(f"{name} {value}" for name, value in row.items()), flush=True)
            rows.append(row)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"all: {time.perf_counter() - began:.1f} s; load of the machine {load}")
    if options.write:
        write_csv(options.write / f"traces-{options.jobs}.csv", rows)


if __name__ == "__main__":
    sys.exit(main())
