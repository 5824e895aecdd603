"""How often a waiting job starts within the 80 % interval that it was shown, and what its time limit would have said.

    python -m benchmarks.waits [JOBS]      # 200 in each row, ten minutes; results/waits/waits.md

Jobs with the shipped speeds of seven networks, on hyperbolas to their targets in 5 to 40 epochs, arrive as a Poisson
process at four nodes of eight cores. *New* jobs are known from their own epochs alone; of *known* ones the epochs that
earlier jobs took are given. A question is asked of each job that waits: when it is submitted, and again whenever half
of what was expected is over, a minute later at the least. The answer is the instant of its first pods in the same run.
By *time limits*: the same queue with each job's limit as its length, as Slurm plans; a limit is twice to six times what
the job takes alone.

That running jobs keep their pods, and what their errors have in common, was chosen on 60 jobs of seed 1; these are of
seed 2.
"""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coach.core.cluster import Node, Resources
from coach.core.lifecycle import start_forecast
from coach.core.lifecycle.cluster_state import queue_key
from coach.core.lifecycle.start_forecast import expected_starts
from coach.core.policies.coach import CoachPolicy
from coach.core.spec.job import TrainingJob
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.dynamics.synthetic import assumed, job_file
from coach.simulation.reducer_simulation import Driver

RESULT = Path("results/waits/waits.md")
NODES = tuple(Node(f"node-{number}", Resources(8.0, 64.0)) for number in range(4))
EPOCHS = (5.0, 8.0, 12.0, 20.0, 40.0)
EPOCH_SECONDS = 60.0
#: Mean seconds between two arrivals: about a third and about two thirds of the jobs wait.
GAPS = (110.0, 95.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a job: when, and what was said (seconds from then); `limits`: by time limits."""

    job: str
    at: float
    said: tuple[float, float, float] | None
    limits: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table."""

    known: bool
    gap: float
    jobs: int
    seed: int

    @property
    def name(self) -> str:
        """Its words."""
        return f"{'known' if self.known else 'new'} jobs, every {self.gap:g} s"


def run(cell: Cell) -> tuple[Cell, list[tuple[Asked, float]]]:
    """The questions of one cell, each with the seconds that it took in truth."""
    rng = np.random.default_rng(cell.seed)
    driver = Driver(NODES, CoachPolicy(), seed=cell.seed)
    models, at = list(shipped().values()), 0.0
    for number in range(cell.jobs):
        at += float(rng.exponential(cell.gap))
        epochs, name = float(rng.choice(EPOCHS)), f"job-{number}"
        document = job_file(name, 3)
        alone = epochs * EPOCH_SECONDS
        document["spec"] |= {"target": {"loss": 0.3}, "timeLimit": f"{alone * rng.uniform(2, 6):.0f}s"}
        shape = models[int(rng.integers(len(models)))]
        dynamics = assumed(TrainingJob.from_json(document), shape, EPOCH_SECONDS, epochs)
        driver.submit_at(
            at, name, document, dynamics, known_epochs=epochs * rng.uniform(0.8, 1.2) if cell.known else None
        )
    asked, starts, again = list[Asked](), dict[str, float](), dict[str, float]()
    while (driver._submissions or driver.reducer.jobs) and driver.step():
        jobs = driver.reducer.jobs
        due = list[str]()
        for name, job in jobs.items():
            if job.gang.pods:
                starts.setdefault(name, driver.now)
            elif name not in starts and not job.ended and driver.now >= again.get(name, 0.0):
                due.append(name)
        if not due:
            continue
        found = expected_starts(jobs.values(), NODES, driver.now)
        limits = _by_limits(driver)
        for name in due:
            said = found.get(name)
            middle = said.expected if said else 600.0
            again[name] = driver.now + max(60.0, middle / 2)
            asked.append(Asked(name, driver.now, (said.low, said.expected, said.high) if said else None, limits[name]))
    return cell, [(one, starts[one.job] - one.at) for one in asked if one.job in starts]


def _by_limits(driver: Driver) -> dict[str, float]:
    live = sorted((job for job in driver.reducer.jobs.values() if not job.ended), key=queue_key)
    queue = start_forecast._queue_of(live, NODES)
    left = [max(0.0, (job.spec.time_limit or 0.0) - job.progress.run_seconds) for job in live]
    waiting = [live[number].name for number, _ in queue.waiting]
    return dict(zip(waiting, start_forecast._starts(queue, left), strict=True))


def row(cell: Cell, found: list[tuple[Asked, float]]) -> str:
    """One line of the table."""
    said = [(one.said, took) for one, took in found if one.said is not None]
    inside = sum(low <= took <= high for (low, _, high), took in said)
    late = sum(took > high for (_, _, high), took in said)
    ours = statistics.median(abs(middle - took) for (_, middle, _), took in said)
    limits = statistics.median(abs(one.limits - took) for one, took in found)
    took = statistics.median(took for _, took in found)
    waited = len({one.job for one, _ in found})
    share = f"{100 * inside / len(said):.1f} % ({100 * late / len(said):.1f} % later)"
    return (
        f"| {cell.name} | {waited} of {cell.jobs} | {len(found)} | {len(found) - len(said)} | {share} "
        f"| {took:.0f} | {ours:.0f} | {limits:.0f} |"
    )


def main() -> None:
    """Run all cells and write the page."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    cells = [Cell(known, gap, jobs, seed) for known in (False, True) for gap in GAPS for seed in (2,)]
    with ProcessPoolExecutor(2) as pool:
        lines = [row(*one) for one in pool.map(run, cells)]
    page = [
        "# When does a waiting job start?",
        "",
        f"Written by `python -m benchmarks.waits {jobs}`; its docstring says what is asked.",
        "",
        "| jobs | waited | questions | not known | within the 80 % interval | seconds to the start, median "
        "| median error of the expected start, s | by time limits, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *lines,
    ]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))


if __name__ == "__main__":
    main()
