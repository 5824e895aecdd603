"""CSV files of jobs: the columns of the thesis's evaluation, and a row a job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coach.core.jobs.job import Job
from coach.report.accounting import ledger, pauses
from coach.report.row_types import EpochRow, ForecastRow, JobRow, LedgerRow, as_csv
from coach.report.status import epoch_rows, forecast_rows


def export(jobs: Sequence[tuple[JobRow, Job, Sequence[Any]]], folder: Path) -> list[Path]:
    """Write summary.csv (a row a job), epochs.csv, forecasts.csv and ledger.csv of jobs, each with its row and records.

    The columns are those of `coach.report.row_types`; what is not known is empty. Returns the paths.
    Raises OSError.
    """
    epochs = [row for _, job, records in jobs for row in epoch_rows(job, pauses(records, job.name))]
    tables = {
        "summary.csv": as_csv(JobRow, (row for row, _, _ in jobs)),
        "epochs.csv": as_csv(EpochRow, epochs),
        "forecasts.csv": as_csv(ForecastRow, (row for _, job, _ in jobs for row in forecast_rows(job))),
        "ledger.csv": as_csv(LedgerRow, (row for _, job, records in jobs for row in ledger(records, job.name))),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return [write(folder / name, text.encode()) for name, text in tables.items()]


def write(path: Path, content: bytes) -> Path:
    """Write a file atomically: a reader finds the old or the new one, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
