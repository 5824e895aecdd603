"""Cached rows of many jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from coach.core.cluster import NOTHING
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason, doubt
from coach.core.money import to_amount
from coach.report.formatting import iso
from coach.report.row_types import JobDetails, JobRow
from coach.report.status import job_row

#: Values of a job's metric in its view.
MAX_HISTORY = 24
_FIELDS = tuple(field.name for field in fields(JobRow))


@dataclass(frozen=True, slots=True)
class _Made:
    seen: Any
    at: float
    row: JobRow
    more: dict[str, Any]


class Rows:
    """Rows of jobs, made anew only after an event: an ETA takes milliseconds that training could use."""

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}
        self._views: dict[str, tuple[object, JobDetails]] = {}

    def row(self, job: Job, now: float, *, orphan: bool = False) -> JobRow:
        """The row at `now`; between events only the ETA changes. `orphan`: see `job_row`."""
        made = self._of(job, now, orphan)
        row = made.row
        if row.eta is None or row.eta_low is None or row.eta_high is None:
            return row
        low, expected, high = (max(0.0, eta - (now - made.at)) for eta in (row.eta_low, row.eta, row.eta_high))
        return replace(row, eta=expected, eta_low=low, eta_high=high)

    def view(
        self, job: Job, now: float, *, progress: float | None = None, seq: int = 0, orphan: bool = False
    ) -> JobDetails:
        """The same, with what a page shows in addition."""
        row = self.row(job, now, orphan=orphan)
        made = self._made[job.name]
        seen = made, row.eta, progress, seq
        if job.name not in self._views or self._views[job.name][0] != seen:
            known = {name: getattr(row, name) for name in _FIELDS}
            self._views[job.name] = seen, JobDetails(**known, **made.more, progress=progress, starts_in=None, seq=seq)
        return self._views[job.name][1]

    def _of(self, job: Job, now: float, orphan: bool) -> _Made:
        fitted = id(job.models.surface), id(job.models.curve)
        token = job.attempts.running.token if job.attempts.running else ""
        seen = (
            job.state,
            job.reason,
            job.message,
            job.phase,
            token,
            len(job.epochs),
            job.money.ledger.spent,
            job.money.ledger.reserved,
            job.money.ledger.budget,
            fitted,
            job.money.billed_resources,
            job.spec.priority,
            orphan,
        )
        made = self._made.get(job.name)
        if made is None or made.seen != seen:
            row = job_row(job, now, orphan=orphan)
            made = self._made[job.name] = _Made(seen, now, row, _more(job, row, now))
        return made


def _more(job: Job, row: JobRow, now: float) -> dict[str, Any]:
    values = (epoch.report.value(job.metric) for epoch in job.full_epochs[-MAX_HISTORY:])
    left, held = job.money.ledger.left, job.money.billed_resources
    done_at, low, high = (
        iso(now + seconds) if seconds is not None else None for seconds in (row.eta, row.eta_low, row.eta_high)
    )
    return {
        "labels": job.job_file.metadata.labels,
        "reason_text": doubt(row.message) or Reason(row.reason).words,
        "left": None if left is None else to_amount(left),
        "rate": None if held == NOTHING or job.ended else job.billed_rate * 3600,
        "done_at": done_at,
        "done_at_low": low,
        "done_at_high": high,
        "history": [value for value in values if value is not None and math.isfinite(value)],
    }
