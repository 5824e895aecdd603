"""The live driver: what is decided is on disk before it is done, every action is answered, and a kill loses nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from coach.core.cluster import Allocation, Pod, PodId, Role
from coach.core.errors import PermanentError, UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import Reason, State
from coach.core.policies.coach import CoachPolicy
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.platforms.base import EpochError, EpochOrder, GangSize, PodError
from tests.core.lifecycle.faulty_cluster import check_job, spec
from tests.handler.fake_platform import FakePlatform

Body = Callable[[Handler, FakePlatform], Awaitable[None]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coach.core.lifecycle.reducer.BACKOFF", (0.0, 0.01, 0.01))


def job_of(name: str = "job", **changes: Any) -> TrainingJob:
    return TrainingJob.from_json(spec(name, **{"maxEpochs": 4, **changes}))


def handle(path: Path, platform: FakePlatform, body: Body) -> dict[str, Job]:
    """Run a handler for the length of `body`; the jobs as the journal has them afterwards."""

    async def main() -> dict[str, Job]:
        journal = Journal.write(path)
        try:
            async with Handler(platform, journal, CoachPolicy()) as handler:
                await asyncio.wait_for(body(handler, platform), 120)
                assert journal.jobs() == handler.jobs, "the journal alone gives the same jobs"
                return handler.jobs
        finally:
            journal.close()

    jobs = asyncio.run(main())
    assert not platform.pods and not platform.epochs
    return jobs


def run(path: Path, platform: FakePlatform, *specs: TrainingJob) -> dict[str, Job]:
    async def body(handler: Handler, _: FakePlatform) -> None:
        for one in specs:
            handler.submit(one, path.parent.as_uri())
        names = [one.name for one in specs]
        await handler.wait(lambda: all(name in handler.jobs and handler.jobs[name].ended for name in names))

    jobs = handle(path, platform, body)
    for job in jobs.values():
        check_job(job)
    return jobs


def at_rest(job: Job) -> bool:
    return job.phase is Phase.PAUSED and not job.gang.pods


async def until(handler: Handler, holds: Callable[[], bool]) -> None:
    await handler.wait(holds)


# -- a life -----------------------------------------------------------------------------------------------


def test_a_job_runs_to_its_target_and_gives_everything_back(path: Path) -> None:
    memory = FakePlatform()
    job = run(path, memory, job_of(maxEpochs=30))["job"]
    assert job.state is State.SUCCEEDED and job.consecutive_hits == 3
    assert not memory.pods and set(memory.released)
    assert [order.action.number for order in memory.orders] == list(range(1, len(job.epochs) + 1))


def test_what_is_ordered_is_in_the_journal_before_it_is_done(path: Path) -> None:
    seen: list[str] = []

    def journalled() -> list[Any]:
        reader = Journal.read(path)
        records = [record for _, record in reader.records()]
        reader.close()
        return records

    def deployed(pod: Pod) -> None:
        assert any(isinstance(r, act.DeployPods) and pod in r.pods for r in journalled())
        seen.append("deploy")

    def ordered(order: EpochOrder) -> None:
        assert order.action in journalled()
        seen.append("epoch")

    def released(pods: Sequence[PodId]) -> None:
        if seen[-1] != "closed" and pods:
            assert any(isinstance(r, act.ReleasePods) and r.pods == tuple(pods) for r in journalled())
        seen.append("release")

    run(path, FakePlatform(on_deploy=deployed, on_epoch=ordered, on_release=released), job_of(maxEpochs=2))
    assert {"deploy", "epoch", "release"} <= set(seen)


def test_an_epoch_gets_addresses_of_its_pods_and_a_time_on_the_handlers_clock(path: Path) -> None:
    memory = FakePlatform()
    run(path, memory, job_of(maxEpochs=1))
    for order in memory.orders:
        assert set(order.addresses) == set(order.action.pods)
        assert order.due == order.action.at + order.action.deadline
        assert order.spec.name == "job"


def test_a_job_that_goes_on_with_fewer_pods_requires_fewer_before_they_are_released(path: Path) -> None:
    seen: list[tuple[Allocation, Allocation]] = []

    def released(pods: Sequence[PodId]) -> None:
        stay = [pod.role for pod in memory.pods if pod not in pods]
        if stay:
            seen.append((memory.gangs["job"].required, Allocation(stay.count(Role.WORKER), stay.count(Role.SERVER))))

    memory = FakePlatform(on_release=released)
    run(path, memory, job_of(maxEpochs=30, workers={"min": 1, "max": 4}, servers={"min": 1, "max": 2}))
    assert seen
    for required, stay in seen:
        assert required.workers <= stay.workers and required.servers <= stay.servers, seen


def test_two_jobs_of_one_name_are_refused_also_at_once(path: Path) -> None:
    async def body(handler: Handler, _: FakePlatform) -> None:
        handler.submit(job_of(maxEpochs=1), path.parent.as_uri())
        with pytest.raises(UserError, match="there is a job job already"):
            handler.submit(job_of(maxEpochs=1), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and handler.jobs["job"].ended)
        with pytest.raises(UserError):
            handler.submit(job_of(maxEpochs=1), path.parent.as_uri())

    assert handle(path, FakePlatform(), body)["job"].attempts.count > 0


def test_what_is_asked_of_unknown_jobs_does_no_harm(path: Path) -> None:
    async def body(handler: Handler, _: FakePlatform) -> None:
        handler.cancel("nobody")
        handler.resume("nobody")
        handler.suspend(["nobody"], now=True)
        handler.submit(job_of(maxEpochs=1), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and handler.jobs["job"].ended)

    assert set(handle(path, FakePlatform(), body)) == {"job"}


# -- stops ------------------------------------------------------------------------------------------------


def started(path: Path, **changes: Any) -> Callable[[Handler], Awaitable[None]]:
    async def start(handler: Handler) -> None:
        handler.submit(job_of(**{"maxEpochs": 200, **changes}), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and len(handler.jobs["job"].epochs) >= 3)

    return start


@pytest.mark.parametrize("now", [False, True])
def test_an_interrupted_job_stands_still_and_goes_on_when_it_is_resumed(path: Path, now: bool) -> None:
    async def body(handler: Handler, memory: FakePlatform) -> None:
        await started(path)(handler)
        job = handler.jobs["job"]
        memory.epoch_seconds = 0.1
        await handler.wait(lambda: job.attempts.running is not None)
        handler.suspend(["job"], now=now)
        await handler.wait(lambda: at_rest(job))
        epochs, orders = len(job.epochs), len(memory.orders)
        assert job.reason is Reason.SUSPENDED and not memory.pods
        memory.epoch_seconds = 0.001
        handler.resume("job")
        await handler.wait(lambda: len(job.epochs) >= epochs + 2)
        assert memory.orders[orders].action.position == sum(e.report.samples for e in job.epochs[:epochs])
        handler.cancel("job")
        await handler.wait(lambda: job.ended)
        assert job.state is State.CANCELLED

    handle(path, FakePlatform(), body)


def test_a_cancelled_job_ends_at_once_though_its_epoch_would_take_long(path: Path) -> None:
    async def body(handler: Handler, memory: FakePlatform) -> None:
        memory.epoch_seconds = 1000.0
        handler.submit(job_of(), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and handler.jobs["job"].attempts.running is not None)
        await memory.told.wait()
        assert handler.progress["job"].token == "job.1"
        handler.cancel("job")
        await handler.wait(lambda: handler.jobs["job"].ended)
        assert "job" not in handler.progress

    assert handle(path, FakePlatform(), body)["job"].state is State.CANCELLED


# -- faults -----------------------------------------------------------------------------------------------


def test_a_pod_that_dies_in_an_epoch_costs_that_epoch_alone(path: Path) -> None:
    async def body(handler: Handler, memory: FakePlatform) -> None:
        await started(path, maxEpochs=6)(handler)
        job = handler.jobs["job"]
        memory.epoch_seconds = 0.5
        before = len(memory.orders)
        await handler.wait(lambda: job.attempts.running is not None and len(memory.orders) > before)
        memory.lose(sorted(job.gang.pods)[-1])
        memory.epoch_seconds = 0.001
        await handler.wait(lambda: job.ended)
        assert job.reason is Reason.EPOCH_LIMIT and job.attempts.count == len(job.epochs) + 1

    handle(path, FakePlatform(), body)


def test_a_pod_that_dies_at_the_instant_its_gang_is_complete_fails_the_epoch_and_nothing_else(
    path: Path,
) -> None:
    async def body(handler: Handler, memory: FakePlatform) -> None:
        lost = False

        def workers_last(pod: Pod) -> None:
            memory.start_seconds = 0.05 if pod.id.role is Role.WORKER else 0.0

        memory.on_deploy = workers_last

        def lose_first(event: ev.Event, actions: Sequence[act.Action]) -> None:
            nonlocal lost
            job = handler.jobs.get("job")
            if not lost and job and sum(held.ready for held in job.gang.pods.values()) == 2:
                # The last PodReady and this are read in one go: the epoch's pods are gone before it starts.
                lost = True
                last = next(pod for pod, held in job.gang.pods.items() if not held.ready)
                first = next(pod for pod, held in job.gang.pods.items() if held.ready)
                handler._send(ev.PodReady(handler.now(), "job", last, memory.pods[last]))
                memory.lose(first)

        handler.observers.append(lose_first)
        handler.submit(job_of(maxEpochs=2), path.parent.as_uri())
        await handler.wait(lambda: "job" in handler.jobs and handler.jobs["job"].ended)
        assert lost and handler.jobs["job"].reason is Reason.EPOCH_LIMIT

    handle(path, FakePlatform(), body)


def test_no_answer_of_a_released_pod_reaches_the_next_pod_of_its_name(path: Path) -> None:
    """Its start is given up before its release is told, so nothing of it can come later."""

    async def body(handler: Handler, memory: FakePlatform) -> None:
        memory.start_seconds = 0.05
        handler.submit(job_of(), path.parent.as_uri())
        await handler.wait(lambda: bool(memory.pods))
        handler.suspend(["job"], now=True)
        await handler.wait(lambda: "job" in handler.jobs and at_rest(handler.jobs["job"]))
        memory.gate = asyncio.Event()
        handler.resume("job")
        await handler.wait(lambda: bool(handler.jobs["job"].gang.pods))
        await asyncio.sleep(0.06)
        assert not any(held.ready for held in handler.jobs["job"].gang.pods.values())
        memory.gate.set()
        await handler.wait(lambda: handler.jobs["job"].ended)
        pods = [order.addresses for order in memory.orders]
        assert pods and handler.jobs["job"].reason is Reason.EPOCH_LIMIT

    handle(path, FakePlatform(), body)


@pytest.mark.parametrize(
    ("error", "reason", "attempts"),
    [
        (EpochError(Reason.PEER_LOST, "gone", 3), Reason.PEER_LOST, 3),
        (EpochError(Reason.MODEL_INVALID, "line 3", 3), Reason.MODEL_INVALID, 1),
        (PermanentError("the platform is gone"), Reason.INTERNAL, 3),
        (KeyError("samples"), Reason.INTERNAL, 3),
    ],
)
def test_whatever_an_epoch_raises_ends_its_job_and_no_other(
    path: Path, error: Exception, reason: Reason, attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(order: EpochOrder) -> None:
        if order.action.job == "bad":
            raise error

    jobs = run(path, FakePlatform(on_epoch=fail), job_of("bad"), job_of("good"))
    assert (jobs["bad"].state, jobs["bad"].reason) == (State.FAILED, reason)
    assert jobs["bad"].attempts.count == attempts
    assert jobs["good"].reason is Reason.EPOCH_LIMIT
    logged = [record for record in caplog.records if record.exc_info]
    assert bool(logged) == (not isinstance(error, EpochError | PermanentError))


@pytest.mark.parametrize("error", [PodError(Reason.FUNCTION_LOST, "exit code 1"), OSError("too many files")])
def test_whatever_a_start_raises_is_tried_again_and_then_ends_the_job(path: Path, error: Exception) -> None:
    memory = FakePlatform()

    def fail(pod: Pod) -> None:
        if pod.id.role is Role.SERVER:
            memory.pods.pop(pod.id)
            raise error

    memory.on_deploy = fail
    job = run(path, memory, job_of())["job"]
    assert job.state is State.FAILED and "3 attempts" in job.message and not memory.orders


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loss": math.nan}, Reason.LOSS_NOT_FINITE),
        ({"loss": -math.inf}, Reason.LOSS_NOT_FINITE),
        ({"accuracy": math.nan}, Reason.LOSS_NOT_FINITE),
        ({"samples": 0}, Reason.INTERNAL),
        ({"data_size": 0}, Reason.INTERNAL),
        ({"train_seconds": math.nan}, Reason.INTERNAL),
        ({"train_seconds": -1.0}, Reason.INTERNAL),
    ],
)
def test_a_report_that_makes_no_sense_is_a_failed_epoch(path: Path, changes: dict[str, Any], reason: Reason) -> None:
    job = run(path, FakePlatform(on_report=lambda report: dataclasses.replace(report, **changes)), job_of())["job"]
    assert (job.state, job.reason, job.epochs) == (State.FAILED, reason, [])


def test_a_model_without_accuracy_trains_to_its_loss(path: Path) -> None:
    memory = FakePlatform(on_report=lambda report: dataclasses.replace(report, accuracy=None))
    assert run(path, memory, job_of(maxEpochs=30))["job"].state is State.SUCCEEDED


def test_a_fit_that_fails_leaves_the_job_with_the_models_it_has(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no fit")

    monkeypatch.setattr("coach.handler.handler.fit_models", fail)
    job = run(path, FakePlatform(), job_of())["job"]
    assert job.reason is Reason.EPOCH_LIMIT and job.speed is None


def test_a_release_that_fails_ends_the_handler_for_pods_may_be_left(path: Path) -> None:
    memory = FakePlatform()

    def fail(pods: Sequence[PodId]) -> None:
        memory.on_release = lambda pods: None
        raise PermanentError("cannot be reached")

    memory.on_release = fail
    with pytest.raises(PermanentError, match="cannot be reached"):
        run(path, memory, job_of(maxEpochs=1))


def test_a_handler_whose_journal_was_taken_over_stops_and_orders_nothing_more(path: Path) -> None:
    async def body(handler: Handler, memory: FakePlatform) -> None:
        await started(path)(handler)
        path.with_suffix(".lock").unlink()
        Journal.write(path).close()
        with pytest.raises(PermanentError, match="took this journal over"):
            await handler.wait(lambda: False)
        memory.orders.clear()
        await asyncio.sleep(0.05)
        assert not memory.orders
        raise PermanentError("and says so")

    with pytest.raises(PermanentError, match="and says so"):
        handle(path, FakePlatform(), body)


# -- a handler that is killed -----------------------------------------------------------------------------


class Killed(Exception):
    """The handler dies here: nothing after this instant is written or done."""


def kill_after(path: Path, memory: FakePlatform, records: int, job: TrainingJob) -> bool:
    """Run until so many records are written, then die without a word; whether it came to that."""

    async def main() -> bool:
        journal = Journal.write(path)
        count = sum(1 for _ in journal.records())
        append = journal.append

        async def dying(batch: Any) -> None:
            nonlocal count
            batch = list(batch)
            append(batch)
            count += len(batch)
            if count >= records:
                raise Killed

        journal.append_when_free = dying  # type: ignore[method-assign]
        handler = Handler(memory, journal, CoachPolicy())
        await handler.__aenter__()
        try:
            if job.name not in handler.jobs:
                handler.submit(job, path.parent.as_uri())
            await asyncio.wait_for(handler.wait(lambda: job.name in handler.jobs and handler.jobs[job.name].ended), 60)
            return False
        except Killed:
            return True
        finally:
            handler._loop.cancel()
            for task in handler._tasks:
                task.cancel()
            await asyncio.gather(handler._loop, *handler._tasks, return_exceptions=True)
            memory.pods.clear()  # functions end with their handler
            memory.epochs.clear()
            journal.close()

    return asyncio.run(main())


@pytest.mark.parametrize("step", [19, 24, 29])
def test_a_job_whose_handler_is_killed_again_and_again_ends_as_if_nothing_had_happened(
    path: Path, tmp_path: Path, step: int
) -> None:
    job = job_of(maxEpochs=5, budget={"amount": 5.0, "currency": "USD"}, target={"loss": 0.01})
    calm = run(tmp_path / "calm.db", FakePlatform(), job)["job"]
    memory, records, kills = FakePlatform(), step, 0
    while kill_after(path, memory, records, job):
        kills += 1
        reader = Journal.read(path)
        records = sum(1 for _ in reader.records()) + step
        known = reader.jobs().get("job")
        reader.close()
        if known is not None:
            assert known.money.ledger.spent + known.money.ledger.reserved <= (known.money.ledger.budget or 0)
    assert kills > 2
    reader = Journal.read(path)
    end = reader.jobs()["job"]
    reader.close()
    check_job(end)
    assert (end.state, end.reason) == (calm.state, calm.reason)
    assert len(end.full_epochs) == len(calm.full_epochs) == 5
    assert all(abs(memory.loss(e.epochs_trained) - e.report.loss) < 1e-9 for e in end.epochs)
    assert sum(end.money.charges.values()) == end.money.ledger.spent


# -- checkpoints ------------------------------------------------------------------------------------------


def test_functions_delete_older_checkpoints(path: Path) -> None:
    failing = iter([False, True, False, False, True] + [False] * 20)

    def on_epoch(order: EpochOrder) -> None:
        if next(failing):
            with fsspec.open(order.action.weights_out, "w", auto_mkdir=True) as file:
                file.write("written by an attempt that failed afterwards")
            raise EpochError(Reason.PEER_LOST, "died", 1)

    job = run(path, FakePlatform(on_epoch=on_epoch), job_of(maxEpochs=8))["job"]
    kept = {job.best.report.weights, *(epoch.report.weights for epoch in job.epochs[-2:])}
    left = {file.as_uri() for file in path.parent.rglob("*.ckpt")}
    assert len(job.epochs) > 3 and left == kept


def test_the_best_epochs_checkpoint_is_kept_until_there_is_a_better_one(path: Path) -> None:
    losses = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0, 0.9, 2.0, 2.0, 2.0, 2.0] + [2.0] * 20)
    platform = FakePlatform(loss=lambda _: next(losses))
    job = run(path, platform, job_of(maxEpochs=10, target={"loss": 0.01}))["job"]
    assert job.best.report.loss == 0.9
    left = {file.as_uri() for file in path.parent.rglob("*.ckpt")}
    assert job.best.report.weights in left and len(left) <= 4
    assert job.best not in job.epochs[-3:]


def test_every_so_many_checkpoints_are_kept(path: Path) -> None:
    platform = FakePlatform()
    wanted = job_of(maxEpochs=12, target={"loss": 0.0001}, checkpoint={"keepEvery": 4})
    job = run(path, platform, wanted)["job"]
    left = {file.as_uri() for file in path.parent.rglob("*.ckpt")}
    assert {each.report.weights for each in job.full_epochs if each.ordinal % 4 == 0} <= left
    assert len(job.epochs) >= 10 and len(left) <= len(job.epochs) // 4 + 4


# -- the double keeps the platform's contract ---------------------------------------------------------------


def test_the_double_answers_as_a_platform_must() -> None:
    async def main() -> None:
        memory, lost = FakePlatform(), []
        events = SimpleNamespace(pod_lost=lambda pod, reason, message: lost.append((pod, reason)))
        await memory.open(events)
        one = job_of()
        pod = Pod(PodId("job", Role.WORKER, 0), "node-0", one.spec.resources.of(Role.WORKER))
        await memory.gang(GangSize("job", one.spec.limits.smallest, one.spec.limits.largest), one)
        first = await memory.deploy(pod, one)
        await memory.release([pod.id, PodId("job", Role.WORKER, 7)])
        assert pod.id not in memory.pods and not lost
        assert await memory.deploy(pod, one) != first
        memory.lose(pod.id)
        assert lost == [(pod.id, Reason.FUNCTION_LOST)]
        await memory.stop_epoch("job.1", Reason.SUSPENDED)
        await memory.forget("job")
        assert not memory.gangs
        await memory.close()
        assert not memory.pods

    asyncio.run(main())
