"""The journal: what is written stays, one handler writes, and jobs are the fold of their records."""

from __future__ import annotations

import fcntl
import multiprocessing
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Resources, Taken
from coach.core.errors import PermanentError, UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.reasons import State
from coach.core.lifecycle.reducer import Reducer
from coach.core.policies.coach import CoachPolicy
from coach.handler.state.codec import decode
from coach.handler.state.journal import Journal, fold
from coach.handler.state.journal_file import JournalBusyError
from tests.core.lifecycle.faulty_cluster import World, nodes, spec

CANCEL = ev.CancelRequested(2.0, "job")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "journal.db"


def lived() -> World:
    world = World.of(nodes(2, 2.0))
    world.submit(spec("a", maxEpochs=2))
    world.submit(spec("b", maxEpochs=1))
    world.run()
    return world


def test_jobs_are_the_fold_of_what_was_written(path: Path) -> None:
    world = lived()
    journal = Journal.write(path)
    journal.append(world.history)
    assert journal.jobs() == world.reducer.jobs
    assert list(journal.jobs()) == ["a", "b"]
    journal.close()
    reader = Journal.read(path)
    assert reader.jobs() == world.reducer.jobs
    assert reader.last_at() == world.now
    reader.close()


def test_the_nodes_are_those_that_are_there(path: Path) -> None:
    cluster = nodes(3, 2.0)
    journal = Journal.write(path)
    assert journal.nodes() == ((), ())
    journal.append([ev.HandlerStarted(1.0, cluster), ev.NodesChanged(2.0, ("node-0", "node-2"))])
    assert journal.nodes() == (cluster[1:2], ())
    held = (Taken("node-1", Resources(1.0, 2.0)),)
    journal.append([ev.NodesChanged(3.0, (), taken=held), ev.NodesChanged(3.5, ())])
    assert journal.nodes() == (cluster, held)
    journal.append([ev.NodesChanged(4.0, ("node-0",)), ev.HandlerStarted(5.0, cluster, unavailable=("node-1",))])
    assert journal.nodes() == ((cluster[0], cluster[2]), ())
    journal.close()


def test_a_handler_that_told_of_no_nodes_away_had_them_all() -> None:
    """What was journalled before nodes could be away."""
    old = '{"at":1.0,"nodes":[{"name":"n","capacity":{"cpu":1.0,"memory":2.0,"gpu":0.0}}],"gone_by":null,"job":""}'
    started = decode("HandlerStarted", old)
    assert isinstance(started, ev.HandlerStarted) and started.unavailable == () and len(started.nodes) == 1


def test_records_come_in_order_for_one_job_or_all_and_after_a_given_one(path: Path) -> None:
    world = lived()
    journal = Journal.write(path)
    journal.append(world.history)
    everything = list(journal.records())
    assert [record for _, record in everything] == world.history
    assert [seq for seq, _ in everything] == list(range(1, len(everything) + 1))
    assert [record for _, record in journal.records("b")] == [r for r in world.history if r.job == "b"]
    assert list(journal.records(after=10)) == everything[10:]
    assert list(journal.records("a", after=10)) == [(n, r) for n, r in everything[10:] if r.job == "a"]
    journal.close()


def test_records_of_jobs_that_nobody_submitted_change_nothing(path: Path) -> None:
    journal = Journal.write(path)
    journal.append([CANCEL, *lived().history, ev.CancelRequested(3.0, "nobody")])
    assert set(journal.jobs()) == {"a", "b"}
    journal.close()


def test_a_job_submitted_twice_stays_the_first(path: Path) -> None:
    world = lived()
    first = next(record for record in world.history if isinstance(record, ev.JobSubmitted))
    assert fold([*world.history, first]) == world.reducer.jobs


def test_a_second_handler_is_refused_until_the_first_has_closed(path: Path) -> None:
    first = Journal.write(path)
    assert first.held
    with pytest.raises(JournalBusyError, match="another handler"):
        Journal.write(path)
    reader = Journal.read(path)
    assert reader.held
    first.close()
    assert not reader.held
    reader.close()
    Journal.write(path).close()


def _hold(path: Path, pipe: Any) -> None:
    journal = Journal.write(path)
    journal.append([CANCEL])
    pipe.send("held")
    time.sleep(60)
    journal.close()


