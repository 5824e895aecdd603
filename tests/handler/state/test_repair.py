"""`coach doctor --journal --repair`: all jobs but the damaged ones are as before, and what was lost is said."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from coach.core.errors import PermanentError
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.handler.state.codec import Record
from coach.handler.state.journal import Journal, fold
from coach.handler.state.journal_file import JournalBusyError, checksum
from coach.handler.state.repair import repair, restore
from coach.handler.state.salvage import salvage
from coach.handler.state.state_directory import StateDirectory
from coach.service.journal_checks import journal_checks, repair_checks
from coach.service.schemas import Check, Status
from tests.journals.replay import FOLDER, read

#: A real journal: three jobs at once.
RECORDED = next(FOLDER.glob("*/shared.jsonl.gz"))


@cache
def records() -> tuple[Record, ...]:
    return read(RECORDED).records


@cache
def whole() -> dict[str, Job]:
    return fold(records())


@pytest.fixture
def home(tmp_path: Path) -> StateDirectory:
    found = StateDirectory(tmp_path / "home")
    with contextlib.closing(Journal.write(found.journal(1), 7)) as journal:
        journal.append(records())
    for name in whole():
        found.make_folders(name)
    return found


def contents(path: Path) -> tuple[dict[str, Job], list[Record]]:
    with contextlib.closing(Journal.read(path)) as journal:
        return journal.jobs(), [record for _, record in journal.records()]


def check_of(home: StateDirectory) -> list[Check]:
    found = list(repair_checks(home))
    assert [check for check in found if "Traceback" in check.found] == []
    return found


def test_a_page_of_a_whole_journal_has_each_record_also_in_the_log(home: StateDirectory) -> None:
    with contextlib.closing(Journal.write(home.journal(1), 8)) as journal:
        journal.append([ev.PriorityChanged(9.0, next(iter(whole())), 3)])  # in the log alone
        found = salvage(home.journal(1))
    assert list(found.records.values())[:-1] == list(records()) and found.lost == []
    assert found.records[len(records()) + 1] == ev.PriorityChanged(9.0, next(iter(whole())), 3)


def test_a_whole_journal_is_left_as_it_is(home: StateDirectory) -> None:
    before = home.journal(1).read_bytes()
    assert {check.status for check in check_of(home)} == {Status.OK}
    assert home.journal(1).read_bytes() == before and not list(home.path.glob("*.damaged-*"))


def test_a_job_that_lost_a_record_is_as_before_it_and_the_others_as_they_were(home: StateDirectory) -> None:
    name, *others = whole()
    own = [seq for seq, record in enumerate(records(), 1) if record.job == name]
    lost = own[len(own) // 2]
    with contextlib.closing(sqlite3.connect(home.journal(1), isolation_level=None)) as connection:
        connection.execute("UPDATE records SET body = replace(body, '1', '2') WHERE seq = ?", (lost,))
    said = check_of(home)
    jobs, left = contents(home.journal(1))
    assert {one: jobs[one] for one in others} == {one: whole()[one] for one in others}
    expected = fold([*records()[: lost - 1], left[-1]])[name]
    assert jobs[name] == expected and jobs[name].stop.suspend and jobs[name].stop.by_user
    assert len(left) == len(records()) - len([seq for seq in own if seq >= lost]) + 1
    assert "1 record lost, 2 jobs as before" in said[0].found
    (cut,) = (check for check in said if check.name == name)
    assert cut.status is Status.WARNING and f"record {lost} was its own" in cut.found and "suspended" in cut.found
    assert f"coach resume {name}" in cut.next_step and str(home.checkpoints(name)) in cut.next_step
    assert {check.status for check in journal_checks(home)} == {Status.OK}
    assert [check.status for check in said if check.name == "journal.db, money"] == [Status.OK]


def test_what_a_job_paid_in_records_that_are_left_out_is_said() -> None:
    name = next(iter(whole()))
    all_ = dict(enumerate(records(), 1))
    first = next(seq for seq, record in all_.items() if type(record).__name__ == "RunEpoch" and record.job == name)
    lost = all_.pop(first)
    kept, (cut,) = restore(all_, {first: name})
    assert cut.job is not None and cut.paid == whole()[name].money.ledger.spent - cut.job.money.ledger.spent > 0
    assert lost not in kept


def test_a_job_whose_submission_is_lost_is_not_restored_and_its_folder_is_named(home: StateDirectory) -> None:
    name, *others = whole()
    with contextlib.closing(sqlite3.connect(home.journal(1), isolation_level=None)) as connection:
        connection.execute("UPDATE records SET body = '{' WHERE job = ? AND type = 'JobSubmitted'", (name,))
    said = check_of(home)
    assert set(contents(home.journal(1))[0]) == set(others)
    (cut,) = (check for check in said if check.name == name)
    assert cut.status is Status.FAILED and cut.found.startswith("not restored") and "paid by it" in cut.found
    assert str(home.checkpoints(name)) in cut.next_step


def test_a_lost_record_that_nobody_can_place_concerns_the_jobs_of_its_time_alone() -> None:
    all_ = dict(enumerate(records(), 1))
    name = list(whole())[-1]
    all_ |= {len(all_) + 1: ev.JobSubmitted(1e9, "later", records()[1].spec, "file:///c")}  # type: ignore[union-attr]
    end = max(seq for seq, record in all_.items() if record.job == name and seq <= len(records()))
    _, cut = restore(all_, {end + 2: None} if end + 2 not in all_ else {})
    assert cut == ()
    middle = len(records()) // 2
    all_.pop(middle)
    _, cut = restore(all_, {middle: None})
    assert {one.name for one in cut} == set(whole()) and not any(one.sure for one in cut)


def _flips(data: bytearray, places: random.Random) -> None:
    for _ in range(places.choice((1, 3, 20))):
        data[places.randrange(len(data))] ^= 1 << places.randrange(8)


def _bytes(data: bytearray, places: random.Random) -> None:
    at = places.randrange(len(data))
    data[at : at + 300] = places.randbytes(len(data[at : at + 300]))


def _page(data: bytearray, places: random.Random) -> None:
    at = places.randrange(len(data) // 4096) * 4096
    data[at : at + 4096] = bytes(4096)


def _cut(data: bytearray, places: random.Random) -> None:
    del data[places.randrange(len(data)) :]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 12))])
@pytest.mark.parametrize("damage", [_flips, _bytes, _page, _cut])
def test_whatever_is_damaged_each_job_is_as_it_was_or_as_it_once_was_or_named(
    home: StateDirectory, damage: Callable[[bytearray, random.Random], None], seed: int
) -> None:
    places = random.Random(f"{damage.__name__} {seed}")
    data = bytearray(home.journal(1).read_bytes())
    damage(data, places)
    home.journal(1).write_bytes(data)
    said = check_of(home)
    if any("no record of it can be read" in check.found for check in said):
        assert not list(home.path.glob("*.damaged-*")) and home.journal(1).read_bytes() == data
        return
    assert {check.status for check in journal_checks(home)} == {Status.OK}
    assert damage is not _cut or any("the file was cut off" in check.found for check in said)
    jobs, left = contents(home.journal(1))
    named = {check.name for check in said}
    for name, job in whole().items():
        if name in named:
            continue
        if damage is _cut and name in jobs:  # what was after the cut leaves no trace: it is as it once was
            own = [record for record in left if record.job in (name, "")]
            assert own == [record for record in records() if record.job in (name, "")][: len(own)]
        elif damage is not _cut:
            assert jobs[name] == job
    assert [record for record in left if type(record).__name__ != "SuspendRequested" and record not in records()] == []


def test_the_damaged_journal_is_kept_and_the_terms_of_handlers_go_on(home: StateDirectory) -> None:
    with contextlib.closing(sqlite3.connect(home.journal(1), isolation_level=None)) as connection:
        connection.execute("UPDATE records SET at = at + 1 WHERE seq = 5")
    before = home.journal(1).read_bytes()
    done = repair(home.journal(1))
    assert done.damaged.read_bytes() == before and done.lost == 1
    assert home.journals() == [home.journal(1)]
    with contextlib.closing(Journal.read(home.journal(1))) as journal:
        assert journal.term() == 7
    with pytest.raises(PermanentError, match="term 7"):
        Journal.write(home.journal(1), 7)
    with contextlib.closing(Journal.write(home.journal(1), 8)):
        pass
    assert not list(home.path.glob("repaired*"))


def test_a_journal_that_a_handler_has_is_not_repaired(home: StateDirectory) -> None:
    with contextlib.closing(Journal.write(home.journal(1), 8)), pytest.raises(JournalBusyError, match="stop it first"):
        repair(home.journal(1))


def test_a_journal_of_a_later_coach_is_not_repaired(home: StateDirectory) -> None:
    body = '{"at":1.0,"job":""}'
    with contextlib.closing(sqlite3.connect(home.journal(1), isolation_level=None)) as connection:
        row = (1.0, "", "NotYetKnown", body, checksum(1.0, "", "NotYetKnown", body))
        connection.execute("INSERT INTO records (at, job, type, body, sum) VALUES (?, ?, ?, ?, ?)", row)
    with pytest.raises(PermanentError, match="another version"):
        repair(home.journal(1))


def test_an_empty_journal_has_nothing_to_repair(home: StateDirectory) -> None:
    home.journal(1).write_bytes(b"")
    said = check_of(home)
    assert "no record of it can be read" in said[0].found and home.journal(1).read_bytes() == b""
