"""How each event and action changes a job. This module decides nothing, and nothing else changes a `Job`.

The phase that follows is in `coach.core.jobs.transitions`. A function here returns a phase where the table has several.

A handler that restarts, and every command that shows a job, folds the journal with it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from coach.core.cluster import NOTHING, Allocation, CapacityType, by_node
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs import transitions
from coach.core.jobs.epoch import Epoch, EpochKind, EpochReport
from coach.core.jobs.fitted_models import FittedCurve, FittedSpeed
from coach.core.jobs.job import KEPT_CURVES, LEASE_SECONDS, Held, Job, Phase
from coach.core.jobs.reasons import EARLY_ENDS, REFUSED, RESUMABLE, Reason, State
from coach.core.money import Charge, Ledger, Money
from coach.core.spec.job import JobSpec, TrainingJob
from coach.core.spec.resources import InlinePrices

#: These reasons only describe the job's current work; they do not change its phase.
RUNNING_REASONS = (Reason.STARTING_FUNCTIONS, Reason.PROBING_SPEED, Reason.TRAINING_EPOCH, Reason.METRIC_NOT_FOUND)


def apply(job: Job, record: Any) -> None:
    """Change `job` by one event or action. Late answers (whose token is not open) change nothing.

    Raises IllegalTransitionError where the record could not come in the job's phase.
    """
    if isinstance(record, act.Action):
        chosen = _carried_out(job, record)
    elif isinstance(record, ev.PodReady) or not transitions.is_late(job, record):
        chosen = _happened(job, record)
    else:
        return
    job.phase = transitions.following(job, record, chosen)


def _happened(job: Job, event: ev.Event) -> Phase | None:
    match event:
        case ev.HandlerStarted():
            return _handler_started(job, event)
        case ev.PodReady():
            _pod_ready(job, event)
        case ev.PodLost():
            del job.pods[event.pod]
            _shrink_group(job, elastic=job.spec.elastic)
        case ev.PodsReleased():
            for pod in event.pods:
                if pod in job.pods and job.pods[pod].releasing:
                    del job.pods[pod]
        case ev.EpochFinished():
            _epoch_finished(job, event)
        case ev.EpochFailed():
            job.running = None
            job.group = ""
            job.unbilled_invocations += event.invocations
            job.last_failure = (event.reason, event.message)
        case ev.ModelsFitted():
            _models_fitted(job, event)
        case ev.TimerFired():
            job.timer = ""
        case ev.ProgramSignalled():
            job.terminated_at = event.at if job.terminated_at is None else job.terminated_at
        case ev.WaitExpected():
            job.queue_wait = event.seconds
        case ev.AheadStarted():
            job.ahead_since = event.at
        case ev.AheadLost() if job.ahead is not None:
            job.missed, job.missed_at = (*job.missed, job.ahead), event.at
        case ev.CancelRequested():
            job.cancel = job.cancel or not job.ended
        case ev.SuspendRequested():
            job.suspend = job.suspend or not job.ended
            job.stopped_by_user = job.suspend and (job.stopped_by_user or event.by_user)
            job.stopped_why = event.why
        case ev.ResumeRequested():
            return _resume_requested(job, event)
        case ev.PriorityChanged():
            _describe(job, job.spec.model_copy(update={"priority": event.priority}))
        case ev.PricesChanged():  # what is reserved keeps its prices (`billed_book`)
            _describe(job, job.spec.with_prices(InlinePrices.model_validate(event.prices)))
        case ev.ModelAccepted():
            assert job.spec.model is not None, "a program has no model file"
            model = job.spec.model.model_copy(update={"sha256": event.sha256, "files": event.files or None})
            _describe(job, job.spec.model_copy(update={"model": model}))
    return None


def _carried_out(job: Job, action: act.Action) -> Phase | None:
    match action:
        case act.SetAllocation():
            _set_allocation(job, action)
        case act.ChooseNodes():
            job.on, job.on_allocation = action.kind, action.allocation
        case act.SavePolicyState():
            job.policy_state = action.known
        case act.QueueAhead():
            _queue_ahead(job, action.allocation, action.reservation)
        case act.DeployPods():
            job.pods |= {pod.id: Held(pod) for pod in action.pods}
        case act.ReleasePods():
            _release_pods(job, action)
        case act.RunEpoch():
            _run_epoch(job, action)
        case act.ExtendEpoch():
            _extend_epoch(job, action)
        case act.StopEpoch():
            job.stopping = action.token  # it stays `running` until the answer comes
        case act.RollBack():
            _roll_back(job, action)
        case act.Settle():
            _settle(job, action)
        case act.FitModels():
            job.fit_token = action.token
        case act.SetTimer():
            job.timer = action.token
            job.timers += 1
        case act.Finish():
            job.ending = (action.reason, action.message)
            job.timer = ""
        case act.SetStatus():
            return _set_status(job, action)
    return None


def _describe(job: Job, spec: JobSpec) -> None:
    job.job_file = job.job_file.model_copy(update={"spec": spec})


def submitted(event: ev.JobSubmitted) -> Job:
    """The job that a submission creates."""
    spec = TrainingJob.from_json(event.spec)
    return Job(
        name=event.job,
        job_file=spec,
        submitted_at=event.at,
        checkpoints=event.checkpoints,
        ledger=Ledger(spec.spec.budget_money),
        known_points=event.known_points,
        known_epochs=event.known_epochs,
        known_curves=event.known_curves,
        initial=event.weights,
        weights=event.weights,
    )


def _handler_started(job: Job, event: ev.HandlerStarted) -> Phase | None:
    """No pod of the earlier handler is left but the kept ones. Billing goes on until it is settled."""
    if job.ended:
        return None
    _queue_ahead(job, None, 0)  # the platform has ended it
    if job.pods and job.pods.keys() <= set(event.kept):
        job.timer = job.fit_token = ""
        return Phase.RUNNING if job.running else Phase.IDLE
    job.pods.clear()
    job.group = ""
    job.timer = job.fit_token = ""
    if job.running:
        job.last_failure = (Reason.HANDLER_RESTARTED, "")
        job.running = None
    return Phase.ENDING if job.ending else Phase.IDLE


def _pod_ready(job: Job, event: ev.PodReady) -> None:
    held = job.pods.get(event.pod)
    if held is not None and not held.releasing:
        held.ready = True
        held.address, held.devices = event.address, event.devices
        if event.node:
            held.pod = replace(held.pod, node=event.node)


def _epoch_finished(job: Job, event: ev.EpochFinished) -> None:
    order, report = job.running, event.report
    assert order is not None
    if job.spec.epoch is not None:
        size = job.epoch_samples if job.epochs else first_size(job.spec, report)
        report = replace(report, data_size=size or report.data_size, pass_samples=report.data_size)
    job.running = None
    job.unbilled_invocations += event.invocations
    job.position += report.samples
    job.weights = report.weights
    job.failures = 0
    job.last_failure = None
    ordinal = job.ordinal(order.number, order.kind)
    job.epochs_changed()
    job.epochs.append(
        Epoch(
            number=order.number,
            kind=order.kind,
            allocation=order.allocation,
            attempt=order.attempt,
            token=order.token,
            started_at=order.at,
            ended_at=event.at,
            epochs_trained=job.epochs_trained + report.samples / report.data_size,
            group=order.group,
            report=report,
            predicted_seconds=order.predicted_seconds,
            pace=order.pace,
            job_forecast=order.job_forecast,
            cost=job.charges.get(order.token, 0),  # settled when a worker was lost
            ordinal=ordinal,
        )
    )
    for pod in order.pods:
        if pod in job.pods:
            job.pods[pod].warm = True


def first_size(spec: JobSpec, report: EpochReport) -> int:
    """How many samples an epoch of the job is, in whole batches, as its first report shows; it remains so."""
    wanted, whole, (samples, seconds) = spec.epoch, report.data_size, report.measured
    assert wanted is not None
    if wanted.time is not None:
        size = wanted.time * samples / max(seconds, 1e-6)
    else:
        size = wanted.samples or (wanted.fraction or 1.0) * whole
    batches = math.ceil(min(size, whole) / spec.batch_size)
    return min(batches * spec.batch_size, whole)


def _models_fitted(job: Job, event: ev.ModelsFitted) -> None:
    job.fit_token = ""
    job.fitted = len(job.epochs)
    if event.speed is not None:
        job.surface = FittedSpeed(event.speed)
    if event.convergence is not None:
        job.curve = FittedCurve(event.convergence, job.epochs_trained)
        if job.epochs and job.epochs[-1].kind is EpochKind.FULL:
            job.full_epoch_curves = (*job.full_epoch_curves, job.curve)[-KEPT_CURVES:]


def _resume_requested(job: Job, event: ev.ResumeRequested) -> Phase:
    """Restart a suspended or ended job; a running one goes on, with the added budget, no longer to be suspended."""
    if job.ledger.budget is not None:
        job.ledger.budget = max(job.ledger.budget + event.added_budget, event.budget or 0)
    job.suspend = job.stopped_by_user = False
    job.overruled = job.overruled or not EARLY_ENDS.isdisjoint((job.reason, job.ending[0] if job.ending else None))
    if job.ended or job.phase is Phase.ENDING or job.reason in RESUMABLE:
        job.cancel = False
        job.failures = job.refusals = 0
        job.full_epoch_curves = ()
        job.ending = None
        job.ended_at = None
        job.timer = ""
        job.state, job.reason, job.message = State.QUEUED, Reason.SUBMITTED, "resumed"
        return Phase.IDLE
    return job.phase


def _set_allocation(job: Job, action: act.SetAllocation) -> None:
    """A probe that is replaced before it began lacked its gang or its money; a program with fewer workers, its room."""
    if job.phase is Phase.DEPLOYING and job.desired is not None:
        fewer = job.spec.program is not None and action.allocation < job.desired
        if job.kind is EpochKind.PROBE or fewer:
            job.missed += (job.desired,)
            job.missed_at = action.at
    job.desired, job.kind, job.reasons = action.allocation, action.kind, action.why
    job.timer = ""


def _release_pods(job: Job, action: act.ReleasePods) -> None:
    for pod in action.pods:
        job.pods[pod].releasing = True
    if job.running is not None:  # they leave within the epoch
        job.desired = job.held
        stay = tuple(pod for pod in job.running.pods if pod not in action.pods)
        job.running = replace(job.running, allocation=job.held, pods=stay)
    _shrink_group(job, elastic=job.elastic)


def _shrink_group(job: Job, *, elastic: bool) -> None:
    """Members are gone. A group ends with them, an elastic one with the last of a role."""
    roles = {pod.role for pod in job.members if pod in job.pods and not job.pods[pod].releasing}
    if not elastic or not {pod.role for pod in job.members} <= roles:
        job.group = ""


def _run_epoch(job: Job, action: act.RunEpoch) -> None:
    job.running = action
    job.refusals = 0
    job.timer = ""
    job.members = action.pods
    if action.group != job.group:
        job.group = action.group
        job.groups += 1
    job.attempts += 1
    job.last_token = action.token
    job.ledger.reserve(action.reservation + job.ahead_money)
    job.terminated_at = None
    job.billed_pods = tuple(job.pods[pod].pod for pod in action.pods)
    job.billed_until = action.at
    job.billed_book = job.book_on(action.nodes)
    job.last_pace = action.pace
    job.lease_until = action.at + action.deadline + LEASE_SECONDS
    if job.started_at is None:
        job.started_at = action.at


def _extend_epoch(job: Job, action: act.ExtendEpoch) -> None:
    if job.running is None or job.running.token != action.token:
        return
    job.running = job.running.extended(action)
    job.timer = ""
    job.ledger.reserve(action.reservation + job.ahead_money)
    job.billed_book = job.book_on(action.nodes)
    job.lease_until = job.running.at + action.deadline + LEASE_SECONDS


def _settle(job: Job, action: act.Settle) -> None:
    job.ledger.settle(action.amount)
    job.charges[action.token] = job.charges.get(action.token, 0) + action.amount
    if job.epochs and job.epochs[-1].token == action.token:  # the charge is for the last attempt
        job.epochs[-1].cost += action.amount
    if action.charge is Charge.AHEAD:
        job.ahead_money -= action.amount
        return
    job.unbilled_invocations = 0
    job.run_seconds += max(0.0, action.until - job.billed_until)
    if job.on is CapacityType.SPOT:
        job.spot_seconds += max(0.0, action.until - job.billed_until)
    if job.billed_book is not None:
        held, placed = job.billed_resources, by_node(job.billed_pods)
        paid = job.billed_book.paid_until(held, job.billed_until, action.until, placed, job.machines_paid)
        job.machines_paid = paid
    job.billed_until = action.until
    job.billed_pods = tuple(held.pod for held in job.pods.values() if held.ready)
    if job.billed_resources == NOTHING:
        job.machines_paid = {}
        job.ledger.reserve(job.ahead_money)


def _queue_ahead(job: Job, allocation: Allocation | None, reservation: Money) -> None:
    job.ledger.reserve(job.reserved + reservation)
    job.ahead, job.ahead_money, job.ahead_since = allocation, reservation, None


def _roll_back(job: Job, action: act.RollBack) -> None:
    job.epochs_changed()
    del job.epochs[action.epochs :]
    job.position = sum(epoch.report.samples for epoch in job.epochs)
    job.weights = job.epochs[-1].report.weights if job.epochs else job.initial
    job.fitted = min(job.fitted, len(job.epochs))
    job.full_epoch_curves = ()


def _deploying(job: Job) -> bool:
    """Whether pods of it are on their way: it waits for them, whatever they wait for."""
    return job.phase is Phase.DEPLOYING and any(not held.releasing for held in job.pods.values())


def _set_status(job: Job, action: act.SetStatus) -> Phase:
    state = action.reason.state or State.FAILED
    job.state, job.reason, job.message = state, action.reason, action.message
    if state.ended:
        job.ended_at = action.at
        job.ledger.release()
        return Phase.ENDED
    if action.reason is Reason.BACKING_OFF:
        job.failures += 1
        return Phase.PAUSED
    if action.reason in REFUSED:
        job.refusals += 1
        return Phase.PAUSED
    if action.reason in RUNNING_REASONS or _deploying(job):
        return job.phase
    job.timer = ""
    return Phase.PAUSED if action.reason in RESUMABLE else Phase.IDLE
