"""A job that ended is read from its snapshot; what it is stays the fold of its records."""

from __future__ import annotations

import dataclasses
import operator
from pathlib import Path

import pytest

from coach.core.jobs import events as ev
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.handler import snapshots
from coach.handler.foreground import over
from coach.handler.handler import Handler
from coach.handler.journal import Journal, fold
from coach.handler.later import Later
from tests.core.lives import SeededDice, draw, play
from tests.core.world import Truth, World, check_job, nodes, spec
from tests.handler.double import Memory
from tests.handler.test_handler import handle, job_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def lived(*names: str) -> World:
    world = World.of(nodes(2, 4.0))
    for name in names:
        world.submit(spec(name, maxEpochs=9, target={"loss": 0.01}))
    world.run()
    return world


@pytest.mark.parametrize("number", range(12))
def test_an_ended_job_comes_back_as_it_was(number: int) -> None:
    world = play(draw(SeededDice(f"snapshot {number}")), shadow=False)
    for job in world.reducer.jobs.values():
        again = snapshots.thaw(*snapshots.freeze(job))
        assert again == job
        assert (again.in_a_row, again.hopeless, again.last_x()) == (job.in_a_row, job.hopeless, job.last_x())
        assert again.speed_points() == job.speed_points()


def test_every_field_of_a_job_is_in_its_snapshot() -> None:
    names = {field.name for field in dataclasses.fields(Job)}
    assert names - set(snapshots._types()) == {"pods", "running", "epochs"}


def test_jobs_are_the_same_with_and_without_snapshots_and_in_the_same_order(path: Path) -> None:
    world = lived("b", "a", "c")
    journal = Journal.write(path)
    journal.append(world.history)
    assert list(journal.jobs()) == ["b", "a", "c"]
    for name in ("a", "b"):
        journal.remember(world.reducer.jobs[name])
    journal._connection.execute("UPDATE records SET body = '{' WHERE job = 'a'")  # nobody reads them any more
    assert journal.jobs() == world.reducer.jobs == fold(world.history)
    assert list(journal.jobs()) == ["b", "a", "c"]
    journal.close()
    reader = Journal.read(path)
    assert reader.jobs() == world.reducer.jobs
    reader.close()


@pytest.mark.parametrize("now", [False, True])
def test_a_job_that_was_stopped_is_remembered_too_and_goes_on_from_its_snapshot(
    path: Path, now: bool
) -> None:
    async def stop(handler: Handler, memory: Memory) -> None:
        handler.submit(job_of(maxEpochs=9, target={"loss": 0.01}), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and len(handler.jobs["job"].epochs) >= 3)
        handler.interrupt(["job"], now=now)
        await handler.wait(lambda: over(handler.jobs["job"]))

    async def go_on(handler: Handler, memory: Memory) -> None:
        handler.resume("job")
        await handler.wait(lambda: handler.jobs["job"].ended)

    stopped = handle(path, Memory(), stop)["job"]
    reader = Journal.read(path)
    ((_, _, kept),) = reader._snapshots().values()
    assert kept == stopped == reader.jobs()["job"] == fold(record for _, record in reader.records())["job"]
    assert isinstance(kept.epochs, Later)
    reader.close()
    ended = handle(path, Memory(), go_on)["job"]
    assert ended.reason is Reason.EPOCH_LIMIT and len(ended.real_epochs) == 9
    assert ended.epochs[: len(stopped.epochs)] == stopped.epochs
    check_job(ended)


def test_what_happens_after_a_snapshot_counts(path: Path) -> None:
    world = lived("a")
    journal = Journal.write(path)
    journal.append(world.history)
    journal.remember(world.reducer.jobs["a"])
    known = len(world.history)
    world.truths["a"] = Truth(loss=lambda x: 0.001)
    world.resume("a")
    world.restart()
    world.run()
    journal.append(world.history[known:])
    assert journal.jobs() == world.reducer.jobs
    assert journal.jobs()["a"].submitted_at < world.history[known].at
    journal.remember(world.reducer.jobs["a"])
    assert journal.jobs() == world.reducer.jobs
    journal.close()


@pytest.mark.parametrize("column", ["shape", "body"])
def test_a_snapshot_of_another_version_is_passed_over(path: Path, column: str) -> None:
    world = lived("a")
    journal = Journal.write(path)
    journal.append(world.history)
    journal.remember(world.reducer.jobs["a"])
    journal._connection.execute(f"UPDATE snapshots SET {column} = 'other'")
    assert journal.jobs() == world.reducer.jobs
    journal.close()


def test_a_journal_of_an_earlier_coach_is_read_without_snapshots_and_gets_them(path: Path) -> None:
    world = lived("a")
    journal = Journal.write(path)
    journal.append(world.history)
    journal._connection.execute("DROP TABLE snapshots")
    journal._connection.execute("DROP INDEX records_of_handlers")
    journal.close()
    reader = Journal.read(path)
    assert reader.jobs() == world.reducer.jobs
    reader.close()
    journal = Journal.write(path)
    journal.remember(world.reducer.jobs["a"])
    assert journal.jobs() == world.reducer.jobs
    journal.close()


def test_the_records_that_say_which_handler_had_which_job_are_read_alone(path: Path) -> None:
    world = lived("a", "b")
    world.restart()
    world.resume("a")
    journal = Journal.write(path)
    journal.append(world.history)
    told = list(journal.handling())
    kinds = (ev.HandlerStarted, ev.JobSubmitted, ev.ResumeAsked, ev.InterruptAsked)
    assert told == [record for record in world.history if isinstance(record, kinds)]
    plan = journal._connection.execute(
        "EXPLAIN QUERY PLAN SELECT seq FROM records WHERE type IN "
        "('HandlerStarted', 'JobSubmitted', 'ResumeAsked', 'InterruptAsked') ORDER BY seq"
    ).fetchall()
    assert "records_of_handlers" in str(plan)
    journal.close()


def test_epochs_are_unpacked_where_somebody_looks_and_their_number_is_known_before() -> None:
    looks = []

    def make() -> list[int]:
        looks.append(1)
        return [1, 2, 3]

    later = Later(3, make)
    assert len(later) == 3 and later and not looks
    assert not Later(0, list)
    assert [*later] == [1, 2, 3] and later[-1] == 3 and later == [1, 2, 3]
    assert Later(3, make) == Later(3, make) and Later(3, make) != [1]
    assert (
        list(reversed(Later(3, make))) == [3, 2, 1] and Later(3, make)[1:] == [2, 3] and 2 in Later(3, make)
    )
    assert (
        sum(Later(3, make)) == 6
        and [0, *Later(3, make)] == [0, 1, 2, 3]
        and sorted(Later(3, make)) == [1, 2, 3]
    )
    assert operator.add([0], Later(3, make)) == [0, 1, 2, 3] == operator.add(Later(3, lambda: [0, 1, 2]), [3])
    grown = Later(3, make)
    grown.append(4)
    del grown[0]
    assert grown == [2, 3, 4] and len(grown) == 3 and repr(grown) == "[2, 3, 4]"
    looks.clear()
    assert [*later, *later] and not looks, "made once"
