"""A recorded journal, read and replayed: each event again, and what today's reducer decides on it.

A file is JSON lines, compressed. The first says which release wrote it, under which policy and placement; each other
one is `[seq, type, fields]`, as the journal has it.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coach.core.cluster import Placement
from coach.core.lifecycle.reducer import Reducer
from coach.handler.state.codec import EVENTS, Record, decode, encode
from coach.handler.state.journal import Journal
from coach.plugins import policy

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parents[1] / "data" / "journals"
#: Two predictions are equal that differ by less than this part: machines add in different orders.
SAME = 1e-6


@dataclass(frozen=True)
class Recorded:
    """One journal: where it is from, and its records."""

    release: str
    name: str
    policy: str
    placement: Placement
    records: tuple[Record, ...]

    def decisions(self) -> Iterator[tuple[Record, list[Record]]]:
        """Each event with the actions that followed from it, which were written with it."""
        event, actions = None, list[Record]()
        for record in self.records:
            if type(record).__name__ in EVENTS:
                if event is not None:
                    yield event, actions
                event, actions = record, []
            else:
                actions.append(record)
        if event is not None:
            yield event, actions


def write(journal: Path, policy_name: str, release: str, file: Path, placement: Placement = Placement.GANG) -> None:
    """Write a journal's records as a file of these tests, without this machine's paths."""
    found = Journal.read(journal)
    head = json.dumps({"release": release, "policy": policy_name, "placement": placement.value})
    lines = [json.dumps([seq, type(record).__name__, json.loads(encode(record))]) for seq, record in found.records()]
    found.close()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed:
        packed.write("\n".join([head, *lines, ""]).replace(str(ROOT), "/coach").encode())


def read(file: Path) -> Recorded:
    """A file of these tests. Raises as `decode` does at a record that today's code does not know."""
    head, *lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    said = json.loads(head)
    placed = Placement(said.get("placement", Placement.GANG.value))
    records = tuple(decode(name, json.dumps(fields)) for _, name, fields in map(json.loads, lines))
    return Recorded(said["release"], file.name.partition(".")[0], said["policy"], placed, records)


#: Numbers of epochs in messages counted mini-epochs too, until they had one of their own.
_COUNTS = re.compile(r"(?<=in epoch )\d+|(?<=after )\d+(?= epochs)")


def differences(recorded: Recorded) -> Iterator[str]:
    """Where today's reducer decides something else: the number of the event, and both decisions."""
    reducer = Reducer(policy(recorded.policy), recorded.placement)
    for number, (event, actions) in enumerate(recorded.decisions()):
        found = reducer.react(event)  # type: ignore[arg-type]
        then, now = [_fields(action) for action in actions], [_fields(action) for action in found]
        if not _same(then, now):
            yield f"event {number}, {type(event).__name__}: was\n{_text(then)}\nis\n{_text(now)}"
            return


def _fields(record: Record) -> list[Any]:
    """Without what is shown of the whole job: it decides nothing, and is calibrated anew now and then."""
    fields: dict[str, Any] = json.loads(encode(record))
    fields.pop("job_forecast", None)
    return [type(record).__name__, fields]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=SAME, abs_tol=SAME)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, str) and isinstance(other, str):
        return _COUNTS.sub("", one) == _COUNTS.sub("", other)
    return bool(one == other)


def _text(actions: list[Any]) -> str:
    return "\n".join(f"  {json.dumps(action)}" for action in actions) or "  (nothing)"
