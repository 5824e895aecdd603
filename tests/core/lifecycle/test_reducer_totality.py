"""Every event can come in every phase: it is handled, the job makes sense afterwards, and only records changed it."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable

import pytest

from coach.core.cluster import PodId, Role
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.reducer import Reducer
from coach.handler.state.codec import decode, encode
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, check_job, nodes, spec, usd

pytestmark = pytest.mark.standard


def lone(dynamics: FaultyDynamics | None = None) -> World:
    world = World.of(nodes(3, 2.0))
    world.submit(spec(budget=usd(0.5), target={"loss": 0.7}), dynamics)
    return world


def idle() -> World:
    world = World.of(nodes(1, 1.6))
    world.submit(spec("first", maxEpochs=2))
    world.submit(spec(budget=usd(0.5), target={"loss": 0.7}))
    return world


def until(world: World, holds: Callable[[Job], bool]) -> World:
    """The world at the instant when this holds of its job."""
    world.run(until=lambda: holds(world.job()))
    return world


def deploying() -> World:
    return lone()


def growing() -> World:
    """Between epochs: it holds a gang that is paid for, and more pods are starting."""
    return until(lone(), lambda job: bool(job.epochs) and job.phase is Phase.DEPLOYING)


def shrinking() -> World:
    """Pods that are too many are being released before the next epoch."""
    return until(
        lone(FaultyDynamics(release_seconds=3.0)),
        lambda job: job.phase is Phase.DEPLOYING and any(held.releasing for held in job.gang.pods.values()),
    )


def probing() -> World:
    return until(lone(), lambda job: job.phase is Phase.RUNNING)


def training() -> World:
    return until(lone(), lambda job: job.attempts.running is not None and job.attempts.running.kind == "full")


def fitting() -> World:
    return until(lone(), lambda job: job.phase is Phase.FITTING and len(job.epochs) > 2)


def first_fit() -> World:
    return until(lone(), lambda job: job.phase is Phase.FITTING)


def backing_off() -> World:
    fault = FaultyDynamics(fault=lambda order: (Reason.PEER_LOST, 0.5) if order.token == "job.2" else None)
    return until(lone(fault), lambda job: job.reason is Reason.BACKING_OFF)


def refused() -> World:
    fates = FaultyDynamics(pod=lambda pod, number: Reason.QUOTA_EXCEEDED if number == 2 else 0.5)
    return until(lone(fates), lambda job: job.reason is Reason.QUOTA_EXCEEDED)


def stopping() -> World:
    """Interrupted, and giving back."""
    world = fitting()
    world.suspend()
    return until(world, lambda job: job.reason is Reason.SUSPENDED)


def interrupted() -> World:
    world = stopping()
    world.run()
    return world


def cancelling() -> World:
    """Cancelled while its epoch runs, which has not stopped yet."""
    world = training()
    world.cancel()
    return world


def ending() -> World:
    return until(cancelling(), lambda job: job.phase is Phase.ENDING)


def ended() -> World:
    world = cancelling()
    world.run()
    return world


def exhausted() -> World:
    world = World.of(nodes(3, 2.0))
    world.submit(spec(budget=usd(0.0012)))
    world.run()
    assert world.job().state is State.BUDGET_EXHAUSTED and world.job().epochs
    return world


def succeeded() -> World:
    world = lone()
    world.run()
    assert world.job().state is State.SUCCEEDED
    return world


PHASES: dict[Callable[[], World], Phase] = {
    idle: Phase.IDLE,
    deploying: Phase.DEPLOYING,
    growing: Phase.DEPLOYING,
    shrinking: Phase.DEPLOYING,
    probing: Phase.RUNNING,
    training: Phase.RUNNING,
    cancelling: Phase.RUNNING,
    fitting: Phase.FITTING,
    first_fit: Phase.FITTING,
    backing_off: Phase.PAUSED,
    refused: Phase.PAUSED,
    stopping: Phase.PAUSED,
    interrupted: Phase.PAUSED,
    ending: Phase.ENDING,
    ended: Phase.ENDED,
    exhausted: Phase.ENDED,
    succeeded: Phase.ENDED,
}


in_every_phase = pytest.mark.parametrize("make", PHASES, ids=lambda make: make.__name__)


def report(position: int = 0) -> EpochReport:
    return EpochReport(4000, 10_000, 0.9, 0.5, "file:///checkpoints/x.ckpt", 5.0, 0.1)


def events(reducer: Reducer, at: float) -> dict[str, ev.Event]:
    """Every type of event, as an answer to what is open and as one to something else."""
    job, cluster = reducer.jobs["job"], reducer.nodes.all
    some = next(iter(job.gang.pods), PodId("job", Role.WORKER, 0))
    leaving = tuple(pod for pod, h in job.gang.pods.items() if h.releasing)
    token = job.attempts.running.token if job.attempts.running else "job.none"
    return {
        "handler started": ev.HandlerStarted(at, cluster),
        "handler started long after": ev.HandlerStarted(at + 1e5, cluster, at),
        "handler started without nodes": ev.HandlerStarted(at, ()),
        "nodes lost": ev.NodesChanged(at, ("node-0",)),
        "all nodes lost": ev.NodesChanged(at, tuple(node.name for node in cluster)),
        "no node lost": ev.NodesChanged(at, ()),
        "policy slow": ev.PolicySlow(at, "coach", 2.0),
        "submitted again": ev.JobSubmitted(at, "job", spec(maxEpochs=1), "file:///other"),
        "pod ready": ev.PodReady(at, "job", some, "127.0.0.9:1"),
        "unknown pod ready": ev.PodReady(at, "job", PodId("job", Role.WORKER, 9), "127.0.0.9:1"),
        "pod lost": ev.PodLost(at, "job", some, Reason.FUNCTION_LOST, "gone"),
        "pod out of memory": ev.PodLost(at, "job", some, Reason.OUT_OF_MEMORY, "gone"),
        "unknown pod lost": ev.PodLost(at, "job", PodId("job", Role.WORKER, 9), Reason.FUNCTION_LOST, ""),
        "pods released": ev.PodsReleased(at, "job", leaving or (some,)),
        "nothing released": ev.PodsReleased(at, "job", ()),
        "epoch finished": ev.EpochFinished(at, "job", token, report(), 12),
        "another epoch finished": ev.EpochFinished(at, "job", "job.0", report(), 12),
        "epoch failed": ev.EpochFailed(at, "job", token, Reason.PEER_LOST, "gone", 12),
        "epoch stopped": ev.EpochFailed(at, "job", token, Reason.SUSPENDED, "", 12),
        "epoch has no data": ev.EpochFailed(at, "job", token, Reason.DATA_MISSING, "", 12),
        "epoch too late": ev.EpochFailed(at, "job", token, Reason.DEADLINE_EXCEEDED, "", 12),
        "another epoch failed": ev.EpochFailed(at, "job", "job.0", Reason.PEER_LOST, "gone", 12),
        "models fitted": ev.ModelsFitted(at, "job", job.models.fit_token or "job.fit", None, None),
        "other models fitted": ev.ModelsFitted(at, "job", "job.fit0", None, None),
        "timer fired": ev.TimerFired(at, "job", job.attempts.timer or "job.timer"),
        "another timer fired": ev.TimerFired(at, "job", "job.timer0"),
        "cancel": ev.CancelRequested(at, "job"),
        "interrupt": ev.SuspendRequested(at, "job", False),
        "interrupt now": ev.SuspendRequested(at, "job", True),
        "resume": ev.ResumeRequested(at, "job"),
        "resume with money": ev.ResumeRequested(at, "job", 10**9),
        "resume of another": ev.ResumeRequested(at, "nobody", 5),
    }


LATE = {
    "unknown pod ready",
    "unknown pod lost",
    "nothing released",
    "another epoch finished",
    "another epoch failed",
    "other models fitted",
    "another timer fired",
    "submitted again",
    "resume of another",
}


def check_curve(job: Job) -> None:
    """Every epoch began where the one before it ended."""
    samples = itertools.accumulate(epoch.report.samples for epoch in job.epochs)
    for epoch, seen in zip(job.epochs, samples, strict=True):
        assert epoch.report.loss in {FaultyDynamics().loss(seen / 10_000), None}
    assert all(epoch.report.loss is not None for epoch in job.full_epochs)


def money(job: Job) -> tuple[int, int]:
    return job.money.ledger.spent, job.money.ledger.reserved


def react(before: Reducer, frozen: bytes, event: ev.Event) -> tuple[Reducer, list[act.Action]]:
    """What a copy of the reducer makes of the event; its journal alone makes the same."""
    after, by_journal = (thawed(frozen) for _ in range(2))
    actions = after.react(event)
    for record in (event, *actions):
        by_journal.apply(decode(type(record).__name__, encode(record)))
    assert by_journal.jobs == after.jobs
    assert (by_journal.nodes.all, by_journal.nodes.unavailable) == (after.nodes.all, after.nodes.unavailable)
    for job in after.jobs.values():
        check_job(job)
        ledger = job.money.ledger
        assert ledger.budget is None or ledger.spent + ledger.reserved <= ledger.budget
        assert sum(job.money.charges.values()) == ledger.spent >= before.jobs[job.name].money.ledger.spent
        assert job.progress.position >= before.jobs[job.name].progress.position
    return after, actions


def freeze(reducer: Reducer) -> bytes:
    """Copies by pickle; views and models are made again where they are looked at."""
    reducer._cluster_state = None
    reducer._views.clear()
    for job in reducer.jobs.values():
        for fit in filter(None, (job.models.surface, job.models.curve, *job.models.full_epoch_curves)):
            fit._model = None
    return pickle.dumps(reducer)


def thawed(frozen: bytes) -> Reducer:
    reducer: Reducer = pickle.loads(frozen)
    return reducer


@in_every_phase
def test_every_event_in_this_phase_is_handled_and_leaves_a_job_that_makes_sense(
    make: Callable[[], World],
) -> None:
    world = make()
    assert world.job().phase is PHASES[make]
    before = copy.deepcopy(world.job())
    frozen = freeze(world.reducer)
    for name, event in events(world.reducer, world.now).items():
        after, actions = react(world.reducer, frozen, event)
        if name in LATE:
            assert not actions, name
            assert after.jobs["job"] == before, name
        assert len(actions) < 20, name
    assert world.job() == before
    world.run()


@pytest.mark.full
@pytest.mark.parametrize("make", [growing, probing, backing_off, refused, stopping])
def test_any_two_events_in_this_phase_are_handled_too(make: Callable[[], World]) -> None:
    world = make()
    first = {k: v for k, v in events(world.reducer, world.now).items() if k not in LATE}
    for event in first.values():
        after, _ = react(world.reducer, freeze(world.reducer), event)
        frozen = freeze(after)
        for other in events(after, world.now).values():
            react(after, frozen, other)


@pytest.mark.parametrize("make", [idle, growing, probing, fitting, backing_off])
def test_from_this_phase_the_same_event_leads_to_the_same_actions(make: Callable[[], World]) -> None:
    one, other = make(), make()
    assert one.history == other.history
    first, second = freeze(one.reducer), freeze(other.reducer)
    for (name, event), same in zip(
        events(one.reducer, one.now).items(), events(other.reducer, other.now).values(), strict=True
    ):
        assert thawed(first).react(event) == thawed(second).react(same), name


# -- what users ask for, in every phase --------------------------------------------------------------------


@in_every_phase
def test_a_cancelled_job_ends_and_gives_everything_back(make: Callable[[], World]) -> None:
    world = make()
    over = world.job().ended or world.job().stop.cancel
    state = world.job().state
    world.cancel()
    world.run()
    assert world.job().ended
    assert world.job().state is (State.CANCELLED if not over or make in (cancelling, ending) else state)


@pytest.mark.parametrize("now", [False, True])
@in_every_phase
def test_an_interrupted_job_rests_with_its_checkpoint_and_ends_as_usual_when_it_is_resumed(
    make: Callable[[], World], now: bool
) -> None:
    world = make()
    job = world.job()
    over, running, epochs = job.ended or job.stop.cancel, job.attempts.running, len(job.epochs)
    world.suspend(now=now)
    world.run()
    if over:
        return
    assert (job.reason, job.phase) == (Reason.SUSPENDED, Phase.PAUSED)
    assert len(job.epochs) == epochs + (running is not None and not now), "the running epoch counts, if it may end"
    world.resume()
    world.run()
    assert job.state is State.SUCCEEDED
    check_curve(job)


@in_every_phase
def test_a_job_that_is_resumed_without_having_been_stopped_goes_on_as_it_was(
    make: Callable[[], World],
) -> None:
    world = make()
    job, before = world.job(), copy.deepcopy(world.job())
    actions = world.resume(added=10**9)
    assert job.money.ledger.budget == (before.money.ledger.budget or 0) + 10**9
    if before.phase in (Phase.DEPLOYING, Phase.RUNNING, Phase.FITTING) or make in (backing_off, refused):
        assert not actions and (job.phase, job.attempts.running, job.models.fit_token) == (
            before.phase,
            before.attempts.running,
            before.models.fit_token,
        )
    world.run()
    assert job.state in (State.SUCCEEDED, State.CANCELLED)
    assert job.state is State.SUCCEEDED or make is cancelling


def test_an_exhausted_job_goes_on_with_more_money_from_its_checkpoint() -> None:
    world = exhausted()
    job = world.job()
    epochs, spent, position = len(job.epochs), job.money.ledger.spent, job.progress.position
    world.resume(added=10**9)
    order = world.job().attempts.running
    world.run(until=lambda: world.job().attempts.running is not None)
    order = world.job().attempts.running
    assert order is not None
    assert (order.number, order.position, order.weights_in) == (
        epochs + 1,
        position,
        job.epochs[-1].report.weights,
    )
    world.run()
    assert job.state is State.SUCCEEDED and job.money.ledger.spent > spent
    world.check_fold()


def test_an_exhausted_job_that_is_resumed_without_money_says_so_again() -> None:
    world = exhausted()
    spent = world.job().money.ledger.spent
    world.resume()
    world.run()
    assert world.job().state is State.BUDGET_EXHAUSTED and world.job().money.ledger.spent == spent


# -- a handler that restarts, in every phase ----------------------------------------------------------------


@pytest.mark.parametrize("down", [0.0, 1000.0])
@in_every_phase
def test_after_a_restart_the_job_ends_as_if_nothing_had_happened(make: Callable[[], World], down: float) -> None:
    calm = make()
    calm.run()
    world = make()
    job = copy.deepcopy(world.job())
    world.restart(down=down)
    assert world.job().epochs[: len(job.epochs)] == [
        # The time until the pods were gone is paid, and belongs to the last attempt.
        epoch if epoch.token != job.attempts.last_token else world.job().epochs[len(job.epochs) - 1]
        for epoch in job.epochs
    ]
    world.run()
    end = world.job()
    assert (end.state, end.reason) == (calm.job().state, calm.job().reason)
    assert len(end.full_epochs) >= len(job.full_epochs)
    assert end.attempts.count - len(end.epochs) <= calm.job().attempts.count - len(calm.job().epochs) + 1
    if job.attempts.running and not job.stop.cancel:
        assert end.attempts.count == len(end.epochs) + 1, "at most one epoch is repeated"
    check_curve(end)
    assert end.progress.run_seconds < 1000.0, "the time without a handler counts for nothing"
    world.check_fold()


@in_every_phase
def test_a_handler_that_restarts_again_and_again_counts_nothing_twice(make: Callable[[], World]) -> None:
    world = make()
    for _ in range(5):
        spent = money(world.job())[0]
        world.restart()
        world.restart()
        assert money(world.job())[0] >= spent
        for _ in range(4):
            world.step()
    world.run()
    world.check_fold()


@pytest.mark.parametrize("make", [deploying, probing, training, fitting, backing_off, idle])
def test_a_cluster_that_has_become_too_small_ends_the_job_with_the_numbers(make: Callable[[], World]) -> None:
    world = make()
    world.restart(nodes(2, 0.5))
    world.run()
    assert world.job().reason is Reason.NEVER_FITS and "largest node has 0.5 cpu" in world.job().message
