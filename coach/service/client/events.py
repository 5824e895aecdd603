"""The stream of a service's changes, as a client reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from coach.report.row_types import JobDetails

_ROWS: TypeAdapter[list[JobDetails]] = TypeAdapter(list[JobDetails])


@dataclass(frozen=True, slots=True)
class LogLines:
    """New whole lines of a function's log (JSON each); the next ones begin at byte `next`."""

    job: str
    function: str
    text: str
    next: int


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened.

    `jobs`: the rows that changed. `progress`: the trained share (0 to 1) of running epochs, by job. `log`: of the log
    that was asked for. `reset`: the service has another journal than before: what is known of its jobs is void.
    """

    jobs: list[JobDetails] = field(default_factory=list)
    progress: dict[str, float] = field(default_factory=dict)
    log: LogLines | None = None
    reset: bool = False


class Decoder:
    """Server-sent events, line by line. `asked`: the queries with which to go on after the last of them."""

    def __init__(self, job: str = "", after: str = "", log: str = "") -> None:
        self.asked: dict[str, str | int] = {
            key: value for key, value in (("job", job), ("after", after), ("log", log)) if value
        }
        self._event: dict[str, str] = {}

    def changes(self, lines: Iterable[str]) -> Iterator[Change]:
        """The changes in some more lines."""
        for line in lines:
            if line:
                name, _, value = line.partition(":")
                if name in ("event", "id", "data"):
                    self._event[name] = value.removeprefix(" ")
                continue
            event, self._event = self._event, {}
            if "id" in event:
                self.asked["after"] = event["id"]
            if (change := _change(event)) is not None:
                if change.log:
                    self.asked["log_after"] = change.log.next
                yield change


def _change(event: dict[str, str]) -> Change | None:
    data: Any = json.loads(event.get("data", "null"))
    match event.get("event"):
        case "jobs":
            return Change(jobs=_ROWS.validate_python(data["jobs"]))
        case "progress":
            return Change(progress=data)
        case "log":
            return Change(log=LogLines(**data))
        case "reset":
            return Change(reset=True)
    return None
