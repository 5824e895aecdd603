"""One job under Coach and at every static (workers, servers): is the target soft, is Coach's choice good?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks import harness
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.money import to_amount
from coach.core.spec.job import TrainingJob

COLUMNS = ("epochs", "completion_seconds", "training_seconds", "probing_share", "cost", "loss", "accuracy")


def points(job: TrainingJob) -> list[tuple[int, int]]:
    """Every (workers, servers) that the job file allows."""
    least, most = job.spec.limits
    return [(w, s) for w in range(least.workers, most.workers + 1) for s in range(least.servers, most.servers + 1)]


def row_of(policy: str, repeat: int, finished: Job) -> dict[str, Any]:
    """What one run came to. `epochs` are the real ones; completion includes probing.

    Probing is from a probe's order to its answer; `probing_and_starts_share` has the starts of its functions too, but
    those of the first, which any first epoch needs.
    """
    last = finished.epochs[-1]
    probes = [epoch for epoch in finished.epochs if epoch.kind is EpochKind.PROBE]
    probing = sum(epoch.seconds for epoch in probes)
    starts = sum(
        epoch.started_at - before.ended_at
        for before, epoch in itertools.pairwise(finished.epochs)
        if epoch.kind is EpochKind.PROBE
    )
    return {
        "policy": policy,
        "repeat": repeat,
        "state": finished.state.value,
        "epochs": len(finished.full_epochs),
        "completion_seconds": round(harness.completion(finished), 2),
        "training_seconds": round(sum(epoch.report.train_seconds for epoch in finished.epochs), 2),
        "probing_share": round(probing / harness.completion(finished), 3),
        "probing_and_starts_share": round((probing + starts) / harness.completion(finished), 3),
        "cost": round(to_amount(finished.money.ledger.spent), 6),
        "loss": round(last.report.loss, 4),
        "accuracy": round(last.report.accuracy or 0.0, 4),
        "allocations": " ".join(str(epoch.allocation) for epoch in finished.epochs),
    }


def write(job: TrainingJob, rows: Sequence[dict[str, Any]], command: str) -> None:
    """Write results/one-machine/static-grid.{csv,md}."""
    folder = harness.RESULTS / "one-machine"
    harness.write_csv(folder / "static-grid.csv", rows)
    table = harness.medians(rows, "policy", COLUMNS)
    best = min(row["completion_seconds"] for row in table if row["policy"] != "coach")
    for row in table:
        row["against best static"] = f"{row['completion_seconds'] / best:.2f}x"
    target = job.spec.target
    words = f"accuracy {target.accuracy}" if target.loss is None else f"loss {target.loss}"
    harness.write_table(
        folder / "static-grid.md",
        f"{job.name}: Coach and every static choice (medians)",
        command,
        table,
        f"Target: {words}, {target.epochs_in_a_row} epochs in a row. Coach's completion includes its probes.",
    )
