"""`make demo`, and three jobs at once, on ps-lite and on elastic servers, side by side.

    python -m benchmarks.training.demo_servers [--repeats 3] [--next [RUNS]]

Each repeat runs jobs/lenet-digits.yaml and the jobs of jobs/bench together, by both kinds of servers, one after the
other and the other way round in the next repeat. Each run is a row of results/elastic/demo.csv and is skipped when it
is there; results/elastic/demo.md has the medians.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.training import three_jobs
from coach.core.spec.training import ParameterServer

COMMAND = "python -m benchmarks.training.demo_servers"
FOLDER = harness.RESULTS / "elastic"
DEMO, THREE = "make demo", "three jobs at once"
KEYS = ("what", "servers", "repeat")
KINDS = tuple(kind.value for kind in ParameterServer)


def run(what: str, servers: str, repeat: int) -> dict[str, Any]:
    """One run's row: means over its jobs."""
    jobs = harness.load("jobs/lenet-digits.yaml") if what == DEMO else three_jobs.specs(three_jobs.queue(repeat))
    finished = harness.run([harness.changed(job, parameterServer=servers) for job in jobs])
    epochs = [epoch for job in finished for epoch in job.epochs]
    return {
        "what": what,
        "servers": servers,
        "repeat": repeat,
        "mean_completion_seconds": round(statistics.fmean(map(harness.completion, finished)), 2),
        "makespan_seconds": round(max(map(harness.completion, finished)), 2),
        "spent": round(sum(job.money.ledger.spent for job in finished) / 10**9, 6),
        "epochs": len(epochs),
        "outside_seconds": round(sum(seconds for job in finished for _, seconds in harness.outside(job)), 2),
        "ended": "/".join(sorted({job.state.value for job in finished})),
    }


def write(rows: harness.Rows) -> None:
    """Write the table of what there is so far."""
    values = ("mean_completion_seconds", "makespan_seconds", "spent", "epochs", "outside_seconds")
    table = []
    for what in (DEMO, THREE):
        of = {each["servers"]: each for each in harness.medians(rows.of(what=what), "servers", values)}
        for servers, row in of.items():
            theirs = of.get(ParameterServer.PS_LITE.value, row)["mean_completion_seconds"]
            table.append({"what": what, **row, "against ps-lite": f"{row['mean_completion_seconds'] / theirs:.2f}x"})
            table[-1]["ended"] = "/".join(sorted({each["ended"] for each in rows.of(what=what, servers=servers)}))
    note = (
        "`outside_seconds`: between epochs, when a job neither trains nor evaluates. Goal: elastic no slower than\n"
        "ps-lite (1.00x or less) in both; then it is the default."
    )
    harness.write_table(FOLDER / "demo.md", "Both kinds of servers (medians)", COMMAND, table, note)


def main() -> None:
    """Run what is missing."""
    options = harness.piecewise(__doc__).parse_args()
    rows = harness.Rows(FOLDER / "demo.csv", KEYS)
    runs = [
        (what, servers, repeat)
        for repeat in range(options.repeats)
        for what in (DEMO, THREE)
        for servers in (KINDS if repeat % 2 else KINDS[::-1])
    ]
    harness.measure(rows, runs, run, partial(write, rows), options)


if __name__ == "__main__":
    main()
