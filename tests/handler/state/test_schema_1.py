"""A journal that an earlier Coach wrote, in version 1's words, is read as if it were of today.

`tests/data/journals/version-1.sql` is the dump of a journal that version 0.1 wrote of three simulated jobs: one lost a
checkpoint, one was stopped and resumed twice, one was cancelled; a node was away for a while.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason, State
from coach.handler.state import schema_1
from coach.handler.state.codec import TYPES, decode
from coach.handler.state.journal import Journal, fold

DUMP = Path(__file__).parents[2] / "data" / "journals" / "version-1.sql"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "journal.db") as connection:
        connection.executescript(DUMP.read_text())
    connection.close()
    return tmp_path / "journal.db"


def check(jobs: dict[str, Job]) -> None:
    found = {name: (job.state, job.reason, len(job.epochs), job.ledger.spent) for name, job in jobs.items()}
    assert found == {
        "a": (State.FAILED, Reason.EPOCH_LIMIT, 8, 3803347),
        "b": (State.WAITING, Reason.SUSPENDED, 8, 4443734),
        "c": (State.CANCELLED, Reason.CANCELLED_BY_USER, 1, 215353),
    }
    assert jobs["a"].full_epoch_count == 6 and jobs["b"].suspend


def test_it_can_be_looked_at_without_being_changed(path: Path) -> None:
    before = path.read_bytes()
    journal = Journal.read(path)
    check(journal.jobs())
    check(fold(record for _, record in journal.records()))
    assert {record.job for record in journal.handling()} == {"", "a", "b", "c"}
    journal.close()
    assert path.read_bytes() == before


def test_a_handler_goes_on_with_it_in_today_s_words(path: Path) -> None:
    journal = Journal.write(path)
    check(journal.jobs())
    old = journal.last_seq()
    journal.append([ev.ResumeRequested(2e6, "b"), ev.NodesChanged(2e6, ("node-0",))])
    journal.close()
    for journal in (Journal.read(path), Journal.write(path), Journal.read(path)):
        assert not journal.jobs()["b"].suspend
        assert [node.name for node in journal.nodes()] == ["node-1", "node-2"]
        assert {type(record) for _, record in journal.records(after=old)} == {
            ev.ResumeRequested,
            ev.NodesChanged,
        }
        rows = [(name, body) for _, name, body in journal.rows(("a", "b", "c"))]
        assert '"budget":"none"' in DUMP.read_text() and not any(
            '"budget":"none"' in body for _, body in rows
        )
        assert all(name in TYPES for name, _ in rows), "what a client reads needs no knowledge of version 1"
        assert fold(decode(name, body) for name, body in rows).keys() == {"a", "b", "c"}
        journal.close()


def test_only_words_that_are_still_known_are_read_into() -> None:
    assert set(schema_1.TYPES.values()) <= TYPES.keys() and not schema_1.TYPES.keys() & TYPES.keys()
    assert set(schema_1.VALUES["reason"].values()) <= set(Reason)


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        schema_1.upgraded("Decide", json.dumps([1]))
