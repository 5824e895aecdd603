"""TrainingBudgets become accounts of the service: their terms, their status, and Kubernetes Events for notices.

Level-based like jobs: an object's terms are those of its account, whatever set it before. An object that is deleted
stays until no job needs its account, which is then removed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from coach.controller import status
from coach.core.errors import UserError
from coach.core.jobs.accounts import NOTICES
from coach.core.jobs.events import AccountSet
from coach.handler.accounts import terms
from coach.jobfiles.resource_status import Condition, ConditionType
from coach.jobfiles.training_budget import Forecast, TrainingBudgetStatus
from coach.platforms.kubernetes_api.client import Object
from coach.report.formatting import amount
from coach.report.row_types import AccountRow
from coach.service.operations import Service

FINALIZER = "coach.dev/budget"
#: What moves with every moment: it is written again with something else, or after so many seconds.
MOVING, MOVING_SECONDS = ("forecast", "runsOut", "periodStart"), 60.0


def wanted(found: Object) -> AccountSet:
    """The terms that an object has, not yet at a time. Raises UserError for those that cannot be."""
    spec = found["spec"]
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return terms(
        found["metadata"]["name"],
        float(spec["amount"]),
        spec["currency"],
        spec["period"],
        spec["timeZone"],
        spec.get("parent", ""),
        labels,
    )


async def obey(found: Object, service: Service) -> str:
    """Give the account of an object its terms, or remove it where the object is being deleted; why that cannot be."""
    name = found["metadata"]["name"]
    account = service.handler.accounts.known.get(name)
    try:
        if "deletionTimestamp" in found["metadata"]:
            if account is not None and not account.removed:
                await service.remove_account(name)
            return ""
        new = wanted(found)
        if account is None or account.terms() != replace(new, at=account.set_at):
            await service.set_account(new)
    except UserError as error:
        return str(error)
    return ""


def status_of(found: Object, row: AccountRow | None, problem: str, now: float) -> dict[str, Any]:
    """The status of an object, whose account has `row`. `problem`: why it has not the object's terms."""
    generation = found["metadata"]["generation"]
    deleting = "deletionTimestamp" in found["metadata"]
    reason = ("InUse" if deleting else "Invalid") if problem else "InForce"
    said = problem or "its terms are in force"
    ready = status.condition(found, ConditionType.READY, not problem, reason, said, now, as_now=True)
    if row is None:
        return status.to_json(TrainingBudgetStatus(observed_generation=generation, conditions=[ready]))
    out = row.noticed == NOTICES[-1]
    reason = "Noticed" if out else "MoneyLeft"
    exhausted = status.condition(found, ConditionType.EXHAUSTED, out, reason, _spent(row), now)
    return status.to_json(_of(row, generation, [ready, exhausted]))


def _of(row: AccountRow, generation: int, conditions: list[Condition]) -> TrainingBudgetStatus:
    def money(much: float) -> str:
        return f"{amount(much)} {row.currency}"

    low, expected, high = row.forecast_low, row.forecast, row.forecast_high
    known = low is not None and expected is not None and high is not None
    per = "" if row.period == "ever" else f"/{row.period}"
    return TrainingBudgetStatus(
        observed_generation=generation,
        budget=f"{row.amount:g} {row.currency}{per}",
        spent=money(row.spent),
        reserved=money(row.reserved),
        left=money(max(0.0, row.left)),
        forecast=Forecast(low=money(low or 0.0), expected=money(expected or 0.0), high=money(high or 0.0))
        if known
        else None,
        runs_out=_time(row.runs_out),
        period_start=_time(row.since),
        period_end=_time(row.until),
        noticed=row.noticed,
        jobs=row.jobs,
        waiting=row.waiting,
        conditions=conditions,
    )


def notices(found: Object, made: dict[str, Any], last: dict[str, Any], row: AccountRow, now: float) -> list[Object]:
    """Kubernetes Events for the percentages that `made` has and the status before, `last`, had not."""
    return [
        status.event_of(found, f"Spent{percent}" if percent < NOTICES[-1] else "Exhausted", _said(percent, row), now)
        for percent in NOTICES
        if last.get("noticed", 0) < percent <= made.get("noticed", 0)
        and (percent == NOTICES[-1] or 100 * row.spent >= percent * row.amount)
    ]


def _said(percent: int, row: AccountRow) -> str:
    what = f"{percent} %" if percent < NOTICES[-1] else "what is left covers no further epoch"
    return f"{what}: {_spent(row)}"


def _spent(row: AccountRow) -> str:
    waiting = f", {row.waiting} of {row.jobs} jobs wait" if row.waiting else ""
    return f"{amount(row.spent)} of {row.amount:g} {row.currency} spent, {amount(row.reserved)} reserved{waiting}"


def settled(made: dict[str, Any]) -> dict[str, Any]:
    """A status without what moves with every moment."""
    return {key: value for key, value in made.items() if key not in MOVING}


def _time(iso: str | None) -> str | None:
    return status.time_of(datetime.fromisoformat(iso).timestamp()) if iso else None
