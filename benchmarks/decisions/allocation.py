"""How long an allocation takes, how far its greedy steps are from the optimum, and what it gains.

    python -m benchmarks.decisions.allocation            # prints the tables, writes results/allocation.{csv,md}

All jobs are random: their true speed is the parameter-server form 1/v = a/w + b + c w/s + d w + e s, known to the
policy, and an epoch costs its pods times its seconds. Three tables:

- *time*: CPU seconds of one decision on one core, with speeds cached as after a fit. The cluster holds about two thirds
  of the jobs' goals. The first decision reads all jobs; of the later ones, each with another 1 % of the jobs changed,
  the median is given: with no job holding anything yet, and with all holding their allocations and nine of ten in the
  middle of an epoch.
- *gap*: `coach` against the exact results of `tests.oracles.exhaustive_allocation`, where an exhaustive search is
  feasible.
- *sharing*: jobs run to their ends, all known speeds and no restart costs, with a new decision whenever one ends: mean
  completion time and makespan of each policy as parts of `coach`'s. The best static choice is found by trying all.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coach import collector
from coach.core.cluster import Allocation, Node, Resources, Role
from coach.core.policies import AllocationDecision, ClusterView, CoachPolicy, Objective, Policy
from coach.core.policies.sharing.hill_climbing import Climb
from coach.plugins import policy
from tests.oracles.exhaustive_allocation import best_alone, best_together

RESULTS = Path(__file__).parents[2] / "results"
COLUMNS = ("table", "case", "policy", "measure", "value")
REQUESTS = {
    Role.SCHEDULER: Resources(0.1, 0.1),
    Role.SERVER: Resources(1.0, 0.5),
    Role.WORKER: Resources(1.0, 1.0),
}
Row = tuple[str, str, str, str, float]


@dataclass
class Epochs:
    """An interval of remaining epochs."""

    low: float
    expected: float
    high: float


@dataclass
class Job:
    """A job view on remembered tables of speed (epochs/s) and cost, flat: [workers * (most servers + 1) + servers]."""

    id: str
    created: float
    remaining_epochs: Epochs
    maximum: Allocation
    speeds: tuple[float, ...]
    costs: tuple[float, ...]
    budget: float | None = None
    deadline: float | None = None
    minimum: Allocation = field(default=Allocation(1, 1))
    requests: Mapping[Role, Resources] = field(default_factory=lambda: REQUESTS)
    priority: int = 0
    current: Allocation | None = None
    fixed: Allocation | None = None
    busy: bool = False
    restart_seconds: float = 0.0
    objective: Objective = Objective.SOONEST
    #: What decisions keep of a job as long as it is as it is (`coach.core.policies.api.allocation.kept`).
    memory: dict[Any, Any] | None = None

    def speed(self, allocation: Allocation, kind: str | None = None) -> float:
        """Epochs/s."""
        return self.speeds[allocation[0] * (self.maximum[1] + 1) + allocation[1]]

    def epoch_cost(self, allocation: Allocation) -> float:
        """Pods times seconds."""
        return self.costs[allocation[0] * (self.maximum[1] + 1) + allocation[1]]

    def affordable(self, allocation: Allocation) -> bool:
        """True: `epoch_budget` alone limits what an epoch may cost."""
        return True

    def epoch_budget(self, _: Allocation) -> float | None:
        """Pods times seconds."""
        return self.budget


def random_job(i: int, rng: np.random.Generator, most: int, *, budget: bool = False, noise: float = 0.0) -> Job:
    """A job with random coefficients; with `budget`, an epoch budget and a deadline that may bind.

    `noise`: each speed is off by up to this part, as a fit that remembers measured points is.
    """
    a, b = rng.uniform(10, 200), rng.uniform(0, 10)
    c, d, e = rng.uniform(0, (20, 3, 2)) * rng.uniform(size=3)
    maximum = Allocation(int(rng.integers(2, most + 1)), int(rng.integers(2, most + 1)))
    w, s = np.meshgrid(np.arange(maximum.workers + 1), np.arange(maximum.servers + 1), indexing="ij")
    with np.errstate(divide="ignore", invalid="ignore"):
        speeds = 1 / (a / w + b + c * w / s + d * w + e * s)
        speeds *= 1 + rng.uniform(-noise, noise, speeds.shape)
        costs = (w + s) / speeds
    epochs = float(rng.uniform(2, 60))
    job = Job(
        f"job-{i:05d}",
        float(i),
        Epochs(epochs / 2, epochs, epochs * 2),
        maximum,
        tuple(speeds.ravel().tolist()),
        tuple(costs.ravel().tolist()),
    )
    if budget:
        real = costs[1:, 1:]
        job.budget = float(rng.uniform(real.min(), 1.05 * real.max()))
        job.deadline = float(epochs / speeds[1, 1] * rng.uniform(0.2, 1.2))
    return job


def measure_time(repeats: int) -> Iterator[Row]:
    """CPU seconds of one decision."""
    for count in (100, 1_000, 10_000):
        rng = np.random.default_rng(5)
        jobs = [random_job(i, rng, 14, budget=i % 2 == 0) for i in range(count)]
        nodes = tuple(Node(f"n{i}", Resources(16.0, 32.0)) for i in range(count * 9 // 16))
        for name in ("coach", "coach:cheapest", "coach:mean-completion", "static:4x4"):
            chosen, first, later, busy = policy(name), [], [], []
            for repeat in range(repeats):
                _anew(jobs)
                decision, seconds = _decided(chosen, jobs, nodes)
                first.append(seconds)
                _anew(jobs[repeat::100])
                later.append(_decided(chosen, jobs, nodes)[1])
                for i, job in enumerate(jobs):
                    job.current = decision.allocations[job.id]
                    job.busy = job.current is not None and i % 10 > 0
                _anew(jobs)
                _decided(chosen, jobs, nodes)
                _anew(jobs[repeat::100])
                busy.append(_decided(chosen, jobs, nodes)[1])
                for job in jobs:
                    job.current, job.busy = None, False
            given = [a for a in decision.allocations.values() if a is not None]
            case = f"{count} jobs on {len(nodes)} nodes"
            yield "time", case, name, "tasks placed", sum(map(sum, given)) + len(given)
            yield "time", case, name, "seconds", statistics.median(first)
            yield "time", case, name, "seconds, 1 % changed", statistics.median(later)
            yield "time", case, name, "seconds, 1 % changed, 90 % busy", statistics.median(busy)


def _anew(jobs: Sequence[Job]) -> None:
    """Clear the caches of `jobs`."""
    for job in jobs:
        job.memory = {}


def _decided(chosen: Policy, jobs: Sequence[Job], nodes: tuple[Node, ...]) -> tuple[AllocationDecision, float]:
    start = time.process_time()
    with collector.paused():
        decision = chosen.allocate(jobs, ClusterView(nodes))
    return decision, time.process_time() - start


def measure_gap(instances: int) -> Iterator[Row]:
    """How often greedy is exact, and by how much it is off: mean, 99th percentile and largest."""
    for objective in (Objective.SOONEST, Objective.CHEAPEST):
        for noise in (0.0, 0.05, 0.2):
            rng = np.random.default_rng(11)
            climb, gaps, missed = Climb(objective, least_efficiency=0.0), [], 0
            for i in range(instances):
                job = random_job(i, rng, 6, budget=True, noise=noise)
                best = best_alone(job, climb)
                found = climb(job)[0]
                (tier, value), (got_tier, got) = (climb.level(job, a) for a in (best, found) if a is not None)
                missed += got_tier < tier
                if got_tier == tier:
                    gaps.append(abs(value - got) / abs(value))
            case = f"one job, {objective}, speeds off by {noise:.0%}"
            yield "gap", case, "coach", "limit missed", missed / instances
            yield from _gap_rows(case, gaps)
    rng = np.random.default_rng(13)
    for efficiency in (0.0, CoachPolicy().least_efficiency):
        chosen, climb = CoachPolicy(least_efficiency=efficiency), Climb(least_efficiency=0.0)
        gaps, refused, missed = [], 0, 0
        while len(gaps) < instances // 4:
            jobs = [random_job(i, rng, 6, budget=True) for i in range(int(rng.integers(2, 4)))]
            # Where no allocation keeps a job's epoch budget, there is no best answer to compare with.
            if any(climb.level(job, best_alone(job, climb) or job.minimum)[0] < 1 for job in jobs):
                continue
            nodes = rng.choice([2.0, 4.0, 8.0], size=int(rng.integers(2, 4)))
            cluster = ClusterView(tuple(Node(f"n{i}", Resources(cpu + 0.5, 99.0)) for i, cpu in enumerate(nodes)))
            best = best_together(jobs, cluster, climb)
            with collector.paused():
                decision = chosen.allocate(jobs, cluster).allocations
            if best is None or None in decision.values():
                refused += best is not None
                continue
            if _breaking(jobs, decision, climb) > _breaking(jobs, best, climb):
                missed += 1  # seconds do not compare then
                continue
            gaps.append(_sum_of_times(jobs, decision) / _sum_of_times(jobs, best) - 1)
        case = f"2-3 jobs on 2-3 nodes, least efficiency {efficiency:g}"
        yield "gap", case, "coach", "limit missed", missed / (missed + len(gaps))
        yield "gap", case, "coach", "a job waits needlessly", refused / len(gaps)
        yield from _gap_rows(case, gaps)


def _breaking(jobs: Sequence[Job], allocation: Mapping[str, Allocation | None], climb: Climb) -> int:
    """How many jobs break their epoch budget."""
    given = ((job, allocation[job.id]) for job in jobs)
    return sum(climb.tier(job, a) < 1 for job, a in given if a is not None)


def _sum_of_times(jobs: Sequence[Job], allocation: Mapping[str, Allocation | None]) -> float:
    given = ((job, allocation[job.id]) for job in jobs)
    return sum(job.remaining_epochs.expected / job.speed(a) for job, a in given if a is not None)


def _gap_rows(case: str, gaps: Sequence[float]) -> Iterator[Row]:
    yield "gap", case, "coach", "exact", float(np.mean([gap < 1e-9 for gap in gaps]))
    yield "gap", case, "coach", "mean gap", float(np.mean(gaps))
    yield "gap", case, "coach", "99 % gap", float(np.quantile(gaps, 0.99))
    yield "gap", case, "coach", "largest gap", float(np.max(gaps))


def run_to_the_end(jobs: Sequence[Job], cluster: ClusterView, chosen: Policy) -> tuple[float, float]:
    """(mean completion time, makespan) in seconds of jobs that all start at 0."""
    left = {job.id: job.remaining_epochs.expected for job in jobs}
    live, now, ends = list(jobs), 0.0, []
    while live:
        for job in live:
            job.remaining_epochs = Epochs(left[job.id], left[job.id], left[job.id])
        given = chosen.allocate(live, cluster).allocations
        speeds = {}
        for job in live:
            job.current = given[job.id]
            if job.current is not None:
                speeds[job.id] = job.speed(job.current)
        step = min(left[job] / speed for job, speed in speeds.items())
        now += step
        for job, speed in speeds.items():
            left[job] -= step * speed
        ends += [now] * sum(left[job.id] < 1e-9 for job in live)
        live = [job for job in live if left[job.id] >= 1e-9]
    return statistics.mean(ends), now


def measure_sharing(mixes: int) -> Iterator[Row]:
    """Medians over mixes of 3 or 12 jobs, as parts of what `coach` takes."""
    statics = [f"static:{w}x{s}" for w in range(1, 9) for s in range(1, 9)]
    for count, cores in ((3, 16), (12, 48)):
        ratios: dict[tuple[str, str], list[float]] = {}
        for seed in range(mixes):
            cluster = ClusterView(tuple(Node(f"n{i}", Resources(8.5, 99.0)) for i in range(cores // 8)))
            taken = {}
            for name in ("coach", "coach:mean-completion", *statics):
                rng = np.random.default_rng(1000 + seed)
                jobs = [random_job(i, rng, 8) for i in range(count)]
                taken[name] = run_to_the_end(jobs, cluster, policy(name))
            taken["best static"] = tuple(min(taken[name][i] for name in statics) for i in range(2))
            taken["median static"] = tuple(statistics.median(taken[name][i] for name in statics) for i in range(2))
            for name in ("coach:mean-completion", "best static", "median static"):
                for i, measure in enumerate(("mean completion time", "makespan")):
                    ratios.setdefault((name, measure), []).append(taken[name][i] / taken["coach"][i])
        for (name, measure), values in ratios.items():
            yield (
                "sharing",
                f"{count} jobs on {cores // 8} nodes of 8 cores",
                name,
                measure,
                statistics.median(values),
            )


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="decisions timed for each case")
    parser.add_argument("--instances", type=int, default=2000, help="random jobs for each gap")
    parser.add_argument("--mixes", type=int, default=100, help="random mixes of jobs for each sharing row")
    arguments = parser.parse_args()
    collector.look_seldom()  # as in all of `coach`
    rows = [
        *measure_time(arguments.repeats),
        *measure_gap(arguments.instances),
        *measure_sharing(arguments.mixes),
    ]
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "allocation.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((*row[:-1], f"{row[-1]:.6g}") for row in rows)
    text = "\n".join(_markdown(rows))
    (RESULTS / "allocation.md").write_text(text)
    print(text)


def _markdown(rows: Sequence[Row]) -> Iterator[str]:
    yield "# Allocation\n"
    yield "Written by `python -m benchmarks.decisions.allocation`, whose text says what is measured."
    for table in dict.fromkeys(row[0] for row in rows):
        cells = {row[1:4]: row[4] for row in rows if row[0] == table}
        measures = list(dict.fromkeys(key[2] for key in cells))
        yield f"\n## {table}\n"
        yield f"| case | policy | {' | '.join(measures)} |"
        yield "|-|-|" + "-|" * len(measures)
        for case, name in dict.fromkeys(key[:2] for key in cells):
            values = (cells.get((case, name, measure)) for measure in measures)
            yield f"| {case} | {name} | {' | '.join('' if v is None else f'{v:.4g}' for v in values)} |"
    yield ""


if __name__ == "__main__":
    main()
