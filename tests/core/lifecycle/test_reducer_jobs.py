"""Several jobs on one cluster: no barrier between them, no job starves, and jobs that end free their capacity."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle import stopping_rules
from coach.core.policies import Policy
from coach.core.policies.coach import CoachPolicy
from coach.plugins import policy
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec, usd

SLOW = FaultyDynamics(speed=lambda w, s: 0.01 * w)
GANG = 1.6  #: cores of a 1x1 gang


def started(world: World, name: str) -> float:
    return world.orders(name)[0].at


def ended(job: Job) -> float:
    assert job.progress.ended_at is not None
    return job.progress.ended_at


def world_of(cluster: Any, *names: str, dynamics: FaultyDynamics | None = None, **changes: Any) -> World:
    world = World.of(cluster, shadow=True)
    for name in names:
        world.submit(spec(name, **{"maxEpochs": 4, **changes}), dynamics or FaultyDynamics())
    return world


def test_a_job_that_measures_does_not_hold_up_another() -> None:
    world = world_of(nodes(4, 4.0))
    world.submit(spec("slow", maxEpochs=20), SLOW)
    world.submit(spec("fast", maxEpochs=3))
    world.run(until=lambda: world.job("fast").ended)
    slow = world.job("slow").attempts.running
    assert slow is not None and slow.kind is EpochKind.PROBE, "it is still at its probes"


def test_a_job_that_comes_late_starts_while_others_train() -> None:
    world = world_of(nodes(2, 4.0), "a", maxEpochs=10)
    world.run(until=lambda: len(world.job("a").epochs) == 8)
    world.submit(spec("b", maxEpochs=2))
    at = world.now
    world.run(until=lambda: bool(world.orders("b")))
    epoch = world.orders("a")[-1]
    assert world.now - at <= epoch.deadline, "at the next boundary at the latest"
    world.run()


@pytest.mark.parametrize("cores", [GANG, 2 * GANG, 2.7])
def test_jobs_that_do_not_fit_wait_with_the_reason_and_then_run(cores: float) -> None:
    world = world_of(nodes(1, cores), "a", "b", "c", target={"loss": 1.0})
    waiting = world.job("c")
    assert waiting.state is State.WAITING and waiting.reason is Reason.WAITING_CAPACITY
    assert "blocked by job" in waiting.message and "needs 1 scheduler x 0.1 cpu" in waiting.message
    world.run()
    assert {job.state for job in world.reducer.jobs.values()} == {State.SUCCEEDED}
    assert started(world, "a") <= started(world, "b") <= started(world, "c")


def test_what_follows_from_a_waiting_job_alone_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to others: with hundreds that wait, each event would take seconds otherwise."""
    asked: Counter[str] = Counter()
    stop_decision = stopping_rules.stop_decision

    def counted(job: Job) -> tuple[Reason, str] | None:
        asked[job.name] += 1
        return stop_decision(job)

    monkeypatch.setattr(stopping_rules, "stop_decision", counted)
    world = world_of(nodes(1, GANG), "a", "b", "c", maxEpochs=2)
    world.run(until=lambda: bool(world.taken(act.DeployPods, "c")))
    assert len(world.taken(act.SetStatus, "c")) > 2, "it was looked at, and said whom it waits for"
    assert asked["c"] == 1


def test_the_higher_priority_goes_first() -> None:
    world = world_of(nodes(1, GANG), "running")
    for name, priority in (("low", -1), ("high", 5), ("middle", 0)):
        world.submit(spec(name, maxEpochs=1, priority=priority))
    world.run()
    assert sorted(("low", "middle", "high"), key=lambda name: started(world, name)) == [
        "high",
        "middle",
        "low",
    ]


def test_a_priority_that_was_changed_changes_who_goes_first() -> None:
    world = world_of(nodes(1, GANG), "running", "earlier", "later", maxEpochs=1)
    world.run(until=lambda: world.job("running").phase is Phase.RUNNING)
    world.send(ev.PriorityChanged(world.now, "later", 1))
    world.run()
    assert started(world, "later") < started(world, "earlier")


