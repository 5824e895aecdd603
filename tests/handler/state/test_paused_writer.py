"""The leader is stopped (SIGSTOP, as by a frozen node) at any instant of its writes: the next one takes over."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from coach.core.errors import PermanentError
from coach.core.jobs import events as ev
from coach.handler.state import journal_file
from coach.handler.state.journal import Journal
from coach.handler.state.journal_file import JournalBusyError
from coach.handler.state.state_directory import StateDirectory
from tests.core.lifecycle.faulty_cluster import spec

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

#: Exit code of a leader that is told that another one leads.
REPLACED = 7


class Leader:
    """A process of its own that opens the journal in a term and writes records; each number that it says is on disk."""

    def __init__(self, home: StateDirectory, term: int) -> None:
        out, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(out)
            try:
                self._write(home, term, into)
            except PermanentError:
                os._exit(REPLACED)
            finally:
                os._exit(1)
        os.close(into)
        self._said = os.fdopen(out, "rb", buffering=0)
        self.ended: int | None = None

    @staticmethod
    def _write(home: StateDirectory, term: int, into: int) -> None:
        home.take_locks()
        journal = home.open_journal(home.journal(1), term)
        for number in range(10**9):
            journal.append([ev.PriorityChanged(float(term), "job", number), ev.PriorityChanged(float(term), "job", -1)])
            os.write(into, b"%d\n" % number)

    def begun(self) -> bool:
        """Wait for its first record; False where it ended before."""
        return bool(self._said.read(1))

    def last(self) -> int:
        """The last number that it said. Only when it has ended."""
        said = b"0" + self._said.read()
        return int(said.split()[-1])

    def send(self, number: int) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            os.waitpid(self.pid, os.WUNTRACED)

    def end(self) -> int:
        """Its exit code."""
        if self.ended is None:
            _, status = os.waitpid(self.pid, 0)
            self.ended = os.waitstatus_to_exitcode(status)
        return self.ended

    def close(self) -> None:
        if self.ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.end()
        self._said.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StateDirectory]:
    found = StateDirectory(tmp_path / "home")
    with contextlib.closing(Journal.write(found.journal(1), 1)) as journal:
        journal.append([ev.JobSubmitted(1.0, "job", spec("job"), "file:///c")])
    yield found


HOLDS = """
import fcntl, sqlite3, sys
journal = sqlite3.connect(sys.argv[1])
journal.execute("SELECT * FROM records").fetchall()
shared = open(sys.argv[1] + "-shm", "r+b")
fcntl.lockf(shared, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 123)  # SQLite's five marks of what readers need
print("held", flush=True)
sys.stdin.read()
"""


def test_a_process_that_is_stopped_while_it_changes_who_reads_what_is_waited_for(home: StateDirectory) -> None:
    path = home.journal(1)
    home.open_journal(path, 2).close()
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        waits: list[bool] = []

        def waiting(now: bool) -> None:
            waits.append(now)
            if now:
                other.kill()

        with contextlib.closing(home.open_journal(path, 3, waiting)) as journal:
            journal.append([ev.PriorityChanged(1.0, "job", 1)])
    assert waits == [True, False]


@pytest.mark.parametrize("instants", [15, pytest.param(100, marks=pytest.mark.full)])
def test_a_leader_stopped_at_any_instant_of_its_writes_is_followed_each_time(
    home: StateDirectory, instants: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it holds the write lock, it is named, and its end ends the wait; else the next one takes over at once.

    What it had acknowledged is there, what it tries later is refused, and no record is lost or torn.
    """
    monkeypatch.setattr(journal_file, "SAID_AFTER", 0.2)
    places = random.Random(100)
    held = 0
    for term in range(2, 2 + 2 * instants, 2):
        leader = Leader(home, term)
        try:
            assert leader.begun()
            time.sleep(places.uniform(0, 0.02))  # any instant of its writes
            leader.send(signal.SIGSTOP)
            home.take_locks()
            caplog.clear()
            waits: list[bool] = []

            def waiting(now: bool, leader: Leader = leader, waits: list[bool] = waits) -> None:
                waits.append(now)
                if now:
                    leader.send(signal.SIGKILL)

            with contextlib.closing(home.open_journal(home.journal(1), term + 1, waiting)) as successor:
                if waits:
                    held += 1
                    assert waits == [True, False]
                    said = f"the last handler was process {leader.pid} on {os.uname().nodename}"
                    assert said in caplog.text and "kill -9" in caplog.text
                    assert leader.end() == -signal.SIGKILL
                else:
                    leader.send(signal.SIGCONT)
                    assert leader.end() == REPLACED
                successor.append([ev.PriorityChanged(float(term + 1), "job", 0)])
                written = [one for _, one in successor.records("job")]
            assert isinstance(written[-1], ev.PriorityChanged) and written[-1].at == term + 1
            own = [one.priority for one in written if one.at == term and isinstance(one, ev.PriorityChanged)]
            assert own == [value for number in range(len(own) // 2) for value in (number, -1)]  # all of each, in order
            assert len(own) // 2 >= leader.last() + 1
        finally:
            leader.close()
        with contextlib.closing(sqlite3.connect(home.journal(1), isolation_level=None)) as connection:
            connection.execute("DELETE FROM records WHERE seq > 1")  # each leader begins with as much
    print(f"{held} of {instants} held the write lock")


def test_without_a_lease_the_next_handler_is_told_that_another_one_has_the_journal(home: StateDirectory) -> None:
    with contextlib.closing(Journal.write(home.journal(1), 2)), pytest.raises(JournalBusyError):
        home.open_journal(home.journal(1), 3)
