"""The status of a TrainingJob, made of its job."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from coach.core.estimation.interval import Interval
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import RESUMABLE, Reason, State
from coach.core.lifecycle import forecast
from coach.core.spec.types import SpecModel
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.resource_status import (
    Condition,
    ConditionType,
    ExpectedStart,
    Metric,
    TrainerStatus,
    TrainingJobStatus,
)
from coach.platforms.kubernetes_api.client import Object
from coach.report import formatting
from coach.report.row_types import JobRow

#: States and reasons whose Events are warnings.
_WARNINGS = frozenset(
    {
        State.FAILED,
        State.TARGET_UNREACHABLE,
        State.BUDGET_EXHAUSTED,
        Reason.BACKING_OFF,
        Reason.IMAGE_UNAVAILABLE,
        Reason.QUOTA_EXCEEDED,
        Reason.PODS_DELAYED,
        Reason.MISCONFIGURED,
    }
)
#: Metrics of a program that a status shows, its target's first.
_MOST_METRICS = 16
#: The longest message that a condition may have is far longer; this is what a terminal shows well.
_LONGEST = 1000


def of_job(found: Object, job: Job, row: JobRow, now: float, start: Interval | None) -> dict[str, Any]:
    """The status of an object whose job the service has. Times of its present status are kept.

    `start`: in how many seconds the job is expected to start, of one that waits.
    """
    status = TrainingJobStatus(
        observed_generation=found["metadata"]["generation"],
        state=State(row.state),
        reason=row.reason,
        message=row.message[:_LONGEST],
        target=formatting.goal(row.metric, row.target),
        progress=_percent(job),
        epochs=row.epoch,
        loss=_rounded(row.loss),
        accuracy=_rounded(row.accuracy),
        workers=row.workers,
        servers=row.servers,
        spent=_money(row.spent, row.currency),
        reserved=_money(row.reserved, row.currency),
        budget=row.account or "unlimited"
        if row.budget is None
        else f"{formatting.plain_amount(row.budget)} {row.currency}",
        eta=None if row.eta is None else time_of(now + row.eta),
        expected_start=_expected_start(start, found.get("status", {}), now),
        start_time=time_of(job.progress.started_at),
        completion_time=time_of(job.progress.ended_at),
        trainer_status=_progress(job, row),
        conditions=_conditions(found, job, row, now),
    )
    return to_json(status)


def _expected_start(start: Interval | None, before: dict[str, Any], now: float) -> ExpectedStart | None:
    """What was said before, as long as the expected time is within it: a status is not written for each second."""
    if start is None:
        return None
    low, expected, high = (time_of(now + seconds) or "" for seconds in (start.low, start.expected, start.high))
    said = before.get("expectedStart")
    if said and said["earliest"] <= expected <= said["latest"]:
        return ExpectedStart.model_validate(said)
    return ExpectedStart(earliest=low, expected=expected, latest=high)


def without_job(found: Object, mistake: str, now: float) -> dict[str, Any]:
    """The status of an object that is no job, by a mistake, or that was suspended before its job began."""
    state, kind, reason, message = State.FAILED, ConditionType.FAILED, "Invalid", mistake
    if not mistake:
        state, kind, reason = State.WAITING, ConditionType.SUSPENDED, Reason.SUSPENDED.value
        message = "spec.suspend is true"
    status = TrainingJobStatus(
        observed_generation=found["metadata"]["generation"],
        state=state,
        reason=reason,
        message=message[:_LONGEST],
        conditions=[condition(found, kind, True, reason, message, now)],
    )
    return to_json(status)


def mistakes(error: JobFileError) -> str:
    """The mistakes of an object, in one line."""
    return "; ".join(f"{one.field}: {one.problem} ({one.seen}) - {one.right}" for one in error.problems)


def event(found: dict[str, Any], status: dict[str, Any], now: float) -> dict[str, Any]:
    """A Kubernetes Event of a change of state, for `kubectl describe` and `kubectl events`."""
    failed = status["state"] in _WARNINGS or status.get("reason") in _WARNINGS
    said = f"{status['state']}: {status.get('message') or status.get('reason')}"
    return event_of(found, status.get("reason") or status["state"], said, now, warning=failed)


def event_of(found: dict[str, Any], reason: str, message: str, now: float, *, warning: bool = True) -> dict[str, Any]:
    """A Kubernetes Event about an object."""
    about = {key: found[key] for key in ("apiVersion", "kind")}
    about |= {key: found["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{about['name'][:200]}.", "namespace": about["namespace"]},
        "involvedObject": about,
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": message,
        "source": {"component": "coach"},
        "firstTimestamp": time_of(now),
        "lastTimestamp": time_of(now),
        "count": 1,
    }


def _conditions(found: Object, job: Job, row: JobRow, now: float) -> list[Condition]:
    ready = bool(job.gang.pods) and all(held.ready for held in job.gang.pods.values())
    failed = job.ended and job.state is not State.SUCCEEDED
    holds = {
        ConditionType.SUSPENDED: job.reason in RESUMABLE,
        ConditionType.PODS_READY: ready,
        ConditionType.COMPLETE: job.state is State.SUCCEEDED,
        ConditionType.FAILED: failed,
    }
    # An end that is no failure of the job is named by its state: BudgetExhausted, TargetUnreachable, Cancelled.
    ended = job.state.value if failed and job.state is not State.FAILED else row.reason
    reasons = dict.fromkeys(holds, row.reason) | {ConditionType.FAILED: ended}
    return [condition(found, kind, value, reasons[kind], row.message, now) for kind, value in holds.items()]


def condition(  # noqa: PLR0917
    found: Object,
    kind: ConditionType,
    holds: bool,
    reason: str,
    message: str,
    now: float,
    *,
    as_now: bool = False,
) -> Condition:
    """A condition; reason and message are those of its last change, as in Kubernetes's conventions, or as now."""
    status, since = "True" if holds else "False", time_of(now) or ""
    before = found.get("status", {}).get("conditions") or ()
    old = next((one for one in before if one.get("type") == kind), None)
    if old and old.get("status") == status:
        since = old["lastTransitionTime"]
        if not as_now:
            reason, message = old["reason"], old["message"]
    return Condition(
        type=kind.value,
        status=status,  # type: ignore[arg-type]
        observed_generation=found["metadata"]["generation"],
        last_transition_time=since,
        reason=reason,
        message=message[:_LONGEST],
    )


