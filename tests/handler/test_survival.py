"""What a handler survives: a full disk, a clock that jumps, submissions by the hundred, a job that can never run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coach.core.cluster import Node, Resources
from coach.core.errors import PermanentError
from coach.core.jobs import actions as act
from coach.core.jobs.job import LEASE_SECONDS, Phase
from coach.core.jobs.reasons import Reason, State
from coach.core.money import to_money
from coach.handler.clock import Clock
from coach.handler.handler import BEAT_SECONDS, Handler
from coach.handler.state.journal import Journal
from tests.core.lifecycle.faulty_cluster import check_job
from tests.handler.fake_platform import FakePlatform
from tests.handler.test_handler import handle, job_of, kill_after, run
from tests.required import small_disk

pytestmark = pytest.mark.standard


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coach.core.lifecycle.reducer.BACKOFF", (0.0, 0.01, 0.01))


def recorded(path: Path) -> list[object]:
    reader = Journal.read(path)
    try:
        return [record for _, record in reader.records()]
    finally:
        reader.close()


# -- a full disk ------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    with small_disk(tmp_path / "disk", 2) as place:
        yield place


def fill(place: Path) -> Path:
    """A file that takes all the room there is."""
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    return filler


@pytest.mark.root
def test_a_disk_that_is_full_ends_the_handler_with_a_clear_error_and_the_job_goes_on_when_there_is_room(
    disk: Path, tmp_path: Path
) -> None:
    path, job = disk / "journal.db", job_of(maxEpochs=6, target={"loss": 0.01})
    calm = run(tmp_path / "calm.db", FakePlatform(), job)["job"]
    memory = FakePlatform()
    fillers: list[Path] = []

    async def body(handler: Handler, _: FakePlatform) -> None:
        handler.submit(job, (tmp_path / "checkpoints").as_uri())
        await handler.wait(lambda: "job" in handler.jobs and len(handler.jobs["job"].epochs) >= 3)
        fillers.append(fill(disk))
        await handler.wait(lambda: handler.jobs["job"].ended)

    with pytest.raises(PermanentError, match=r"journal\.db: cannot write the journal: .*(full|disk)"):
        handle(path, memory, body)
    assert not memory.pods, "no function is left running"
    reader = Journal.read(path)
    before = reader.jobs()["job"]
    reader.close()
    assert len(before.epochs) >= 3 and not before.ended, "what was written can be read"
    fillers[0].unlink()

    async def again(handler: Handler, _: FakePlatform) -> None:
        await handler.wait(lambda: handler.jobs["job"].ended)

    after = handle(path, memory, again)["job"]
    check_job(after)
    assert (after.state, after.reason) == (calm.state, calm.reason)
    assert [e.report.loss for e in after.epochs] == [e.report.loss for e in calm.epochs]
    assert after.money.ledger.spent == sum(after.money.charges.values())


@pytest.mark.root
def test_a_snapshot_that_finds_no_room_is_done_without(
    disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = disk / "journal.db"
    job = run(path, FakePlatform(), job_of(maxEpochs=2))["job"]
    journal = Journal.write(path)
    journal._connection.execute("DELETE FROM snapshots")
    fill(disk)
    journal.save_snapshots(job)
    assert "not remembered" in caplog.text
    assert journal.jobs() == {"job": job}
    journal.close()


# -- clocks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_is_set_while_a_handler_runs_changes_no_time_of_its(
    path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    real = time.time
    memory = FakePlatform()

    async def body(handler: Handler, _: FakePlatform) -> None:
        handler.submit(job_of(maxEpochs=6, target={"loss": 0.01}), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and len(handler.jobs["job"].epochs) >= 2)
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        await handler.wait(lambda: handler.jobs["job"].ended)

    job = handle(path, memory, body)["job"]
    times = [record.at for record in recorded(path)]  # type: ignore[attr-defined]
    assert times == sorted(times) and times[-1] - times[0] < 60
    assert job.reason is Reason.EPOCH_LIMIT and all(0 <= epoch.seconds < 60 for epoch in job.epochs)


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_is_set_while_no_handler_runs_makes_nobody_pay_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    job = job_of(maxEpochs=4, target={"loss": 0.01}, budget={"amount": 50.0, "currency": "USD"})
    memory = FakePlatform(epoch_seconds=0.05)
    assert kill_after(path, memory, 14, job), "killed in an epoch"
    reader = Journal.read(path)
    left = reader.jobs()["job"]
    reader.close()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)

    async def body(handler: Handler, _: FakePlatform) -> None:
        await handler.wait(lambda: handler.jobs["job"].ended)

    after = handle(path, memory, body)["job"]
    times = [record.at for record in recorded(path)]  # type: ignore[attr-defined]
    assert times == sorted(times)
    assert after.reason is Reason.EPOCH_LIMIT
    settled = [record for record in recorded(path) if isinstance(record, act.Settle)]
    rate = job.spec.price_book.rate(left.money.billed_resources)
    longest = BEAT_SECONDS + memory.linger_seconds + LEASE_SECONDS + 5.0
    assert all(settle.amount <= to_money(rate * longest) + 10**6 for settle in settled)
    check_job(after)


def test_signs_of_life_are_on_the_clock_of_the_records(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400.0)
    job = run(path, FakePlatform(), job_of(maxEpochs=1))["job"]
    monkeypatch.setattr(time, "time", real)  # the clock was wrong, and is put right

    async def body(handler: Handler, _: FakePlatform) -> None:
        await asyncio.sleep(0)

    handle(path, FakePlatform(), body)
    journal = Journal.write(path)
    assert journal.left_at is not None and journal.left_at >= (job.progress.ended_at or 0.0)
    journal.close()


def test_a_clock_starts_no_earlier_than_what_it_follows_and_goes_on_from_there() -> None:
    ahead = time.time() + 1000.0
    clock = Clock(ahead)
    first = clock.now()
    assert ahead <= first <= clock.now() < ahead + 60


# -- jobs that are too many, too large, too poor ------------------------------------------------------------


def test_hundreds_of_submissions_at_once_are_all_taken_and_all_in_the_journal(path: Path) -> None:
    async def body(handler: Handler, _: FakePlatform) -> None:
        for number in range(300):
            handler.submit(job_of(f"j{number}", maxEpochs=1, priority=number % 3), path.parent.as_uri())
        await handler.wait(lambda: len(handler.jobs) == 300)

    jobs = handle(path, FakePlatform(epoch_seconds=50.0), body)
    assert len(jobs) == 300 and sum(job.phase is not Phase.IDLE for job in jobs.values()) < 20
    reader = Journal.read(path)
    assert list(reader.jobs()) == [f"j{number}" for number in range(300)]
    reader.close()


def test_a_job_that_no_node_can_hold_is_refused_at_once_with_the_numbers(path: Path) -> None:
    memory = FakePlatform(nodes=(Node("small", Resources(0.5, 0.25)),))
    job = run(path, memory, job_of())["job"]
    assert (job.state, job.reason) == (State.FAILED, Reason.NEVER_FITS)
    assert "0.5 cpu" in job.message and not memory.orders and job.money.ledger.spent == 0


def test_a_budget_too_small_for_one_epoch_is_said_before_anything_is_spent(path: Path) -> None:
    memory = FakePlatform()
    job = run(path, memory, job_of(budget={"amount": 1e-6, "currency": "USD"}))["job"]
    assert (job.state, job.reason) == (State.BUDGET_EXHAUSTED, Reason.BUDGET_SPENT)
    assert job.money.ledger.spent == 0 and not memory.orders and not memory.released
    assert "the next epoch at 1x1 may take" in job.message and "cost" in job.message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"
