"""Reads records of journals of version 1, which had other names for some types, fields and values.

Journals of version 2 from before `budget: {unlimited: true}` have `budget: none`.
"""

from __future__ import annotations

import json

TYPES = {
    "Decide": "SetAllocation",
    "Remember": "SavePolicyState",
    "GoBack": "RollBack",
    "End": "Finish",
    "Enter": "SetStatus",
    "CancelAsked": "CancelRequested",
    "InterruptAsked": "SuspendRequested",
    "ResumeAsked": "ResumeRequested",
}
FIELDS = {"away": "unavailable", "patience": "stall_timeouts"}
VALUES = {
    "kind": {"mini": "probe", "real": "full"},
    "reason": {"Interrupted": "Suspended", "NodesAway": "NodesUnavailable"},
}


def upgraded(name: str, body: str) -> tuple[str, str]:
    """Type and body (JSON) of a record in the names of version 2. Raises ValueError if it is no JSON object."""
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise ValueError(f"{name} is no JSON object")
    new = {
        FIELDS.get(field, field): VALUES[field].get(value, value) if field in VALUES else value
        for field, value in fields.items()
    }
    return TYPES.get(name, name), json.dumps(new, separators=(",", ":"))


def with_budget(name: str, body: str) -> str:
    """The body (JSON) of a record, its budget in the current form."""
    if name != "JobSubmitted" or '"none"' not in body:
        return body
    fields = json.loads(body)
    spec = fields["spec"]["spec"]
    if spec["budget"] == "none":
        spec["budget"] = {"unlimited": True}
    return json.dumps(fields, separators=(",", ":"))