def test_among_equals_the_first_submitted_goes_first_and_names_break_ties() -> None:
    world = world_of(nodes(1, GANG), "z")
    world.now += 1
    for name in ("y", "b", "x"):
        world.submit(spec(name, maxEpochs=1))
    world.run()
    assert sorted("ybx", key=lambda name: started(world, name)) == ["b", "x", "y"]


def test_a_job_that_ends_makes_room_for_one_that_waits_at_once() -> None:
    world = world_of(nodes(1, GANG), "a", "b", maxEpochs=1)
    world.run()
    released = [event.at for event in world.taken(ev.PodsReleased, "a")][-1]
    assert world.taken(act.DeployPods, "b")[0].at == released


def test_a_cancelled_or_interrupted_job_makes_room_too() -> None:
    world = world_of(nodes(1, GANG), "a", "b", "c", maxEpochs=3)
    world.run(until=lambda: world.job("a").phase is Phase.RUNNING)
    world.suspend("a", now=True)
    world.run(until=lambda: world.job("b").phase is Phase.RUNNING)
    world.cancel("b")
    world.run()
    assert world.job("c").reason is Reason.EPOCH_LIMIT
    assert world.job("a").reason is Reason.SUSPENDED
    world.resume("a")
    world.run()
    assert world.job("a").reason is Reason.EPOCH_LIMIT


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ((False,), Reason.HANDLER_STOPPED),
        ((True,), Reason.SUSPENDED),
        ((False, True), Reason.SUSPENDED),
        ((True, False), Reason.SUSPENDED),
    ],
)
def test_a_job_that_was_stopped_says_whether_its_user_or_only_its_handler_did(
    asked: tuple[bool, ...], reason: Reason
) -> None:
    world = world_of(nodes(1, GANG), "a", maxEpochs=3)
    world.run(until=lambda: world.job("a").phase is Phase.RUNNING)
    for by_user in asked:
        world.suspend("a", by_user=by_user)
    world.run()
    assert (world.job("a").reason, len(world.job("a").epochs)) == (reason, 1)
    assert "coach resume a" in world.job("a").message
    world.resume("a")
    world.run()
    assert world.job("a").reason is Reason.EPOCH_LIMIT
    world.check_fold()


def test_a_waiting_job_that_is_cancelled_is_gone_and_one_that_is_interrupted_does_not_start() -> None:
    world = world_of(nodes(1, GANG), "a", "b", "c", maxEpochs=2)
    world.cancel("b")
    world.suspend("c")
    world.run()
    assert world.job("b").state is State.CANCELLED and not world.orders("b")
    assert world.job("c").reason is Reason.SUSPENDED and not world.orders("c")


def test_jobs_share_the_cluster_while_there_are_several_and_one_has_it_alone_then() -> None:
    """A slow and a fast job on room for 3x3 and a bit: both train all the time, and the survivor grows."""
    world = World.of(nodes(3, 2.0), shadow=True)
    world.submit(spec("short", target={"loss": 0.5}))
    world.submit(spec("long", target={"loss": 0.22}))
    world.run()
    short, long = world.job("short"), world.job("long")
    assert {short.state, long.state} == {State.SUCCEEDED}
    while_short = [sum(e.allocation) for e in long.full_epochs if e.ended_at < ended(short)]
    alone = [sum(e.allocation) for e in long.full_epochs if e.started_at > ended(short)]
    assert while_short and alone and max(alone) > max(while_short)


def test_no_job_waits_while_its_smallest_gang_fits() -> None:
    world = world_of(nodes(2, 2.0), "a", "b", "c", "d", maxEpochs=2)
    while world.step():
        live = [job for job in world.reducer.jobs.values() if not job.ended]
        if sum(bool(job.gang.pods) for job in live) == 0:
            assert not live
        held = sum(h.pod.requests.cpu for job in live for h in job.gang.pods.values())
        idle = [job for job in live if job.phase is Phase.IDLE]
        if idle:
            assert held > 2.0 - GANG, "one of two nodes would be free"
    world.check_rest()


