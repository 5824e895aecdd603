"""A damaged journal is said, with what is damaged; what can be made anew is."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from coach.core.errors import PermanentError
from coach.core.jobs import events as ev
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.core.lifecycle.faulty_cluster import spec

AMOUNT = 7_654_321


def submitted(name: str) -> ev.JobSubmitted:
    return ev.JobSubmitted(1.0, name, spec(name), "file:///c")


@pytest.fixture
def home(tmp_path: Path) -> StateDirectory:
    """A state folder with an account, and two jobs."""
    found = StateDirectory(tmp_path / "home")
    with contextlib.closing(Journal.write(found.journal(1))) as journal:
        journal.append([ev.AccountSet(1.0, "team", AMOUNT, "USD", "ever", "UTC"), submitted("a"), submitted("b")])
    found.make_folders("a")
    return found


def change(home: StateDirectory, old: bytes, new: bytes) -> None:
    """Change bytes of the journal's file where SQLite does not see it."""
    path = home.journal(1)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    assert data.count(old) >= 1 and len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def read(home: StateDirectory) -> None:
    with contextlib.closing(Journal.read(home.journal(1))) as journal:
        journal.accounts(journal.jobs())


def test_an_empty_file_beside_jobs_is_no_new_journal(home: StateDirectory) -> None:
    home.journal(1).write_bytes(b"")
    for use in (Journal.write, Journal.read):
        with pytest.raises(PermanentError, match=r"is empty, though .* has jobs: it was cut off"):
            use(home.journal(1))
    assert home.journal(1).stat().st_size == 0


def test_an_empty_file_without_jobs_becomes_a_journal(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch()
    with contextlib.closing(Journal.write(tmp_path / "journal.db")) as journal:
        assert journal.last_seq() == 0


def test_a_changed_digit_of_an_amount_is_noticed(home: StateDirectory) -> None:
    read(home)
    change(home, str(AMOUNT).encode(), b"9" + str(AMOUNT).encode()[1:])
    with pytest.raises(PermanentError, match=r"journal.db: record 1, AccountSet, was changed since it was written"):
        read(home)


@pytest.mark.parametrize("at", range(8))
def test_bytes_that_are_no_text_name_the_journal_and_the_record(home: StateDirectory, at: int) -> None:
    body = b'"budget"'
    change(home, body, body[:at] + b"\xff" + body[at + 1 :])
    with pytest.raises(PermanentError, match=r"journal.db: the record after \d+ cannot be read"):
        read(home)


def test_a_damaged_snapshot_is_left_aside_and_the_job_is_folded_anew(home: StateDirectory) -> None:
    with contextlib.closing(Journal.write(home.journal(1))) as journal:
        whole = journal.jobs()
        journal.save_snapshots(*whole.values())
        for what in ("body = replace(body, '1', '2')", "epochs = x'00'", "body = substr(body, 1, 100)"):
            with contextlib.closing(sqlite3.connect(home.journal(1), isolation_level=None)) as connection:
                connection.execute(f"UPDATE snapshots SET {what} WHERE job = 'a'")
            assert "a" not in journal._snapshots() and "b" in journal._snapshots()
            assert journal.jobs()["a"].job_file == whole["a"].job_file


def test_records_of_an_earlier_release_have_no_checksums_and_are_read(home: StateDirectory) -> None:
    with contextlib.closing(sqlite3.connect(home.journal(1), isolation_level=None)) as connection:
        connection.execute("ALTER TABLE records DROP COLUMN sum")
    read(home)
    with contextlib.closing(Journal.write(home.journal(1))) as journal:
        journal.append([submitted("c")])
        assert set(journal.jobs()) == {"a", "b", "c"}
    with contextlib.closing(sqlite3.connect(home.journal(1))) as connection:
        sums = [one for (one,) in connection.execute("SELECT sum FROM records ORDER BY seq")]
    assert sums[:3] == [None] * 3 and sums[3] is not None


HOLDS = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("holds it", flush=True)
time.sleep(600)
"""


def test_while_a_handler_waits_for_a_paused_writer_all_else_of_it_goes_on(home: StateDirectory) -> None:
    """What ends the wait here is a task of the handler's own loop: were that blocked, it would never end."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(home.journal(1))], stdout=subprocess.PIPE)

    async def both(journal: Journal) -> None:
        async def ends() -> None:
            await asyncio.sleep(0)
            holder.kill()

        ending = asyncio.create_task(ends())
        await journal.append_when_free([submitted("c")])
        assert ending.done()

    try:
        with contextlib.closing(Journal.write(home.journal(1))) as journal:
            assert holder.stdout is not None and holder.stdout.readline() == b"holds it\n"
            asyncio.run(both(journal))
            assert set(journal.jobs()) == {"a", "b", "c"}
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()


def test_a_handler_waits_for_a_paused_writer_and_goes_on_after_it(
    home: StateDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    """The other process holds the write lock, and is stopped with it; what ends the wait is its end."""
    said = re.compile(r"another process has its write lock and does not go on: the last handler was process \d+ on ")
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, str(home.journal(1))], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"holds it\n"
        holder.send_signal(signal.SIGSTOP)
        waits = 0

        class Ends:
            """Kills the holder when the handler has said that it waits."""

            @staticmethod
            def filter(record: object) -> bool:
                nonlocal waits
                if said.search(str(getattr(record, "getMessage", str)())):
                    waits += 1
                    holder.kill()
                return True

        caplog.handler.addFilter(Ends.filter)
        with contextlib.closing(Journal.write(home.journal(1))) as journal:
            journal.append([submitted("c")])
            assert set(journal.jobs()) == {"a", "b", "c"} and waits == 1
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()
