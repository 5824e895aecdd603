"""The data of a job's figures; `coach.report.figures` draws the same as PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job
from coach.core.lifecycle import forecast
from coach.core.money import to_amount
from coach.report.accounting import attempts, money
from coach.report.models import fitted_curve, speed_rows
from coach.service import schemas

#: Points of the fitted curve.
FITTED = 61


def figures(job: Job, records: Sequence[Any], seq: int, now: float) -> schemas.Figures:
    """From a job and its records; `now` in seconds since 1970."""
    budget = job.ledger.budget
    return schemas.Figures(
        seq=seq,
        curve=_curve(job),
        allocation=[
            schemas.Span(
                epoch=job.ordinal(one.order.number, one.order.kind),
                mini=one.order.kind is EpochKind.PROBE,
                workers=one.order.allocation.workers,
                servers=one.order.allocation.servers,
                begin=one.order.at,
                end=one.end if one.end is not None else max(one.order.at, job.ended_at or now),
                counted=one.counted,
                running=one.end is None and not job.ended,
            )
            for one in attempts(records, job.name)
        ],
        money=money(records, job.name),
        budget=None if budget is None else to_amount(budget),
        currency=job.price_book.currency,
        speed=[schemas.Speed.model_validate(row) for row in speed_rows(job)],
    )


def _curve(job: Job) -> schemas.Curve:
    last = None if job.ended else forecast.expected_last(job)
    return schemas.Curve(
        metric=job.metric,
        target=job.target,
        points=[
            schemas.CurvePoint(
                epoch=one.ordinal,
                x=one.epochs_trained,
                mini=one.kind is EpochKind.PROBE,
                loss=_finite(one.report.loss),
                accuracy=_finite(one.report.accuracy),
                value=_finite(one.report.value(job.metric)),
            )
            for one in job.evaluated_epochs
        ],
        fitted=_fitted(job),
        end=last if last and math.isfinite(last.high) else None,
    )


def _fitted(job: Job) -> list[schemas.FittedPoint]:
    return [
        schemas.FittedPoint(x=x, value=_finite(value), low=_finite(bounds.low), high=_finite(bounds.high))
        for x, value, bounds in fitted_curve(job, FITTED)
    ]


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
