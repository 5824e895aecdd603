"""A handler that starts takes programs over that still run: their epochs go on, and all their time is paid once."""

from __future__ import annotations

from typing import Any

import pytest

from coach.core.cluster import Node, Placement, PodId, Resources, Role
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.reducer import Reducer
from coach.plugins import policy

NODES = (Node("n1", Resources(4.0, 16.0)),)
WORKER = PodId("job", Role.WORKER, 0)


def spec(**program: Any) -> dict[str, Any]:
    return {
        "apiVersion": "coach.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "job"},
        "spec": {
            "image": "me/train:1",
            "program": {"command": ["python3", "train.py"], **program},
            "target": {"loss": 0.1, "epochsInARow": 1},
            "budget": {"amount": 1, "currency": "USD"},
            "gracePeriod": "5s",
            "resources": {"worker": {"cpu": 1, "memory": "1Gi"}},
        },
    }


def reported(reducer: Reducer, event: ev.EpochFinished) -> None:
    """A report came, and the models are fitted to it."""
    for action in reducer.react(event):
        if isinstance(action, act.FitModels):
            reducer.react(ev.ModelsFitted(event.at, "job", action.token, None, None))


def running(**program: Any) -> tuple[Reducer, Job]:
    """A program in its second epoch, from 120 s on; the first was from 100 to 120 s."""
    reducer = Reducer(policy("coach"), Placement.DEFAULT)
    reducer.react(ev.HandlerStarted(90.0, NODES, programs_outlive=True))
    reducer.react(ev.JobSubmitted(91.0, "job", spec(**program), "file:///kept/job"))
    reducer.react(ev.PodReady(100.0, "job", WORKER, "uid-1", "n1"))
    report = EpochReport(1, 1, 0.9, None, "", 20.0, 0.0, mark=7)
    reported(reducer, ev.EpochFinished(120.0, "job", "job.1", report, 0))
    job = reducer.jobs["job"]
    assert job.attempts.running is not None and job.attempts.running.number == 2
    return reducer, job


def test_a_running_epoch_of_a_program_goes_on_under_the_next_handler() -> None:
    reducer, job = running()
    order, reserved = job.attempts.running, job.money.ledger.reserved
    assert order is not None
    actions = reducer.react(ev.HandlerStarted(150.0, NODES, 125.0, kept=(WORKER,), programs_outlive=True))
    (timer,) = actions
    assert isinstance(timer, act.SetTimer), "its reservation is extended in time"
    assert (timer.at, timer.due) == (150.0, order.at + order.deadline - 5.0 - 10.0)
    assert (job.attempts.running, job.money.ledger.reserved, job.phase) == (order, reserved, Phase.RUNNING)
    assert job.attempts.last_failure is None and job.state is State.TRAINING
    report = EpochReport(1, 1, 0.05, None, "", 40.0, 0.0, mark=9)
    reported(reducer, ev.EpochFinished(160.0, "job", order.token, report, 0))
    assert job.decision.ending and job.decision.ending[0] is Reason.TARGET_REACHED
    price = job.spec.price_book.cost(Resources(1.0, 1.0), 60.0, 0)
    assert abs(job.money.ledger.spent - price) <= 10, "paid from 100 to 160 s, also while there was no handler"


def test_a_timer_that_passed_meanwhile_fires_at_once() -> None:
    reducer, job = running()
    assert job.attempts.running is not None
    late = job.attempts.running.at + job.attempts.running.deadline - 5.0
    (timer,) = reducer.react(ev.HandlerStarted(late, NODES, kept=(WORKER,), programs_outlive=True))
    assert isinstance(timer, act.SetTimer) and timer.due == late
    (extended, *_) = reducer.react(ev.TimerFired(late, "job", timer.token))
    assert isinstance(extended, act.ExtendEpoch) and extended.deadline > job.attempts.running.deadline - 1


def test_a_program_between_two_epochs_begins_the_next_in_the_pods_it_has() -> None:
    reducer, job = running()
    order = job.attempts.running
    assert order is not None
    report = EpochReport(1, 1, 0.8, None, "", 10.0, 0.0, mark=8)
    fit = next(
        action
        for action in reducer.react(ev.EpochFinished(130.0, "job", order.token, report, 0))
        if isinstance(action, act.FitModels)
    )
    actions = reducer.react(ev.HandlerStarted(150.0, NODES, kept=(WORKER,), programs_outlive=True))
    assert not [one for one in actions if isinstance(one, act.DeployPods | act.ReleasePods)]
    again = next(one for one in actions if isinstance(one, act.FitModels))
    assert again.token == fit.token
    (begun,) = [
        one
        for one in reducer.react(ev.ModelsFitted(150.5, "job", again.token, None, None))
        if isinstance(one, act.RunEpoch)
    ]
    assert (begun.group, begun.pods, begun.number) == (order.group, (WORKER,), 3)


def test_a_program_that_ended_meanwhile_is_paid_as_long_as_it_may_have_run() -> None:
    reducer, job = running(resumes=True)
    order = job.attempts.running
    assert order is not None
    later = order.at + order.deadline + 1000.0
    actions = reducer.react(ev.HandlerStarted(later, NODES, 125.0, programs_outlive=True))
    price = job.spec.price_book.cost(Resources(1.0, 1.0), 20.0 + order.deadline + 0.5, 0)
    assert abs(job.money.ledger.spent - price) <= 10
    assert [one for one in actions if isinstance(one, act.DeployPods)], "it is started again"
    assert job.attempts.last_failure == (Reason.HANDLER_RESTARTED, "")


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (None, {WORKER: "uid-2"}),
        (None, {}),
        (ev.CancelRequested(130.0, "job"), {WORKER: "uid-1"}),
        (ev.SuspendRequested(130.0, "job", True), {WORKER: "uid-1"}),
        (ev.PodLost(130.0, "job", WORKER, Reason.FUNCTION_LOST, "gone"), {WORKER: "uid-1"}),
    ],
    ids=["another pod of its name", "no pod", "cancelled", "suspended by its user", "lost"],
)
def test_what_should_not_run_or_does_not_is_not_taken_over(event: Any, found: dict[PodId, str]) -> None:
    reducer, job = running()
    assert job.goes_on_in({WORKER: "uid-1", PodId("other", Role.WORKER, 0): "uid-9"})
    if event is not None:
        reducer.react(event)
    assert not job.goes_on_in(found)


def test_a_job_that_only_its_handler_suspended_is_taken_over() -> None:
    reducer, job = running()
    reducer.apply(ev.SuspendRequested(149.0, "job", True, by_user=False))  # as a service counts jobs left in the middle
    assert job.goes_on_in({WORKER: "uid-1"})
    reducer.react(ev.HandlerStarted(150.0, NODES, kept=(WORKER,), programs_outlive=True))
    assert reducer.react(ev.ResumeRequested(150.1, "job")) == []
    assert job.attempts.running is not None and not job.stop.suspend