@pytest.mark.parametrize("count", [12, 40])
def test_many_jobs_all_get_their_turn(count: int) -> None:
    world = World.of(nodes(2, 4.0))
    for number in range(count):
        world.submit(spec(f"j{number:02}", maxEpochs=1, priority=number % 2), FaultyDynamics(fit_seconds=0.0))
    world.run()
    jobs = world.reducer.jobs.values()
    assert all(job.reason is Reason.EPOCH_LIMIT for job in jobs)
    first = [started(world, job.name) for job in sorted(jobs, key=lambda job: (-job.spec.priority, job.name))]
    assert first[0] == min(first) and first[-1] == max(first)


def test_money_of_one_job_is_nothing_to_another() -> None:
    world = World.of(nodes(2, 4.0), shadow=True)
    world.submit(spec("poor", budget=usd(0.0004)))
    world.submit(spec("rich", budget=usd(1.0), target={"loss": 0.6}))
    world.run()
    assert world.job("poor").state is State.BUDGET_EXHAUSTED
    assert world.job("rich").state is State.SUCCEEDED


def test_a_broken_job_is_nothing_to_another() -> None:
    broken = FaultyDynamics(fault=lambda order: (Reason.PEER_LOST, 0.3))
    world = World.of(nodes(1, 2 * GANG), shadow=True)
    world.submit(spec("broken"), broken)
    world.submit(spec("sound", target={"loss": 0.6}))
    world.run()
    assert world.job("broken").state is State.FAILED and world.job("sound").state is State.SUCCEEDED


@pytest.mark.parametrize("name", ["coach", "coach:cheapest", "coach:mean-completion", "static:2x2", "static:9x9"])
def test_under_every_policy_every_job_ends(name: str) -> None:
    """Also where the policy would have a job wait for ever: no other job uses the cluster then."""
    world = World.of(nodes(2, 2.0), policy(name), shadow=True)
    world.submit(spec("a", maxEpochs=3, timeLimit="1h"))
    world.submit(spec("b", maxEpochs=3, budget=usd(0.01)))
    world.submit(spec("c", maxEpochs=3, workers={"min": 2, "max": 2}))
    world.run()
    assert all(job.ended for job in world.reducer.jobs.values())
    assert all(job.reason is Reason.EPOCH_LIMIT for job in world.reducer.jobs.values())


class Stingy(Policy):
    """A policy that gives no job anything."""

    name = "stingy"
    cadence = None

    def allocate(self, jobs: Any, cluster: Any) -> Any:
        decision = CoachPolicy().allocate(jobs, cluster)
        return type(decision)({job.id: None for job in jobs}, ())


def test_a_policy_that_gives_nothing_cannot_keep_a_cluster_idle() -> None:
    world = World.of(nodes(2, 2.0), Stingy(), shadow=True)
    for name in "ab":
        world.submit(spec(name, maxEpochs=2))
    world.run()
    assert [world.job(name).reason for name in "ab"] == [Reason.EPOCH_LIMIT] * 2
    assert started(world, "b") > world.job("a").progress.submitted_at


def test_a_change_of_one_job_asks_the_policy_once_for_all_that_wait() -> None:
    asked = 0

    class Counting(CoachPolicy):
        def allocate(self, jobs: Any, cluster: Any) -> Any:
            nonlocal asked
            asked += 1
            return super().allocate(jobs, cluster)

    world = World.of(nodes(1, GANG), Counting())
    for number in range(50):
        world.submit(spec(f"j{number}", maxEpochs=2))
    before = asked
    world.run(until=lambda: bool(world.job("j0").ended))
    assert asked - before < 20


def test_the_order_of_a_gangs_pods_in_the_journal_is_fixed() -> None:
    world = world_of(nodes(3, 2.0), "a", "b")
    world.run()
    for before, after in pairwise(world.orders("a")):
        assert before.pods == tuple(sorted(before.pods)) and after.pods == tuple(sorted(after.pods))
