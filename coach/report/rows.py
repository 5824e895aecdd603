"""Cached rows of many jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coach.core.jobs.job import Job
from coach.report.status import JobRow, job_row


class Rows:
    """Rows of jobs, made anew only after an event: an ETA takes milliseconds that training could use."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Any, float, JobRow]] = {}

    def row(self, job: Job, now: float) -> JobRow:
        """The row at `now`; between events only the ETA changes."""
        fitted = id(job.surface), id(job.curve)
        token = job.running.token if job.running else ""
        seen = (
            job.state,
            job.reason,
            job.message,
            job.phase,
            token,
            len(job.epochs),
            job.ledger.spent,
            job.ledger.reserved,
            job.ledger.budget,
            fitted,
        )
        if job.name not in self._made or self._made[job.name][0] != seen:
            self._made[job.name] = seen, now, job_row(job, now)
        _, at, row = self._made[job.name]
        if row.eta is None or row.eta_low is None or row.eta_high is None:
            return row
        low, expected, high = (max(0.0, eta - (now - at)) for eta in (row.eta_low, row.eta, row.eta_high))
        return replace(row, eta=expected, eta_low=low, eta_high=high)
