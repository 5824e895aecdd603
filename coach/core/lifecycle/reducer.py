"""The reducer: events in, actions out. Only the reducer makes decisions and changes a job.

Theory of operation. `react` applies the event, calls the handler for its type, which emits the actions that follow at
once, and then advances every job whose wait is over (`_runnable`) by one step, oldest first. Every action is applied to
the state when it is emitted, so the next decision sees it. The driver journals event and actions together and carries
the actions out afterwards. There is no clock here (events carry the time), no I/O and no randomness.

A job's loop (thesis section 4.3, figure 1): advance -> choose -> deploy -> begin -> [epoch] -> settle -> fit ->
advance. Jobs meet only in `_choose`, where the policy sees all of them; no job waits for another job's probes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from coach.core.cluster import NOTHING, Allocation, CapacityType, Placement, Pod, PodId, Role, by_node
from coach.core.estimation import numerics
from coach.core.estimation.interval import Interval
from coach.core.gang.plan import GangPlan, Pending
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs import fold
from coach.core.jobs.accounts import Account, Accounts
from coach.core.jobs.decision import DecisionStep, StepKind
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import LEASE_SECONDS, Job, Phase
from coach.core.jobs.program_axis import last_epoch
from coach.core.jobs.reasons import OUT_OF_REACH, REFUSED, Reason, Retry
from coach.core.jobs.transitions import is_late
from coach.core.lifecycle import forecast, giving_back, probing, program_changes, spot_nodes, stopping_rules
from coach.core.lifecycle.account_wait import same_wait, shortage
from coach.core.lifecycle.cluster_state import (
    ClusterState,
    NodeAllocations,
    desired_pods,
    misplaced,
    plan_alone,
    queue_key,
)
from coach.core.lifecycle.job_view import ReducerJobView
from coach.core.lifecycle.node_inventory import NodeInventory
from coach.core.lifecycle.stall_timeout import stall_timeouts
from coach.core.money import Charge, to_amount
from coach.core.policies.api.allocation import AllocationDecision, ClusterView
from coach.core.policies.api.allocation import Reason as PolicyReason
from coach.core.policies.api.policy import Policy

#: Seconds that a gang may take to start. Then it begins with the pods that are ready, or releases all.
START_DEADLINE = 60.0
#: The checkpoint that the epoch starts from is unusable: the next attempt starts from the previous one.
CHECKPOINT_LOST = (Reason.CHECKPOINT_MISSING, Reason.CHECKPOINT_INVALID)
#: Pauses before attempt 2, 3, ... of an epoch, in seconds.
BACKOFF = (0.0, 1.0, 4.0)
#: Seconds before pods are made again that the cluster refused for now, twice as long each time.
LATER = (2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
#: Seconds between two jobs that try again, in queue order: two that try at once would each take half the room.
ONE_BY_ONE = 2.0
#: Seconds after pods were released until the first of those jobs tries again: the cluster counts them late.
COUNTED = 1.0
#: Seconds after its predecessor's grace period for which a gang that was queued ahead is paid.
AHEAD_SECONDS = 60.0
#: Reasons for which a policy takes workers back that a gang queued ahead may get.
_QUEUED_FOR = frozenset(
    {PolicyReason.CPU, PolicyReason.MEMORY, PolicyReason.GPU, PolicyReason.FRAGMENTATION, PolicyReason.RESTART}
)
#: Ends the message of such a job.
AGAIN = "; tries again in "


class Reducer:
    """The state of all jobs, and what follows from each event. `policy` allocates, `placement` chooses nodes."""

    def __init__(
        self,
        policy: Policy,
        placement: Placement = Placement.GANG,
        watch: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """The policy is asked within `watch()`, by which a driver measures it."""
        #: The policy that is asked: the one given, or its fallback (`PolicySlow`).
        self.policy = self._given = policy
        self._watch = watch
        self.placement = placement
        self.jobs: dict[str, Job] = {}
        self.accounts = Accounts()
        #: Whether money came back to an account, for which jobs may wait.
        self._released = False
        #: The nodes to which jobs move that start their next epoch, to leave room for one that waits.
        self._asides: dict[str, NodeAllocations] = {}
        #: The cluster, and which of its nodes are unavailable.
        self.nodes = NodeInventory()
        #: What follows from the state as it is; None where it has changed since.
        self._cluster_state: ClusterState | None = None
        #: Jobs as policies see them; removed when the job changes.
        self._views: dict[str, ReducerJobView] = {}
        #: Jobs whose next step is to be decided, because something they wait for has changed.
        self._runnable: set[str] = set()
        self._emitted: list[act.Action] = []
        #: When the last event came, seconds; and the epoch of its job that ran until then.
        self._at = 0.0
        self._ran: act.RunEpoch | None = None

    # -- the two entry points --------------------------------------------------------------------------

    def apply(self, record: Any) -> None:
        """Fold one record of a journal; nothing is decided."""
        self._cluster_state = None
        self._views.pop(record.job, None)
        self.nodes.invalidate(record.job)
        if isinstance(record, ev.JobSubmitted):
            if record.job not in self.jobs:
                self.jobs[record.job] = fold.submitted(record)
                self._price_nodes(record.job)
        elif isinstance(record, ev.HandlerStarted):
            self.nodes.replace(record.nodes, record.unavailable, self.jobs, record.taken)
            self.policy = self._given
            self._views.clear()
            for job in self.jobs.values():
                fold.apply(job, record)
            self._price_nodes(*self.jobs)
        elif isinstance(record, ev.NodesChanged):
            nodes = self.nodes.all if record.nodes is None else record.nodes
            self.nodes.replace(nodes, record.unavailable, self.jobs, record.taken)
            self._price_nodes(*self.jobs)
        elif isinstance(record, ev.PolicySlow):
            self.policy = self._given.fallback or self._given
        elif isinstance(record, ev.AccountSet):
            self.accounts.apply(record)
            self._released = True
        elif record.job in self.jobs:
            fold.apply(self.jobs[record.job], record)
            if isinstance(record, act.ChooseNodes):
                self._price_nodes(record.job)
            self._released |= self.accounts.follow(self.jobs[record.job], record)

    def _price_nodes(self, *names: str) -> None:
        """What the nodes cost now and of which kind they are, for jobs to which that matters."""
        for job in (self.jobs[name] for name in names):
            if not job.ended and job.see_nodes(self.nodes.all):
                self._views.pop(job.name, None)

    def react(self, event: ev.Event) -> list[act.Action]:
        """Apply one event; the actions that follow from it, in order, already applied."""
        numerics.load()
        self._emitted = []
        self._at = event.at
        job = self.jobs.get(event.job)
        late = is_late(job, event)
        self._ran = job.attempts.running if job else None
        self.apply(event)
        if not late:
            self._follow_up(event, self.jobs.get(event.job))
        while self._runnable or self._released:
            if self._released:
                self._runnable |= {job.name for job in self._cluster.live if job.reason is Reason.ACCOUNT_SPENT}
                self._released = False
            runnable = sorted((self.jobs[name] for name in self._runnable), key=queue_key)
            self._runnable.clear()
            for next_job in runnable:
                if next_job.phase is Phase.IDLE:
                    self._advance(next_job, event.at)
        return self._emitted

    def _emit(self, action: act.Action) -> None:
        cluster, job, view = self._cluster_state, self.jobs[action.job], self._views.get(action.job)
        was_idle = job.phase is Phase.IDLE
        self.apply(action)
        self._emitted.append(action)
        only_reason = was_idle and isinstance(action, act.SetStatus) and job.phase is Phase.IDLE
        if only_reason or isinstance(action, act.SavePolicyState):
            # Nothing has changed that concerns another job.
            self._cluster_state = cluster
        if only_reason and view is not None:
            self._views[job.name] = view

    @property
    def _cluster(self) -> ClusterState:
        if self._cluster_state is None:
            occupancy = self.nodes.occupancy(self.jobs)
            self._cluster_state = ClusterState(
                self.jobs.values(),
                self.nodes.available,
                occupancy,
                now=self._at,
                view=self._view,
                policy=self.policy,
                allocate=self._allocate,
                placement=self.placement,
            )
        return self._cluster_state

    def _allocate(self, views: list[ReducerJobView], cluster: ClusterView) -> AllocationDecision:
        with self._watch():
            return self.policy.allocate(views, cluster)

    def _view(self, job: Job) -> ReducerJobView:
        self._look_at_accounts(job)
        if job.name not in self._views:
            self._views[job.name] = ReducerJobView(job)
        return self._views[job.name]

    def _look_at_accounts(self, job: Job) -> None:
        """What its accounts have for it now."""
        money = self.accounts.money(job, self._at)
        if money != job.money.accounts:
            job.money.accounts = money
            self._views.pop(job.name, None)

    def forget(self, name: str) -> None:
        """Remove a job that has ended."""
        del self.jobs[name]
        self._views.pop(name, None)
        self.nodes.invalidate(name)
        self._cluster_state = None

    def _capacity_changed(self) -> None:
        """Pods were released or nodes came back: let all idle jobs advance."""
        for job in self._cluster.live:
            if job.decision.on is CapacityType.ON_DEMAND and job.speed is not None:
                self._leave_queue(job, self._at)
        self._runnable |= {job.name for job in self._cluster.live if job.phase is Phase.IDLE}

    # -- what follows from each type of event -------------------------------------------------------

    @functools.singledispatchmethod
    def _follow_up(self, event: ev.Event, job: Job) -> None:
        """What follows at once from an event that is not late: a method for each type from which anything does."""

    @_follow_up.register
    def _nodes_changed(self, _: ev.NodesChanged, _job: None) -> None:
        self._capacity_changed()

    @_follow_up.register
    def _priority_changed(self, _: ev.PriorityChanged, _job: Job) -> None:
        self._capacity_changed()  # those that wait are in another order now

    @_follow_up.register
    def _resume_requested(self, event: ev.ResumeRequested, job: Job) -> None:
        if not job.attempts.count and self._never_fits(job, event.at):
            return
        self._runnable.add(job.name)

    @_follow_up.register
    def _prices_changed(self, _: ev.PricesChanged, job: Job) -> None:
        """A running epoch goes on at its prices; one that waits looks whether it can pay now."""
        if job.phase is Phase.IDLE and not job.ended:
            self._runnable.add(job.name)

    @_follow_up.register
    def _pod_ready(self, event: ev.PodReady, job: Job) -> None:
        self._begin_when_ready(job, event.at)
        if job.phase is Phase.DEPLOYING and not job.attempts.timer and self._unplaced(job):
            # The time to wait for all pods is over: the required ones suffice.
            self._start_deadline(job, event.at)

    @_follow_up.register
    def _epoch_finished(self, event: ev.EpochFinished, job: Job) -> None:
        self._settle(job, event.at, Charge.EPOCH)
        self._fit(job, event.at)

    @_follow_up.register
    def _models_fitted(self, _: ev.ModelsFitted, job: Job) -> None:
        self._runnable.add(job.name)
        if self.policy.mini_epochs and not self._probes(job):
            # Others may wait for the last of its mini-epochs.
            self._capacity_changed()

    @_follow_up.register
    def _program_signalled(self, event: ev.ProgramSignalled, job: Job) -> None:
        # That of a running epoch is paid with it.
        if not job.attempts.running and job.attempts.terminated_at == event.at:
            self._settle(job, event.at, Charge.RELEASE)

    @_follow_up.register
    def _metric_not_found(self, event: ev.MetricNotFound, job: Job) -> None:
        if job.attempts.running:
            self._set_status(job, event.at, Reason.METRIC_NOT_FOUND, event.message)

    @_follow_up.register
    def _handler_started(self, event: ev.HandlerStarted, _job: None) -> None:
        gone_by = event.at if event.gone_by is None else event.gone_by
        for job in self._cluster.live:
            if job.attempts.running:  # its program goes on
                self._extend_in_time(job)
                continue
            outlived = event.programs_outlive and job.spec.program is not None
            charge = Charge.EPOCH if job.gang.pods else Charge.FAILED
            self._settle(job, event.at, charge, float("inf") if outlived else gone_by)
            if job.decision.ending:
                self._set_status(job, event.at, *job.decision.ending)
            else:
                self._runnable.add(job.name)

    @_follow_up.register
    def _submitted(self, event: ev.JobSubmitted, job: Job) -> None:
        if not self._never_fits(job, event.at):
            self._runnable.add(job.name)

    def _never_fits(self, job: Job, at: float) -> bool:
        """End a job that no nodes can hold, were they empty."""
        nodes = [self.nodes.all] if job.spec.spot is None else spot_nodes.by_kind(self.nodes.all)
        plans = [plan_alone(job, job.minimum, kind) for kind in nodes]
        if isinstance(plan := plans[-1], Pending) and all(isinstance(one, Pending) for one in plans):
            self._finish(job, at, Reason.NEVER_FITS, plan.message)
            return True
        return False

    @_follow_up.register
    def _timer_fired(self, event: ev.TimerFired, job: Job) -> None:
        if job.phase is Phase.DEPLOYING:
            self._start_deadline(job, event.at)
        elif job.phase is Phase.RUNNING:
            self._extend(job, event.at)
        elif job.phase is Phase.IDLE:
            self._runnable.add(job.name)

    @_follow_up.register
    def _pod_pending(self, event: ev.PodPending, job: Job) -> None:
        """What the first pods wait for, the job waits for. One that grows has not stopped.

        A program's pods start together or not at all: where they find no room, fewer of them start.
        """
        reason, message = event.reason, event.message
        if reason is Reason.NEVER_FITS:
            reason = Reason.WAITING_CAPACITY  # on the nodes that the scheduler sees now; others may come
        if reason is Reason.WAITING_CAPACITY:
            message = self._and_who_has_gpus(job, message)
            if self._start_smaller(job, event.at, message):
                return
        if job.phase is Phase.DEPLOYING and job.money.billed_resources == NOTHING:
            if reason is Reason.WAITING_CAPACITY and job.decision.on is not None:
                message += f"; spec.spot: on {job.decision.on.value} nodes alone"
            self._set_status(job, event.at, reason, message)

    @_follow_up.register
    def _pod_lost(self, event: ev.PodLost, job: Job) -> None:
        if job.attempts.running and self._survives(job, event):
            self._settle(job, event.at, Charge.EPOCH)  # from now on the pod costs nothing
            self._capacity_changed()
            return
        if job.attempts.running:
            self._emit(act.StopEpoch(event.at, job.name, job.attempts.running.token, event.reason))
            return
        self._settle(job, event.at, Charge.FAILED)
        if job.phase is Phase.ENDING:
            self._finish_ending(job, event.at)
        elif job.phase is Phase.DEPLOYING:
            left = [pod for pod, held in job.gang.pods.items() if not held.releasing]
            may_pass = event.reason.retry in (Retry.BOUNDED, Retry.LATER)
            if not left and event.reason.retry is Retry.FREE:
                self._fill(job, event.at)
            elif may_pass and self._required_are_in(job, left):
                self._degrade(job, event.at, Allocation.of(left), f"{event.reason.value}: {event.message}")
            else:
                self._failed(job, event.at, event.reason, event.message)
        self._capacity_changed()

    @staticmethod
    def _survives(job: Job, lost: ev.PodLost) -> bool:
        """Whether the running epoch goes on: the other workers, or servers, of an elastic group do without a lost one.

        Not where the loss says that something is wrong with the job, such as too little memory; nor a probe, which
        measures all of them.
        """
        assert job.attempts.running is not None
        others = [pod for pod in job.attempts.running.pods if pod.role is lost.pod.role and pod in job.gang.pods]
        by_chance = lost.reason.retry is not Retry.NEVER
        whole = job.attempts.running.kind is EpochKind.FULL
        may_go = lost.pod.role is not Role.SCHEDULER
        return job.spec.elastic and whole and may_go and by_chance and bool(others)

    @_follow_up.register
    def _pods_released(self, event: ev.PodsReleased, job: Job) -> None:
        ended = Charge.GRACE if job.attempts.terminated_at == job.money.billed_until else Charge.RELEASE
        self._settle(job, event.at, Charge.EPOCH if job.attempts.running else ended)
        if job.phase is Phase.ENDING:
            self._finish_ending(job, event.at)
        elif job.phase is Phase.DEPLOYING:
            self._fill(job, event.at)
        self._capacity_changed()
        if job.reason not in REFUSED and (refused := self._refused()):
            self._set_timer(refused[0], event.at, event.at + COUNTED)

    @_follow_up.register
    def _epoch_failed(self, event: ev.EpochFailed, job: Job) -> None:
        order = self._ran
        assert order is not None
        ended = event.reason is Reason.PROGRAM_ENDED
        away = {pod.node for pod in job.money.billed_pods} - {node.name for node in self.nodes.available}
        charge = Charge.EPOCH if ended else Charge.FAILED
        if job.attempts.terminated_at is not None:
            self._settle(job, job.attempts.terminated_at, charge)
            charge = Charge.GRACE
        self._settle(job, event.at, charge)
        decided = self._view(job).stop_decision if event.reason is Reason.DEADLINE_EXCEEDED else None
        if ended or decided:
            self._finish(job, event.at, *(decided or stopping_rules.program_ended(job, event.message)))
        elif (
            event.reason is Reason.DEADLINE_EXCEEDED
            and order.budget_bound
            # What a program leaves of its grace period pays no further start of it.
            and (job.spec.program is not None or not self._payable(job, ever=True))
            and not shortage(self.accounts, job, event.at)
        ):
            self._finish(
                job,
                event.at,
                stopping_rules.out_of_money(job),
                f"epoch {order.number} used up all {order.deadline:.1f} s that the budget left it",
            )
        else:
            if event.reason in CHECKPOINT_LOST and job.epochs:
                self._emit(act.RollBack(event.at, job.name, len(job.epochs) - 1, event.message))
            by_spot = job.decision.on is CapacityType.SPOT and away and event.reason.retry is Retry.BOUNDED
            self._failed(job, event.at, Reason.DISRUPTED if by_spot else event.reason, event.message, ran=True)
            if not job.gang.pods:  # they were lost with it: none is to be released
                self._capacity_changed()

    @_follow_up.register
    def _stop_requested(self, event: ev.CancelRequested | ev.SuspendRequested, job: Job) -> None:
        if job.spec.program is not None and self._ends(job) and (isinstance(event, ev.CancelRequested) or event.now):
            self._emit(act.KillProgram(event.at, job.name))
        if job.ended or job.phase is Phase.ENDING:
            return
        # A program's next report may be an hour away, and is no checkpoint.
        at_once = isinstance(event, ev.CancelRequested) or event.now or job.spec.program is not None
        reason = Reason.CANCELLED_BY_USER if isinstance(event, ev.CancelRequested) else Reason.SUSPENDED
        if job.attempts.running:
            if at_once and job.attempts.stopping != job.attempts.running.token:
                self._emit(act.StopEpoch(event.at, job.name, job.attempts.running.token, reason))
        elif job.phase is not Phase.FITTING:
            self._advance(job, event.at)
        if self.policy.mini_epochs:
            # Others may wait for mini-epochs that it does not train now.
            self._capacity_changed()

    @staticmethod
    def _ends(job: Job) -> bool:
        """Whether its program was asked to end, and has not ended yet."""
        stopping = job.attempts.running is not None and job.attempts.stopping == job.attempts.running.token
        return stopping or any(held.releasing for held in job.gang.pods.values())

    # -- the steps of a job -------------------------------------------------------------------------------

    def _advance(self, job: Job, at: float) -> None:
        """Decide what the job does next, and start it."""
        if job.stop.cancel:
            self._finish(job, at, Reason.CANCELLED_BY_USER, f"after {job.full_epoch_count} epochs")
            return
        stop_decision = self._view(job).stop_decision
        if stop_decision:
            self._finish(job, at, *stop_decision)
            return
        if job.stop.suspend:
            self._end_ahead(job, at)
            self._release_pods(job, at)
            self._set_status(job, at, *stopping_rules.standstill(job))
            return
        self._look_at_accounts(job)
        if job.spec.spot is not None and not self._choose_nodes(job, at):
            return
        if self._payable(job) is None:
            self._out_of_budget(job, at)
            return
        if job.models.fitted < len(job.epochs) and job.speed_points():
            # Measurements of earlier jobs, or a fit that was under way when the handler ended.
            self._fit(job, at)
            return
        pending_reason = None if job.gang.pods else self._cluster.pending_reason(job)
        if pending_reason and self._make_room(job, at):
            pending_reason = self._cluster.pending_reason(job)
        if pending_reason:
            if self.policy.preempts and any(one.attempts.running and one.spec.elastic for one in self.jobs.values()):
                self._decision(job)
            self._stay_pending(job, at, pending_reason, ())
            return
        kind, allocation, why = self._choose(job)
        if allocation is None:
            self._make_room(job, at)
            plan = self._cluster.plan(job, job.minimum, job.minimum, look=True)
            self._release_pods(job, at)
            self._stay_pending(job, at, plan, why)
            return
        if job.reason is Reason.QUOTA_EXCEEDED and self._may_shrink(job, allocation):
            words, _, _ = job.message.rpartition(AGAIN)
            step = DecisionStep(StepKind.DEGRADED, allocation, job.minimum, words)
            kind, allocation, why = EpochKind.FULL, job.minimum, (*why, step)
        if (wanted := self._wanted_ahead(job, allocation, why)) is not None:
            kind, allocation = EpochKind.FULL, job.gang.held
            why = (
                *why,
                DecisionStep(StepKind.FIXED, None, allocation, f"{wanted} are queued; until then {allocation}"),
            )
        self._emit(act.SetAllocation(at, job.name, allocation, kind, why))
        self._resize(job, at)

    def _wanted_ahead(self, job: Job, allocation: Allocation, why: tuple[DecisionStep, ...]) -> Allocation | None:
        """The larger gang that is queued while the job keeps the one that it has (`slurm.queueAhead`); None: none.

        It is the one decided on, or the one that the decision found no room for and that is worth a restart.
        """
        slurm, held = job.spec.slurm, job.gang.held
        if slurm is None or not slurm.queue_ahead or job.gang.queue_wait is None or not job.gang.group:
            return None
        if job.gang.ahead is not None:
            return job.gang.ahead if job.gang.ahead_since is None and allocation >= held else None
        lacking = (step.before for step in why if step.kind is StepKind.TAKEN and step.reason in _QUEUED_FOR)
        wanted = allocation if allocation != held else next(lacking, None)
        if wanted is None or wanted <= held or job.stays or job.elastic:
            return None
        view, room = self._view(job), sum((node.capacity for node in self.nodes.there), NOTHING)
        left = view.remaining_epochs.expected
        gains = left / view.speed(held) - left / view.speed(wanted) > job.times.restart
        total = job.spec.resources.total
        if (wanted != allocation and not gains) or not (total(held) + total(wanted)).fits(room):
            return None
        seconds = job.spec.grace_period + AHEAD_SECONDS
        cost = job.price_book.cost(total(wanted), seconds, 0)
        needed = max(forecast.minimum_reservation(job, at)[1] for at in (held, wanted))
        if job.money.available is not None and cost + needed > job.money.available:
            return None
        self._emit(act.QueueAhead(self._at, job.name, wanted, seconds, cost))
        return wanted

    @_follow_up.register
    def _ahead(self, event: ev.AheadStarted | ev.AheadLost, job: Job) -> None:
        """The gang that was queued ahead is there: what trains ends, with a checkpoint, and makes way."""
        in_order = job.gang.group and job.phase in (Phase.IDLE, Phase.FITTING, Phase.RUNNING)
        if isinstance(event, ev.AheadLost) or not in_order:
            self._end_ahead(job, event.at)
        elif job.attempts.running is not None and job.attempts.stopping != job.attempts.running.token:
            self._emit(act.StopEpoch(event.at, job.name, job.attempts.running.token, Reason.DISRUPTED))

    def _end_ahead(self, job: Job, at: float) -> None:
        """Pay for the gang that was queued ahead what it has cost; it is the job's own now, or is no longer wanted."""
        if job.gang.ahead is None:
            return
        if job.gang.ahead_since is not None:
            cost = job.price_book.cost(job.spec.resources.total(job.gang.ahead), at - job.gang.ahead_since, 0)
            self._emit(act.Settle(at, job.name, job.attempts.last_token, Charge.AHEAD, min(cost, job.money.ahead), at))
        self._emit(act.QueueAhead(at, job.name, None))

    def _choose_nodes(self, job: Job, at: float) -> bool:
        """Spot nodes or on-demand ones for its next epoch (`spec.spot`); False where it waits for spot."""
        choice = self._spot_choice(job, at)
        if job.decision.on is CapacityType.ON_DEMAND and job.stays and job.gang.pods:
            return True
        if (choice.kind, choice.allocation) != (job.decision.on, job.decision.on_allocation):
            self._emit(act.ChooseNodes(at, job.name, choice.kind, choice.allocation, choice.message))
        if choice.kind is not CapacityType.NOTHING:
            return True
        self._release_pods(job, at)
        self._stay_pending_as(job, at, Reason.WAITING_SPOT, choice.message)
        if not job.attempts.timer:
            self._set_timer(job, at, at + choice.look_again)
        return False

    def _spot_choice(self, job: Job, at: float) -> spot_nodes.Choice:
        spot, others = (
            kind if isinstance(plan_alone(job, job.minimum, kind), GangPlan) else ()
            for kind in spot_nodes.by_kind(self.nodes.all)
        )
        return spot_nodes.choose(job, at, spot, others, has_spot=self._cluster.has_spot(job))

    def _leave_queue(self, job: Job, at: float) -> bool:
        """Give up pods that wait for nodes of one kind, where the deadline needs, or allows, the other one."""
        waits = job.phase is Phase.DEPLOYING and self._unplaced(job) and job.money.billed_resources == NOTHING
        if not waits or job.decision.on is None:
            return False
        choice = self._spot_choice(job, at)
        if choice.kind in (job.decision.on, CapacityType.NOTHING):
            if not job.attempts.timer:
                self._set_timer(job, at, at + choice.look_again)
            return False
        self._release_pods(job, at)
        self._set_status(job, at, Reason.WAITING_CAPACITY, f"no room on {job.decision.on.value} nodes")
        self._runnable.add(job.name)
        return True

    @staticmethod
    def _may_shrink(job: Job, allocation: Allocation) -> bool:
        """Whether its smallest gang will do where a quota has no room for `allocation`."""
        fixed = job.spec.policy.allocation is not None
        return not fixed and allocation != job.minimum and forecast.affordable(job, job.minimum)

    def _fit(self, job: Job, at: float) -> None:
        self._emit(act.FitModels(at, job.name, f"{job.name}.fit{len(job.epochs)}"))

    def _choose(self, job: Job) -> tuple[EpochKind, Allocation | None, tuple[DecisionStep, ...]]:
        """Kind and allocation of the next epoch: a probe that fits now, else the policy's decision."""
        ahead = job.gang.ahead
        if ahead is not None and job.gang.ahead_since is not None:
            return EpochKind.FULL, ahead, (DecisionStep(StepKind.FIXED, None, ahead, f"{ahead} are there"),)
        if job.stays:
            return EpochKind.FULL, job.gang.held, (program_changes.stays(job),)
        left = self._probes(job)
        size = self._probe_size(job) if left else None
        if size:
            for probe in left:
                point = probe.at
                payable = forecast.terms(job, point, *size) is not None
                if payable and isinstance(self._cluster.plan(job, point, point, shrunk=True), GangPlan):
                    kind = EpochKind.PROBE if job.spec.program is None else EpochKind.FULL
                    return kind, point, (probe.recorded(None if job.spec.program else size[0]),)
        fixed = job.spec.policy.allocation
        if fixed is not None and self.placement is Placement.DEFAULT:
            # The allocation is fixed, and kube-scheduler orders the queue.
            return EpochKind.FULL, fixed, (DecisionStep(StepKind.FIXED, after=fixed),)
        decision = self._decision(job)
        allocation = decision.allocations[job.name]
        steps = tuple(step.recorded() for step in decision.why(job.name))
        for_others = any(given for name, given in decision.allocations.items() if name != job.name)
        if allocation is None and not for_others and not self._cluster.others_hold(job):
            # There is nothing that it could wait for.
            allocation = self._payable(job)
            steps += (DecisionStep(StepKind.ALONE, after=allocation),)
        return EpochKind.FULL, allocation, steps

    def _decision(self, job: Job) -> AllocationDecision:
        """The policy's. A job that it preempts ends its epoch first: an elastic group early, and no step is lost."""
        decision = self._cluster.decision(job)
        self._save_policy_state(decision.allocations)
        for step in decision.steps:
            other = self.jobs[step.job]
            order = other.attempts.running if step.reason is PolicyReason.PREEMPTED and other.spec.elastic else None
            if order is not None and order.kind is EpochKind.FULL and other.attempts.stopping != order.token:
                self._emit(act.StopEpoch(self._at, other.name, order.token, Reason.DISRUPTED))
        return decision

    def _make_room(self, job: Job, at: float) -> bool:
        """Have elastic groups give workers and servers to `job` before their epochs end; whether any does."""
        gifts = self._cluster.gifts(job)
        for name, pods in gifts.items():
            other = self.jobs[name]
            price, rest = other.times.restart, giving_back.rest(other, at)
            self._emit(act.ReleasePods(at, name, pods))
            takes = f"the change costs {price:.2f} s, its wait would be {rest:.1f} s"
            self._set_status(other, at, Reason.TRAINING_EPOCH, f"with {other.gang.held}, for {job.name}: {takes}")
        return bool(gifts)

    def _save_policy_state(self, names: Iterable[str]) -> None:
        """Save what the policy knows about these jobs, where that has changed."""
        if self.policy.stateful:
            for name in names:
                if (known := self.policy.memory(name)) != self.jobs[name].decision.policy_state:
                    self._emit(act.SavePolicyState(self._at, name, known))

    def _probes(self, job: Job) -> list[probing.Probe]:
        if job.spec.policy.allocation is not None:
            return []
        fits = functools.partial(self.nodes.can_hold, job)
        if job.spec.program is not None:
            return probing.probes_left(job, fits, program_changes.worth_measuring(job, self._view(job).left))
        if self.policy.mini_epochs:
            return probing.fixed_probes(job, self.policy.mini_epochs, fits)
        return probing.probes_left(job, fits, self._view(job).to_measure)

    def _probe_size(self, job: Job) -> tuple[float, float | None] | None:
        if job.spec.program is not None:
            return 1.0, None
        return probing.fixed_probe_size(job) if self.policy.mini_epochs else self._view(job).probe_size

    def _payable(self, job: Job, *, ever: bool = False) -> Allocation | None:
        """An allocation whose next epoch the money covers: the smallest, else the cheapest that fits on the cluster.

        `ever`: on all nodes, those unavailable at present included.
        """
        if forecast.affordable(job, job.minimum):
            return job.minimum
        others = sorted(forecast.others_affordable(job), key=lambda other: (forecast.predicted_cost(job, other), other))
        return next((other for other in others if self.nodes.can_hold(job, other, ever=ever)), None)

    def _out_of_budget(self, job: Job, at: float) -> None:
        """End a job whose money covers no epoch that fits, unless it covers one that fits on unavailable nodes.

        One whose account does not cover it waits for that, if waiting ever helps.
        """
        other = self._payable(job, ever=True)
        if other is not None:
            self._release_pods(job, at)
            message = f"the money left covers {other}; {self.nodes.describe_unavailable()}"
            self._stay_pending_as(job, at, self._away(), message)
            return
        short = shortage(self.accounts, job, at, functools.partial(self.nodes.can_hold, job, ever=True))
        if short is not None and short.used_up:
            self._notice(job, at, short.account, 100)
        if short is None or short.never:
            best = f"{stopping_rules.best_so_far(job)}; " if job.spec.target is None else ""
            message = self._unpayable(job) if short is None else f"{short.message}; to go on: {short.helps} AMOUNT"
            self._finish(job, at, stopping_rules.out_of_money(job), best + message)
            return
        self._release_pods(job, at)
        waits = job.phase is Phase.IDLE and job.reason is Reason.ACCOUNT_SPENT
        if not waits or not same_wait(job.message, short.message):
            self._stay_pending_as(job, at, Reason.ACCOUNT_SPENT, short.message)
        if not job.attempts.timer and short.until < float("inf"):
            self._set_timer(job, at, short.until)

    def _away(self) -> Reason:
        return Reason.NODES_UNAVAILABLE if self.nodes.unavailable else Reason.WAITING_CAPACITY

    def _unpayable(self, job: Job) -> str:
        left = to_amount((job.money.ledger.budget or 0) - job.money.ledger.spent)
        seconds, cost = forecast.minimum_reservation(job, job.minimum)
        return (
            f"{left:.6f} {job.price_book.currency} left, the next epoch at {job.minimum} may take "
            f"{seconds:.1f} s and cost {to_amount(cost):.6f}"
        )

    def _resize(self, job: Job, at: float) -> None:
        """Change from the pods held to those desired: release the excess, start the missing."""
        assert job.decision.desired is not None
        self._asides.pop(job.name, None)
        moves = job.decision.kind is EpochKind.FULL and not self.policy.chooses_nodes and job.decision.on is None
        if moves and (aside := self._cluster.aside(job, job.decision.desired)) is not None:
            self._asides[job.name] = aside
        places = self._places(job)
        kept = set(desired_pods(job, job.decision.desired, on=places)) - misplaced(job, places)
        pods = job.gang.pods
        again = job.spec.program is not None and kept != set(pods) and not (job.elastic and job.gang.members[0] in kept)
        if again or (self.policy.remakes_pods and job.spec.program is None):
            kept = set()
        excess = tuple(pod for pod, held in pods.items() if not held.releasing and pod not in kept)
        if excess:
            self._emit(act.ReleasePods(at, job.name, excess))
            if again:
                return  # its processes end first: PodsReleased calls `_fill`
        self._fill(job, at)

    def _fill(self, job: Job, at: float) -> None:
        """Start the missing pods that fit; begin when all are ready."""
        assert job.decision.desired is not None
        required = required_to_start(job, job.decision.desired)
        plan = self._cluster.plan(job, job.decision.desired, required, on=self._places(job))
        if isinstance(plan, Pending):
            # Its own pods that are being released may make room: PodsReleased then calls this again.
            if not any(held.releasing for held in job.gang.pods.values()):
                self._release_pods(job, at)
                self._stay_pending(job, at, plan, ())
            return
        missing = tuple(
            Pod(pod, node, job.spec.resources.of(pod.role), None if node else job.decision.on)
            for pod, node in plan.placements.items()
        )
        if missing:
            self._emit(act.DeployPods(at, job.name, missing))
            if job.money.billed_resources == NOTHING:
                words = f"{len(missing)} functions for {job.decision.desired}"
                self._set_status(job, at, Reason.STARTING_FUNCTIONS, words)
        if not job.attempts.timer and not all(held.ready or held.releasing for held in job.gang.pods.values()):
            due = min(at + START_DEADLINE, self._idle_until(job))
            if job.decision.on is CapacityType.SPOT and self._unplaced(job) and job.money.billed_resources == NOTHING:
                due = min(due, at + self._spot_choice(job, at).look_again)
            self._set_timer(job, at, max(at, due))
        self._begin_when_ready(job, at)

    def _places(self, job: Job) -> NodeAllocations | None:
        """The nodes of the job's next epoch, where the policy chooses nodes or it moves for another; None: any."""
        if job.decision.kind is not EpochKind.FULL or job.decision.on is not None:
            return None
        return self.policy.places.get(job.name, self._asides.get(job.name))

    @staticmethod
    def _idle_until(job: Job) -> float:
        """Until when its pods may stay idle: the rest of the lease must suffice to release them."""
        return job.money.lease_until - LEASE_SECONDS if job.money.billed_resources != NOTHING else float("inf")

    def _begin_when_ready(self, job: Job, at: float) -> None:
        under_way = any(not held.ready or held.releasing for held in job.gang.pods.values())
        if job.phase is Phase.DEPLOYING and not under_way and self._required_are_in(job, job.gang.pods):
            self._begin(job, at)

    def _unplaced(self, job: Job) -> bool:
        """Whether the cluster's own scheduler has yet to place a pod of the job, as far as is known."""
        unready = any(not (held.ready or held.releasing) for held in job.gang.pods.values())
        return self.placement is Placement.DEFAULT and unready

    def _start_deadline(self, job: Job, at: float) -> None:
        """Time is up: begin with the ready pods if the required ones are ready, else release all."""
        unready = tuple(pod for pod, held in job.gang.pods.items() if not held.ready and not held.releasing)
        ready = [pod for pod, held in job.gang.pods.items() if held.ready and not held.releasing]
        late = f"{len(unready)} of {len(job.gang.pods)} functions were not ready in time"
        if self._required_are_in(job, ready):
            self._degrade(job, at, Allocation.of(ready), late)
        elif self._unplaced(job) and (self._start_smaller(job, at, late) or self._leave_queue(job, at)):
            pass
        elif self._unplaced(job) and job.money.billed_resources == NOTHING:
            # Pods without a node have not started and cost nothing: they wait without a limit.
            message = f"{len(unready)} of {len(job.gang.pods)} functions have no node"
            if job.reason is Reason.STARTING_FUNCTIONS and job.message != message:
                self._set_status(job, at, Reason.STARTING_FUNCTIONS, message)
        else:
            self._release_pods(job, at)
            self._failed(job, at, Reason.START_TIMED_OUT, late)

    def _start_smaller(self, job: Job, at: float, why: str) -> bool:
        """Start a program that finds no room with fewer workers; whether there are fewer."""
        fewer = program_changes.smaller(job) if job.phase is Phase.DEPLOYING else None
        if fewer is not None:
            self._degrade(job, at, fewer, why)
        return fewer is not None

    def _degrade(self, job: Job, at: float, allocation: Allocation, why: str) -> None:
        """Start a full epoch with this, as no more pods start: a probe would measure another allocation."""
        step = DecisionStep(StepKind.DEGRADED, job.decision.desired, allocation, why)
        self._emit(act.SetAllocation(at, job.name, allocation, EpochKind.FULL, (*job.decision.reasons, step)))
        self._resize(job, at)

    @staticmethod
    def _required_are_in(job: Job, pods: Iterable[PodId]) -> bool:
        pods = list(pods)
        workers, servers = Allocation.of(pods)
        least = max(job.minimum.servers, min(1, job.decision.desired.servers if job.decision.desired else 0))
        return (
            sum(pod.role is Role.SCHEDULER for pod in pods) >= job.spec.resources.schedulers
            and workers >= job.minimum.workers
            and servers >= least
        )

    def _begin(self, job: Job, at: float) -> None:
        """Reserve the money and start the epoch on the pods held."""
        # The time that the gang waited is paid first: the terms are about the money left after that.
        self._settle(job, at, Charge.RELEASE)
        if job.gang.held == job.gang.ahead:
            self._end_ahead(job, at)
        self._look_at_accounts(job)
        allocation = job.gang.held
        kind, fraction, seconds = EpochKind.FULL, 1.0, None
        if job.decision.kind is EpochKind.PROBE and (size := self._probe_size(job)):
            kind, (fraction, seconds) = EpochKind.PROBE, size
            if allocation.workers > 1:
                seconds = None
        else:
            seconds = forecast.first_seconds(job, allocation)
        held = [one.pod for one in job.gang.pods.values()]
        terms = forecast.terms(job, allocation, fraction, seconds, at=at, pods=held)
        if terms is None:
            payable = self._payable(job)
            if payable is None:
                self._out_of_budget(job, at)
            elif payable == allocation and kind is EpochKind.FULL:
                words = f"the money left does not cover an epoch with {allocation} on the nodes that it has"
                self._finish(job, at, stopping_rules.out_of_money(job), words)
            else:
                step = DecisionStep(StepKind.UNCOVERED, allocation, payable)
                self._emit(act.SetAllocation(at, job.name, payable, EpochKind.FULL, (step,)))
                self._resize(job, at)
            return
        if seconds is not None and kind is EpochKind.PROBE:
            # A timed probe ends well before its deadline, so its measurement is kept.
            seconds = min(seconds, terms.deadline / 2)
        pods = tuple(sorted(job.gang.pods))
        attempt = job.attempts.failures + 1
        token = f"{job.name}.{job.attempts.count + 1}"
        served = any(pod.role is Role.SERVER for pod in job.gang.members)
        # Workers that go from all-reduce to servers, or back, are another group.
        alike = job.elastic and served == (allocation.servers > 0)
        same = job.gang.group != "" and (alike or job.gang.members == pods)
        reason = Reason.PROBING_SPEED if kind is EpochKind.PROBE else Reason.TRAINING_EPOCH
        if job.begins_anew and not same and job.epochs:
            self._emit(act.RollBack(at, job.name, 0, "the program starts from its beginning"))
        number = len(job.epochs) + 1
        self._emit(
            act.RunEpoch(
                at=at,
                job=job.name,
                token=token,
                kind=kind,
                number=number,
                attempt=attempt,
                allocation=allocation,
                pods=pods,
                group=job.gang.group if same else f"{job.name}.g{job.gang.groups + 1}",
                fraction=fraction,
                seconds=seconds,
                position=job.progress.position,
                weights_in=job.progress.weights,
                weights_out=f"{job.progress.checkpoints}/{token}.ckpt",
                deadline=terms.deadline,
                budget_bound=terms.budget_bound,
                reservation=terms.reservation,
                predicted_seconds=_as_tuple(terms.predicted),
                stall_timeouts=stall_timeouts(job),
                evaluate=probing.evaluated(job, kind),
                epoch_samples=job.epoch_samples,
                job_forecast=forecast.whole_job(job),
                after_epoch=None if job.spec.program is None else last_epoch(job.epochs),
                nodes=job.price_book.on(by_node(held)),
                pace=job.pace,
            )
        )
        self._extend_in_time(job)
        message = f"with {allocation}"
        if stopping_rules.out_of_reach(job):
            message += f"; {OUT_OF_REACH}: coach why {job.name}"
        if (job.reason, job.message) != (reason, message):
            self._set_status(job, at, reason, message)

    def _extend_in_time(self, job: Job) -> None:
        """A program whose reservation ends before its money: look again before that."""
        order = job.attempts.running
        money_may_come = order is not None and (not order.budget_bound or job.money.accounts is not None)
        if job.spec.program is not None and order is not None and money_may_come:
            due = order.at + order.deadline - job.spec.grace_period - forecast.EXTEND_SECONDS
            self._set_timer(job, self._at, max(self._at, due))

    def _extend(self, job: Job, at: float) -> None:
        """Reserve the next slice of a program's time, as far as the money goes."""
        order = job.attempts.running
        assert order is not None
        held = [job.gang.pods[pod].pod for pod in order.pods if pod in job.gang.pods]
        nodes = job.price_book.on(by_node(held))
        if job.book_on(nodes) != job.money.billed_book:
            self._settle(job, at, Charge.EPOCH)  # until now at the prices that it was reserved by
        self._look_at_accounts(job)
        terms = forecast.terms(job, order.allocation, 1.0, None, since=at - order.at, at=at, pods=held)
        if terms is not None and terms.deadline > order.deadline:
            extended = terms.deadline, terms.budget_bound, terms.reservation
            self._emit(act.ExtendEpoch(at, job.name, order.token, *extended, nodes))
            self._extend_in_time(job)

    def _failed(self, job: Job, at: float, reason: Reason, message: str, *, ran: bool = False) -> None:
        """Retry a failed attempt from the last checkpoint or end the job, depending on the reason.

        `ran`: the attempt had begun.
        """
        retry = reason.retry
        program = job.spec.program
        if program is not None and program.resumes and reason is Reason.PROGRAM_FAILED:
            retry = Retry.BOUNDED
        elif job.begins_anew and ran and retry is Retry.BOUNDED:
            retry = Retry.NEVER  # it would begin from nothing
        if retry is Retry.FREE or job.stop.cancel:
            self._runnable.add(job.name)
        elif retry is Retry.NEVER:
            self._finish(job, at, reason, message)
        elif job.stop.suspend:
            self._runnable.add(job.name)
        elif retry is Retry.LATER:
            self._wait_whole(job, at, reason, message)
        elif job.attempts.failures + 1 >= forecast.MAX_FAILURES:
            self._finish(job, at, reason, f"{message} ({forecast.MAX_FAILURES} attempts in a row failed)")
        else:
            pause = BACKOFF[job.attempts.failures]
            again = f"attempt {job.attempts.failures + 2} of {forecast.MAX_FAILURES} in {pause:g} s"
            if at + pause > self._idle_until(job):
                self._release_pods(job, at)
            self._set_status(job, at, Reason.BACKING_OFF, f"{reason.value}: {message}; {again}")
            self._set_timer(job, at, at + pause)

    def _wait_whole(self, job: Job, at: float, reason: Reason, message: str) -> None:
        """Hold no pod where the cluster makes not all of them, so that no two gangs hold a half each; try again."""
        self._release_pods(job, at)
        ahead = [other for other in self._refused() if queue_key(other) < queue_key(job)]
        pause = LATER[min(job.attempts.refusals, len(LATER) - 1)] + ONE_BY_ONE * len(ahead)
        self._set_status(job, at, reason, f"{message}{AGAIN}{pause:g} s")
        self._set_timer(job, at, at + pause)

    def _refused(self) -> list[Job]:
        """The jobs whose pods the cluster does not make now, in queue order."""
        return [job for job in self._cluster.live if job.phase is Phase.PAUSED and job.reason in REFUSED]

    # -- money, ends, pods --------------------------------------------------------------------------------

    def _settle(self, job: Job, at: float, charge: Charge, gone_by: float = float("inf")) -> None:
        """Charge what the gang held since the last settlement, until its lease ended or its pods were gone."""
        if job.money.billed_resources == NOTHING and not job.money.unbilled_invocations:
            return
        until = max(job.money.billed_until, min(at, gone_by, job.money.lease_until))
        amount = min(job.cost_until(until), job.money.reserved)
        self._emit(act.Settle(at, job.name, job.attempts.last_token, charge, amount, until))
        for account in self.accounts.of(job):
            self._notice(job, at, account, self.accounts.reached(account, at))

    def _notice(self, job: Job, at: float, account: Account, percent: int) -> None:
        """Notice its users once a period that so much of an account is spent."""
        if percent > self.accounts.noticed(account, at):
            spent = self.accounts.spent(account, at)
            self._emit(act.NoticeAccount(at, job.name, account.name, percent, spent, account.amount))

    def _release_pods(self, job: Job, at: float) -> None:
        pods = tuple(pod for pod, held in job.gang.pods.items() if not held.releasing)
        if pods:
            self._emit(act.ReleasePods(at, job.name, pods))

    def _finish(self, job: Job, at: float, reason: Reason, message: str) -> None:
        self._end_ahead(job, at)
        self._emit(act.Finish(at, job.name, reason, message))
        self._release_pods(job, at)
        self._finish_ending(job, at)

    def _finish_ending(self, job: Job, at: float) -> None:
        if not job.gang.pods and job.decision.ending:
            self._set_status(job, at, *job.decision.ending)
            self._capacity_changed()

    def _stay_pending(self, job: Job, at: float, plan: GangPlan | Pending, why: tuple[DecisionStep, ...]) -> None:
        """Say why the job waits: the gang's message, or, where the job fits now, the policy's reason."""
        if isinstance(plan, Pending):
            reason, message = Reason(plan.reason.value), plan.message
        else:
            reason = Reason.DRAINING
            message = why[-1].text(job.name) if why else "the policy keeps the capacity for other jobs"
        if reason is not Reason.NEVER_FITS:
            self._stay_pending_as(job, at, reason, self._and_who_has_gpus(job, message))
        elif self.nodes.can_hold(job, job.minimum, ever=True):
            self._stay_pending_as(job, at, self._away(), f"{message}; {self.nodes.describe_unavailable()}")
        else:
            self._finish(job, at, reason, message)

    def _and_who_has_gpus(self, job: Job, message: str) -> str:
        """A message of why a job waits, and, of one with GPUs, who else has them, where that is known."""
        taken = self.nodes.taken_words() if job.spec.resources.worker.gpu else ""
        return f"{message}; {taken}" if taken else message

    def _stay_pending_as(self, job: Job, at: float, reason: Reason, message: str) -> None:
        if job.phase is not Phase.IDLE or (job.reason, job.message) != (reason, message):
            self._set_status(job, at, reason, message)

    def _set_timer(self, job: Job, at: float, due: float) -> None:
        self._emit(act.SetTimer(at, job.name, f"{job.name}.timer{job.attempts.timers + 1}", due))

    def _set_status(self, job: Job, at: float, reason: Reason, message: str) -> None:
        self._emit(act.SetStatus(at, job.name, reason, message))


def required_to_start(job: Job, desired: Allocation) -> Allocation:
    """What the next epoch cannot begin without.

    A part of the gang will not do for a probe, nor where the money covers no epoch of the smallest. A job that may have
    servers or none needs one where it is to have some: without any it would train another way.
    """
    whole = job.decision.kind is EpochKind.PROBE or not forecast.affordable(job, job.minimum)
    return desired if whole else Allocation(job.minimum.workers, max(job.minimum.servers, min(desired.servers, 1)))


def _as_tuple(interval: Interval | None) -> tuple[float, float, float] | None:
    return None if interval is None else (interval.low, interval.expected, interval.high)
