"""Time outside the functions' training: per epoch whose (w,s) changed or not, and of the whole job.

Training is from the first forward pass to the last update, plus evaluation; all else is outside.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import harness
from coach.core.jobs.job import Job

CHANGED, UNCHANGED = "(w,s) changed", "(w,s) unchanged"
GOALS = {CHANGED: "<= 0.4 s", UNCHANGED: "<= 0.1 s"}


def rows_of(job: Job, repeat: int) -> list[dict[str, Any]]:
    """A row for each epoch but the first."""
    rows = []
    before = job.epochs[0]
    for epoch, seconds in harness.outside(job):
        kind = CHANGED if epoch.allocation != before.allocation else UNCHANGED
        rows.append({"repeat": repeat, "epoch": epoch.number, "epochs": kind, "outside_seconds": round(seconds, 4)})
        before = epoch
    return rows


def share_of(job: Job) -> float:
    """Share of the completion time, from the submission to the end, in which nothing was trained or evaluated."""
    trained = sum(epoch.report.train_seconds + epoch.report.evaluate_seconds for epoch in job.epochs)
    return 1 - trained / harness.completion(job)


def write(name: str, rows: Sequence[dict[str, Any]], shares: Sequence[float], command: str) -> None:
    """Write results/one-machine/overhead.{csv,md}."""
    folder = harness.RESULTS / "one-machine"
    harness.write_csv(folder / "overhead.csv", rows)
    table = harness.medians(rows, "epochs", ("outside_seconds",))
    for row in table:
        row["worst"] = max(r["outside_seconds"] for r in rows if r["epochs"] == row["epochs"])
        row["goal"] = GOALS[row["epochs"]]
    listed = ", ".join(f"{share:.1%}" for share in shares)
    harness.write_table(
        folder / "overhead.md",
        f"{name}: seconds outside training, an epoch (medians)",
        command,
        table,
        f"Of the whole completion time, start and end included: {statistics.median(shares):.1%} "
        f"({listed}); goal <= 5 %.",
    )
