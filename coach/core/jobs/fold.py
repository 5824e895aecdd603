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
from coach.core.jobs.job import KEPT_CURVES, LEASE_SECONDS, Job, Phase
from coach.core.jobs.parts import Held, JobModels, JobMoney, JobProgress
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
            del job.gang.pods[event.pod]
            _shrink_group(job, elastic=job.spec.elastic)
        case ev.PodsReleased():
            for pod in event.pods:
                if pod in job.gang.pods and job.gang.pods[pod].releasing:
                    del job.gang.pods[pod]
        case ev.EpochFinished():
            _epoch_finished(job, event)
        case ev.EpochFailed():
            job.attempts.running = None
            job.gang.group = ""
            job.money.unbilled_invocations += event.invocations
            job.attempts.last_failure = (event.reason, event.message)
        case ev.ModelsFitted():
            _models_fitted(job, event)
        case ev.TimerFired():
            job.attempts.timer = ""
        case ev.ProgramSignalled():
            job.attempts.terminated_at = event.at if job.attempts.terminated_at is None else job.attempts.terminated_at
        case ev.WaitExpected():
            job.gang.queue_wait = event.seconds
        case ev.AheadStarted():
            job.gang.ahead_since = event.at
        case ev.AheadLost() if job.gang.ahead is not None:
            job.decision.missed, job.decision.missed_at = (*job.decision.missed, job.gang.ahead), event.at
        case ev.CancelRequested():
            job.stop.cancel = job.stop.cancel or not job.ended
        case ev.SuspendRequested():
            job.stop.suspend = job.stop.suspend or not job.ended
            job.stop.by_user = job.stop.suspend and (job.stop.by_user or event.by_user)
            job.stop.why = event.why
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
            job.decision.on, job.decision.on_allocation = action.kind, action.allocation
        case act.SavePolicyState():
            job.decision.policy_state = action.known
        case act.QueueAhead():
            _queue_ahead(job, action.allocation, action.reservation)
        case act.DeployPods():
            job.gang.pods |= {pod.id: Held(pod) for pod in action.pods}
        case act.ReleasePods():
            _release_pods(job, action)
        case act.RunEpoch():
            _run_epoch(job, action)
        case act.ExtendEpoch():
            _extend_epoch(job, action)
        case act.StopEpoch():
            job.attempts.stopping = action.token  # it stays `running` until the answer comes
        case act.RollBack():
            _roll_back(job, action)
        case act.Settle():
            _settle(job, action)
        case act.FitModels():
            job.models.fit_token = action.token
        case act.SetTimer():
            job.attempts.timer = action.token
            job.attempts.timers += 1
        case act.Finish():
            job.decision.ending = (action.reason, action.message)
            job.attempts.timer = ""
        case act.SetStatus():
            return _set_status(job, action)
    return None


def _describe(job: Job, spec: JobSpec) -> None:
    job.job_file = job.job_file.model_copy(update={"spec": spec})


def submitted(event: ev.JobSubmitted) -> Job:
    """The job that a submission creates."""
    spec = TrainingJob.from_json(event.spec)
    return Job(
        event.job,
        spec,
        JobMoney(Ledger(spec.spec.budget_money)),
        JobProgress(event.at, event.checkpoints, initial=event.weights, weights=event.weights),
        models=JobModels(event.known_points, event.known_epochs, event.known_curves),
    )


def _handler_started(job: Job, event: ev.HandlerStarted) -> Phase | None:
    """No pod of the earlier handler is left but the kept ones. Billing goes on until it is settled."""
    if job.ended:
        return None
    _queue_ahead(job, None, 0)  # the platform has ended it
    if job.gang.pods and job.gang.pods.keys() <= set(event.kept):
        job.attempts.timer = job.models.fit_token = ""
        return Phase.RUNNING if job.attempts.running else Phase.IDLE
    job.gang.pods.clear()
    job.gang.group = ""
    job.attempts.timer = job.models.fit_token = ""
    if job.attempts.running:
        job.attempts.last_failure = (Reason.HANDLER_RESTARTED, "")
        job.attempts.running = None
    return Phase.ENDING if job.decision.ending else Phase.IDLE


