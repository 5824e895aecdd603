"""The handler: the live driver of the reducer.

One task reads events from one queue; it lets the reducer react, journals event and actions in one transaction, and
then starts a task for each action. Those tasks only do I/O. Each ends in an event with its action's token, even if it
fails. Nothing else changes a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coach import collector
from coach.core.cluster import Placement, Pod, PodId
from coach.core.errors import CoachError, UserError
from coach.core.estimation.observations import KnownCurve, KnownSpeed
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs import fold
from coach.core.jobs.accounts import Accounts
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.fitted_models import FittedCurve, fit_models
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle.account_wait import shortage
from coach.core.lifecycle.node_inventory import NodeInventory
from coach.core.lifecycle.reducer import Reducer, required_to_start
from coach.core.plain_text import plain
from coach.core.policies.api.policy import Policy
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Model
from coach.handler import accounts, warm_up
from coach.handler.interactive_run import over
from coach.handler.price_changes import LOOK_SECONDS, changed
from coach.handler.state.checkpoints import obsolete
from coach.handler.state.journal import Journal
from coach.handler.state.snapshots import due
from coach.platforms.base import Cluster, EpochError, EpochOrder, GangSize, Platform, PodError, Progress, QueuesAhead

log = logging.getLogger(__name__)

#: Seconds between two heartbeats in the journal: the precision of the time at which a killed handler's functions end.
BEAT_SECONDS = 1.0

#: After so many decisions in a row that take longer than its `slow_after`, a policy's fallback decides. (The first
#: after a start may be slow under any policy: it reads the epochs of all jobs.)
SLOW_DECISIONS = 3

#: Called after each event with it and the actions that followed, all journalled.
Observer = Callable[[ev.Event, Sequence[act.Action]], None]


class Handler:
    """Runs the jobs of one journal on one platform. Use as `async with Handler(...) as handler`.

    `jobs`: those of the journal, where they were read since it was opened for writing. `resumed`: names of jobs that
    are resumed at once; None: all that no user stopped. Of them programs that still run go on.
    """

    def __init__(
        self,
        platform: Platform,
        journal: Journal,
        policy: Policy,
        jobs: Mapping[str, Job] | None = None,
        resumed: Collection[str] | None = None,
    ) -> None:
        self._read = jobs
        self._resumed = resumed
        #: The pods that an earlier handler left and that go on, and the epochs of theirs that run.
        self._kept: tuple[PodId, ...] = ()
        self._going_on: list[act.RunEpoch] = []
        self._platform = platform
        self._journal = journal
        self._clock = journal.clock
        placement = Placement.DEFAULT if platform.places_pods else Placement.GANG
        self._reducer = Reducer(policy, placement, self._decide)
        #: How many of the last decisions took longer than the policy's `slow_after`.
        self._slow = 0
        self._events: asyncio.Queue[ev.Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deploying: dict[PodId, asyncio.Task[None]] = {}
        self._submitted: set[str] = set()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self.observers: list[Observer] = []
        #: Called with the seconds that each write into the journal took.
        self.timed: Callable[[float], None] = lambda _seconds: None
        #: How far the running epoch of each job is; kept in memory only.
        self.progress: dict[str, Progress] = {}

    @property
    def jobs(self) -> dict[str, Job]:
        """All jobs of the journal, by name, in the order of their submission. To be read, not changed."""
        return self._reducer.jobs

    @property
    def accounts(self) -> Accounts:
        """The budgets over jobs. To be read, not changed."""
        return self._reducer.accounts

    @property
    def nodes(self) -> NodeInventory:
        """The nodes as they are now. To be read, not changed."""
        return self._reducer.nodes

    @property
    def checkpoints(self) -> str | None:
        """URI of the folder for checkpoints, where it is not the state folder (`Platform.checkpoints`)."""
        return self._platform.checkpoints

    def now(self) -> float:
        """Seconds since 1970 on this handler's clock."""
        return self._clock.now()

    async def __aenter__(self) -> Handler:
        self._reducer.jobs.update(self._journal.jobs() if self._read is None else self._read)
        self._reducer.accounts = self._journal.accounts(self._reducer.jobs)
        # While the platform opens, which leaves a core free. The first decision waits for both.
        importing = asyncio.create_task(asyncio.to_thread(warm_up.for_fits))
        cluster = await self._platform.open(self)
        self._loop = asyncio.create_task(self._run(importing), name="handler")
        left_at = self._journal.left_at
        gone_by = None if left_at is None else left_at + BEAT_SECONDS + self._platform.linger_seconds
        self._send(
            ev.HandlerStarted(
                self.now(),
                cluster.nodes,
                gone_by,
                unavailable=cluster.unavailable,
                taken=cluster.taken,
                kept=self._kept,
                programs_outlive=self._platform.programs_outlive,
            )
        )
        self._start(self._heartbeat())
        self._start(self._follow_prices())
        self._start(self._catch_up())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._loop, *self._tasks, return_exceptions=True)
        await self._platform.close()

    # -- requests of users -----------------------------------------------------------------------------

    def submit(
        self,
        spec: TrainingJob,
        checkpoints: str,
        known_points: tuple[KnownSpeed, ...] = (),
        known_epochs: float | None = None,
        request: str = "",
        *,
        weights: str | None = None,
        known_curves: tuple[KnownCurve, ...] = (),
    ) -> None:
        """Take on a job. `checkpoints` is the URI of the folder for its checkpoints; the others as in `JobSubmitted`.

        Raises UserError where the journal has a job of that name, or the job's account can never pay it.
        """
        if spec.name in self.jobs or spec.name in self._submitted:
            raise UserError(f"there is a job {spec.name} already; give the new one another metadata.name")
        self.refuse(spec)
        self._submitted.add(spec.name)
        self._send(
            ev.JobSubmitted(
                self.now(),
                spec.name,
                spec.to_json(),
                checkpoints,
                known_points,
                known_epochs,
                request,
                weights,
                known_curves,
            )
        )

    def refuse(self, spec: TrainingJob) -> None:
        """Raises UserError for a job that cannot start here, whose account is not there, or can never pay an epoch."""
        if words := self._platform.refusal(spec):
            raise UserError(f"{spec.name}: {words}; nothing was started")
        if problem := self.accounts.problem_of(spec):
            raise UserError(f"{spec.name}: {problem}")
        if not self.accounts.paying(spec):
            return
        job = fold.submitted(ev.JobSubmitted(self.now(), spec.name, spec.to_json(), ""))
        job.see_nodes(self._reducer.nodes.all)
        job.money.accounts = self.accounts.money(job, self.now())
        short = shortage(self.accounts, job, self.now())
        if short is not None and short.never:
            helps = "or request smaller resources, a shorter miniEpoch, cheaper prices"
            raise UserError(f"{spec.name}: {short.message}; raise it: {short.helps} AMOUNT, {helps}")

    def set_account(self, wanted: ev.AccountSet) -> None:
        """Set the terms of a budget over jobs, or remove it. Raises UserError where that cannot be."""
        accounts.refuse(self.accounts, self.jobs, wanted)
        self._send(replace(wanted, at=self.now()))

    def resume(self, name: str, added_budget: int = 0, request: str = "", budget: int | None = None) -> None:
        """Go on with a job that was suspended or whose handler died."""
        self._send(ev.ResumeRequested(self.now(), name, added_budget, request, budget))

    def accept_model(self, name: str, model: Model) -> None:
        """Train a job that does not run with its model's files as they are now; `model` has their hashes."""
        before = self.jobs[name].spec.sha256 or ""
        accepted = ev.ModelAccepted(self.now(), name, before, model.sha256 or "", dict(model.files or {}))
        self._send(accepted)

    def cancel(self, name: str) -> None:
        """End a job for good, now."""
        self._send(ev.CancelRequested(self.now(), name))

    def suspend(self, names: Sequence[str], *, now: bool, by_user: bool = True, why: str = "") -> None:
        """Stop jobs so that they can be resumed: at the running epoch's checkpoint, or `now`."""
        for name in names:
            self._send(ev.SuspendRequested(self.now(), name, now, by_user, why))

    def set_priority(self, name: str, priority: int) -> None:
        """Change a job's priority, from its next decision on."""
        self._send(ev.PriorityChanged(self.now(), name, priority))

    async def wait(self, until: Callable[[], bool]) -> None:
        """Return once `until` is true; it is called after every event. Raises the error that ended the handler."""
        while not until():
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait({changed, self._loop}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if self._failure is not None:
                raise self._failure
            if self._loop.done():
                self._loop.result()

    def leave_programs(self) -> Collection[str]:
        """Let programs that can outlive this handler go on for the next one; the names of their jobs."""
        going_on = []
        for name, job in self.jobs.items():
            if job.goes_on_in({pod: held.address for pod, held in job.gang.pods.items()}) and not job.stop.suspend:
                going_on.append(name)
        return self._platform.leave(going_on)

    # -- the loop ---------------------------------------------------------------------------------------

    def _send(self, event: ev.Event) -> None:
        self._events.put_nowait(_plain(event))

    async def _run(self, importing: asyncio.Task[None]) -> None:
        await importing
        while True:
            taken = [await self._events.get()]
            while not self._events.empty():
                taken.append(self._events.get_nowait())
            with collector.paused():
                reactions = [(event, self._reducer.react(event)) for event in taken]
            began = time.monotonic()
            records = [record for event, actions in reactions for record in (event, *actions)]
            await self._journal.append_when_free(records)
            self.timed(time.monotonic() - began)
            for event, actions in reactions:
                for action in (*self._going_on, *actions):
                    self._carry_out(action)
                self._going_on.clear()
                for observer in self.observers:
                    observer(event, actions)
            self._remember(reactions)
            self._changed.set()

    @contextlib.contextmanager
    def _decide(self) -> Iterator[None]:
        """Measure a decision, and end a slow policy's turn: an event, so that the journal has all that decides."""
        policy, began = self._reducer.policy, time.thread_time()
        yield
        seconds = time.thread_time() - began
        self._slow = self._slow + 1 if seconds > policy.slow_after else 0
        if self._slow == SLOW_DECISIONS and policy.fallback:
            log.warning(
                "policy %s: a decision took %.3g s, %d in a row more than %g: its fallback decides from now on",
                policy.name, seconds, SLOW_DECISIONS, policy.slow_after,
            )  # fmt: skip
            self._send(ev.PolicySlow(self.now(), policy.name, seconds))

    def _remember(self, reactions: Sequence[tuple[ev.Event, Sequence[act.Action]]]) -> None:
        """Save snapshots of jobs that have changed much, or have ended or stopped, so that the next start is fast."""
        changed = {record.job for event, actions in reactions for record in (event, *actions)}
        stopped = {event.job for event, actions in reactions if self._has_stopped(event, actions)}
        kept = [name for name in changed if name in self.jobs and (name in stopped or due(self.jobs[name]))]
        if kept:
            self._journal.save_snapshots(*(self.jobs[name] for name in kept))
        for name in stopped:
            self._start(self._forget(name))

    async def _forget(self, name: str) -> None:
        try:
            await self._platform.forget(name)
        except Exception:
            log.exception("something of %s stays behind on the platform", name)

    def _has_stopped(self, event: ev.Event, actions: Sequence[act.Action]) -> bool:
        """Whether its job has just ended, or stopped with all pods released."""
        job = self.jobs.get(event.job)
        relevant = bool(actions) or isinstance(event, ev.PodsReleased)
        return relevant and job is not None and over(job) and (job.ended or bool(job.epochs))

    async def _catch_up(self) -> None:
        """Save missing snapshots one by one: another version of Coach wrote the records, or the handler was killed."""
        for job in list(self.jobs.values()):
            if due(job):
                self._journal.save_snapshots(job)
            await asyncio.sleep(0)

    async def _follow_prices(self) -> None:
        while True:
            jobs = list(self.jobs.values())
            try:
                found = await asyncio.to_thread(_changed, jobs)
            except Exception:
                log.exception("the prices of offers cannot be read; those that jobs have stay")
                found = []
            for name, prices, why in found:
                self._send(ev.PricesChanged(self.now(), name, prices, why))
            await asyncio.sleep(LOOK_SECONDS)

    async def _heartbeat(self) -> None:
        while True:
            self._journal.beat(self.now())
            await asyncio.sleep(BEAT_SECONDS)

    def _carry_out(self, action: act.Action) -> None:
        match action:
            case act.DeployPods():
                gang = asyncio.ensure_future(self._gang(self.jobs[action.job]))
                for pod in action.pods:
                    self._deploying[pod.id] = self._start(self._deploy(action, pod, gang))
            case act.ReleasePods():
                self._start(self._release(action))
            case act.RunEpoch():
                self._start(self._run_epoch(action))
            case act.ExtendEpoch():
                order = self.jobs[action.job].attempts.running
                if order is not None and order.token == action.token:
                    self._start(self._platform.extend_epoch(action.token, order.at + action.deadline))
            case act.StopEpoch():
                self._start(self._stop_epoch(action))
            case act.KillProgram():
                self._start(self._platform.kill_program(action.job))
            case act.QueueAhead():
                assert isinstance(self._platform, QueuesAhead), "it has said how long its queue lets a job wait"
                workers = action.allocation.workers if action.allocation else 0
                spec = self.jobs[action.job].job_file
                self._start(self._platform.queue_ahead(spec, workers, action.seconds))
            case act.FitModels():
                self._start(self._fit(action))
            case act.SetTimer():
                seconds = max(0.0, action.due - self.now())
                asyncio.get_running_loop().call_later(seconds, self._timer_fired, action)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
            self._changed.set()

    def _timer_fired(self, action: act.SetTimer) -> None:
        self._send(ev.TimerFired(self.now(), action.job, action.token))

    # -- actions to I/O to events -----------------------------------------------------------------------

    # An unexpected error fails the job's action, not the handler: it is logged and becomes an event like any failure.

    async def _gang(self, job: Job) -> None:
        desired = job.decision.desired or job.minimum
        schedulers = job.spec.resources.schedulers
        size = GangSize(job.name, required_to_start(job, desired), desired, schedulers)
        await self._platform.gang(size, job.job_file)

    async def _deploy(self, action: act.DeployPods, pod: Pod, gang: asyncio.Future[None]) -> None:
        """Start one pod, once its `gang` is known to the platform."""
        try:
            await asyncio.shield(gang)
            deployed = await self._platform.deploy(pod, self.jobs[action.job].job_file)
        except PodError as error:
            self._send(ev.PodLost(self.now(), action.job, pod.id, error.reason, str(error)))
        except Exception as error:
            log.exception("%s did not start", pod.id.name)
            self._send(ev.PodLost(self.now(), action.job, pod.id, Reason.INTERNAL, _words(error)))
        else:
            node = "" if pod.node else deployed.node
            self._send(ev.PodReady(self.now(), action.job, pod.id, deployed.address, node, deployed.devices))
        finally:
            if self._deploying.get(pod.id) is asyncio.current_task():
                del self._deploying[pod.id]

    async def _release(self, action: act.ReleasePods) -> None:
        """End pods. The deployment of a pod that still starts is cancelled first, so that no event of it follows."""
        starting = [task for pod in action.pods if (task := self._deploying.pop(pod, None))]
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        job = self.jobs.get(action.job)
        if job is not None and not over(job) and job.gang.pods.keys() - set(action.pods):
            with contextlib.suppress(CoachError):
                await self._gang(job)  # a cluster keeps the room of a pod that it required
        await self._platform.release(action.pods)
        self._send(ev.PodsReleased(self.now(), action.job, action.pods))

    def pod_lost(self, pod: PodId, reason: Reason, message: str) -> None:
        """See `coach.platforms.base.PlatformEvents`."""
        self._send(ev.PodLost(self.now(), pod.job, pod, reason, message))

    def pod_pending(self, pod: PodId, reason: Reason, message: str) -> None:
        """See `coach.platforms.base.PlatformEvents`."""
        self._send(ev.PodPending(self.now(), pod.job, pod, reason, message))

    def program_signalled(self, job: str, signal: str, grace: float) -> None:
        """See `coach.platforms.base.PlatformEvents`."""
        self._send(ev.ProgramSignalled(self.now(), job, signal, grace))

    def metric_not_found(self, job: str, message: str) -> None:
        """See `coach.platforms.base.PlatformEvents`."""
        self._send(ev.MetricNotFound(self.now(), job, message))

    def wait_expected(self, job: str, seconds: float) -> None:
        """See `coach.platforms.base.PlatformEvents`."""
        self._send(ev.WaitExpected(self.now(), job, seconds))

    def ahead_started(self, job: str) -> None:
        """See `coach.platforms.base.PlatformEvents`."""
        self._send(ev.AheadStarted(self.now(), job))

    def ahead_lost(self, job: str, message: str) -> None:
        """See `coach.platforms.base.PlatformEvents`."""
        self._send(ev.AheadLost(self.now(), job, message))

    def takes_over(self, programs: Mapping[PodId, str]) -> Collection[PodId]:
        """See `coach.platforms.base.PlatformEvents`."""
        jobs = [job for job in self.jobs.values() if job.goes_on_in(programs)]
        jobs = [job for job in jobs if self._resumed is None or job.name in self._resumed]
        self._going_on = [job.attempts.running for job in jobs if job.attempts.running]
        self._kept = tuple(sorted(pod for job in jobs for pod in job.gang.pods))
        return self._kept

    def nodes_changed(self, cluster: Cluster) -> None:
        """See `coach.platforms.base.PlatformEvents`."""
        self._send(ev.NodesChanged(self.now(), cluster.unavailable, nodes=cluster.nodes, taken=cluster.taken))

    async def _run_epoch(self, action: act.RunEpoch) -> None:
        job = self.jobs[action.job]

        def note(progress: Progress) -> None:
            self.progress[action.job] = progress

        def failed(reason: Reason, message: str, invocations: int = 0) -> None:
            self._send(ev.EpochFailed(self.now(), action.job, action.token, reason, message, invocations))

        lost = [pod.name for pod in action.pods if pod not in job.gang.pods]
        if lost:
            failed(Reason.FUNCTION_LOST, f"{lost[0]} was lost before the epoch began")
            return
        addresses = {pod: job.gang.pods[pod].address for pod in action.pods}
        old = () if job.spec.program else obsolete(job)
        due = action.at + action.deadline
        last = job.epochs[-1] if job.epochs and job.epochs[-1].group == action.group else None
        order = EpochOrder(action, job.job_file, addresses, due, old, last.report.mark if last else 0)
        try:
            report, invocations = await self._platform.run_epoch(order, note)
        except EpochError as error:
            failed(error.reason, str(error), error.invocations)
        except CoachError as error:
            failed(Reason.INTERNAL, str(error))
        except Exception as error:
            log.exception("epoch %s", action.token)
            failed(Reason.INTERNAL, _words(error))
        else:
            wrong = _wrong(report)
            if wrong:
                failed(*wrong, invocations)
                return
            self._send(ev.EpochFinished(self.now(), action.job, action.token, report, invocations))
        finally:
            self.progress.pop(action.job, None)

    async def _stop_epoch(self, action: act.StopEpoch) -> None:
        """Stop an epoch. One that cannot be stopped ends at its deadline."""
        try:
            await self._platform.stop_epoch(action.token, action.reason)
        except Exception:
            log.exception("epoch %s could not be stopped", action.token)

    async def _fit(self, action: act.FitModels) -> None:
        job = self.jobs[action.job]
        speeds, points, epochs_trained = job.speed_points(), job.curve_points(), job.epochs_trained
        metric, either = job.spec.curve, job.spec.chooses_servers

        def fitted() -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
            speed, convergence = fit_models(speeds, points, metric, either, job.models.known_curves)
            return speed, convergence and FittedCurve(convergence, epochs_trained).asked(job.spec.target)

        try:
            speed, convergence = await asyncio.to_thread(fitted)
        except Exception:
            log.exception("%s goes on with the models it has", action.job)
            speed = convergence = None
        self._send(ev.ModelsFitted(self.now(), action.job, action.token, speed, convergence))


def _changed(jobs: Sequence[Job]) -> list[tuple[str, dict[str, Any], str]]:
    return list(changed(jobs))


def _plain(event: ev.Event) -> ev.Event:
    """The event, with what programs, functions and a cluster have said in it as plain text."""
    if isinstance(event, ev.EpochFinished):
        report = event.report
        metrics = {plain(name): value for name, value in report.metrics.items()}
        processes = tuple(map(plain, report.processes))
        report = replace(report, metrics=metrics, software=plain(report.software), processes=processes)
        return replace(event, report=report)
    words: dict[str, Any] = {name: plain(getattr(event, name)) for name in ("message", "why") if hasattr(event, name)}
    return replace(event, **words) if words else event


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _wrong(report: EpochReport) -> tuple[Reason, str] | None:
    """Why a report cannot be used; None if it can. It goes into the journal, and models are fitted to it."""
    values = {"loss": report.loss, "accuracy": report.accuracy, **report.metrics}
    if not all(math.isfinite(value or 0.0) for value in values.values()):
        words = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
        return Reason.LOSS_NOT_FINITE, f"{words} at the end of the epoch"
    seconds = report.train_seconds
    if report.samples < 1 or report.data_size < 1 or not math.isfinite(seconds) or seconds < 0:
        what = f"{report.samples} samples of {report.data_size} in {seconds} s"
        return Reason.INTERNAL, f"the functions report {what}"
    return None
