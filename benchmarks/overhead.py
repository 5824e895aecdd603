"""Time outside the functions' training: per epoch whose (w,s) changed or not, and of the whole job.

    python -m benchmarks.overhead [JOB_FILE] [--repeats 3]

Training is from the first forward pass to the last update, plus evaluation; all else is outside.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks import harness


def main() -> None:
    """Run the job a few times, write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", nargs="?", default="jobs/lenet-digits.yaml")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    (spec,) = harness.load(options.job)
    rows: list[dict[str, Any]] = []
    shares = []
    for repeat in range(options.repeats):
        (job,) = harness.run([spec])
        before = job.epochs[0]
        for epoch, seconds in harness.outside(job):
            kind = "(w,s) changed" if epoch.allocation != before.allocation else "(w,s) unchanged"
            rows.append(
                {
                    "repeat": repeat,
                    "epoch": epoch.number,
                    "epochs": kind,
                    "outside_seconds": round(seconds, 4),
                }
            )
            before = epoch
        trained = sum(e.report.train_seconds + e.report.evaluate_seconds for e in job.epochs)
        shares.append(1 - trained / harness.completion(job))
        print(f"repeat {repeat}: {shares[-1]:.1%} outside training", file=sys.stderr, flush=True)
    folder = harness.RESULTS / "overhead"
    harness.write_csv(folder / "epochs.csv", rows)
    table = harness.medians(rows, "epochs", ("outside_seconds",))
    for row in table:
        row["worst"] = max(r["outside_seconds"] for r in rows if r["epochs"] == row["epochs"])
        row["goal"] = "<= 0.4 s" if row["epochs"] == "(w,s) changed" else "<= 0.1 s"
    listed = ", ".join(f"{share:.1%}" for share in shares)
    harness.write_table(
        folder / "table.md",
        f"{spec.name}: seconds outside training, an epoch (medians)",
        "python -m benchmarks.overhead",
        table,
        f"Of the whole completion time, start and end included: {statistics.median(shares):.1%} "
        f"({listed}); goal <= 5 %.",
    )
    print((folder / "table.md").read_text())


if __name__ == "__main__":
    main()
