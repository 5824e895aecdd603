"""A journal with any bytes flipped, replaced or cut off: it is read as it was written, or said to be damaged."""

from __future__ import annotations

import contextlib
import gc
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coach.core.errors import CoachError
from coach.handler.state.codec import Record
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.service.journal_checks import journal_checks, repair_checks
from coach.service.schemas import Status
from tests.handler.state.test_repair import records, whole


@pytest.fixture(scope="module")
def written() -> Iterator[tuple[bytes, bytes]]:
    """A journal's file and its write-ahead log, as a handler that was killed has left them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "home" / "journal.db"
        with contextlib.closing(Journal.write(path)) as journal:
            journal.append(records()[:100])
            journal._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            journal.append(records()[100:])
            journal.save_snapshots(*journal.jobs().values())
            yield path.read_bytes(), path.with_name("journal.db-wal").read_bytes()


#: What is done to a file, one after the other; places are parts of it, as two of these files may differ in their size.
PARTS = 1 << 20
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("flip", "flip", "byte", "zeros", "page", "cut")),
        st.integers(0, PARTS - 1),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def changed(data: bytes, what: list[tuple[str, int, int]]) -> bytes:
    found = bytearray(data)
    for kind, part, value in what:
        at = part * len(data) // PARTS
        if kind == "cut":
            del found[at:]
        elif at < len(found):
            if kind == "flip":
                found[at] ^= 1 << value % 8
            elif kind == "byte":
                found[at] = value
            else:
                begin, many = (at // 4096 * 4096, 4096) if kind == "page" else (at, value)
                found[begin : begin + many] = bytes(len(found[begin : begin + many]))
    return bytes(found)


def read(path: Path) -> list[Record] | None:
    """The records; None where the journal is said to be damaged."""
    try:
        with contextlib.closing(Journal.read(path)) as journal:
            journal.accounts(journal.jobs())
            return [record for _, record in journal.records()]
    except (CoachError, sqlite3.DatabaseError):
        return None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(what=CHANGES, of_log=st.booleans())
def test_any_damage_is_said_or_did_none_and_is_repaired(
    written: tuple[bytes, bytes], what: list[tuple[str, int, int]], of_log: bool
) -> None:
    main, log = written
    folder = Path(tempfile.mkdtemp())
    try:
        home = StateDirectory(folder / "home")
        home.path.mkdir(0o700)
        for name in whole():
            home.make_folders(name)
        main_what, log_what = ([], what) if of_log else (what, [])
        home.journal(1).write_bytes(changed(main, main_what))
        home.path.joinpath("journal.db-wal").write_bytes(changed(log, log_what))
        found = read(home.journal(1))
        if found is not None:  # of a log that was cut off the transactions are read that are whole
            assert found == list(records())[: len(found)] and (not main_what or len(found) in (100, len(records())))
        said = list(repair_checks(home))
        if any("no record of it can be read" in check.found or "not repaired" in check.found for check in said):
            assert not list(home.path.glob("*.damaged-*"))
            return
        assert {check.status for check in journal_checks(home)} == {Status.OK}
        left = [one for one in read(home.journal(1)) or () if type(one).__name__ != "SuspendRequested"]
        assert all(one in records() for one in left)
    finally:
        shutil.rmtree(folder)
        gc.collect(0)
