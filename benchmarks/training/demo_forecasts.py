"""What `make demo` was told of its end, at 10, 50 and 90 % of its time, over ten runs.

    python -m benchmarks.training.demo_forecasts [--repeats 10] [--next [RUNS]]

Each run is three rows of results/demo/forecasts.csv, as `coach export` writes them, and is skipped when it is there;
results/demo/forecasts.md says how many of the intervals hold the seconds that the run took. They are intervals of 80 %:
of ten runs eight. Before the third epoch nothing is predicted, which is "too early". Runs that ended at the demo's time
limit, on a machine with other work, are in the file and not in the table. `load`: the machine's load average of fifteen
minutes when a run ended.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import harness
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import State
from coach.report.status import SHARES, forecast_rows

COMMAND = "python -m benchmarks.training.demo_forecasts"
FOLDER = harness.RESULTS / "demo"
COLUMNS = ("share", "epoch", "seconds", "seconds_low", "seconds_high", "actual_seconds")


#: Of the runs that found a mistake; they are not in the table, as it was made with them in sight.
BEFORE = """Seven runs before these ([their rows](forecasts-before.csv)) were all inside at 50 % of their time,
and 3 of 7 at 90 %. Where the fewest possible epochs were left, the
interval began after the end. That was mended; these runs are new."""


def told(job: Job, repeat: int) -> list[dict[str, Any]]:
    """The rows of a run: what it was told, and how many epochs it had."""
    rows = [asdict(row) for row in forecast_rows(job)]
    return [
        {
            "repeat": repeat,
            "ended": job.state.value,
            "epochs": len(job.epochs),
            **{name: row[name] for name in COLUMNS},
            "load": f"{os.getloadavg()[2]:.1f}",
        }
        for row in rows
    ]


def table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each share: how many were told something, and how many of these intervals hold."""
    lines = []
    for share in SHARES:
        of = [row for row in rows if float(row["share"]) == share]
        known = [[float(row[name]) for name in COLUMNS[2:]] for row in of if row["seconds"] not in ("", "None", None)]
        if not known:
            empty = dict.fromkeys(("inside", "predicted / taken, median", "upper / lower bound, median"), "")
            lines.append({"of its time": f"{share:.0%}", "runs": len(of), "too early": len(of), **empty})
            continue
        inside = sum(low <= took <= high for _, low, high, took in known)
        lines.append(
            {
                "of its time": f"{share:.0%}",
                "runs": len(of),
                "too early": len(of) - len(known),
                "inside": f"{inside} of {len(known)}",
                "predicted / taken, median": f"{statistics.median(one[0] / one[3] for one in known):.2f}",
                "upper / lower bound, median": f"{statistics.median(one[2] / one[1] for one in known):.1f}",
            }
        )
    return lines


def write(rows: Sequence[dict[str, Any]]) -> None:
    """Write the table of what there is so far."""
    ended = [row for row in rows if row["ended"] == State.SUCCEEDED.value]
    taken = [float(row["actual_seconds"]) for row in ended if float(row["share"]) == SHARES[0]]
    late = len({row["repeat"] for row in rows}) - len(taken)
    known = [float(row["load"]) for row in ended if row["load"]]
    loads = f"{min(known):.1f} to {max(known):.1f}" if known else "not known"
    note = (
        f"The runs took {min(taken):.0f} to {max(taken):.0f} s, median {statistics.median(taken):.0f} s; "
        f"{late} ended at the demo's time limit. Load average: {loads}. Written on {time.strftime('%Y-%m-%d')}."
        f"\n\n{BEFORE}"
    )
    harness.write_table(FOLDER / "forecasts.md", "What the demo was told of its end", COMMAND, table(ended), note)


def main() -> None:
    """Run what is missing."""
    parser = harness.piecewise(__doc__, repeats=10)
    options = parser.parse_args()
    path = FOLDER / "forecasts.csv"
    rows = harness.read_csv(path)
    done = {int(row["repeat"]) for row in rows}
    missing = [repeat for repeat in range(options.repeats) if repeat not in done]
    for repeat in [] if options.tables else missing[: options.next or len(missing)]:
        [job] = harness.run(harness.load("jobs/lenet-digits.yaml"))
        rows += told(job, repeat)
        harness.write_csv(path, rows)
        print(f"run {repeat}: {job.state.value} after {job.progress.run_seconds:.0f} s", flush=True)
    if rows:
        write(rows)


if __name__ == "__main__":
    main()
