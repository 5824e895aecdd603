"""What a job's figures show that its rows have not; `coach.report.figures` draws them as PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coach.core.jobs.job import Job
from coach.core.lifecycle import forecast
from coach.report.accounting import money
from coach.report.models import fitted_curve
from coach.service import schemas

#: Points of the fitted curve.
FITTED = 61


def figures(job: Job, records: Sequence[Any], seq: int, now: float) -> schemas.Figures:
    """From a job and its records; `now` in seconds since 1970."""
    last = None if job.ended else forecast.remaining(job).last
    return schemas.Figures(
        seq=seq,
        now=now,
        fitted=[
            schemas.FittedPoint(x=x, value=_finite(value), low=_finite(bounds.low), high=_finite(bounds.high))
            for x, value, bounds in fitted_curve(job, FITTED)
        ],
        end=last if last and math.isfinite(last.high) else None,
        money=money(records, job.name),
    )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
