"""`coach doctor --journal` finds what has changed in a journal since it was written."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

import pytest

from coach.core.jobs import events as ev
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.service.journal_checks import journal_checks, repair_checks
from coach.service.schemas import Status
from tests.core.lifecycle.faulty_cluster import spec


@pytest.fixture
def home(tmp_path: Path) -> StateDirectory:
    found = StateDirectory(tmp_path / "home")
    with contextlib.closing(Journal.write(found.journal(1))) as journal:
        journal.append([ev.JobSubmitted(1.0, name, spec(name), "file:///c") for name in ("a", "b")])
        journal.append([ev.PriorityChanged(2.0, "a", number) for number in range(200)])
    with contextlib.closing(sqlite3.connect(found.journal(1))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return found


def statuses(home: StateDirectory) -> list[Status]:
    return [check.status for check in journal_checks(home)]


def test_a_whole_journal_is_ok_and_its_payments_add_up(home: StateDirectory) -> None:
    checks = list(journal_checks(home))
    assert [check.status for check in checks] == [Status.OK, Status.OK]
    assert checks[0].found == "202 records as they were written"
    assert checks[1].found == "the payments of 2 jobs add up to what was spent"


def test_each_changed_record_is_named(home: StateDirectory) -> None:
    with contextlib.closing(sqlite3.connect(home.journal(1), isolation_level=None)) as connection:
        connection.execute("UPDATE records SET body = replace(body, '7', '8') WHERE seq = 10")
        connection.execute("UPDATE records SET job = 'b' WHERE seq = 11")
        connection.execute("UPDATE records SET body = CAST(x'7bff7d' AS TEXT) WHERE seq = 12")
    (check,) = journal_checks(home)
    assert check.status is Status.FAILED and "copy" in check.next_step
    assert "record 10 (PriorityChanged of a) was changed" in check.found and "record 11" in check.found
    assert "record 12 cannot be read (UnicodeDecodeError)" in check.found


@pytest.mark.parametrize(
    ("gone", "said"),
    [("seq = 1", "record 1 is"), ("seq = 10", "record 10 is"), ("seq IN (5, 6, 7)", "record 5 to 7 is")],
)
def test_a_record_that_was_taken_out_is_missed(home: StateDirectory, gone: str, said: str) -> None:
    with contextlib.closing(sqlite3.connect(home.journal(1), isolation_level=None)) as connection:
        connection.execute(f"DELETE FROM records WHERE {gone}")
    (check,) = journal_checks(home)
    assert check.status is Status.FAILED and f"{said} not there" in check.found
    repaired = list(repair_checks(home))
    assert "lost" in repaired[0].found and "no record lost" not in repaired[0].found
    assert statuses(home) == [Status.OK, Status.OK]


def test_no_flipped_bit_of_a_record_goes_unnoticed_nor_ends_in_a_traceback(home: StateDirectory) -> None:
    whole = home.journal(1).read_bytes()
    places = random.Random(3)
    body = whole.index(b'"priority":100')
    for place in [*range(body, body + 14), *(places.randrange(len(whole)) for _ in range(60))]:
        changed = bytearray(whole)
        changed[place] ^= 1 << places.randrange(8)
        home.journal(1).write_bytes(changed)
        found = statuses(home)
        if place in range(body, body + 14):
            assert Status.FAILED in found


@pytest.mark.parametrize("left", [0, 1, 100, 4096, 5000, 0.5, 0.9])
def test_a_journal_that_was_cut_off_is_said(home: StateDirectory, left: float) -> None:
    whole = home.journal(1).read_bytes()
    home.journal(1).write_bytes(whole[: int(left if left >= 1 or not left else left * len(whole))])
    assert statuses(home)[0] is Status.FAILED
