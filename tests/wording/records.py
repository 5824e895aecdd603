"""Records whose lines are compared with pages. Jobs run in virtual time when this is imported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coach.core.cluster import Allocation, CapacityType
from coach.core.estimation.observations import KnownCurve, KnownSpeed
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.decision import DecisionStep, StepKind
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import Reason
from coach.core.money import Charge
from tests.core.lifecycle.faulty_cluster import nodes, spec
from tests.report.recorded_jobs import half_way
from tests.report.test_programs import trained

MODEL = half_way()
NOW = MODEL.history[-1].at
RUN = MODEL.job("digits").attempts.running
assert RUN is not None
LAST = MODEL.job("digits").epochs[-1]
POD, TOKEN = RUN.pods[0], RUN.token
#: The records of one that went from one worker to four.
PROGRAM = trained()[1]


#: What else than a failure ends an attempt.
ENDS_AN_ATTEMPT = (Reason.SUSPENDED, Reason.CANCELLED_BY_USER, Reason.PROGRAM_ENDED)


def run(**fields: Any) -> act.RunEpoch:
    return replace(RUN, **fields)


def finished(**fields: Any) -> ev.EpochFinished:
    return ev.EpochFinished(NOW, "digits", LAST.token, replace(LAST.report, **fields), 0)


def failed(reason: Reason) -> ev.EpochFailed:
    return ev.EpochFailed(NOW, "digits", TOKEN, reason, "what exactly", 0)


def settled(charge: Charge, amount: int = 1_000_000, token: str = TOKEN) -> act.Settle:
    return act.Settle(NOW, "digits", token, charge, amount, NOW)


def allocated(kind: EpochKind, workers: int, *why: DecisionStep) -> act.SetAllocation:
    return act.SetAllocation(NOW, "digits", Allocation(workers, 1), kind, why)


#: Events and actions about a job that trains: one of each type, and one for each other wording of it.
SAMPLES: tuple[Any, ...] = (
    ev.HandlerStarted(NOW, nodes(2, 4.0)),
    ev.NodesChanged(NOW, ("node-0",)),
    ev.PolicySlow(NOW, "optimus", 3.0),
    ev.JobSubmitted(NOW, "new", spec("new"), "file:///checkpoints"),
    ev.JobSubmitted(NOW, "new", spec("new"), "file:///checkpoints", (KnownSpeed(1, 1, 0.1),)),
    ev.JobSubmitted(NOW, "new", spec("new"), "file:///checkpoints", known_curves=(KnownCurve(1.0, 0.1, 0.0, 0.5),)),
    ev.PodReady(NOW, "digits", POD, "127.0.0.1:1"),
    ev.PodPending(NOW, "digits", POD, Reason.IMAGE_UNAVAILABLE, "no such image"),
    ev.PodLost(NOW, "digits", POD, Reason.FUNCTION_LOST, "its process ended with exit code 1"),
    ev.PodsReleased(NOW, "digits", (POD,)),
    finished(),
    finished(processes=("sleep", "sleep", "bash")),
    finished(stop_seconds=3.0),
    *(failed(reason) for reason in Reason if reason.state is None or reason in ENDS_AN_ATTEMPT),
    ev.ModelsFitted(NOW, "digits", "fit", None, None),
    ev.TimerFired(NOW, "digits", "timer"),
    ev.CancelRequested(NOW, "digits"),
    ev.SuspendRequested(NOW, "digits", now=False),
    ev.SuspendRequested(NOW, "digits", now=True),
    ev.ResumeRequested(NOW, "digits"),
    ev.ResumeRequested(NOW, "digits", 1_000_000),
    ev.ModelAccepted(NOW, "digits", "b" * 64, "a" * 64, {}),
    ev.ModelAccepted(NOW, "digits", "b" * 64, "a" * 64, {"parts.py": "c" * 64}),
    ev.PriorityChanged(NOW, "digits", 5),
    ev.PricesChanged(NOW, "digits", {"name": "spot"}),
    ev.PricesChanged(NOW, "digits", {"name": "spot"}, "the node's price changed"),
    ev.AccountSet(NOW, "team-a", 50, "USD", "month"),
    ev.ProgramSignalled(NOW, "digits", "SIGTERM", 30.0),
    ev.ProgramSignalled(NOW, "digits", "should_stop()", 30.0),
    ev.ProgramSignalled(NOW, "digits", "SIGKILL"),
    ev.MetricNotFound(NOW, "digits", "no val_loss in 5 lines with numbers"),
    ev.WaitExpected(NOW, "digits", 3600.0),
    ev.AheadStarted(NOW, "digits"),
    ev.AheadLost(NOW, "digits", "what exactly"),
    allocated(EpochKind.PROBE, 2),
    allocated(EpochKind.PROBE, 2, DecisionStep(StepKind.PROBE, after=Allocation(2, 1), gain=3.0, unit="s", cost=1.0)),
    allocated(EpochKind.FULL, 3),
    allocated(EpochKind.FULL, 2),
    act.ChooseNodes(NOW, "digits", CapacityType.SPOT, Allocation(2, 1), "52.0 h until its deadline"),
    act.ChooseNodes(NOW, "digits", CapacityType.NOTHING, None, "what exactly"),
    act.SavePolicyState(NOW, "digits", {}),
    act.DeployPods(NOW, "digits", ()),
    act.ReleasePods(NOW, "digits", (POD,)),
    run(),
    run(attempt=2),
    run(kind=EpochKind.PROBE),
    act.ExtendEpoch(NOW, "digits", TOKEN, NOW, False, 0),
    act.StopEpoch(NOW, "digits", TOKEN, Reason.SUSPENDED),
    act.KillProgram(NOW, "digits"),
    act.QueueAhead(NOW, "digits", Allocation(4, 0), 90.0, 1000),
    act.RollBack(NOW, "digits", 3, "what exactly"),
    act.RollBack(NOW, "digits", 0, "what exactly"),
    settled(Charge.RELEASE),
    settled(Charge.RELEASE, 0),
    settled(Charge.FAILED),
    settled(Charge.GRACE),
    settled(Charge.AHEAD),
    settled(Charge.EPOCH, token=LAST.token),
    act.FitModels(NOW, "digits", "fit"),
    act.SetTimer(NOW, "digits", "timer", NOW),
    act.Finish(NOW, "digits", Reason.TARGET_REACHED, "what exactly"),
    *(act.SetStatus(NOW, "digits", reason, "what exactly") for reason in Reason),
    act.NoticeAccount(NOW, "digits", "team-a", 80, 40_000_000_000, 50_000_000_000),
    act.NoticeAccount(NOW, "digits", "team-a", 100, 50_000_000_000, 50_000_000_000),
)
