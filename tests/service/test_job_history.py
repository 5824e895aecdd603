"""A job's records are read once, as the journal grows, for any number of requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coach.handler.state.codec import Record
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory, StoredJob
from coach.report.accounting import ledger, pauses
from coach.report.history import history
from coach.service import job_history
from coach.service.job_history import Stories
from tests.core.lifecycle.faulty_cluster import World
from tests.report.recorded_jobs import half_way


class Counting(StateDirectory):
    """A state folder that notes how many records were read."""

    def __init__(self, home: StateDirectory) -> None:
        super().__init__(home.path)
        self.read: list[int] = []

    def records_after(self, past: StoredJob, after: int) -> list[tuple[int, Record]]:
        found = super().records_after(past, after)
        self.read.append(len(found))
        return found


@pytest.fixture
def counting(home: StateDirectory) -> Counting:
    return Counting(home)


@pytest.fixture
def world() -> World:
    return half_way()


@pytest.fixture
def journal(home: StateDirectory, world: World) -> Iterator[Journal]:
    """Has all but the last 20 records of the world."""
    open_journal = Journal.write(home.journal(1))
    open_journal.append(world.history[:-20])
    yield open_journal
    open_journal.close()


def own(records: list[Record], name: str) -> list[Record]:
    return [record for record in records if record.job in ("", name)]


def test_a_record_is_read_once_and_the_books_are_those_of_all_records(
    counting: Counting, world: World, journal: Journal
) -> None:
    kept = Stories(counting)
    past = counting.past()["digits"]
    before = len(own(world.history[:-20], "digits"))
    kept.books(past)
    kept.events(past, 0)
    assert counting.read == [before, 0]
    journal.append(world.history[-20:])
    books = kept.books(past)
    records = own(world.history, "digits")
    assert counting.read == [before, 0, len(records) - before]
    assert books.ledger == ledger(records, "digits")
    assert books.pauses == pauses(records, "digits")
    assert books.seq == counting.records_after(past, 0)[-1][0]


def test_lines_come_in_pieces_and_go_on_where_the_last_one_ended(
    counting: Counting, world: World, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append(world.history[-20:])
    monkeypatch.setattr(job_history, "MAX_LINES", 7)
    kept, past, seq, lines = Stories(counting), counting.past()["digits"], 0, []
    while True:
        found, seq = kept.events(past, seq)
        lines += [line for _, line in found]
        assert len(found) <= 7
        if not found:
            break
    assert lines == list(history(own(world.history, "digits"), "digits"))
    assert kept.events(past, seq) == ([], seq)


def test_of_many_jobs_the_ones_asked_about_last_are_kept(
    counting: Counting, world: World, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_history, "MAX_STORIES", 1)
    past, kept = counting.past(), Stories(counting)
    for name in ("digits", "digits", "pictures", "digits"):
        kept.events(past[name], 0)
    first, again, other, anew = counting.read
    assert again == 0 and first == anew > 0 and other > 0
