"""How fast the simulator is, through the public policy interface, compared with SimPy in the same run.

    python -m benchmarks.decisions.simulation [--jobs 524288] [--only fitgpp,million,month,full,pieces,shockwave,simpy]
        [--write FOLDER]

* fitgpp: FitGpp's workload (84 nodes of 32 cores, 256 GiB, 8 GPUs; a closed loop at load 2.0), four policies on two
  processes; target: less than 60 s for 2^19 jobs.
* million: 1,000,000 jobs, with the largest resident set of the process.
* month: a month of 500 nodes under Coach's policy: 5,000 jobs, 150,000 epochs; target: less than 5 minutes. All jobs
  fit; `full` is the same with epochs eleven times as long, so that the goals of some 400 jobs are as large as the
  cluster, and they must share it. Fewer `--month-jobs` arrive in proportionally less time, so that it is full too.
  `benchmarks.decisions.month` is such a month in the reducer itself, with probes, fits, budgets and gangs.
* pieces (only by name): two short pieces of a full cluster, the best of three each, in CPU milliseconds an event, and a
  digest of all events and actions: a faster decision must not change it.
* shockwave (only by name): CPU seconds of Shockwave's trace, 120 jobs on 32 GPUs, under ten policies without its own;
  target: 10 in all.
* simpy: an M/M/1 queue in SimPy and in the engine, events a second.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from coach import collector, plugins
from coach.core.cluster import Allocation
from coach.core.policies.api.policy import Policy
from coach.simulation.dynamics.measured_speeds import shipped
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.experiments.clusters import shockwave as cluster
from coach_research.scheduling.api import EngineView, SchedulingEvent, Start, first, fitting
from coach_research.workload import Plan, Work, totals

POLICIES = ("fifo", "fitgpp", "lrtp", "rand")
CHUNK = 8192
#: How much longer than in `month` epochs are in the full cluster.
FULL = 11.0
MINUTE = 60.0
#: Short pieces of a full cluster: in the first more is requested than there is, in the second about as much.
PIECES: tuple[dict[str, Any], ...] = (
    {"jobs": 250, "work": 60.0, "epochs": 4.0, "nodes": 120},
    {"jobs": 420, "work": FULL, "epochs": 6.0, "days": 0.3},
)
REPEATS = 3
#: Policies on Shockwave's trace.
TEN = (
    "gavel", "themis", "allox", "max-throughput", "min-makespan", "tiresias", "backfill", "fifo", "srtf:cadence=120",
    "drf:cadence=120",
)  # fmt: skip


def used() -> dict[str, float]:
    """CPU seconds of this process so far, which other load does not change much, and its largest resident set."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_seconds": usage.ru_utime + usage.ru_stime, "rss_mib": usage.ru_maxrss / 1024}


def truncated(  # noqa: PLR0917
    dice: np.random.Generator, mean: float, sd: float, low: float, high: float, count: int
) -> Any:
    """Normal numbers, drawn again where they are outside (low, high]."""
    values = dice.normal(mean, sd, count)
    while (wrong := (values <= low) | (values > high)).any():
        values[wrong] = dice.normal(mean, sd, int(wrong.sum()))
    return values


def fitgpp_jobs(jobs: int, seed: int) -> Iterator[Work]:
    """Single tasks, 30 % of them trial-and-error; FitGpp's distributions, drawn in chunks."""
    dice = np.random.default_rng([seed, 0])
    for start in range(0, jobs, CHUNK):
        count = min(CHUNK, jobs - start)
        trial = dice.random(count) < 0.3
        small = np.where(trial, 10 / 12, 1.0)
        seconds = MINUTE * np.where(
            trial, truncated(dice, 5, 4, 0, 30, count), truncated(dice, 30, 10, 0, 24 * 60, count)
        )
        grace = MINUTE * truncated(dice, 3, 1, 0, 20, count)
        demand = np.stack(
            [
                np.ceil(small * truncated(dice, 12, 6, 0, 32, count)),
                small * truncated(dice, 96, 48, 0, 256, count),
                np.floor(small * truncated(dice, 3, 1.5, 0, 8, count)),
            ],
            axis=1,
        )
        kinds = np.where(trial, "trial-and-error", "best-effort").tolist()
        for row, kind, work, wait in zip(demand, kinds, seconds.tolist(), grace.tolist(), strict=True):
            yield Work(0.0, work, row, kind=kind, grace=wait)


