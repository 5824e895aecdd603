"""Three different jobs at once on this machine: Coach against every static choice for all three, and against FIFO.

    python -m benchmarks.training.three_jobs [--repeats 3] [--next [RUNS]]

The jobs of jobs/bench on this machine as one node of two cores, submitted together; each repeat has another of them
first in the queue. A worker computes on one core, and the requests say so: two gangs of one worker fit at a time, or
one of two workers. FIFO runs one job after the other with the best static choice so far. Each run is a row of
results/three-jobs/runs.csv and is skipped when it is there.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks import harness
from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob

COMMAND = "python -m benchmarks.training.three_jobs"
FOLDER = harness.RESULTS / "three-jobs"
JOBS = ("lenet", "mlp", "resnet18")
STATICS = ("2x1", "1x1", "1x2", "2x2")
FIFO = "fifo"
OTHERS = ("coach", "coach:mean-completion", FIFO)
KEYS = ("policy", "repeat")
#: A worker of these jobs computes on one core at most, and a server computes little in addition. Two gangs with one
#: worker and one or two servers fit on two cores.
RESOURCES: dict[str, dict[str, Any]] = {
    "scheduler": {"cpu": "20m", "memory": "256Mi"},
    "server": {"cpu": "90m", "memory": "1Gi"},
    "worker": {"cpu": "800m", "memory": "2Gi"},
}


def queue(repeat: int) -> tuple[str, ...]:
    """The jobs in the order in which they are submitted."""
    first = repeat % len(JOBS)
    return JOBS[first:] + JOBS[:first]


def specs(names: Sequence[str]) -> list[TrainingJob]:
    """The jobs of these names, with the requests above."""
    loaded = harness.load(*(f"jobs/bench/{name}.yaml" for name in names))
    return [harness.changed(job, resources=RESOURCES) for job in loaded]


def run(rows: harness.Rows, policy: str, repeat: int) -> dict[str, Any]:
    """One run's row."""
    names = queue(repeat)
    jobs = specs(names)
    choice = policy
    if policy == FIFO:
        choice = min(STATICS, key=lambda one: rows.median("mean_completion_seconds", policy=one))
    if choice in STATICS:
        workers, servers = map(int, choice.split("x"))
        jobs = [harness.static(job, workers, servers) for job in jobs]
    if policy == FIFO:
        finished = [harness.run([job])[0] for job in jobs]
        seconds = list(itertools.accumulate(harness.completion(job) for job in finished))
    else:
        finished = harness.run(jobs, allocator="coach" if policy in STATICS else policy)
        seconds = [harness.completion(job) for job in finished]
    return {
        "policy": policy,
        "repeat": repeat,
        "choice": choice if choice in STATICS else "",
        "mean_completion_seconds": round(statistics.fmean(seconds), 2),
        "makespan_seconds": round(max(seconds), 2),
        **{job: round(value, 2) for job, value in sorted(zip(names, seconds, strict=True))},
        "ended": "/".join(sorted({job.state.value for job in finished})),
        "allocations": " | ".join(f"{name} {_path(job)}" for name, job in zip(names, finished, strict=True)),
    }


def _path(job: Job) -> str:
    """Allocations in their order, with how many epochs each lasted."""
    groups = itertools.groupby(str(epoch.allocation) for epoch in job.epochs)
    return " ".join(f"{at}*{len(list(epochs))}" for at, epochs in groups)


def write(rows: harness.Rows) -> None:
    """Write the table of what there is so far."""
    values = ("mean_completion_seconds", "makespan_seconds", *JOBS)
    table = harness.medians(rows.rows, "policy", values, statistics.fmean)
    fixed = [row["mean_completion_seconds"] for row in table if row["policy"] in STATICS]
    for row in table:
        row["against best static"] = f"{row['mean_completion_seconds'] / min(fixed):.2f}x"
        row["ended"] = "/".join(sorted({r["ended"] for r in rows.of(policy=row["policy"])}))
    choices = ", ".join(dict.fromkeys(row["choice"] for row in rows.of(policy=FIFO)))
    harness.write_table(
        FOLDER / "three-jobs.md",
        "Three different jobs at once: completion times, probing included (means, seconds)",
        COMMAND,
        table,
        f"`runs` is how many repeats a mean is of: each has another job first in the queue. FIFO: one job "
        f"after the other with the best static choice so far ({choices or 'not run yet'}). Of gangs with two workers "
        "one fits at a time: under 2x1 and 2x2 the jobs run one after the other too. "
        "Goal for Coach: a mean shorter than both.",
    )


def main() -> None:
    """Run what is missing."""
    options = harness.piecewise(__doc__).parse_args()
    rows = harness.Rows(FOLDER / "runs.csv", KEYS)
    runs = [(policy, repeat) for repeat in range(options.repeats) for policy in (*STATICS, *OTHERS)]
    harness.measure(rows, runs, partial(run, rows), partial(write, rows), options)


if __name__ == "__main__":
    main()
