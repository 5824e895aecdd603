"""Records (events and actions) to JSON and back, through their own type hints."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, TypeAdapter

from coach.core.jobs.actions import Action, SetAllocation
from coach.core.jobs.decision import StepKind
from coach.core.jobs.events import Event

Record = Event | Action

TYPES: dict[str, type] = {kind.__name__: kind for kind in (*get_args(Event), *get_args(Action))}
EVENTS = frozenset(kind.__name__ for kind in get_args(Event))


def _with_steps(fields: Any) -> Any:
    """The fields of a SetAllocation whose steps may be plain lines, as in journals before steps were data."""
    if not isinstance(fields, dict) or not isinstance(fields.get("why"), list):
        return fields
    why = [
        {"kind": StepKind.TEXT, "reason": step} if isinstance(step, str) else step for step in fields["why"]
    ]
    return fields | {"why": why}


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    if name == SetAllocation.__name__:
        return TypeAdapter(Annotated[SetAllocation, BeforeValidator(_with_steps)])
    return TypeAdapter(TYPES[name])


def encode(record: Record) -> str:
    """The record's fields as JSON; its type is stored separately."""
    # A decision has many steps, most without most numbers; a missing number is read as None.
    without_none = type(record) is SetAllocation
    return _adapter(type(record).__name__).dump_json(record, exclude_none=without_none).decode()


def decode(name: str, body: str) -> Record:
    """The record that `encode` wrote. Raises KeyError for a type this version does not know."""
    record: Record = _adapter(name).validate_json(body)
    return record
