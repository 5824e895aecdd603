"""TrainingSearches become searches of the service: begun, given more money, stopped; and their status.

A search knows its object by a label of its trials, so an object that was deleted and applied again is another search.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coach.controller import status
from coach.core.errors import UserError
from coach.core.money import to_money
from coach.handler.search.definition import Definition, known
from coach.handler.search.standing import SearchRow
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.resource_status import ConditionType
from coach.jobfiles.search_space import written
from coach.jobfiles.training_search import TrainingSearchStatus
from coach.platforms.kubernetes_api.client import Object
from coach.report.formatting import amount
from coach.service.operations import Service

FINALIZER = "coach.dev/search"
UID = "coach.dev/search-uid"


def of(found: Object, service: Service) -> Definition | None:
    """The search of an object; None where it has not begun."""
    uid = found["metadata"]["uid"]
    return next((one for one in known(service.home) if one.base.metadata.labels.get(UID) == uid), None)


async def obey(found: Object, service: Service, base: Path) -> str:
    """Begin the search of an object, raise its budget, or stop it where that is deleted; why that cannot be.

    `base`: the folder of relative paths.
    """
    metadata, spec, definition = found["metadata"], found["spec"], of(found, service)
    searches = service.searches
    try:
        if "deletionTimestamp" in metadata:
            if definition is None:
                return ""
            if not definition.stopped:
                searches.stop(definition.name, now=True)
            return "" if searches.standing(definition).over else "its jobs are being stopped"
        if definition is None:
            labels = {**(metadata.get("labels") or {}), UID: metadata["uid"]}
            document = {key: found[key] for key in ("apiVersion", "kind", "spec")}
            document["metadata"] = {"name": metadata["name"], "labels": labels}
            await searches.start(base / f"{metadata['name']}.yaml", json.dumps(document).encode())
        elif service.handler.accounts.known[definition.name].amount < to_money(float(spec["budget"]["amount"])):
            await searches.resume(definition.name, float(spec["budget"]["amount"]))
    except JobFileError as error:
        return status.mistakes(error)
    except UserError as error:
        return str(error)
    return ""


def status_of(found: Object, row: SearchRow | None, problem: str, now: float) -> dict[str, Any]:
    """The status of an object, whose search has `row`. `problem`: why it cannot be searched so."""
    generation = found["metadata"]["generation"]
    reason, said = ("Invalid", problem) if problem else ("Searching", "it can be searched so")
    ready = status.condition(found, ConditionType.READY, not problem, reason, said, now, as_now=True)
    if row is None:
        return status.to_json(TrainingSearchStatus(observed_generation=generation, conditions=[ready]))
    over = not row.running
    said = row.outcome or "trials go on"
    complete = status.condition(found, ConditionType.COMPLETE, over, "Ended" if over else "Searching", said, now)
    finals = "" if row.final_mean is None else f", {row.final_mean:.4g} with {len(row.final_values)} other seeds"
    made = TrainingSearchStatus(
        observed_generation=generation,
        trials=row.trials,
        best=row.job,
        value=None if row.value is None else f"{row.metric} {row.value:.4g}{finals}",
        parameters=written(row.parameters)[:4096] if row.parameters else None,
        checkpoint=row.checkpoint,
        spent=f"{amount(row.spent)} {row.currency}",
        left=f"{amount(row.left)} {row.currency}",
        deadline=status.time_of(row.deadline),
        conditions=[ready, complete],
    )
    return status.to_json(made)