def _share(job: Job) -> float | None:
    """Part of the predicted training that is done, from 0 to 1; None without a prediction."""
    if job.state is State.SUCCEEDED:
        return 1.0
    remaining = forecast.remaining(job)
    last = remaining.last
    if job.ended or (job.spec.target is not None and (last is None or last.expected <= 0)):
        return None
    left = remaining.epochs.expected
    return job.epochs_trained / (job.epochs_trained + left) if job.epochs_trained + left > 0 else None


def _percent(job: Job) -> str | None:
    share = _share(job)
    return None if share is None else f"{math.floor(share * 100)}%"


def _progress(job: Job, row: JobRow) -> TrainerStatus | None:
    share = _share(job)
    last = job.last_evaluated
    if last is None:
        return None
    own = sorted(last.report.metrics.items(), key=lambda one: one[0] != row.metric)
    metrics = [
        Metric(name=name, value=f"{value:g}")
        for name, value in (("loss", row.loss), ("accuracy", row.accuracy), *own)
        if value is not None
    ][:_MOST_METRICS]
    return TrainerStatus(
        progress_percentage=None if share is None else math.floor(share * 100),
        estimated_remaining_seconds=None if row.eta is None else round(row.eta),
        metrics=metrics,
        last_updated_time=time_of(last.ended_at),
    )


def _rounded(value: float | None) -> float | None:
    """As a column shows it; the whole number is in the journal."""
    return None if value is None else float(f"{value:.4g}")


def _money(amount: float, currency: str) -> str:
    return f"{formatting.amount(amount)} {currency}"


def time_of(at: float | None) -> str | None:
    """An instant as Kubernetes writes it."""
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_json(status: SpecModel) -> dict[str, Any]:
    """A status as the API server takes it."""
    made: dict[str, Any] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return made