def run_fitgpp(policy: str, jobs: int, seed: int = 1) -> dict[str, Any]:
    """One policy on the workload."""
    began = time.perf_counter()
    engine = Engine(
        Cluster.uniform(84, 32, 256, 8),
        fitgpp_jobs(jobs, seed),
        plugins.policy(policy, np.random.default_rng([seed, 1])),
        closed_load=2.0,
    )
    record = engine.run()
    seconds = time.perf_counter() - began
    slowdown = (record.column("finished") - record.column("arrived")) / record.column("executed")
    trial = record.column("kind") == record.kinds["trial-and-error"]
    return {
        "benchmark": "fitgpp",
        "what": policy,
        "jobs": jobs,
        "events": engine.events,
        "seconds": seconds,
        "trial_p95_slowdown": float(np.percentile(slowdown[trial], 95)),
        **used(),
    }


class Greedy:
    """First come first served on the first node that fits: the smallest policy."""

    wants: frozenset[type] = frozenset()

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[Start]:
        """See `Policy`."""
        while job := first(view.waiting):
            nodes = fitting(view.free, job.worker)
            if not len(nodes):
                return
            yield Start(job.id, ((int(nodes[0]), 1, 0),))


def mm1(jobs: int, policy: Policy) -> dict[str, Any]:
    """An M/M/1 queue at load 0.8."""
    one = np.array([1.0, 0.0, 0.0])
    dice = np.random.default_rng(1)

    def works() -> Iterator[Work]:
        now = 0.0
        for start in range(0, jobs, CHUNK):
            count = min(CHUNK, jobs - start)
            gaps, services = dice.exponential(1 / 0.8, count).tolist(), dice.exponential(1.0, count).tolist()
            for gap, service in zip(gaps, services, strict=True):
                now += gap
                yield Work(now, service, one)

    began = time.perf_counter()
    engine = Engine(Cluster.uniform(1, 1), works(), policy)
    engine.run()
    return {
        "benchmark": "mm1",
        "what": "coach",
        "jobs": jobs,
        "events": engine.events,
        "seconds": time.perf_counter() - began,
        **used(),
    }


def simpy_mm1(jobs: int) -> dict[str, Any]:
    """The same queue in SimPy, as its documentation writes one: a process a customer."""
    import simpy

    dice = np.random.default_rng(1)
    gaps, services = dice.exponential(1 / 0.8, jobs).tolist(), dice.exponential(1.0, jobs).tolist()
    began = time.perf_counter()
    world = simpy.Environment()
    server = simpy.Resource(world, 1)

    def customer(service: float) -> Iterator[Any]:
        with server.request() as turn:
            yield turn
            yield world.timeout(service)

    def source() -> Iterator[Any]:
        for gap, service in zip(gaps, services, strict=True):
            yield world.timeout(gap)
            world.process(customer(service))

    world.process(source())
    world.run()
    # Counted as the engine's: an arrival and an end for each job.
    return {
        "benchmark": "mm1",
        "what": "simpy",
        "jobs": jobs,
        "events": 2 * jobs,
        "seconds": time.perf_counter() - began,
        **used(),
    }


