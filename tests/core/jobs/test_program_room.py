"""A program whose larger number of workers finds no room on a cluster goes on with fewer, and does not try at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coach.core.cluster import Allocation, Node, Placement, PodId, Resources
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.decision import StepKind
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.fitted_models import fit_models
from coach.core.jobs.job import NO_ROOM_SECONDS, Job, Phase
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle.reducer import Reducer
from coach.plugins import policy
from coach.report.why import why
from tests.core.lifecycle.test_program_takeover import spec

NODES = tuple(Node(f"n{number}", Resources(2.0, 16.0)) for number in (1, 2, 3, 4))
FULL = "needs 4 workers, 1 fits"


class Cluster:
    """A job of 1 to 4 workers, and a cluster that answers what the reducer orders, as a test has it."""

    def __init__(self, **changes: Any) -> None:
        self.reducer = Reducer(policy("coach"), Placement.DEFAULT)
        self.now = 100.0
        self.actions: list[act.Action] = []
        self.send(ev.HandlerStarted(self.now, NODES, programs_outlive=True))
        document = spec(resumes=True)
        document["spec"] |= {
            "workers": {"min": 1, "max": 4},
            "target": {"loss": 0.001, "epochsInARow": 1},
            "budget": {"amount": 100, "currency": "USD"},
            **changes,
        }
        self.send(ev.JobSubmitted(self.now, "job", document, "file:///kept/job"))

    @property
    def job(self) -> Job:
        return self.reducer.jobs["job"]

    def send(self, event: ev.Event) -> None:
        actions = self.reducer.react(event)
        self.actions += actions
        for action in actions:
            if isinstance(action, act.FitModels):
                job = self.job
                found = fit_models(job.speed_points(), job.curve_points(), job.spec.curve)
                self.send(ev.ModelsFitted(self.now, "job", action.token, *found))
            elif isinstance(action, act.ReleasePods):
                self.send(ev.PodsReleased(self.now, "job", action.pods))

    def missing(self) -> list[PodId]:
        return [pod for pod, held in self.job.gang.pods.items() if not (held.ready or held.releasing)]

    def start(self) -> None:
        """All pods that were ordered start."""
        self.now += 2.0
        for pod in self.missing():
            self.send(ev.PodReady(self.now, "job", pod, f"uid-{pod.name}", "n1"))

    def no_room(self) -> None:
        """The scheduler says of each of them that it has no room."""
        for pod in self.missing():
            self.send(ev.PodPending(self.now, "job", pod, Reason.WAITING_CAPACITY, FULL))

    def report(self) -> None:
        order = self.job.attempts.running
        assert order is not None
        self.now += 60.0 / order.allocation.workers
        loss = 1.0 / (1.0 + len(self.job.epochs))
        report = EpochReport(1, 1, loss, None, "", 60.0 / order.allocation.workers, 0.0)
        if not self.job.epochs or self.job.epochs[-1].group != order.group:
            report = EpochReport(1, 1, loss, None, "", 65.0, 0.0, warm_up_samples=1, warm_up_seconds=65.0)
        self.send(ev.EpochFinished(self.now, "job", order.token, report, 0))

    def grows(self) -> None:
        """Reports, until it wants more workers."""
        for _ in range(60):
            if self.missing():
                return
            self.report()
        raise AssertionError(f"never more: {self.job.decision.reasons}")


def test_workers_that_find_no_room_are_replaced_by_as_many_as_before_at_once() -> None:
    cluster = Cluster()
    cluster.start()
    cluster.grows()
    wanted = cluster.job.decision.desired
    assert wanted is not None and wanted > Allocation(1, 0)
    cluster.no_room()
    job = cluster.job
    assert job.decision.desired == Allocation(1, 0) and len(cluster.missing()) == 1, "the others are given back"
    assert job.decision.reasons[-1].kind is StepKind.DEGRADED and job.decision.reasons[-1].reason == FULL
    cluster.start()
    assert job.attempts.running is not None and job.attempts.running.allocation == Allocation(1, 0)


def test_a_change_pays_for_the_wait_that_the_queue_expects() -> None:
    cluster = Cluster()
    cluster.start()
    cluster.send(ev.WaitExpected(cluster.now, "job", 30 * 86400.0))
    for _ in range(60):
        cluster.report()
        assert not cluster.missing(), "a month in the queue is not worth it"
    said = why(cluster.job, cluster.reducer.jobs, NODES, cluster.now).lines
    assert "The cluster's queue is expected to let another worker wait 30d00h" in said
    cluster.send(ev.WaitExpected(cluster.now, "job", 0.0))
    cluster.grows()


def ahead() -> Cluster:
    """A job that trains with one worker, and has a larger gang queued."""
    cluster = Cluster(slurm={"queueAhead": True})
    cluster.start()
    cluster.send(ev.WaitExpected(cluster.now, "job", 3600.0))
    for _ in range(60):
        if cluster.job.gang.ahead is not None:
            return cluster
        cluster.report()
        assert cluster.job.attempts.running is not None and not cluster.missing()
    raise AssertionError("never more")


def conserved(job: Job) -> None:
    assert job.money.ledger.budget is not None
    assert job.money.ledger.spent + job.money.ledger.reserved <= job.money.ledger.budget
    assert job.money.ledger.spent == sum(job.money.charges.values())


def test_a_larger_gang_is_there_before_the_smaller_one_is_given_up_and_both_are_paid() -> None:
    cluster = ahead()
    job = cluster.job
    larger = job.gang.ahead
    assert larger is not None and larger > Allocation(1, 0) == job.gang.held
    for _ in range(5):
        order = job.attempts.running
        assert order is not None and order.allocation == Allocation(1, 0)
        assert job.money.ledger.reserved == order.reservation + job.money.ahead
        cluster.report()
        conserved(job)
    asked = [one for one in cluster.actions if isinstance(one, act.QueueAhead)]
    assert [one.allocation for one in asked] == [larger], "it keeps its place in the queue"
    cluster.now += 5.0
    began, spent = cluster.now, job.money.ledger.spent
    cluster.send(ev.AheadStarted(began, "job"))
    stop = cluster.actions[-1]
    assert isinstance(stop, act.StopEpoch) and stop.reason is Reason.DISRUPTED and job.attempts.running is not None
    cluster.now += 3.0
    old = job.cost_until(cluster.now)
    (pod,) = job.gang.pods
    cluster.send(ev.PodLost(cluster.now, "job", pod, Reason.FUNCTION_LOST, "it ended"))
    cluster.send(ev.EpochFailed(cluster.now, "job", stop.token, Reason.DISRUPTED, "makes way", 0))
    conserved(job)
    assert len(cluster.missing()) == larger.workers
    cluster.start()
    assert job.attempts.running is not None and job.attempts.running.allocation == larger
    assert job.gang.ahead is None and job.money.ledger.reserved == job.attempts.running.reservation
    both = old + job.spec.price_book.cost(job.spec.resources.total(larger), cluster.now - began, 0)
    assert abs(job.money.ledger.spent - spent - both) <= 10, "from when it had its nodes"
    conserved(job)


def test_a_larger_gang_that_does_not_come_is_paid_while_it_was_there() -> None:
    cluster = ahead()
    job, larger = cluster.job, cluster.job.gang.ahead
    assert larger is not None
    cluster.send(ev.AheadStarted(cluster.now, "job"))
    spent = job.money.ledger.spent
    cluster.now += 7.0
    cluster.send(ev.AheadLost(cluster.now, "job", "a node failed"))
    assert job.money.ledger.spent - spent == job.spec.price_book.cost(job.spec.resources.total(larger), 7.0, 0)
    assert (
        job.gang.ahead is None
        and job.attempts.running is not None
        and job.money.ledger.reserved == job.attempts.running.reservation
    )
    conserved(job)
    while cluster.now + 60.0 < job.decision.missed_at + NO_ROOM_SECONDS:
        cluster.report()
        assert job.gang.ahead is None or job.gang.ahead < larger, "a refused one is not asked for at once"


@pytest.mark.parametrize("event", [ev.CancelRequested(1e4, "job"), ev.SuspendRequested(1e4, "job", now=True)])
def test_a_job_that_ends_has_nothing_queued(event: ev.JobEvent) -> None:
    cluster = ahead()
    job = cluster.job
    cluster.send(event)
    assert job.attempts.running is not None
    reason = Reason.CANCELLED_BY_USER if isinstance(event, ev.CancelRequested) else Reason.SUSPENDED
    cluster.send(ev.EpochFailed(cluster.now + 1.0, "job", job.attempts.running.token, reason, "", 0))
    assert job.gang.ahead is None and job.money.ledger.reserved == 0 and not job.gang.pods
    (asked, withdrawn) = (one for one in cluster.actions if isinstance(one, act.QueueAhead))
    assert asked.allocation is not None and withdrawn.allocation is None


def test_where_the_money_does_not_cover_both_the_larger_gang_is_not_queued() -> None:
    cluster = Cluster(slurm={"queueAhead": True}, budget={"amount": 0.3, "currency": "USD"})
    cluster.start()
    cluster.send(ev.WaitExpected(cluster.now, "job", 0.0))
    while cluster.job.attempts.running is not None and not cluster.missing():
        cluster.report()
        conserved(cluster.job)
    queued = [one for one in cluster.actions if isinstance(one, act.QueueAhead) and one.allocation is not None]
    assert all(one.reservation < cluster.job.money.ledger.budget for one in queued)


def test_a_handler_that_starts_has_nothing_queued() -> None:
    cluster = ahead()
    job = cluster.job
    assert job.attempts.running is not None
    cluster.send(ev.HandlerStarted(cluster.now, NODES, kept=tuple(job.gang.pods), programs_outlive=True))
    assert job.gang.ahead is None and job.money.ledger.reserved == job.attempts.running.reservation


@given(st.lists(st.sampled_from(["report", "start", "there", "lost", "no room", "fail", "pod", "wait"]), max_size=60))
@settings(max_examples=25, deadline=None)
def test_whatever_happens_to_a_gang_that_is_queued_ahead_the_money_is_kept(story: list[str]) -> None:
    cluster = ahead()
    job = cluster.job
    for what in story:
        cluster.now += 1.0
        running, now = job.attempts.running, cluster.now
        match what:
            case "report" if running is not None and job.attempts.stopping != running.token:
                cluster.report()
            case "start":
                cluster.start()
            case "there":
                cluster.send(ev.AheadStarted(now, "job"))
            case "lost":
                cluster.send(ev.AheadLost(now, "job", "a node failed"))
            case "no room":
                cluster.no_room()
            case "fail" if running is not None:
                cluster.send(ev.EpochFailed(now, "job", running.token, Reason.DISRUPTED, "makes way", 0))
            case "pod" if job.gang.pods:
                cluster.send(ev.PodLost(now, "job", next(iter(job.gang.pods)), Reason.FUNCTION_LOST, "gone"))
            case "wait":
                cluster.send(ev.WaitExpected(now, "job", 60.0))
        conserved(job)
        assert (job.gang.ahead is None) == (job.money.ahead == 0) or job.gang.ahead_since is not None
        assert job.money.reserved >= 0 and (
            job.attempts.running is None or job.money.reserved <= job.attempts.running.reservation
        )
    cluster.send(ev.CancelRequested(cluster.now + 1.0, "job"))
    if job.attempts.running is not None:
        cluster.send(
            ev.EpochFailed(cluster.now + 2.0, "job", job.attempts.running.token, Reason.CANCELLED_BY_USER, "", 0)
        )
    assert job.ended and job.gang.ahead is None and job.money.ledger.reserved == 0
    conserved(job)


def test_it_does_not_try_again_at_once_but_some_time_later() -> None:
    cluster = Cluster()
    cluster.start()
    cluster.grows()
    missed, at = cluster.job.decision.desired, cluster.now
    assert missed is not None
    cluster.no_room()
    cluster.start()
    while cluster.now + 60.0 < at + NO_ROOM_SECONDS:
        cluster.report()
        assert cluster.job.maximum.workers < missed.workers
        if cluster.missing():
            assert cluster.job.decision.desired is not None and cluster.job.decision.desired < missed
            cluster.no_room()
            cluster.start()
    for _ in range(40):
        if cluster.job.maximum.workers == 4:
            break
        if cluster.missing():
            cluster.no_room()
            cluster.start()
        cluster.report()
    assert cluster.job.maximum == Allocation(4, 0)


def test_workers_that_wait_for_a_minute_are_given_up_whatever_they_wait_for() -> None:
    cluster = Cluster()
    cluster.start()
    cluster.grows()
    for pod in cluster.missing():
        cluster.send(ev.PodPending(cluster.now, "job", pod, Reason.DRAINING, "pods end"))
    assert cluster.job.decision.desired != Allocation(1, 0), "it may fit at any moment"
    cluster.now += 60.0
    cluster.send(ev.TimerFired(cluster.now, "job", cluster.job.attempts.timer))
    assert cluster.job.decision.desired == Allocation(1, 0)


def test_the_fewest_workers_wait_for_their_room() -> None:
    cluster = Cluster(workers={"min": 2, "max": 4})
    cluster.no_room()
    job = cluster.job
    assert (job.phase, job.reason, len(cluster.missing())) == (Phase.DEPLOYING, Reason.WAITING_CAPACITY, 2)
    cluster.now += 3600.0
    cluster.start()
    assert job.attempts.running is not None and job.attempts.running.allocation == Allocation(2, 0)
