"""What a trace of the size of a real cluster takes, under every policy, in CPU seconds, seconds and MiB.

    python -m benchmarks.cluster_trace [--policies fifo,srtf,...] [--jobs 500,2000,20000] [--write FILE]

The trace: 2,000 nodes of 64 cores, 512 GiB and 8 GPUs; jobs of 1, 2 or 4 workers of 1 to 12 cores and 0 to 8 GPUs
each, 106,000 s on average (exponential), one every 10 s on average (Poisson); seed 1. Of 20,000 jobs 9,000 are there at
once, and all fit. Each run has a process of its own, which is ended after 300 s of CPU time (the target: 60 s, and 400
MB); a policy that did not end has no run with more jobs. In the same run SimPy simulates an M/M/c queue, a process a
customer, and the engine the same one (the word `queue` among the policies). `--write` keeps the rows of other policies,
and what the file says below its first heading of the second level.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import math
import os
import re
import resource
import signal
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
MOST_JOBS, SECONDS, LIMIT, MEGABYTES = 20_000, 60, 300, 400
#: Policies that need a parameter, or that a trace does not have jobs for.
WRITTEN = {"static": "static:1"}
SERVERS, CUSTOMERS = 8, 200_000
#: What stands for that queue among the policies.
QUEUE = "queue"


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
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
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


def measured(*arguments: str) -> tuple[float, float, int, str] | None:
    """CPU seconds, seconds, MiB and digest of a process of its own with these arguments; None where it was too slow.

    Raises CalledProcessError where it failed.
    """
    began = time.perf_counter()
    line = [sys.executable, "-m", "benchmarks.cluster_trace", *arguments]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return None
    done.check_returncode()
    cpu, mebibytes, *digest = done.stdout.split()
    return float(cpu), time.perf_counter() - began, int(mebibytes), "".join(digest)


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser()
    every = [*(WRITTEN.get(name, name) for name in plugins.names()), QUEUE]
    parser.add_argument("--policies", default=",".join(every))
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
    policies, rows = options.policies.split(","), _rows(options.write)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            write_trace(Path(folder) / f"{size}.csv", size)
        for policy in policies:
            if policy == QUEUE:
                continue
            cells, found = list[str](), None
            for size in sizes:
                if size == sizes[0] or found:
                    found = measured("--one", str(Path(folder) / f"{size}.csv"), policy)
                cells.append(_cell(found) if found else f"more than {LIMIT}")
            digest = found[3] if found else ""
            rows[policy] = f"| `{policy}` | {' | '.join(cells)} | {digest} | {datetime.date.today()}, {load:.0f} |"
            print(rows[policy], flush=True)
    lines = [
        f"| policy | {' | '.join(f'{size:,} jobs' for size in sizes)} | ends | measured, load |",
        "| --- |" + " ---: |" * (len(sizes) + 2),
        *(rows[policy] for policy in sorted(rows) if policy != QUEUE),
        "",
    ]
    if QUEUE in policies:
        engine, simpy = (measured("--queue", each) for each in ("engine", "simpy"))
        each = f"SimPy {_cell(simpy)}; the engine, `fifo`, {_cell(engine)}" if engine and simpy else "not measured"
        rows[QUEUE] = f"M/M/{SERVERS}, {CUSTOMERS:,} customers, in one run: {each}."
    lines += [rows.get(QUEUE, "")]
    print(*lines, sep="\n")
    if options.write:
        _write(options.write, lines)
    return None


def _cell(found: tuple[float, float, int, str]) -> str:
    return f"{found[0]:.1f} ({found[1]:.0f}), {found[2]}"


def _rows(file: Path | None) -> dict[str, str]:
    """The rows of a file, by policy; and what it says of the queue."""
    text = file.read_text(encoding="utf-8") if file and file.exists() else ""
    text = text.partition("\n## ")[0]
    queue = re.search(r"^M/M/.*$", text, re.MULTILINE)
    found = {row[1]: row[0] for row in re.finditer(r"^\| `(\S+)` \|.*\|$", text, re.MULTILINE)}
    return found | ({QUEUE: queue[0]} if queue else {})


def _write(file: Path, lines: list[str]) -> None:
    text = f"""\
# A trace of the size of a cluster

`python -m benchmarks.cluster_trace --write {file}` on {os.cpu_count()} cores: CPU seconds (wall seconds), MiB, with the
start of Python. A row says when it was measured, and at which load of other work: it makes seconds longer, so compare
CPU seconds. Rows of policies that are not named (`--policies`) stay. Target: {SECONDS} s of CPU and {MEGABYTES} MB for
20,000 jobs. Policies with the same digest (`ends`) end all jobs of the longest trace at the same times.

"""
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    rest = before[before.index("\n## ") :] if "\n## " in before else ""
    file.write_text(text + "\n".join(lines).rstrip() + "\n" + rest, encoding="utf-8")


if __name__ == "__main__":
    main()