def _pod_ready(job: Job, event: ev.PodReady) -> None:
    held = job.gang.pods.get(event.pod)
    if held is not None and not held.releasing:
        held.ready = True
        held.address, held.devices = event.address, event.devices
        if event.node:
            held.pod = replace(held.pod, node=event.node)


def _epoch_finished(job: Job, event: ev.EpochFinished) -> None:
    order, report = job.attempts.running, event.report
    assert order is not None
    if job.spec.epoch is not None:
        size = job.epoch_samples if job.epochs else first_size(job.spec, report)
        report = replace(report, data_size=size or report.data_size, pass_samples=report.data_size)
    job.attempts.running = None
    job.money.unbilled_invocations += event.invocations
    job.progress.position += report.samples
    job.progress.weights = report.weights
    job.attempts.failures = 0
    job.attempts.last_failure = None
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
            cost=job.money.charges.get(order.token, 0),  # settled when a worker was lost
            ordinal=ordinal,
        )
    )
    for pod in order.pods:
        if pod in job.gang.pods:
            job.gang.pods[pod].warm = True


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
    models = job.models
    models.fit_token = ""
    models.fitted = len(job.epochs)
    if event.speed is not None:
        models.surface = FittedSpeed(event.speed)
    if event.convergence is not None:
        models.curve = FittedCurve(event.convergence, job.epochs_trained)
        if job.epochs and job.epochs[-1].kind is EpochKind.FULL:
            models.full_epoch_curves = (*models.full_epoch_curves, models.curve)[-KEPT_CURVES:]


def _resume_requested(job: Job, event: ev.ResumeRequested) -> Phase:
    """Restart a suspended or ended job; a running one goes on, with the added budget, no longer to be suspended."""
    if job.money.ledger.budget is not None:
        job.money.ledger.budget = max(job.money.ledger.budget + event.added_budget, event.budget or 0)
    job.stop.suspend = job.stop.by_user = False
    ending = job.decision.ending[0] if job.decision.ending else None
    job.stop.overruled = job.stop.overruled or not EARLY_ENDS.isdisjoint((job.reason, ending))
    if job.ended or job.phase is Phase.ENDING or job.reason in RESUMABLE:
        job.stop.cancel = False
        job.attempts.failures = job.attempts.refusals = 0
        job.models.full_epoch_curves = ()
        job.decision.ending = None
        job.progress.ended_at = None
        job.attempts.timer = ""
        job.state, job.reason, job.message = State.QUEUED, Reason.SUBMITTED, "resumed"
        return Phase.IDLE
    return job.phase


def _set_allocation(job: Job, action: act.SetAllocation) -> None:
    """A probe that is replaced before it began lacked its gang or its money; a program with fewer workers, its room."""
    if job.phase is Phase.DEPLOYING and job.decision.desired is not None:
        fewer = job.spec.program is not None and action.allocation < job.decision.desired
        if job.decision.kind is EpochKind.PROBE or fewer:
            job.decision.missed += (job.decision.desired,)
            job.decision.missed_at = action.at
    job.decision.desired, job.decision.kind, job.decision.reasons = action.allocation, action.kind, action.why
    job.attempts.timer = ""


def _release_pods(job: Job, action: act.ReleasePods) -> None:
    for pod in action.pods:
        job.gang.pods[pod].releasing = True
    if job.attempts.running is not None:  # they leave within the epoch
        job.decision.desired = job.gang.held
        stay = tuple(pod for pod in job.attempts.running.pods if pod not in action.pods)
        job.attempts.running = replace(job.attempts.running, allocation=job.gang.held, pods=stay)
    _shrink_group(job, elastic=job.elastic)


def _shrink_group(job: Job, *, elastic: bool) -> None:
    """Members are gone. A group ends with them, an elastic one with the last of a role."""
    gang = job.gang
    roles = {pod.role for pod in gang.members if pod in gang.pods and not gang.pods[pod].releasing}
    if not elastic or not {pod.role for pod in gang.members} <= roles:
        gang.group = ""


