"""A program whose larger number of workers finds no room on a cluster goes on with fewer, and does not try at once."""

from __future__ import annotations

from typing import Any

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
        for action in self.reducer.react(event):
            if isinstance(action, act.FitModels):
                job = self.job
                found = fit_models(job.speed_points(), job.curve_points(), job.spec.curve)
                self.send(ev.ModelsFitted(self.now, "job", action.token, *found))
            elif isinstance(action, act.ReleasePods):
                self.send(ev.PodsReleased(self.now, "job", action.pods))

    def missing(self) -> list[PodId]:
        return [pod for pod, held in self.job.pods.items() if not (held.ready or held.releasing)]

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
        order = self.job.running
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
        raise AssertionError(f"never more: {self.job.reasons}")


def test_workers_that_find_no_room_are_replaced_by_as_many_as_before_at_once() -> None:
    cluster = Cluster()
    cluster.start()
    cluster.grows()
    wanted = cluster.job.desired
    assert wanted is not None and wanted > Allocation(1, 0)
    cluster.no_room()
    job = cluster.job
    assert job.desired == Allocation(1, 0) and len(cluster.missing()) == 1, "the others are given back"
    assert job.reasons[-1].kind is StepKind.DEGRADED and job.reasons[-1].reason == FULL
    cluster.start()
    assert job.running is not None and job.running.allocation == Allocation(1, 0)


def test_a_change_pays_for_the_wait_that_the_queue_expects() -> None:
    cluster = Cluster()
    cluster.start()
    cluster.send(ev.WaitExpected(cluster.now, "job", 30 * 86400.0))
    for _ in range(60):
        cluster.report()
        assert not cluster.missing(), "a month in the queue is not worth it"
    said = why(cluster.job, cluster.reducer.jobs, NODES, cluster.now)
    assert "The cluster's queue is expected to let another worker wait 30d00h" in said
    cluster.send(ev.WaitExpected(cluster.now, "job", 0.0))
    cluster.grows()


def test_it_does_not_try_again_at_once_but_some_time_later() -> None:
    cluster = Cluster()
    cluster.start()
    cluster.grows()
    missed, at = cluster.job.desired, cluster.now
    assert missed is not None
    cluster.no_room()
    cluster.start()
    while cluster.now + 60.0 < at + NO_ROOM_SECONDS:
        cluster.report()
        assert cluster.job.maximum.workers < missed.workers
        if cluster.missing():
            assert cluster.job.desired is not None and cluster.job.desired < missed
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
    assert cluster.job.desired != Allocation(1, 0), "it may fit at any moment"
    cluster.now += 60.0
    cluster.send(ev.TimerFired(cluster.now, "job", cluster.job.timer))
    assert cluster.job.desired == Allocation(1, 0)


def test_the_fewest_workers_wait_for_their_room() -> None:
    cluster = Cluster(workers={"min": 2, "max": 4})
    cluster.no_room()
    job = cluster.job
    assert (job.phase, job.reason, len(cluster.missing())) == (Phase.DEPLOYING, Reason.WAITING_CAPACITY, 2)
    cluster.now += 3600.0
    cluster.start()
    assert job.running is not None and job.running.allocation == Allocation(2, 0)