def month(
    jobs: int,
    work: float,
    *,
    epochs: float = 30.0,
    nodes: int = 500,
    days: float | None = None,
    log: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """A month of elastic jobs under Coach's policy: it is called at every arrival, end and epoch.

    `work` lengthens their epochs. Fewer than 5,000 jobs arrive in so much less than a month, or in `days`.
    """
    days = 30 * jobs / 5000 if days is None else days
    dice = np.random.default_rng([1, 0])
    models = list(shipped().values())
    arrivals = np.sort(dice.uniform(0, days * 24 * 3600.0, jobs)).tolist()
    worker, server = np.array([8.0, 16.0, 0.0]), np.array([4.0, 8.0, 0.0])

    def works() -> Iterator[Work]:
        for arrival, which, seconds in zip(
            arrivals,
            dice.integers(len(models), size=jobs).tolist(),
            (work * dice.uniform(300, 3600, jobs)).tolist(),
            strict=True,
        ):
            shape = models[which]

            def speed(plan: Plan, shape: Any = shape, seconds: float = seconds) -> float:
                return float(shape(*totals(plan))) / seconds

            yield Work(
                arrival, epochs, worker, server, name=shape.model, speed=speed, minimum=Allocation(1, 1),
                maximum=Allocation(12, 12), rescale_seconds=20.0, checkpoint=1.0,
            )  # fmt: skip

    began = time.perf_counter()
    engine = Engine(Cluster.uniform(nodes, 32, 128), works(), plugins.policy("coach"), log=log)
    record = engine.run()
    seconds = time.perf_counter() - began
    _, held = record.utilisation()
    return {
        "benchmark": "month" if work == 1.0 else "full",
        "what": "coach",
        "jobs": len(record.column("job")),
        "epochs": float(record.column("work").sum()),
        "cores_held": float(held[:, 0].mean()),
        "most_held": float(held[:, 0].max()),
        "events": engine.events,
        "seconds": seconds,
        **used(),
    }


def piece(what: dict[str, Any]) -> str:
    """One of PIECES, REPEATS times: a line of a table."""
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        row = month(**what)
        seconds.append(time.process_time() - began)
    hashed = hashlib.sha256()
    month(**what, log=lambda line: hashed.update(line.encode()))
    words = ", ".join(f"{name}={value:g}" for name, value in what.items())
    each = 1000 * min(seconds) / row["events"]
    return f"| `month({words})` | {row['most_held']:.0%} | {each:.1f} | {hashed.hexdigest()[:16]} |"


def shockwave() -> None:
    """Print a row for each policy of `TEN` on Shockwave's trace, and the sum."""
    print("| policy | makespan, s | mean completion, s | CPU seconds |\n| --- | ---: | ---: | ---: |")
    seconds = []
    for name in TEN:
        began = time.process_time()
        works = [cluster.work(job, 0.0, None) for job in cluster.trace()]
        record = Engine(Cluster.uniform(8, 64, gpu=4), works, plugins.policy(name)).run()
        seconds.append(time.process_time() - began)
        finished, arrived = record.column("finished"), record.column("arrived")
        print(f"| `{name}` | {finished.max():.0f} | {(finished - arrived).mean():.0f} | {seconds[-1]:.2f} |")
    print(f"| all | | | {sum(seconds):.2f} |")


def main() -> None:
    """Print a line for each measurement, and write them where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2**19)
    parser.add_argument("--only", default="fitgpp,million,month,full,simpy")
    parser.add_argument("--month-jobs", type=int, default=5000)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    collector.look_seldom()  # as in all of `coach`
    rows: list[dict[str, Any]] = []

    def show(row: dict[str, Any]) -> None:
        rows.append(row)
        rate = row["events"] / row["seconds"]
        print(
            f"{row['benchmark']:8} {row['what']:8} {row['jobs']:>8} jobs {row['events']:>9} events",
            f"{row['seconds']:7.1f} s, {row['cpu_seconds']:7.1f} s of CPU",
            f"{rate:9.0f} events/s {row['rss_mib']:6.0f} MiB",
            f"{row['cores_held']:.0%} of the cores held, {row['most_held']:.0%} at most" if "epochs" in row else "",
            flush=True,
        )

    for only in options.only.split(","):
        with ProcessPoolExecutor(2, max_tasks_per_child=1) as pool:
            if only == "fitgpp":
                began = time.perf_counter()
                for row in pool.map(run_fitgpp, POLICIES, [options.jobs] * len(POLICIES)):
                    show(row)
                seconds = time.perf_counter() - began
                show({"benchmark": "fitgpp", "what": "all", "jobs": options.jobs * len(POLICIES), "seconds": seconds,
                      "events": sum(row["events"] for row in rows), "rss_mib": 0.0,
                      "cpu_seconds": sum(row["cpu_seconds"] for row in rows)})  # fmt: skip
            elif only == "million":
                show(pool.submit(mm1, 1_000_000, Greedy()).result())
            elif only == "month":
                show(pool.submit(month, options.month_jobs, 1.0).result())
            elif only == "full":
                days = min(30.0, 1.0 + 29.0 * (options.month_jobs - 400) / 4600)
                show(pool.submit(month, options.month_jobs, FULL, days=max(1.0, days)).result())
            elif only == "pieces":
                print("| piece | most of the cores held | CPU ms an event, best of", REPEATS, "| digest |")
                for what in PIECES:
                    print(pool.submit(piece, what).result(), flush=True)
            elif only == "shockwave":
                shockwave()
            elif only == "simpy":
                show(pool.submit(simpy_mm1, 200_000).result())
                show(pool.submit(mm1, 200_000, Greedy()).result())
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        path = options.write / "speed.csv"
        # What is measured in pieces adds up: a row replaces that of the same name.
        known = list(csv.DictReader(path.read_text().splitlines())) if path.is_file() else []
        names = ("benchmark", "what", "jobs")
        new = {tuple(str(row[name]) for name in names) for row in rows}
        rows = [row for row in known if tuple(row[name] for name in names) not in new] + rows
        columns = list(dict.fromkeys(column for row in rows for column in row))
        with path.open("w", newline="") as file:
            out = csv.DictWriter(file, columns, lineterminator="\n")
            out.writeheader()
            out.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
