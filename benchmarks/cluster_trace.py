"""What a trace of the size of a real cluster takes, under every policy, in CPU seconds and MiB.

    python -m benchmarks.cluster_trace [--policies fifo,srtf,...] [--jobs 500,2000,20000] [--write FOLDER]

The trace: 2,000 nodes of 64 cores, 512 GiB and 8 GPUs; jobs of 1, 2 or 4 workers of 1 to 12 cores and 0 to 8 GPUs
each, 106,000 s on average (exponential), one every 10 s on average (Poisson); seed 1. Of 20,000 jobs 9,000 are there at
once, and all fit. Each run has a process of its own, which is ended after 60 s of CPU time (the target: less, and less
than 400 MB); a policy that did not end has no run with more jobs. In the same run SimPy simulates an M/M/c queue, a
process a customer, and the engine the same one.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coach import collector, plugins
from coach.core.cluster import Node, Resources
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.trace_simulation import replay
from coach_research.workload import Work

NODES = tuple(Node(f"node-{n:04d}", Resources(64.0, 512.0, 8.0)) for n in range(2000))
MOST_JOBS, SECONDS, MEGABYTES = 20_000, 60, 400
#: Policies that need a parameter, or that a trace does not have jobs for.
WRITTEN = {"static": "static:1"}
SERVERS, CUSTOMERS = 8, 200_000


def write_trace(path: Path, jobs: int) -> None:
    """Write the first `jobs` jobs of the trace, in the schema of `coach simulate --trace`."""
    dice, count = np.random.default_rng(1), MOST_JOBS
    gpus = dice.choice([0, 1, 2, 4, 8], count, p=[0.6, 0.2, 0.1, 0.07, 0.03])
    workers, cores = dice.choice([1, 2, 4], count, p=[0.8, 0.15, 0.05]), dice.integers(1, 13, count)
    arrivals, seconds = np.cumsum(dice.exponential(10.0, count)), dice.exponential(106_000.0, count)
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("job", "arrival", "work", "cpu", "memory", "gpu", "min_workers"))
        for n in range(jobs):
            each = (cores[n], 4 * cores[n], gpus[n], workers[n])
            out.writerow((f"job-{n}", f"{arrivals[n]:.3f}", f"{seconds[n]:.3f}", *each))


def run(path: Path, policy: str) -> None:
    """Simulate the trace; print the CPU seconds, the largest resident set (MiB) and a digest of all ends."""
    collector.look_seldom()  # as in all of `coach`
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    result = replay(str(path), NODES, policy, 1, (math.inf, math.inf))
    digest = hashlib.sha256(result.columns["finished"].tobytes()).hexdigest()[:8]
    print(f"{time.process_time():.1f}", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, digest)


def queue(simulator: str) -> None:
    """An M/M/c queue of `CUSTOMERS`; prints CPU seconds."""
    dice = np.random.default_rng(1)
    came = np.cumsum(dice.exponential(1.0, CUSTOMERS)).tolist()
    served = dice.exponential(0.9 * SERVERS, CUSTOMERS).tolist()
    began = time.process_time()
    if simulator == "engine":
        works = (Work(at, took, np.array([1.0, 0.0, 0.0])) for at, took in zip(came, served, strict=True))
        Engine(Cluster.uniform(1, SERVERS), works, plugins.policy("fifo")).run()
    else:
        import simpy

        world = simpy.Environment()
        desk = simpy.Resource(world, SERVERS)

        def customer(takes: float) -> Iterator[Any]:
            with desk.request() as turn:
                yield turn
                yield world.timeout(takes)

        def source() -> Iterator[Any]:
            for at, took in zip(came, served, strict=True):
                yield world.timeout(max(0.0, at - world.now))
                world.process(customer(took))

        world.process(source())
        world.run()
    print(f"{time.process_time() - began:.1f}", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def measured(*arguments: str) -> list[str]:
    """What a process of its own prints for these arguments; [] where it did not end."""
    line = [sys.executable, "-m", "benchmarks.cluster_trace", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else []


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policies", default=",".join(WRITTEN.get(name, name) for name in plugins.names()))
    parser.add_argument("--jobs", default="500,2000,20000")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--queue", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return run(Path(options.one[0]), options.one[1])
    if options.queue:
        return queue(options.queue)
    sizes = [int(size) for size in options.jobs.split(",")]
    columns = [f"{size:,} jobs: CPU s, MiB" for size in sizes]
    lines = [f"| policy | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(sizes)]
    print(*lines, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            write_trace(Path(folder) / f"{size}.csv", size)
        for policy in options.policies.split(","):
            cells, ends = list[str](), True
            for size in sizes:
                found = measured("--one", str(Path(folder) / f"{size}.csv"), policy) if ends else []
                cells.append(f"{found[0]}, {found[1]}" if found else f"more than {SECONDS} s" if ends else "-")
                ends = bool(found)
            lines.append(f"| `{policy}` | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    for simulator, words in (("simpy", "SimPy"), ("engine", "the engine, `fifo`")):
        seconds, mebibytes = measured("--queue", simulator) or ("-", "-")
        lines.append(f"\nM/M/{SERVERS}, {CUSTOMERS:,} customers, {words}: {seconds} s of CPU, {mebibytes} MiB.")
        print(lines[-1], flush=True)
    if options.write:
        head = f"`python -m benchmarks.cluster_trace`; target: {SECONDS} s and {MEGABYTES} MB for 20,000 jobs."
        text = "\n".join(["# A trace of the size of a cluster", "", head, "", *lines, ""])
        (options.write / "cluster.md").write_text(text)
    return None


if __name__ == "__main__":
    sys.exit(main())
