"""Pods that the cluster does not make now: their job holds none of them, waits, and tries again."""

from __future__ import annotations

import itertools

import pytest

from coach.core.cluster import PodId, Role
from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs import actions as act
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.reducer import COUNTED, LATER, ONE_BY_ONE
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec

ROOMY = nodes(3, 8.0)
SMALLEST = {"workers": {"min": 1, "max": 1}, "servers": {"min": 1, "max": 1}}
FULL = Reason.QUOTA_EXCEEDED


class Quota:
    """So many pods may be there at once, of all jobs."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.world = World.of(ROOMY, shadow=True)
        self.made = set[PodId]()
        self.most = 0

    def fate(self, pod: PodId, number: int) -> float | Reason:
        self.made &= self.world.pods.keys()
        if len(self.made) >= self.limit:
            return FULL
        self.made.add(pod)
        self.most = max(self.most, len(self.made))
        return 0.5

    def submit(self, name: str, **changes: object) -> None:
        self.world.submit(spec(name, **{"maxEpochs": 4, **SMALLEST, **changes}), FaultyDynamics(pod=self.fate))


def starts(world: World, job: str) -> list[float]:
    """When pods were ordered for the job, from its submission on."""
    began = world.job(job).progress.submitted_at
    return [order.at - began for order in world.taken(act.DeployPods, job)]


@pytest.mark.parametrize("reason", [FULL, Reason.PODS_DELAYED])
def test_a_gang_with_a_pod_that_is_refused_for_now_is_given_back_and_made_later(reason: Reason) -> None:
    world = World.of(ROOMY, shadow=True)
    fate = FaultyDynamics(pod=lambda pod, number: reason if number == 2 else 0.5)
    world.submit(spec(maxEpochs=4, **SMALLEST), fate)
    world.run(until=lambda: world.job().reason is reason)
    job = world.job()
    assert job.state is State.WAITING and all(held.releasing for held in job.gang.pods.values())
    assert job.message == f"did not start; tries again in {LATER[0]:g} s"
    world.run(until=lambda: not world.pods)
    assert not job.gang.pods
    world.run()
    assert job.reason is Reason.EPOCH_LIMIT and job.attempts.failures == 0 and job.attempts.refusals == 0


def test_the_pauses_grow_to_a_minute_and_no_attempt_is_counted() -> None:
    quota = Quota(0)
    quota.submit("job")
    world = quota.world
    world.run(until=lambda: len(starts(world, "job")) == 9)
    ordered = starts(world, "job")
    pauses = [round(after - before - 0.2, 6) for before, after in itertools.pairwise(ordered)]
    assert pauses == [*LATER, 60.0, 60.0]
    assert world.job().attempts.failures == 0 and world.job().money.ledger.spent == 0
    quota.limit = 3
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT


def test_a_job_waits_for_room_in_the_quota_that_another_holds_and_gets_it_soon_after_the_others_end() -> None:
    quota = Quota(3)
    quota.submit("first", maxEpochs=30)
    quota.submit("second")
    world = quota.world
    world.run(until=lambda: world.job("first").ended)
    assert world.job("second").reason is FULL
    ended, before = world.now, len(starts(world, "second"))
    world.run(until=lambda: len(starts(world, "second")) > before)
    assert world.now - ended <= COUNTED + 0.5, "however long its last pause was"
    world.run()
    assert world.job("second").reason is Reason.EPOCH_LIMIT and quota.most == 3


def test_gangs_that_took_half_the_room_each_give_it_back_and_start_one_after_the_other() -> None:
    quota = Quota(5)
    halves = {"a": 2, "b": 3}  # of the first gang one pod is refused, of the second two
    world = quota.world
    for name, first in halves.items():

        def fate(pod: PodId, number: int, first: int = first) -> float | Reason:
            return FULL if first < number <= 3 else quota.fate(pod, number) if number > 3 else 0.5

        world.submit(spec(name, maxEpochs=4, **SMALLEST), FaultyDynamics(pod=fate))
    world.run(until=lambda: world.job("a").ended or world.job("b").ended)
    assert starts(world, "a")[1] == pytest.approx(0.2 + LATER[0])
    world.run()
    assert [world.job(name).reason for name in halves] == [Reason.EPOCH_LIMIT] * 2


def test_jobs_that_were_refused_at_once_do_not_try_again_at_once() -> None:
    quota = Quota(0)
    for name in ("a", "b", "c"):
        quota.submit(name)
    world = quota.world
    world.run(until=lambda: all(len(starts(world, name)) > 1 for name in "abc"))
    again = sorted(starts(world, name)[1] for name in "abc")
    assert min(late - soon for soon, late in itertools.pairwise(again)) >= ONE_BY_ONE


def test_what_a_quota_has_room_for_is_used_where_it_is_the_smallest_gang() -> None:
    quota = Quota(4)
    quota.submit("job", workers={"min": 1, "max": 3}, servers={"min": 1, "max": 3}, maxEpochs=12)
    world = quota.world
    world.run()
    job = world.job()
    assert job.reason is Reason.EPOCH_LIMIT and quota.most == 4
    assert any(epoch.kind is EpochKind.FULL for epoch in job.epochs)
    assert all(sum(epoch.allocation) <= 3 for epoch in job.epochs)


def test_a_larger_gang_that_was_refused_as_a_whole_begins_with_the_smallest() -> None:
    world = World.of(ROOMY, shadow=True)
    dynamics = FaultyDynamics(pod=lambda pod, number: FULL if number == 1 else 0.5)
    known = (KnownSpeed(1, 1, 0.05), KnownSpeed(2, 1, 0.4))
    world.submit(spec(maxEpochs=4, **{**SMALLEST, "workers": {"min": 1, "max": 2}}), dynamics, known_points=known)
    world.run(until=lambda: world.job().reason is FULL)
    assert str(world.job().decision.desired) == "2x1"
    world.run(until=lambda: bool(world.orders()))
    assert str(world.orders()[0].allocation) == "1x1"
    assert "did not start" in world.job().decision.reasons[-1].text("job")
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT
    assert str(world.orders()[-1].allocation) == "2x1"


def test_a_job_that_waits_for_a_quota_is_suspended_and_cancelled_like_any() -> None:
    quota = Quota(0)
    for name in ("kept", "gone"):
        quota.submit(name)
    world = quota.world
    world.run(until=lambda: world.job("gone").attempts.refusals == 3)
    world.cancel("gone")
    world.suspend("kept")
    world.run()
    assert world.job("gone").state is State.CANCELLED
    assert world.job("kept").reason is Reason.SUSPENDED
    quota.limit = 3
    world.resume("kept")
    world.run()
    assert world.job("kept").reason is Reason.EPOCH_LIMIT


def test_a_handler_that_restarts_goes_on_waiting() -> None:
    quota = Quota(0)
    quota.submit("job")
    world = quota.world
    world.run(until=lambda: world.job().attempts.refusals == 3)
    world.restart()
    world.run(until=lambda: world.job().attempts.refusals == 5)
    quota.limit = 3
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT


def test_a_gang_that_the_cluster_can_never_hold_ends_its_job() -> None:
    world = World.of(ROOMY, shadow=True)
    fate = FaultyDynamics(pod=lambda pod, number: Reason.NEVER_FITS if pod.role is Role.WORKER else 0.5)
    world.submit(spec(**SMALLEST), fate)
    world.run()
    assert (world.job().state, world.job().reason) == (State.FAILED, Reason.NEVER_FITS)