def _run_epoch(job: Job, action: act.RunEpoch) -> None:
    attempts, gang, money = job.attempts, job.gang, job.money
    attempts.running = action
    attempts.refusals = 0
    attempts.timer = ""
    gang.members = action.pods
    if action.group != gang.group:
        gang.group = action.group
        gang.groups += 1
    attempts.count += 1
    attempts.last_token = action.token
    money.ledger.reserve(action.reservation + money.ahead)
    attempts.terminated_at = None
    money.billed_pods = tuple(gang.pods[pod].pod for pod in action.pods)
    money.billed_until = action.at
    money.billed_book = job.book_on(action.nodes)
    gang.last_pace = action.pace
    money.lease_until = action.at + action.deadline + LEASE_SECONDS
    if job.progress.started_at is None:
        job.progress.started_at = action.at


def _extend_epoch(job: Job, action: act.ExtendEpoch) -> None:
    attempts, money = job.attempts, job.money
    if attempts.running is None or attempts.running.token != action.token:
        return
    attempts.running = attempts.running.extended(action)
    attempts.timer = ""
    money.ledger.reserve(action.reservation + money.ahead)
    money.billed_book = job.book_on(action.nodes)
    money.lease_until = attempts.running.at + action.deadline + LEASE_SECONDS


def _settle(job: Job, action: act.Settle) -> None:
    money = job.money
    money.ledger.settle(action.amount)
    money.charges[action.token] = money.charges.get(action.token, 0) + action.amount
    if job.epochs and job.epochs[-1].token == action.token:  # the charge is for the last attempt
        job.epochs[-1].cost += action.amount
    if action.charge is Charge.AHEAD:
        money.ahead -= action.amount
        return
    money.unbilled_invocations = 0
    job.progress.run_seconds += max(0.0, action.until - money.billed_until)
    if job.decision.on is CapacityType.SPOT:
        job.progress.spot_seconds += max(0.0, action.until - money.billed_until)
    if money.billed_book is not None:
        held, placed = money.billed_resources, by_node(money.billed_pods)
        paid = money.billed_book.paid_until(held, money.billed_until, action.until, placed, money.machines_paid)
        money.machines_paid = paid
    money.billed_until = action.until
    money.billed_pods = tuple(held.pod for held in job.gang.pods.values() if held.ready)
    if money.billed_resources == NOTHING:
        money.machines_paid = {}
        money.ledger.reserve(money.ahead)


def _queue_ahead(job: Job, allocation: Allocation | None, reservation: Money) -> None:
    job.money.ledger.reserve(job.money.reserved + reservation)
    job.gang.ahead, job.money.ahead, job.gang.ahead_since = allocation, reservation, None


def _roll_back(job: Job, action: act.RollBack) -> None:
    job.epochs_changed()
    del job.epochs[action.epochs :]
    job.progress.position = sum(epoch.report.samples for epoch in job.epochs)
    job.progress.weights = job.epochs[-1].report.weights if job.epochs else job.progress.initial
    job.models.fitted = min(job.models.fitted, len(job.epochs))
    job.models.full_epoch_curves = ()


def _deploying(job: Job) -> bool:
    """Whether pods of it are on their way: it waits for them, whatever they wait for."""
    return job.phase is Phase.DEPLOYING and any(not held.releasing for held in job.gang.pods.values())


def _set_status(job: Job, action: act.SetStatus) -> Phase:
    state = action.reason.state or State.FAILED
    job.state, job.reason, job.message = state, action.reason, action.message
    if state.ended:
        job.progress.ended_at = action.at
        job.money.ledger.release()
        return Phase.ENDED
    if action.reason is Reason.BACKING_OFF:
        job.attempts.failures += 1
        return Phase.PAUSED
    if action.reason in REFUSED:
        job.attempts.refusals += 1
        return Phase.PAUSED
    if action.reason in RUNNING_REASONS or _deploying(job):
        return job.phase
    job.attempts.timer = ""
    return Phase.PAUSED if action.reason in RESUMABLE else Phase.IDLE
