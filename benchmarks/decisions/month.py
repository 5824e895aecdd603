"""A month of a cluster in the reducer itself: probes, fits, budgets, gangs and all, in virtual time.

    python -m benchmarks.decisions.month [--jobs 5000] [--nodes 500] [--days 30] [--work 5.0] [--write DIR]

Target: 5,000 jobs with 150,000 epochs on 500 nodes in less than five minutes. Jobs have the speeds of the table that
comes with Coach, a curve that reaches the target after some 27 epochs and the two that confirm it, and a budget. `work`
says how long their epochs are, and so how full the cluster is. `--digest` prints a digest of all events and actions:
whatever makes the reducer faster has to leave it as it is.
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import hashlib
import pstats
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from coach import collector
from coach.core.cluster import Node, Resources
from coach.core.money import PRICE_BOOKS
from coach.core.spec.job import TrainingJob
from coach.handler.state.codec import encode
from coach.plugins import policy
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.dynamics.synthetic import assumed, job_file
from coach.simulation.reducer_simulation import Driver

DAY = 24 * 3600.0
#: Cores and GiB of a node.
NODE = Resources(32.0, 128.0)


def month(jobs: int, nodes: int, days: float, work: float, *, seed: int = 1, digest: bool = False) -> dict[str, Any]:
    """One simulated month of the cluster."""
    dice = np.random.default_rng([seed, 0])
    models = list(shipped().values())
    arrivals = np.sort(dice.uniform(0, days * DAY, jobs)).tolist()
    which = dice.integers(len(models), size=jobs).tolist()
    lengths = (work * dice.uniform(300, 3600, jobs)).tolist()
    held = {"used": 0.0, "at": 0.0, "integral": 0.0, "most": 0.0}

    def use(at: float, more: Resources) -> None:
        held["integral"] += held["used"] * (at - held["at"])
        held["at"] = at
        held["used"] += more.cpu
        held["most"] = max(held["most"], held["used"])

    hashed = hashlib.sha256()
    cluster = tuple(Node(f"node-{n:04d}", NODE) for n in range(nodes))
    began = time.perf_counter(), time.process_time()
    driver = Driver(
        cluster,
        policy("coach"),
        seed=seed,
        usage=use,
        journal=(lambda record: hashed.update(encode(record).encode())) if digest else None,
    )
    # Twice what 30 epochs cost with one worker and one server.
    price = 2 * 30 * PRICE_BOOKS["cloud-functions"].rate(Resources(12.1, 24.1))
    for number, (arrival, model, seconds) in enumerate(zip(arrivals, which, lengths, strict=True)):
        document = job_file(f"job-{number:05d}", 12, budget=price * seconds, worker=("8", "16Gi"), server=("4", "8Gi"))
        dynamics = assumed(TrainingJob.from_json(document), models[model], seconds, 27.0)
        driver.submit_at(arrival, f"job-{number:05d}", document, dynamics)
    driver.run()
    ended = driver.ended.values()
    row = {
        "jobs": len(ended),
        "epochs": sum(one.epochs for one in ended),
        "mini_epochs": sum(one.probes for one in ended),
        "reached": sum(one.state.value == "Succeeded" for one in ended),
        "nodes": nodes,
        "days": driver.now / DAY,
        "cores_held": held["integral"] / driver.now / (nodes * NODE.cpu),
        "most_held": held["most"] / (nodes * NODE.cpu),
        "events": driver.events,
        "seconds": time.perf_counter() - began[0],
        "cpu_seconds": time.process_time() - began[1],
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    return {**row, "digest": hashed.hexdigest()[:16]} if digest else row


def main() -> None:
    """Print what it took, and write it where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--work", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    collector.look_seldom()  # as in all of `coach`
    profile = cProfile.Profile()
    if options.profile:
        profile.enable()
    row = month(options.jobs, options.nodes, options.days, options.work, seed=options.seed, digest=options.digest)
    if options.profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    for name, value in row.items():
        print(f"{name:12} {value:.4g}" if isinstance(value, float) else f"{name:12} {value}")
    print(f"{1000 * row['seconds'] / (row['epochs'] + row['mini_epochs']):.2f} ms an epoch")
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        with (options.write / "month.csv").open("w", newline="") as file:
            out = csv.DictWriter(file, list(row), lineterminator="\n")
            out.writeheader()
            out.writerow(row)


if __name__ == "__main__":
    sys.exit(main())
