"""One job under Coach and at every static (workers, servers), interleaved: is the target soft, is Coach's choice good?

    python -m benchmarks.static_grid [JOB_FILE] [--repeats 3]

Writes results/static-grid/. Repeats that are in runs.csv already are not run again, so it can be stopped and resumed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from typing import Any

from benchmarks import harness
from coach.core.budget import to_amount
from coach.core.jobs.actions import EpochKind

COLUMNS = ("epochs", "completion_seconds", "training_seconds", "probing_share", "cost", "loss", "accuracy")


def main() -> None:
    """Run what is missing, write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", nargs="?", default="jobs/lenet-digits.yaml")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    (job,) = harness.load(options.job)
    folder = harness.RESULTS / "static-grid"
    kept = folder / "runs.csv"
    rows: list[dict[str, Any]] = list(csv.DictReader(kept.open())) if kept.exists() else []
    done = {(row["policy"], int(row["repeat"])) for row in rows}
    limits = job.spec.limits
    statics = [
        (w, s)
        for w in range(limits.smallest.workers, limits.largest.workers + 1)
        for s in range(limits.smallest.servers, limits.largest.servers + 1)
    ]
    for repeat in range(options.repeats):
        for name, spec in [
            ("coach", job),
            *((f"static:{w}x{s}", harness.static(job, w, s)) for w, s in statics),
        ]:
            if (name, repeat) in done:
                continue
            (finished,) = harness.run([spec])
            last = finished.epochs[-1]
            rows.append(
                {
                    "policy": name,
                    "repeat": repeat,
                    "state": finished.state.value,
                    "epochs": len(finished.real_epochs),
                    "completion_seconds": round(harness.completion(finished), 2),
                    "training_seconds": round(sum(e.report.train_seconds for e in finished.epochs), 2),
                    "probing_share": round(
                        sum(e.seconds for e in finished.epochs if e.kind is EpochKind.MINI)
                        / harness.completion(finished),
                        3,
                    ),
                    "cost": round(to_amount(finished.ledger.spent), 6),
                    "loss": round(last.report.loss, 4),
                    "accuracy": round(last.report.accuracy, 4),
                    "allocations": " ".join(str(e.allocation) for e in finished.epochs),
                }
            )
            print(name, rows[-1], file=sys.stderr, flush=True)
            harness.write_csv(kept, rows)
    table = harness.medians(rows, "policy", COLUMNS)
    best = min(row["completion_seconds"] for row in table if row["policy"] != "coach")
    for row in table:
        row["against best static"] = f"{row['completion_seconds'] / best:.2f}x"
    harness.write_table(
        folder / "table.md",
        f"{job.name}: Coach and every static choice (medians)",
        "python -m benchmarks.static_grid",
        table,
        f"Target: {job.spec.target.model_dump(exclude_none=True)}. Coach's completion includes its probes.",
    )
    print((folder / "table.md").read_text())


if __name__ == "__main__":
    main()
