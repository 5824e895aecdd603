"""Records (events and actions) to JSON and back, through their own type hints."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter

from coach.core.jobs.actions import Action, SetAllocation
from coach.core.jobs.events import Event, JobSubmitted
from coach.core.jobs.transitions import EVENTS as KINDS_OF_EVENTS
from coach.core.jobs.transitions import TRANSITIONS

Record = Event | Action

TYPES: dict[str, type] = {kind.__name__: kind for kind in (*TRANSITIONS, JobSubmitted)}
EVENTS = frozenset(kind.__name__ for kind in (*KINDS_OF_EVENTS, JobSubmitted))


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
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
