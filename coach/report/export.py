"""CSV files of jobs: the columns of the thesis's evaluation, and a row a job."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coach.core.jobs.job import Job
from coach.report.accounting import LEDGER_COLUMNS, ledger, pauses
from coach.report.status import (
    EPOCH_COLUMNS,
    FORECAST_COLUMNS,
    JOB_COLUMNS,
    JobRow,
    epoch_rows,
    forecast_rows,
)


def export(jobs: Sequence[tuple[JobRow, Job, Sequence[Any]]], folder: Path) -> list[Path]:
    """Write summary.csv (a row a job), epochs.csv, forecasts.csv and ledger.csv of jobs, each with its row and records.

    The columns are those of `coach.report.status` and `replay`; what is not known is empty. Returns the paths.
    Raises OSError.
    """
    epochs = [asdict(row) for _, job, records in jobs for row in epoch_rows(job, pauses(records))]
    forecasts = [asdict(row) for _, job, _ in jobs for row in forecast_rows(job)]
    entries = [asdict(row) for _, job, records in jobs for row in ledger(records, job.name)]
    tables = {
        "summary.csv": as_csv(JOB_COLUMNS, [asdict(row) for row, _, _ in jobs]),
        "epochs.csv": as_csv(EPOCH_COLUMNS, epochs),
        "forecasts.csv": as_csv(FORECAST_COLUMNS, forecasts),
        "ledger.csv": as_csv(LEDGER_COLUMNS, entries),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return [write(folder / name, text.encode()) for name, text in tables.items()]


def as_csv(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    """CSV with a header; other fields of the rows are left out, what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(path: Path, content: bytes) -> Path:
    """Write a file atomically: a reader finds the old or the new one, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
