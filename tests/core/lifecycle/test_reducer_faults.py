"""What goes wrong with a job's pods, epochs and answers, and what follows: once, again, or the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coach.core.cluster import PodId, Role
from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Phase
from coach.core.jobs.reasons import Reason, Retry, State
from coach.core.lifecycle.forecast import MAX_FAILURES
from coach.core.lifecycle.reducer import BACKOFF, CHECKPOINT_LOST, START_DEADLINE
from coach.core.money import Charge
from coach.plugins import policy
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec, usd

ROOMY = nodes(4, 4.0)
STATIC = {"name": "static", "workers": 2, "servers": 1}
ALONE = {"workers": {"min": 1, "max": 1}, "servers": {"min": 1, "max": 1}}


def failing(*tokens: str, reason: Reason = Reason.PEER_LOST) -> FaultyDynamics:
    """These attempts fail half-way."""
    return FaultyDynamics(fault=lambda order: (reason, 0.5) if order.token in tokens else None)


def start(dynamics: FaultyDynamics | None = None, **changes: Any) -> World:
    world = World.of(ROOMY)
    world.submit(spec(**{"maxEpochs": 4, **changes}), dynamics)
    return world


def backoffs(world: World) -> list[float]:
    """Seconds between each failed attempt and the next."""
    failed = [event.at for event in world.taken(ev.EpochFailed)]
    ordered = [order.at for order in world.orders()]
    return [min(at - end for at in ordered if at >= end) for end in failed if any(at >= end for at in ordered)]


# -- failed attempts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason",
    [
        reason
        for reason in Reason
        if reason.state is None and reason.retry is Retry.BOUNDED and reason not in CHECKPOINT_LOST
    ],
)
def test_a_failed_attempt_runs_again_from_the_last_checkpoint(reason: Reason) -> None:
    world = start(failing("job.3", reason=reason))
    world.run()
    job = world.job()
    assert job.reason is Reason.EPOCH_LIMIT and job.attempts.count == len(job.epochs) + 1
    first, again = world.orders()[2:4]
    assert (again.number, again.position, again.weights_in) == (
        first.number,
        first.position,
        first.weights_in,
    )
    assert (first.attempt, again.attempt) == (1, 2) and again.token != first.token
    assert again.group != first.group, "a group that failed is not formed any more"
    assert job.epochs[2].attempt == 2 and job.attempts.last_failure is None


@pytest.mark.parametrize("reason", CHECKPOINT_LOST)
def test_a_checkpoint_that_is_lost_costs_the_epoch_that_wrote_it(reason: Reason) -> None:
    calm = start(policy=STATIC, maxEpochs=6, budget=usd(5.0))
    calm.run()
    world = start(failing("job.5", reason=reason), policy=STATIC, maxEpochs=6, budget=usd(5.0))
    world.run()
    job = world.job()
    fifth, again = world.orders()[4:6]
    assert (fifth.number, again.number) == (5, 4)
    assert again.weights_in == world.orders()[3].weights_in == world.orders()[2].weights_out
    assert again.position == world.orders()[3].position
    assert [epoch.number for epoch in job.epochs] == list(range(1, 7)), "none twice, none missing"
    assert [e.report.loss for e in job.epochs] == [e.report.loss for e in calm.job().epochs]
    assert job.reason is calm.job().reason and job.attempts.count == 8
    assert job.money.ledger.spent == sum(job.money.charges.values()) > sum(epoch.cost for epoch in job.epochs)
    world.check_fold()


def test_a_first_checkpoint_that_is_lost_starts_the_job_again() -> None:
    world = start(failing("job.2", reason=Reason.CHECKPOINT_INVALID))
    world.run()
    assert (world.orders()[2].number, world.orders()[2].position, world.orders()[2].weights_in) == (
        1,
        0,
        None,
    )
    assert world.job().reason is Reason.EPOCH_LIMIT


def test_a_job_whose_checkpoints_are_all_lost_is_given_up() -> None:
    lost = {f"job.{number}" for number in range(5, 20)}
    world = start(failing(*lost, reason=Reason.CHECKPOINT_MISSING), policy=STATIC, maxEpochs=6)
    world.run()
    assert (world.job().state, world.job().reason) == (State.FAILED, Reason.CHECKPOINT_MISSING)
    assert [order.number for order in world.orders()[4:]] == [5, 4, 3]


@pytest.mark.parametrize("reason", [r for r in Reason if r.state is None and r.retry is Retry.NEVER])
def test_the_users_mistake_is_never_tried_again(reason: Reason) -> None:
    world = start(failing("job.2", reason=reason))
    world.run()
    job = world.job()
    assert (job.state, job.reason, job.message) == (State.FAILED, reason, "fault")
    assert job.attempts.count == 2 and len(job.epochs) == 1


def test_a_job_is_given_up_after_three_attempts_in_a_row_with_growing_pauses() -> None:
    world = start(failing("job.3", "job.4", "job.5"))
    world.run()
    job = world.job()
    assert (job.state, job.reason) == (State.FAILED, Reason.PEER_LOST)
    assert "3 attempts in a row failed" in job.message and job.attempts.count == 5
    assert backoffs(world) == pytest.approx([0.0, 1.0], abs=0.1)
    assert list(BACKOFF) == sorted(BACKOFF) and len(BACKOFF) >= MAX_FAILURES - 1


def test_only_failures_in_a_row_count() -> None:
    world = start(failing("job.2", "job.3", "job.5", "job.6", "job.8", "job.9"))
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT
    assert world.job().attempts.count == len(world.job().epochs) + 6


def test_failed_attempts_are_paid() -> None:
    world = start(failing("job.3"), budget=usd(0.5))
    world.run()
    job = world.job()
    failed = [settle for settle in world.taken(act.Settle) if settle.charge is Charge.FAILED]
    assert failed and all(settle.token == "job.3" for settle in failed)
    assert job.money.charges["job.3"] > 0 and job.money.charges["job.3"] not in [epoch.cost for epoch in job.epochs]
    assert job.money.ledger.spent == job.money.charges["job.3"] + sum(epoch.cost for epoch in job.epochs)


def test_failures_that_use_up_the_budget_end_in_its_exhaustion() -> None:
    calm = start()
    calm.run(until=lambda: len(calm.job().epochs) == 2)
    world = start(failing("job.2"), budget=usd(calm.job().money.ledger.spent / 1e9))
    world.run()
    assert world.job().state is State.BUDGET_EXHAUSTED


def test_an_epoch_that_hangs_is_stopped_at_its_deadline_and_runs_again() -> None:
    world = start(policy=STATIC, maxEpochs=6)
    speed = FaultyDynamics().speed
    world.dynamics["job"] = FaultyDynamics(lambda w, s: speed(w, s) / (1000 if len(world.orders()) == 4 else 1))
    world.run()
    failed = world.taken(ev.EpochFailed)
    assert [event.reason for event in failed] == [Reason.DEADLINE_EXCEEDED]
    order = next(order for order in world.orders() if order.token == failed[0].token)
    assert failed[0].at - order.at == pytest.approx(order.deadline)
    assert order.predicted_seconds is not None
    assert order.deadline == pytest.approx(3 * order.predicted_seconds[2] + 10)
    assert world.job().reason is Reason.EPOCH_LIMIT


# -- pods that die ----------------------------------------------------------------------------------------


def at_phase(phase: Phase, epochs: int = 2) -> Callable[[World], bool]:
    return lambda world: world.job().phase is phase and len(world.job().epochs) >= epochs


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("phase", [Phase.DEPLOYING, Phase.RUNNING, Phase.FITTING])
def test_a_pod_that_dies_is_replaced_and_at_most_one_epoch_runs_again(phase: Phase, role: Role) -> None:
    world = start(target={"loss": 0.5}, maxEpochs=30)
    world.run(until=lambda: at_phase(phase)(world))
    victim = next(pod for pod in world.job().gang.pods if pod.role is role)
    deployed = [record for record in world.taken(act.DeployPods) for pod in record.pods if pod.id == victim]
    world.lose(victim)
    world.run()
    job = world.job()
    assert job.state is State.SUCCEEDED
    assert job.attempts.count - len(job.epochs) == (1 if phase is Phase.RUNNING else 0)
    again = [record for record in world.taken(act.DeployPods) for pod in record.pods if pod.id == victim]
    assert len(again) >= len(deployed)


def test_a_pod_that_dies_in_the_first_start_of_its_gang_is_started_again() -> None:
    world = start(FaultyDynamics(pod=lambda pod, number: Reason.FUNCTION_LOST if number == 2 else 0.5))
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT and not world.taken(ev.EpochFailed)


def test_a_pod_that_cannot_start_ends_the_job_after_three_attempts() -> None:
    world = start(FaultyDynamics(pod=lambda pod, number: Reason.FUNCTION_LOST if pod.role is Role.SERVER else 0.5))
    world.run()
    job = world.job()
    assert (job.state, job.reason, job.attempts.count) == (State.FAILED, Reason.FUNCTION_LOST, 0)
    assert "3 attempts" in job.message and job.money.ledger.spent == 0


def test_a_pod_that_needs_more_memory_than_it_asked_for_ends_the_job_at_once() -> None:
    world = start(FaultyDynamics(pod=lambda pod, number: Reason.OUT_OF_MEMORY if pod.role is Role.WORKER else 0.5))
    world.run()
    assert (world.job().state, world.job().reason) == (State.FAILED, Reason.OUT_OF_MEMORY)


def test_pods_that_die_together_are_one_failure() -> None:
    world = start(policy={"name": "static", "workers": 3, "servers": 2}, maxEpochs=5)
    world.run(until=lambda: at_phase(Phase.RUNNING)(world))
    for pod in sorted(world.job().gang.pods):
        world.lose(pod)
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT
    assert world.job().attempts.count == len(world.job().epochs) + 1


def elastic(**changes: Any) -> World:
    """A PyTorch job with three workers, in its second epoch."""
    policy = {"name": "static", "workers": 3}
    dynamics = FaultyDynamics(speed=lambda w, s: 0.1 * w / (1 + 0.15 * (w - 1)))
    world = start(dynamics, framework="pytorch", servers={"min": 0, "max": 0}, policy=policy, **changes)
    world.run(until=lambda: at_phase(Phase.RUNNING, 1)(world))
    return world


def test_an_elastic_epoch_goes_on_without_a_lost_worker_which_costs_nothing_from_then_on() -> None:
    world = elastic()
    before = world.job().money.ledger.spent
    world.at(world.now + 1.0, lambda: world.dies(PodId("job", Role.WORKER, 1)))
    world.run(until=lambda: len(world.job().gang.pods) == 3)
    assert world.job().phase is Phase.RUNNING and not world.taken(act.StopEpoch)
    assert world.job().money.ledger.spent > before
    world.run()
    job = world.job()
    assert job.reason is Reason.EPOCH_LIMIT and job.attempts.count == len(job.epochs) == 4
    assert job.money.ledger.spent == sum(epoch.cost for epoch in job.epochs)
    assert job.epochs[1].cost < job.epochs[2].cost, "a worker less"
    assert {len(order.pods) for order in world.orders()} == {4}, "the next epoch has a new worker"
    assert {order.group for order in world.orders()} == {"job.g1"}, "which joins the others"


def test_an_elastic_epoch_does_not_hide_that_a_worker_had_too_little_memory() -> None:
    world = elastic()
    world.lose(PodId("job", Role.WORKER, 1), Reason.OUT_OF_MEMORY)
    assert world.taken(act.StopEpoch)
    world.run()
    assert (world.job().state, world.job().reason) == (State.FAILED, Reason.OUT_OF_MEMORY)


@pytest.mark.parametrize("lost", ["job-scheduler-0", "every worker"])
def test_an_elastic_epoch_without_scheduler_or_workers_is_trained_again(lost: str) -> None:
    world = elastic()
    assert world.job().gang.group == "job.g1"
    for pod in sorted(world.job().gang.pods):
        if pod.name == lost or (lost == "every worker" and pod.role is Role.WORKER):
            world.lose(pod)
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT
    assert world.job().attempts.count == len(world.job().epochs) + 1
    assert world.job().gang.groups == 2


def test_an_elastic_group_that_grows_and_shrinks_is_formed_once_and_learns_what_a_change_costs() -> None:
    dynamics = FaultyDynamics(
        speed=lambda w, s: 0.1 * w / (1 + 0.15 * (w - 1)), same_group_seconds=0.5, new_group_seconds=2.5
    )
    world = start(dynamics, framework="pytorch", servers={"min": 0, "max": 0})
    world.run()
    job = world.job()
    assert len({order.allocation for order in world.orders()}) > 1
    assert {order.group for order in world.orders()} == {"job.g1"} and job.gang.groups == 1
    assert job.times.restart == pytest.approx(2.0, abs=0.3)


def test_a_pod_that_dies_while_it_is_released_is_no_failure() -> None:
    world = start(FaultyDynamics(release_seconds=3.0))
    world.run(until=lambda: any(held.releasing for held in world.job().gang.pods.values()))
    leaving = next(pod for pod, held in world.job().gang.pods.items() if held.releasing)
    actions = world.send(ev.PodLost(world.now, "job", leaving, Reason.FUNCTION_LOST, "exit code 1"))
    assert not actions and leaving in world.job().gang.pods, "until its release is ordered"
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT and world.job().attempts.count == len(world.job().epochs)


# -- the start deadline -----------------------------------------------------------------------------------


def never(name: str) -> FaultyDynamics:
    return FaultyDynamics(pod=lambda pod, number: None if pod.name == name else 0.5)


@pytest.mark.parametrize("missing", ["job-worker-1", "job-server-1"])
def test_at_the_deadline_an_epoch_starts_with_what_is_there_if_the_needed_are(missing: str) -> None:
    world = start(never(missing), maxEpochs=6)
    world.run()
    job = world.job()
    assert job.reason is Reason.EPOCH_LIMIT and job.attempts.count == len(job.epochs)
    assert not any(pod.name == missing for order in world.orders() for pod in order.pods)
    late = [
        decision
        for decision in world.taken(act.SetAllocation)
        if any("not ready in time" in step.reason for step in decision.why)
    ]
    assert late and all(decision.kind is EpochKind.FULL for decision in late)


def test_pods_with_gaps_in_their_numbers_make_a_gang_too() -> None:
    world = World.of(ROOMY)
    points = tuple(KnownSpeed(w, s, FaultyDynamics().speed(w, s)) for w, s in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 3)))
    world.submit(spec(maxEpochs=3), never("job-worker-1"), known_points=points)
    world.run(until=lambda: any("job-worker-2" in {pod.name for pod in o.pods} for o in world.orders()))
    order = world.orders()[-1]
    assert order.allocation.workers == 2
    assert {pod.index for pod in order.pods if pod.role is Role.WORKER} == {0, 2}
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT


def test_a_probe_whose_gang_does_not_come_is_left_out() -> None:
    world = start(never("job-worker-1"), workers={"min": 1, "max": 2}, maxEpochs=8)
    world.run()
    tried = [d.allocation for d in world.taken(act.SetAllocation) if d.kind is EpochKind.PROBE]
    came = {epoch.allocation for epoch in world.job().epochs if epoch.kind is EpochKind.PROBE}
    assert any(point.workers == 2 for point in tried)
    assert {point.workers for point in came} == {1}
    for point in tried:
        assert tried.count(point) == 1 or point in came


def test_where_the_needed_are_not_there_everything_is_given_back_and_tried_again() -> None:
    world = start(FaultyDynamics(pod=lambda pod, number: None if number == 2 else 0.5))
    world.run(until=lambda: world.job().reason is Reason.BACKING_OFF)
    assert world.now == pytest.approx(1_000_000 + START_DEADLINE)
    assert all(held.releasing for held in world.job().gang.pods.values())
    assert "1 of 3 functions were not ready" in world.job().message
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT and world.job().money.ledger.spent > 0


def test_a_needed_pod_that_never_starts_ends_the_job_after_three_deadlines() -> None:
    world = start(never("job-server-0"))
    world.run()
    job = world.job()
    assert (job.state, job.reason) == (State.FAILED, Reason.START_TIMED_OUT)
    assert job.progress.ended_at is not None and job.progress.ended_at - job.progress.submitted_at == pytest.approx(
        3 * START_DEADLINE + 1, abs=1
    )


def test_the_deadline_counts_from_the_last_start_of_pods() -> None:
    """A pod that is lost after 50 s, and its successor, that takes 30 s: no deadline passes."""
    fates: dict[int, float | Reason] = {1: 55.0, 2: 1.0, 3: 1.0, 4: 30.0}
    world = start(FaultyDynamics(pod=lambda pod, number: fates.get(number, 0.5)))
    world.at(world.now + 50.0, lambda: world.dies(PodId("job", Role.WORKER, 0)))
    world.run(until=lambda: bool(world.orders()))
    assert world.now == pytest.approx(1_000_080, abs=1)


def test_what_is_paid_for_waits_for_more_pods_no_longer_than_its_lease() -> None:
    world = start(never("job-worker-1"), policy={"name": "coach"}, budget=usd(0.5))
    world.run(until=lambda: any(isinstance(r, ev.PodsReleased) for r in world.history))
    waited = world.taken(act.SetTimer)[-1]
    order = world.orders()[-1]
    assert waited.due <= order.at + order.deadline
    world.run()


# -- answers that come late, twice, or for no job -----------------------------------------------------------


def test_an_answer_to_an_attempt_that_was_given_up_changes_nothing() -> None:
    world = start(failing("job.2"))
    world.run(until=lambda: len(world.job().epochs) == 3)
    report = world.job().epochs[0].report
    before = world.job().progress.position, world.job().money.ledger.spent, len(world.job().epochs)
    for token in ("job.1", "job.2", "job.99", ""):
        assert not world.send(ev.EpochFinished(world.now, "job", token, report, 5))
        assert not world.send(ev.EpochFailed(world.now, "job", token, Reason.INTERNAL, "", 5))
    assert (world.job().progress.position, world.job().money.ledger.spent, len(world.job().epochs)) == before
    world.run()
    world.check_fold()


def test_a_stopped_epoch_that_finished_first_counts() -> None:
    world = start(FaultyDynamics(stop_seconds=100.0))
    world.run(until=lambda: world.job().attempts.running is not None)
    world.suspend(now=True)
    world.run()
    assert len(world.job().epochs) == 1 and world.job().reason is Reason.SUSPENDED


def test_a_second_submission_of_a_name_is_not_a_second_job() -> None:
    world = start()
    world.run(until=lambda: len(world.job().epochs) == 2)
    assert not world.submit(spec(maxEpochs=1))
    assert world.job().spec.max_epochs == 4 and len(world.job().epochs) == 2
    world.run()
    world.check_fold()


@pytest.mark.parametrize("times", [2, 5])
def test_every_answer_may_come_several_times(times: int) -> None:
    world = start(failing("job.2"), budget=usd(0.5))
    answers = (ev.EpochFinished, ev.EpochFailed, ev.PodReady, ev.PodsReleased, ev.ModelsFitted, ev.TimerFired)
    seen = 0
    while world.step():
        event = world.history[[isinstance(r, ev.Event) for r in world.history].index(True, seen)]
        seen = world.history.index(event, seen) + 1
        if isinstance(event, answers):
            for _ in range(times - 1):
                assert not world.send(event), event
    world.check_rest()
    assert world.job().reason is Reason.EPOCH_LIMIT


# -- a fault while a user asks for something ----------------------------------------------------------------


def test_a_failure_on_the_way_to_an_interruption_is_not_waited_out() -> None:
    world = start(failing("job.2"))
    world.run(until=lambda: len(world.orders()) == 2)
    world.suspend()
    world.run()
    job = world.job()
    assert job.reason is Reason.SUSPENDED
    assert Reason.BACKING_OFF not in [enter.reason for enter in world.taken(act.SetStatus)]
    assert job.attempts.failures == 0
    world.resume()
    world.run()
    assert job.reason is Reason.EPOCH_LIMIT


def test_a_cancel_in_the_same_instant_as_a_failure_is_a_cancel() -> None:
    world = start(failing("job.2", reason=Reason.MODEL_INVALID))
    world.run(until=lambda: len(world.orders()) == 2)
    world.cancel()
    order = world.orders()[-1]
    world.running.clear()
    world.send(ev.EpochFailed(world.now, "job", order.token, Reason.MODEL_INVALID, "line 3", 5))
    world.run()
    assert world.job().state is State.CANCELLED


def test_a_gang_whose_money_ran_out_as_it_waited_waits_for_the_room_of_a_cheaper_one() -> None:
    """With two workers an epoch is eight times as fast, and so cheaper; another job holds the second one's room."""
    world = World.of(nodes(2, 1.7), policy("static:1x1"), shadow=True)
    world.submit(spec("b", maxEpochs=50, **ALONE), FaultyDynamics(speed=lambda w, s: 0.1))
    world.run(until=lambda: bool(world.orders("b")))
    dynamics = FaultyDynamics(speed=lambda w, s: 0.05 if w == 1 else 0.4, pod=lambda pod, number: 5.0)
    file = spec("a", **{**ALONE, "workers": {"min": 1, "max": 2}}, budget=usd(0.00145), maxEpochs=5)
    world.submit(file, dynamics, known_points=(KnownSpeed(1, 1, 0.05), KnownSpeed(2, 1, 0.4)))
    world.run(until=lambda: bool(world.orders("a")))
    began = world.now
    world.run(until=lambda: world.now > began + 10)
    world.lose(PodId("a", Role.WORKER, 0))
    world.run(until=lambda: world.job("a").reason is Reason.WAITING_CAPACITY)
    world.run()
    assert [str(order.allocation) for order in world.orders("a")] == ["1x1", "2x1", "2x1", "2x1"]
    assert world.job("a").reason is Reason.BUDGET_SPENT
