"""A job is read from its snapshot and what came after it; what it is stays the fold of its records."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import multiprocessing
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coach.core.errors import PermanentError
from coach.core.jobs import events as ev
from coach.core.jobs.fitted_models import FittedCurve
from coach.core.jobs.fold import apply
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.handler.handler import Handler
from coach.handler.interactive_run import over
from coach.handler.state import snapshots
from coach.handler.state.epoch_archive import EpochArchive
from coach.handler.state.journal import Journal, fold
from coach.handler.state.journal_file import HANDLING
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, check_job, nodes, spec
from tests.core.lifecycle.random_histories import SeededDraws, draw, play
from tests.handler.fake_platform import FakePlatform
from tests.handler.test_handler import handle, job_of

pytestmark = pytest.mark.standard


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def lived(*names: str) -> World:
    world = World.of(nodes(2, 4.0))
    for name in names:
        world.submit(spec(name, maxEpochs=9, target={"loss": 0.01}, stopEarly=False))
    world.run()
    return world


@pytest.mark.parametrize("number", [0, 1, 2, *(pytest.param(more, marks=pytest.mark.full) for more in range(3, 12))])
def test_an_ended_job_comes_back_as_it_was(number: int) -> None:
    world = play(draw(SeededDraws(f"snapshot {number}")), shadow=False)
    for job in world.reducer.jobs.values():
        again = snapshots.load(*snapshots.dump(job))
        assert again == job
        assert (again.consecutive_hits, again.hopeless, again.last_x()) == (
            job.consecutive_hits,
            job.hopeless,
            job.last_x(),
        )
        assert again.speed_points() == job.speed_points()


def test_every_field_of_a_job_is_in_its_snapshot() -> None:
    stored, hints = set(snapshots._types()), get_type_hints(Job)
    for field in (one for one in dataclasses.fields(Job) if one.init):
        kind = hints[field.name]
        parts = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        assert {f"{field.name}.{one.name}" for one in parts if one.init} <= stored
        assert parts or field.name in stored


def test_jobs_are_the_same_with_and_without_snapshots_and_in_the_same_order(path: Path) -> None:
    world = lived("b", "a", "c")
    journal = Journal.write(path)
    journal.append(world.history)
    assert list(journal.jobs()) == ["b", "a", "c"]
    for name in ("a", "b"):
        journal.save_snapshots(world.reducer.jobs[name])
    journal._connection.execute("UPDATE records SET body = '{' WHERE job = 'a'")  # nobody reads them any more
    assert journal.jobs() == world.reducer.jobs == fold(world.history)
    assert list(journal.jobs()) == ["b", "a", "c"]
    journal.close()
    reader = Journal.read(path)
    assert reader.jobs() == world.reducer.jobs
    reader.close()


@pytest.mark.parametrize("now", [False, True])
def test_a_job_that_was_stopped_is_remembered_too_and_goes_on_from_its_snapshot(path: Path, now: bool) -> None:
    async def stop(handler: Handler, memory: FakePlatform) -> None:
        handler.submit(job_of(maxEpochs=9, target={"loss": 0.01}, stopEarly=False), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and len(handler.jobs["job"].epochs) >= 3)
        handler.suspend(["job"], now=now)
        await handler.wait(lambda: over(handler.jobs["job"]))

    async def go_on(handler: Handler, memory: FakePlatform) -> None:
        handler.resume("job")
        await handler.wait(lambda: handler.jobs["job"].ended)

    stopped = handle(path, FakePlatform(), stop)["job"]
    reader = Journal.read(path)
    ((_, _, kept),) = reader._snapshots().values()
    assert kept == stopped == reader.jobs()["job"] == fold(record for _, record in reader.records())["job"]
    assert isinstance(kept.epochs, EpochArchive)
    reader.close()
    ended = handle(path, FakePlatform(), go_on)["job"]
    assert ended.reason is Reason.EPOCH_LIMIT and len(ended.full_epochs) == 9
    assert ended.epochs[: len(stopped.epochs)] == stopped.epochs
    check_job(ended)


def test_what_happens_after_a_snapshot_counts(path: Path) -> None:
    world = lived("a")
    journal = Journal.write(path)
    journal.append(world.history)
    journal.save_snapshots(world.reducer.jobs["a"])
    known = len(world.history)
    world.dynamics["a"] = FaultyDynamics(loss=lambda x: 0.001)
    world.resume("a")
    world.restart()
    world.run()
    journal.append(world.history[known:])
    assert journal.jobs() == world.reducer.jobs
    assert journal.jobs()["a"].progress.submitted_at < world.history[known].at
    journal.save_snapshots(world.reducer.jobs["a"])
    assert journal.jobs() == world.reducer.jobs
    journal.close()


@pytest.mark.parametrize("column", ["shape", "body"])
def test_a_snapshot_of_another_version_is_passed_over(path: Path, column: str) -> None:
    world = lived("a")
    journal = Journal.write(path)
    journal.append(world.history)
    journal.save_snapshots(world.reducer.jobs["a"])
    journal._connection.execute(f"UPDATE snapshots SET {column} = 'other'")
    assert journal.jobs() == world.reducer.jobs
    journal.close()


def test_a_journal_of_an_earlier_coach_is_read_without_snapshots_and_gets_them(path: Path) -> None:
    world = lived("a")
    journal = Journal.write(path)
    journal.append(world.history)
    journal._connection.execute("DROP TABLE snapshots")
    journal._connection.execute("DROP INDEX handler_records")
    journal.close()
    reader = Journal.read(path)
    assert reader.jobs() == world.reducer.jobs
    reader.close()
    journal = Journal.write(path)
    journal.save_snapshots(world.reducer.jobs["a"])
    assert journal.jobs() == world.reducer.jobs
    journal.close()


def test_the_records_that_say_which_handler_had_which_job_are_read_alone(path: Path) -> None:
    world = lived("a", "b")
    world.restart()
    world.resume("a")
    journal = Journal.write(path)
    journal.append(world.history)
    told = list(journal.handling())
    kinds = (ev.HandlerStarted, ev.JobSubmitted, ev.ResumeRequested, ev.SuspendRequested)
    assert told == [record for record in world.history if isinstance(record, kinds)]
    plan = journal._connection.execute(
        f"EXPLAIN QUERY PLAN SELECT seq FROM records WHERE {HANDLING} ORDER BY seq"
    ).fetchall()
    assert "handler_records" in str(plan)
    journal.close()


# -- of living jobs ---------------------------------------------------------------------------------------


@functools.cache
def lived_through(number: int) -> list[Any]:
    """What happened in one of a few histories of random faults."""
    return play(draw(SeededDraws(f"alive {number}")), shadow=False).history


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.lists(st.floats(0, 1), max_size=5), st.integers(0, 2**20))
def test_a_snapshot_at_any_record_and_the_rest_are_the_whole_fold(
    tmp_path_factory: pytest.TempPathFactory, number: int, shares: list[float], chosen: int
) -> None:
    history = lived_through(number)
    journal = Journal.write(tmp_path_factory.mktemp("cut") / "journal.db")
    cuts = sorted({0, *(round(share * len(history)) for share in shares), len(history)})
    for start, end in itertools.pairwise(cuts):
        journal.append(history[start:end])
        whole = fold(history[:end])
        assert journal.jobs() == whole
        some = [job for number, job in enumerate(journal.jobs().values()) if chosen >> number & 1]
        journal.save_snapshots(*some)
        assert journal.jobs() == whole and list(journal.jobs()) == list(whole)
        chosen >>= 4
    journal.close()


def keep_writing(path: Path, history: Sequence[Any], seed: int) -> None:
    """Go on with a journal of `history` where it ends, as a handler does, but keep jobs all the time."""
    journal = Journal.write(path)
    written, dice = journal.last_seq(), random.Random(seed)
    living = journal.jobs()
    while written < len(history):
        count = min(dice.randint(1, 8), len(history) - written)
        records = list(history[written : written + count])
        journal.append(records)
        written += count
        for record in records:
            if isinstance(record, ev.JobSubmitted):
                living |= {} if record.job in living else fold([record])
            elif record.job:
                apply(living[record.job], record)
            else:
                for job in living.values():
                    apply(job, record)
        journal.save_snapshots(*living.values())
    signal.pause()


def test_a_handler_killed_at_any_instant_of_writing_snapshots_leaves_a_journal_that_gives_its_jobs(
    path: Path,
) -> None:
    history = [
        record
        for names in ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op")
        for record in lived(*names).history
        if not isinstance(record, ev.HandlerStarted)
    ]
    dice, sizes = random.Random(7), [0]
    for seed in itertools.count():
        if seed >= 12 and sizes[-1] >= 2:
            break  # by then it has written some
        writer = multiprocessing.get_context("fork").Process(target=keep_writing, args=(path, history, seed))
        writer.start()
        time.sleep(0.05 + dice.random() * 0.1)
        writer.kill()
        writer.join()
        journal = Journal.write(path)
        records = [record for _, record in journal.records()]
        assert records == history[: len(records)]
        assert journal.jobs() == fold(records)
        sizes.append(len(journal._snapshots()))
        journal.close()


def test_a_handler_keeps_its_living_jobs_as_it_goes_and_what_it_writes_for_that_is_bounded(
    path: Path,
) -> None:
    epochs = 30

    async def body(handler: Handler, memory: FakePlatform) -> None:
        handler.submit(job_of(maxEpochs=epochs + 5, target={"loss": 1e-4}, stopEarly=False), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and len(handler.jobs["job"].epochs) >= epochs)

    written: list[int] = []
    kept: list[int] = []
    save_snapshots = Journal.save_snapshots

    def counting(self: Journal, *jobs: Job) -> None:
        save_snapshots(self, *jobs)
        (size,) = self._connection.execute("SELECT length(body) + length(epochs) FROM snapshots").fetchone()
        written.append(size)
        kept.append(len(jobs[0].epochs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "save_snapshots", counting)
        handle(path, FakePlatform(loss=lambda epochs_trained: 1 / (0.4 * epochs_trained + 0.5)), body)
    reader = Journal.read(path)
    ((_, seq, job),) = reader._snapshots().values()
    (records,) = reader._connection.execute("SELECT sum(length(body)) FROM records").fetchone()
    assert not job.ended and isinstance(job.epochs, EpochArchive) and job.epochs.count_packed == kept[-1] - 1
    assert sum(written) <= records + max(written), "all snapshots together take no more room than the records"
    assert len(written) >= 4 and max(b - a for a, b in itertools.pairwise(kept)) < epochs / 2
    assert len(list(reader.records("job", seq))) < 0.5 * len(list(reader.records("job")))
    reader.close()


def test_a_handler_that_starts_keeps_jobs_that_nobody_kept_before(path: Path) -> None:
    world = lived("a", "b")
    journal = Journal.write(path)
    journal.append(world.history)
    journal.close()

    async def body(handler: Handler, memory: FakePlatform) -> None:
        while len(reader._snapshots()) < 2:
            await asyncio.sleep(0.001)

    reader = Journal.read(path)
    handle(path, FakePlatform(), body)
    assert reader.jobs() == world.reducer.jobs
    reader.close()


def test_a_handler_that_was_overtaken_cannot_keep_a_job(path: Path) -> None:
    world = lived("a")
    early = fold(world.history[: len(world.history) // 2])["a"]
    first = Journal.write(path)
    first.append(world.history[: len(world.history) // 2])
    path.with_suffix(".lock").unlink()  # now it locks nothing
    second = Journal.write(path)
    second.append(world.history[len(world.history) // 2 :])
    with pytest.raises(PermanentError, match="took this journal over"):
        first.save_snapshots(early)
    assert second._snapshots() == {} and second.jobs() == world.reducer.jobs
    first.close()
    second.close()


def test_what_every_decision_asks_of_a_curve_is_in_the_journal_and_no_model_is_made_to_ask_again(
    path: Path,
) -> None:
    async def body(handler: Handler, memory: FakePlatform) -> None:
        handler.submit(job_of(maxEpochs=6, target={"loss": 0.3}), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and handler.jobs["job"].ended)

    handle(path, FakePlatform(loss=lambda epochs_trained: 1 / (0.1 * epochs_trained + 0.5)), body)
    reader = Journal.read(path)
    for job in (reader.jobs()["job"], fold(record for _, record in reader.records())["job"]):
        assert job.models.full_epoch_curves
        for curve in job.models.full_epoch_curves:
            found = curve.last_x(job.spec.target, curve.epochs_trained)
            assert curve._model is None
            plain = FittedCurve({key: curve.data[key] for key in ("metric", "points")}, curve.epochs_trained)
            assert found == plain.last_x(job.spec.target, curve.epochs_trained) and plain._model is not None
    reader.close()
