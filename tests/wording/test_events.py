"""The line of every event and action in `coach events` and `coach run`: `__snapshots__/test_events`."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from syrupy.assertion import SnapshotAssertion

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.handler.state.journal import fold
from coach.report.history import EventFormatter, history
from tests.report.golden import unestimated
from tests.wording.conftest import CHANGED


def line(record: Any) -> str:
    """What a record adds to the lines of a job that trains, in a short log or only in a long one."""
    from tests.wording.records import MODEL

    jobs = fold([*MODEL.history, *([record] if isinstance(record, ev.JobSubmitted) else [])])
    formatter = EventFormatter(lambda: jobs)
    for before in MODEL.history:
        list(formatter.lines(before))
    found = next(formatter.lines(record), None)
    reason = f" {record.reason.value}" if hasattr(record, "reason") else ""
    said = "(no line)" if found is None else found.text if found.important else f"(long log) {found.text}"
    return f"{type(record).__name__}{reason}\n  {said}\n"


def test_a_record_of_a_model(page: SnapshotAssertion) -> None:
    from tests.wording.records import SAMPLES

    assert unestimated("".join(map(line, SAMPLES))) == page, CHANGED


def test_a_program(page: SnapshotAssertion) -> None:
    """All lines of one that went from one worker to four."""
    from tests.wording.records import PROGRAM

    assert "".join(f"{'' if one.important else '  '}{one.text}\n" for one in history(PROGRAM)) == page, CHANGED


def test_every_type_has_a_sample() -> None:
    there = {
        kind
        for module in (ev, act)
        for kind in vars(module).values()
        if getattr(kind, "__module__", "") == module.__name__
    }
    records = {kind for kind in there if is_dataclass(kind) and hasattr(kind, "at") and not kind.__subclasses__()}
    from tests.wording.records import SAMPLES

    assert records == {type(one) for one in SAMPLES}