def test_the_lock_goes_with_a_handler_that_is_killed(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    holder = context.Process(target=_hold, args=(path, there))
    holder.start()
    try:
        assert here.recv() == "held"
        with pytest.raises(JournalBusyError):
            Journal.write(path)
    finally:
        holder.kill()
        holder.join()
    journal = Journal.write(path)
    assert [record for _, record in journal.records()] == [CANCEL]
    journal.close()
    here.close()
    there.close()


def test_whoever_looks_at_a_journal_keeps_no_handler_out(path: Path) -> None:
    Journal.write(path).close()
    reader = Journal.read(path)
    stop = threading.Event()

    def look() -> None:
        with path.with_suffix(".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            stop.wait(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    time.sleep(0.01)
    Journal.write(path).close()
    thread.join()
    reader.close()


def test_where_locks_mean_nothing_the_handler_that_was_overtaken_writes_no_more(path: Path) -> None:
    first = Journal.write(path)
    path.with_suffix(".lock").unlink()  # now it locks nothing
    second = Journal.write(path)
    second.append([CANCEL])
    with pytest.raises(PermanentError, match="took this journal over"):
        first.append([ev.CancelRequested(3.0, "late")])
    assert [record for _, record in second.records()] == [CANCEL]
    second.append([CANCEL])
    first.close()
    second.close()


def test_a_handler_of_an_earlier_term_or_the_same_cannot_open_it(path: Path) -> None:
    Journal.write(path, 3).close()
    for stale in (2, 3):
        with pytest.raises(PermanentError, match=f"a handler of term 3 has it; this one, of term {stale}, stops"):
            Journal.write(path, stale)
    journal = Journal.write(path, 4)
    assert journal.term() == 4
    journal.append([CANCEL])
    journal.close()


def test_what_a_handler_may_not_write_it_waits_with(path: Path) -> None:
    journal, asked = Journal.write(path, 1), []
    journal.may_write = lambda: asked.append(journal.last_seq())
    journal.append([CANCEL])
    assert asked == [0], "before anything is written"
    journal.close()


def test_an_append_is_whole_or_not_at_all(path: Path) -> None:
    journal = Journal.write(path)
    with pytest.raises(PermanentError, match="cannot write"):
        journal.append([CANCEL, ev.CancelRequested(None, "job")])  # type: ignore[arg-type]
    assert list(journal.records()) == []
    journal.append([CANCEL])
    assert [record for _, record in journal.records()] == [CANCEL]
    journal.close()


def test_a_full_disk_is_said_and_leaves_what_was_there(path: Path) -> None:
    journal = Journal.write(path)
    journal.append([CANCEL])
    (pages,) = journal._connection.execute("PRAGMA page_count").fetchone()
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")
    big = ev.JobSubmitted(1.0, "big", {"x": "y" * 100_000}, "file:///c")
    with pytest.raises(PermanentError, match=r"cannot write the journal: .*full"):
        journal.append([big])
    assert [record for _, record in journal.records()] == [CANCEL]
    journal.close()


def test_what_is_no_journal_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"dear diary " * 1000)
    with pytest.raises(PermanentError, match="journal"):
        Journal.write(path)
    with pytest.raises(PermanentError, match="not a journal"):
        Journal.read(path)
    assert path.read_bytes().startswith(b"dear diary")


@pytest.mark.parametrize(("version", "which"), [(99, "a later"), (1, "an earlier")])
def test_a_journal_of_another_version_is_refused(path: Path, version: int, which: str) -> None:
    Journal.write(path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = ? WHERE key = 'version'", (version,))
    connection.commit()
    connection.close()
    for way in (Journal.read, Journal.write):
        with pytest.raises(PermanentError, match=f"{which} Coach .*version {version}, .* COACH_HOME"):
            way(path)


def test_a_record_that_cannot_be_read_is_named(path: Path) -> None:
    journal = Journal.write(path)
    journal.append([CANCEL, CANCEL])
    journal._connection.execute("UPDATE records SET body = '{' WHERE seq = 2")
    with pytest.raises(PermanentError, match="record 2, CancelRequested"):
        journal.jobs()
    journal.close()


def test_without_a_journal_the_reader_says_what_to_do(path: Path) -> None:
    with pytest.raises(UserError, match="coach run"):
        Journal.read(path)
    assert not path.parent.exists()


def test_a_reader_sees_what_a_handler_writes_meanwhile_and_cannot_write(path: Path) -> None:
    journal = Journal.write(path)
    reader = Journal.read(path)
    assert list(reader.records()) == [] and reader.last_at() == 0.0
    assert State.CANCELLED.ended
    journal.append([CANCEL])
    assert [record for _, record in reader.records()] == [CANCEL]
    with pytest.raises(PermanentError):
        reader.append([CANCEL])
    reader.close()
    journal.close()


def test_jobs_are_of_one_instant_whatever_a_handler_writes_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job that was cancelled after a restart has ended, but the restart has not happened."""
    history = lived().history
    journal, reader = Journal.write(path), Journal.read(path)
    before = history[: len(history) // 2]
    journal.append(before)
    snapshots = Journal._snapshots

    def meanwhile(one: Journal) -> Any:
        if one is reader:
            journal.append(history[len(before) :])
        return snapshots(one)

    monkeypatch.setattr(Journal, "_snapshots", meanwhile)
    assert reader.jobs() == fold(before) != fold(history)
    monkeypatch.undo()
    assert reader.jobs() == fold(history)
    reader.close()
    journal.close()


def test_the_next_handler_learns_when_the_last_one_was_alive(path: Path) -> None:
    first = Journal.write(path)
    assert first.left_at is None
    first.beat(1000.0)
    first.close()
    second = Journal.write(path)
    assert second.left_at == 1000.0
    second.close()


def test_an_account_was_noticed_last_when_any_of_its_jobs_was(path: Path) -> None:
    """Jobs are read one after another; else the next handler gave a notice of this period again."""
    world = World.of(nodes(2, 2.0))
    world.send(ev.AccountSet(0.0, "team", 10**12, "USD", "month", "UTC"))
    for name in ("a", "b"):
        world.submit(spec(name, maxEpochs=1, budget={"account": "team"}))
    world.run()
    later = [act.NoticeAccount(world.now + at, job, "team", at, 1, 10**12) for at, job in ((50, "b"), (80, "a"))]
    journal = Journal.write(path)
    journal.append([*world.history, *later])
    folded = Reducer(CoachPolicy())
    for record in (*world.history, *later):
        folded.apply(record)
    found = journal.accounts(journal.jobs())
    journal.close()
    assert found == folded.accounts
    assert found.known["team"].noticed == (world.now + 80, 80)
