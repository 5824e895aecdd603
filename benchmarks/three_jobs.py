"""Three different jobs at once on this machine: Coach against every static choice for all three, and against FIFO.

    python -m benchmarks.three_jobs [--repeats 3] [--next]

The jobs of jobs/bench, with requests small enough that the smallest gang of each fits. FIFO runs one job after the
other with the best static choice so far. Each run is a row of results/three-jobs/runs.csv and is skipped when it is
there; `--next` does one run and ends, with exit code 3 when none is left.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from typing import Any

from benchmarks import harness
from coach.core.jobs.job import Job
from coach.core.jobs.spec import TrainingJob

COMMAND = "python -m benchmarks.three_jobs"
FOLDER = harness.RESULTS / "three-jobs"
JOBS = ("lenet", "mlp", "resnet18")
STATICS = ("2x1", "1x1", "1x2", "2x2")
FIFO = "fifo"
OTHERS = ("coach", "coach:mean-completion", FIFO)
KEYS = ("policy", "repeat")
#: On two cores: the smallest gangs of all three together, or one gang of three workers.
RESOURCES: dict[str, dict[str, Any]] = {
    "scheduler": {"cpu": "20m", "memory": "256Mi"},
    "server": {"cpu": "100m", "memory": "1Gi"},
    "worker": {"cpu": "500m", "memory": "2Gi"},
}


def specs() -> list[TrainingJob]:
    """The three jobs."""
    loaded = harness.load(*(f"jobs/bench/{job}.yaml" for job in JOBS))
    return [harness.changed(job, resources=RESOURCES, workers={"min": 1, "max": 3}) for job in loaded]


def run(rows: harness.Rows, policy: str, repeat: int) -> None:
    """Do one run and keep its row."""
    jobs = specs()
    choice = policy
    if policy == FIFO:
        choice = min(STATICS, key=lambda one: _median(rows, one))
    if choice in STATICS:
        workers, servers = map(int, choice.split("x"))
        jobs = [harness.static(job, workers, servers) for job in jobs]
    if policy == FIFO:
        finished = [harness.run([job])[0] for job in jobs]
        seconds = list(itertools.accumulate(harness.completion(job) for job in finished))
    else:
        finished = harness.run(jobs, allocator="coach" if policy in STATICS else policy)
        seconds = [harness.completion(job) for job in finished]
    rows.add(
        {
            "policy": policy,
            "repeat": repeat,
            "choice": choice if choice in STATICS else "",
            "mean_completion_seconds": round(statistics.fmean(seconds), 2),
            "makespan_seconds": round(max(seconds), 2),
            **{job: round(value, 2) for job, value in zip(JOBS, seconds, strict=True)},
            "ended": "/".join(sorted({job.state.value for job in finished})),
            "allocations": " | ".join(_path(job) for job in finished),
        }
    )
    print(rows.rows[-1], file=sys.stderr, flush=True)


def _median(rows: harness.Rows, policy: str) -> float:
    return statistics.median(float(row["mean_completion_seconds"]) for row in rows.of(policy=policy))


def _path(job: Job) -> str:
    """Allocations in their order, with how many epochs each lasted."""
    groups = itertools.groupby(str(epoch.allocation) for epoch in job.epochs)
    return " ".join(f"{at}*{len(list(epochs))}" for at, epochs in groups)


def write(rows: harness.Rows) -> None:
    """Write the table and the figure of what there is so far."""
    values = ("mean_completion_seconds", "makespan_seconds", *JOBS)
    table = harness.medians(rows.rows, "policy", values)
    fixed = [row["mean_completion_seconds"] for row in table if row["policy"] in STATICS]
    for row in table:
        row["against best static"] = f"{row['mean_completion_seconds'] / min(fixed):.2f}x"
        row["ended"] = "/".join(sorted({r["ended"] for r in rows.of(policy=row["policy"])}))
    choices = ", ".join(dict.fromkeys(row["choice"] for row in rows.of(policy=FIFO)))
    harness.write_table(
        FOLDER / "three-jobs.md",
        "Three different jobs at once: completion times, probing included (medians, seconds)",
        COMMAND,
        table,
        f"`runs` is how many repeats a median is of. FIFO: one job after the other, in the order of the columns, with "
        f"the best static choice so far ({choices or 'not run yet'}). Goal for Coach: a mean shorter than both.",
    )
    _figure(rows, table)


def _figure(rows: harness.Rows, table: list[dict[str, Any]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.5))
    for place, row in enumerate(table):
        axis.barh(
            place,
            row["mean_completion_seconds"],
            color="tab:gray" if row["policy"] in STATICS else "tab:blue",
        )
        for job, mark in zip(JOBS, "osD", strict=True):
            axis.plot(row[job], place, mark, color="black", markersize=5, label=job if place == 0 else None)
    axis.set_yticks(range(len(table)), [row["policy"] for row in table])
    axis.invert_yaxis()
    axis.set_xlabel("seconds to the target: mean (bar), each job (marks)")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(FOLDER / "three-jobs.png", dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--next", action="store_true", help="one run; exit code 3 when none is left")
    options = parser.parse_args()
    rows = harness.Rows(FOLDER / "runs.csv", KEYS)
    missing = [
        (policy, repeat)
        for repeat in range(options.repeats)
        for policy in (*STATICS, *OTHERS)
        if not rows.has(policy, repeat)
    ]
    if options.next and not missing:
        raise SystemExit(3)
    for policy, repeat in missing[:1] if options.next else missing:
        run(rows, policy, repeat)
        write(rows)


if __name__ == "__main__":
    main()
