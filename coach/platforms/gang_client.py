"""Running an epoch on a gang of functions over HTTP: the same for local processes and for Nuclio's pods.

docs/project/worker-protocol.md has the protocol: start (answered at once), status (a long poll), stop. All members
are started together; the epoch is done when every worker is; one member that fails ends the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from coach.core.cluster import PodId, Role
from coach.core.jobs.actions import StallTimeouts
from coach.core.jobs.epoch import EpochKind, EpochReport
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle.forecast import CALLS_PER_SECOND, CALLS_TO_START
from coach.core.lifecycle.stall_timeout import STALL_FACTOR, STALL_SECONDS
from coach.core.spec.job import JobSpec
from coach.core.spec.training import Framework
from coach.platforms.base import EpochError, EpochOrder, Progress
from coach.platforms.function_calls import FunctionCalls, Unanswered, group_key

#: Seconds of a worker's long poll; a server answers its polls at once, so that it is free for the next start.
POLL_SECONDS = 1.0 / CALLS_PER_SECOND
#: Status calls that a handler makes a second; with more functions each is asked more rarely. One takes some 0.6 ms.
MOST_CALLS_PER_SECOND = 400.0
#: Seconds a function may take to answer beyond the poll itself, before it counts as lost.
ANSWER_SECONDS = 10.0
#: Seconds a function may take to end its group: it kills its child, and where that is stuck its zygote.
END_SECONDS = 6.0
#: A call that took so many seconds longer than it may: it is we who stood still, and not the function.
AWAY_SECONDS = 1.0
#: Ports for ps-lite's root on the scheduler function's own address. A group takes two, each group others.
FIRST_PORT = 9100
PORTS = 20_000
#: Seconds that the functions' deadline lies before the end of what is paid, so that they are surely gone by then.
MARGIN = 0.05

#: Processes of an epoch that are named.
MAX_PROCESSES = 1000

#: Seconds that a worker may report.
_SECONDS = (
    *("evaluate_seconds", "form_seconds", "load_seconds", "checkpoint_seconds", "warm_up_seconds"),
    *("train_started_at", "train_ended_at", "cpu_seconds", "thread_seconds"),
)

ACTIVE = ("starting", "forming", "training", "evaluating")

#: Which failure of several is the cause: peers of a dead member fail too, with less to say.
_AFTERTHOUGHTS = (
    Reason.PEER_LOST,
    Reason.FUNCTION_LOST,
    Reason.INTERNAL,
    Reason.STALLED,
    Reason.DEADLINE_EXCEEDED,
)


@dataclass(slots=True)
class Member:
    """One function of the gang."""

    pod: PodId
    rank: int
    address: str  #: host:port

    @property
    def host(self) -> str:
        """The address without its port."""
        return self.address.rpartition(":")[0]


#: Failures of one worker that say nothing of the others.
_GONE = (Reason.FUNCTION_LOST, Reason.PEER_LOST, Reason.INTERNAL, Reason.STALLED)


class MemberError(Exception):
    """One member said or showed that it cannot go on."""

    def __init__(self, member: Member, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.member = member
        self.reason = reason


class Progressing:
    """Whether a worker makes progress. A poll counts as long as it should take and no longer.

    So a handler that stood still saw nothing, and on a machine that is too busy to answer all is waited for longer.
    """

    def __init__(self, stall_timeouts: StallTimeouts, at: float) -> None:
        self._patience = stall_timeouts
        self._at = at
        self._version = -1
        self._waited = 0.0  #: seconds since the last sign of progress
        self._longest = 0.0  #: seconds between two signs of progress while training, so far

    def note(self, state: str, version: int, at: float, gap: float = POLL_SECONDS) -> str | None:
        """Take in an answer, `gap` seconds after the one before it or later.

        What is wrong when the worker has shown no progress for too long.
        """
        self._waited += min(at - self._at, gap)
        self._at = at
        if version != self._version:
            if state in ("training", "evaluating"):
                self._longest = max(self._longest, self._waited)
            self._version, self._waited = version, 0.0
            return None
        most = float(getattr(self._patience, state, float("inf")))
        if state in ("training", "evaluating"):
            most = max(most, STALL_SECONDS + STALL_FACTOR * self._longest)
        return f"no progress for {self._waited:.1f} s while {state}" if self._waited > most else None


class GangClient:
    """Runs one epoch at a time on the functions of one job, which have this key."""

    def __init__(self, calls: FunctionCalls, order: EpochOrder, now: Callable[[], float], key: str) -> None:
        self._calls = calls
        self._key = key
        self._order = order
        self._now = now
        self.invocations = 0
        #: Pods that did not answer as functions do: they are of no use any more.
        self.silent: set[PodId] = set()
        self._stop: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        elastic = order.spec.spec.elastic
        # Members of an elastic group keep their ranks when others leave.
        self.members = [
            Member(pod, pod.index if elastic else rank, order.addresses[pod])
            for role in Role
            for rank, pod in enumerate(pod for pod in order.action.pods if pod.role is role)
        ]
        self._workers = [member for member in self.members if member.pod.role is Role.WORKER]
        self._begun = self._cut = False
        #: Workers and servers that the others of an elastic group go on without, and those that are to leave it.
        self._lost: list[Member] = []
        self._leaving = {member.pod: asyncio.Event() for member in self.members}
        #: Those that have not come to the group yet, and those of them for which the others have waited too long.
        self._starting, self._overdue = {member.pod for member in self.members}, set[PodId]()
        self._watchers: list[asyncio.Future[Any]] = []
        self._started = asyncio.Event()

    def stop(self, reason: Reason) -> None:
        """Make `run` end the group and raise EpochError with `reason`."""
        if not self._stop.done():
            self._stop.set_result(reason)

    def may_cut(self, job: str) -> bool:
        """Whether an epoch of this job runs that also counts if it ends early: of an elastic group, and no probe."""
        action = self._order.action
        counts = self._order.spec.spec.elastic and action.kind is EpochKind.FULL
        return self._begun and action.job == job and counts

    async def end(self, reason: Reason) -> None:
        """As `stop`. Where others get the capacity, an elastic group's epoch ends after its present step, and counts.

        One that takes longer than the job's grace period is stopped.
        """
        action = self._order.action
        if reason is not Reason.DISRUPTED or not self.may_cut(action.job):
            self.stop(reason)
        elif not self._cut:
            self._cut = True
            asyncio.get_running_loop().call_later(self._order.spec.spec.grace_period, self.stop, reason)
            with contextlib.suppress(MemberError):  # then it is stopped when that time is over
                body = {"op": "cut", "group": action.group, "epoch": action.token}
                await self._call(self.members[0], body, ANSWER_SECONDS)

    async def leave(self, pods: Collection[PodId]) -> bool:
        """Have these workers and servers leave the elastic group within its epoch; whether it goes on without them.

        Servers hand over what they hold. Returns when all have left, or the job's grace period is over. Where too few
        would stay, or the epoch is a probe, nothing is changed.
        """
        grace = self._order.spec.spec.grace_period
        if not self._leaving.keys() & set(pods):
            return True
        stay = {each.pod.role for each in self.members if self._stays(each) and each.pod not in pods}
        if not self.may_cut(self.job) or not stay.issuperset(each.pod.role for each in self.members):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._started.wait()
                for pod in self._leaving.keys() & set(pods):
                    self._leaving[pod].set()
                await self._go_on_without_the_lost()
                left = [
                    watcher for each, watcher in zip(self.members, self._watchers, strict=False) if each.pod in pods
                ]
                await asyncio.gather(*map(asyncio.shield, left), return_exceptions=True)
        return True

    @property
    def job(self) -> str:
        """Whose epoch it is."""
        return self._order.action.job

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.done()

    async def run(self, progress: Callable[[Progress], None]) -> tuple[EpochReport, int]:
        """The epoch, from the start messages to the last worker's report. Raises EpochError, the group ended."""
        self._begun = True
        epoch = asyncio.ensure_future(self._epoch(progress))
        try:
            first: set[asyncio.Future[Any]] = {epoch, self._stop}
            left = self._order.due - self._now()
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED, timeout=left)
            if epoch.done():
                return epoch.result(), self.invocations
            reason = self._stop.result() if self._stop.done() else Reason.DEADLINE_EXCEEDED
            message = f"stopped after {self._now() - self._order.action.at:.1f} s"
        except MemberError as error:
            reason, message = error.reason, f"{error.member.pod.name}: {error}"
        finally:
            epoch.cancel()
            await asyncio.gather(epoch, return_exceptions=True)
        await self._end_group(self._order.action.group, self.members)
        if reason is Reason.BUSY:
            # A server or scheduler that hangs in the group before this one, whose workers are done, is ended with it.
            await self._end_group(_group_before(self._order.action.group), self.members)
        raise EpochError(reason, message, self.invocations)

    async def _epoch(self, progress: Callable[[Progress], None]) -> EpochReport:
        watchers: list[asyncio.Future[Any]] = []
        try:
            try:
                async with asyncio.TaskGroup() as starts:
                    for member in self.members:
                        starts.create_task(self._start(member))
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None  # it cancelled the others
            watchers = self._watchers = [asyncio.ensure_future(self._watch(each, progress)) for each in self.members]
            self._calls.followed += len(watchers)
            self._started.set()
            workers = [w for m, w in zip(self.members, watchers, strict=True) if m in self._workers]
            pending: set[asyncio.Future[Any]] = set(watchers)
            while pending.intersection(workers):  # each end is looked at, also one that came meanwhile
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                errors = [error for task in done if (error := task.exception()) is not None]
                if not all(map(self._can_do_without, errors)):
                    raise await self._cause(errors, pending)
                self._lost += [error.member for error in errors if isinstance(error, MemberError)]
                if not all(map(self._left, {member.pod.role for member in self._lost})):
                    raise await self._cause(errors, pending)
                if errors:
                    await self._go_on_without_the_lost()
            # Their processes may still hang; the functions must be free for the next epoch.
            hanging = [member for member in self._lost if member.pod not in self.silent]
            await self._end_group(self._order.action.group, hanging)
            reports = [worker.result() for worker in workers if not worker.exception()]
            # One that joined an elastic group on the way has seen a part of the epoch only.
            report = max(reports, key=lambda each: (each["samples"], each["train_seconds"]))
            late = len(workers) - report.get("workers", len(workers))
            report["processes"] = [name for each in reports for name in each.get("processes") or ()]
            report["workers_lost"] = max(len(self.members) - sum(map(self._stays, self.members)), late)
            found = _report(report, self._order)
            if self._order.action.evaluate and found.value(metric := self._order.spec.spec.metric) is None:
                raise MemberError(self._workers[0], Reason.MODEL_INVALID, not_measured(metric, found.metrics))
            return found
        finally:
            self._started.set()
            self._calls.followed -= len(watchers)
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    @property
    def _first_worker(self) -> Member | None:
        """The first that stays: its progress is the group's."""
        return next((member for member in self._workers if self._stays(member)), None)

    def _stays(self, member: Member) -> bool:
        return member not in self._lost and not self._leaving[member.pod].is_set()

    def _waits_for_others(self, member: Member, state: str, stalled: str | None) -> bool:
        """Whether it waits for others, which hang before they come to it. Raises MemberError for a hanging one."""
        if state != "starting":
            self._starting.discard(member.pod)
        late = self._starting & {each.pod for each in self.members if self._stays(each)}
        if stalled and state == "forming" and late and self.may_cut(self.job):
            self._overdue |= late
            return True
        if stalled or (member.pod in self._overdue and state == "starting"):
            raise MemberError(member, Reason.STALLED, stalled or "does not start, and the others wait for it")
        return False

    def _can_do_without(self, error: BaseException) -> bool:
        """Whether the others of an elastic group go on: a worker or server is gone, and nothing is wrong with the job.

        A probe measures all of them.
        """
        return (
            self._order.spec.spec.elastic
            and self._order.action.kind is EpochKind.FULL
            and isinstance(error, MemberError)
            and error.member.pod.role is not Role.SCHEDULER
            and error.reason in _GONE
        )

    def _left(self, role: Role) -> list[int]:
        """The ranks of the members of this role that stay."""
        return [member.rank for member in self.members if member.pod.role is role and self._stays(member)]

    def _members(self) -> dict[str, list[int]]:
        """Who belongs to an elastic group, as its scheduler hears it."""
        servers = self._left(Role.SERVER)
        return {"members": self._left(Role.WORKER)} | ({"server_members": servers} if servers else {})

    async def _go_on_without_the_lost(self) -> None:
        """Have an elastic group that is still forming wait for the others only."""
        body = {"op": "resize", "group": self._order.action.group, **self._members()}
        with contextlib.suppress(MemberError):  # the scheduler's own watcher says what is wrong with it
            await self._call(self.members[0], body, ANSWER_SECONDS)

    async def _cause(self, errors: list[Any], pending: set[asyncio.Future[Any]]) -> BaseException:
        """The failure that explains the others; those that follow on its heels are waited for a moment."""
        if pending and all(getattr(e, "reason", None) in _AFTERTHOUGHTS for e in errors):
            done, _ = await asyncio.wait(pending, timeout=0.3)
            errors += [task.exception() for task in done if task.exception() is not None]
        causes = [e for e in errors if isinstance(e, MemberError) and e.reason not in _AFTERTHOUGHTS]
        cause: BaseException = (causes or errors)[0]
        return cause

    async def _start(self, member: Member) -> None:
        order, action, spec = self._order, self._order.action, self._order.spec.spec
        scheduler = self.members[0]
        number = int(action.group.rpartition(".g")[2])
        port = FIRST_PORT + 2 * number % PORTS
        body: dict[str, Any] = {
            "op": "start",
            "epoch": action.token,
            "group": action.group,
            "key": group_key(self._key, action.group),
            "role": member.pod.role.value,
            "rank": member.rank,
            "workers": action.allocation.workers,
            "servers": action.allocation.servers,
            "root": f"{scheduler.host}:{port}",
            "host": member.host,
            "deadline": max(0.1, order.due - self._now() - MARGIN),
            "mode": spec.mode.value,
            **({"elastic": True, "wait_for_all": action.kind is EpochKind.PROBE} if spec.elastic else {}),
            "memory": spec.resources.of(member.pod.role).memory,
            "threads": max(1, int(spec.resources.of(member.pod.role).cpu)),
        }
        if spec.elastic and member.pod.role is Role.SCHEDULER:
            body |= self._members()
        if member.pod.role is Role.WORKER:
            body |= training_fields(spec) | {
                "position": action.position,
                "fraction": action.fraction * _part_of_data(order),
                "epoch_samples": action.epoch_samples,
                "seconds": action.seconds,
                "evaluate": action.evaluate,
                "weights_in": action.weights_in,
                "weights_out": action.weights_out,
                # Which worker of an elastic group stores the checkpoint is decided there.
                "obsolete": list(order.obsolete) if spec.elastic or member.rank == 0 else [],
            }
        await self._call(member, body, ANSWER_SECONDS)

    async def _watch(self, member: Member, progress: Callable[[Progress], None]) -> dict[str, Any]:
        """Follow one member; a worker's report when it is done. Raises MemberError when it fails."""
        worker = member.pod.role is Role.WORKER
        seen = -1
        calls = 1
        began = self._now()
        stall_timeouts = self._order.action.stall_timeouts
        progressing = Progressing(stall_timeouts, began) if worker and stall_timeouts else None
        leaves = self._leaving[member.pod]
        gap = POLL_SECONDS
        while True:
            asked = worker or leaves.is_set()  # it answers when something has changed
            wait = POLL_SECONDS if asked else 0.0
            body = {"op": "status", "epoch": self._order.action.token, "wait": wait, "seen": seen}
            answer = await self._call(member, body, wait + ANSWER_SECONDS)
            calls += 1
            state, seen = answer.get("state"), int(answer.get("version", -1))
            if state == "done" and asked:
                report: dict[str, Any] = answer.get("report") or {}
                return report
            if state not in (*ACTIVE, "done", "idle"):
                error = answer.get("error") or {}
                words = error.get("message") or f"is {state}"
                if error.get("traced"):
                    words += f" (its traceback: coach logs {self._order.spec.name})"
                raise MemberError(member, _reason(error.get("reason")), words)
            stalled = progressing.note(str(state), seen, self._now(), gap) if progressing else None
            if self._waits_for_others(member, str(state), stalled) and stall_timeouts:
                progressing = Progressing(stall_timeouts, self._now())
            done = answer.get("progress") or {}
            samples, total = int(done.get("samples", 0)), int(done.get("total", 0))
            if member is self._first_worker:
                progress(Progress(self._order.action.token, str(state), samples, total))
            # What is reserved covers so many calls a second and no more.
            earliest = began + (calls - CALLS_TO_START + 4) / CALLS_PER_SECOND
            pause = max(0.0 if asked else 2 * POLL_SECONDS, earliest - self._now())
            gap = POLL_SECONDS
            crowd = self._calls.followed / MOST_CALLS_PER_SECOND
            if crowd > gap:
                if worker:  # its end is seen soon: it is asked again before half of the rest is over
                    rest = (self._now() - began) * (total / samples - 1.0) if samples and state == "training" else 0.0
                    crowd = min(crowd, max(POLL_SECONDS, rest / 2.0))
                pause = max(pause, crowd)
                gap += pause
            if asked:
                await asyncio.sleep(pause)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(leaves.wait(), pause)

    async def _call(self, member: Member, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        status, said = await self._post(member, body, timeout)
        try:
            answer: dict[str, Any] = json.loads(said)
        except ValueError:
            answer = {}
        if status >= 400:
            error = answer.get("error") or {}
            words = error.get("message") or f"answered {status}: {said.decode(errors='replace')[:500]}"
            if status >= 500 and not error:
                # Not the function answered, but its host or a proxy.
                self.silent.add(member.pod)
                raise MemberError(member, Reason.FUNCTION_LOST, words)
            raise MemberError(member, _reason(error.get("reason")), words)
        return answer

    async def _post(self, member: Member, body: dict[str, Any], timeout: float) -> tuple[int, bytes]:
        while True:
            self.invocations += 1
            began = self._now()
            try:
                return await self._calls.post(member.address, body, timeout, self._key)
            except Unanswered as error:
                if error.late and self._now() - began > timeout + AWAY_SECONDS:
                    continue
                self.silent.add(member.pod)
                raise MemberError(member, Reason.FUNCTION_LOST, f"does not answer ({error})") from error

    async def _end_group(self, group: str, members: Sequence[Member]) -> None:
        """Stop these members, whatever they answer: one that does not is ended by its own deadline."""
        body = {"op": "stop", "group": group}
        await asyncio.gather(*(self._call(m, body, END_SECONDS) for m in members), return_exceptions=True)


def training_fields(spec: JobSpec) -> dict[str, Any]:
    """What a worker's start message says of the training, the same in each epoch."""
    model, data, optimizer = spec.model, spec.data, None
    assert model is not None and data is not None, "functions train models"
    if spec.optimizer is not None:
        optimizer = {"name": spec.optimizer.name} | spec.optimizer.arguments
        if (schedule := spec.optimizer.schedule) is not None:
            named = {"name": schedule.name, "interval": schedule.interval}
            optimizer["schedule"] = named | schedule.arguments
    return {
        "model": {
            "uri": model.file,
            "sha256": model.sha256,
            "net": model.net,
            "files": dict(model.files or {}),
            "args": model.args,
        },
        "data": {
            "uri": data.uri or "sklearn:digits",
            "format": "model" if data.format == "custom" else data.format.value,
            "sha256": data.sha256,
            "size": data.size,
        },
        "batch_size": spec.batch_size,
        "micro_batch": spec.micro_batch,
        **({} if spec.evaluation_batch is None else {"evaluation_batch": spec.evaluation_batch}),
        "clip": None if spec.clip is None else {"norm": spec.clip.norm, "value": spec.clip.value},
        "optimizer": optimizer,
        "seed": spec.seed,
        **(_pytorch_fields(spec) if spec.framework is Framework.PYTORCH else {}),
    }


def _pytorch_fields(spec: JobSpec) -> dict[str, Any]:
    gpu = spec.resources.worker.gpu > 0
    readers = 0 if spec.data is None else spec.data.readers
    return {"deterministic": spec.deterministic, "autocast": spec.autocast, "gpu": gpu, "readers": readers}


def not_measured(metric: str, others: Collection[str]) -> str:
    """What is wrong where the model file has no such metric, and what would be right."""
    if metric == "accuracy":
        return (
            "an accuracy is wanted, but the model's outputs are no classes; set a loss as the target, or define "
            'metrics(outputs, batch), which returns {"accuracy": the mean of the batch}'
        )
    there = ", ".join(["loss", *others])
    return (
        f"the metric {metric} is wanted, and the model file has {there}; define metrics(outputs, batch), which returns "
        f'{{"{metric}": the mean of the batch}}, or final_metrics(means)'
    )


def _part_of_data(order: EpochOrder) -> float:
    """Of the data, while an epoch is a fraction of it, and how many samples it has is not known."""
    epoch = order.spec.spec.epoch
    if epoch is None or epoch.fraction is None or order.action.epoch_samples is not None:
        return 1.0
    return epoch.fraction


def _group_before(group: str) -> str:
    """The group that the job had before: groups are numbered, `job.g1`, `job.g2`, ..."""
    job, _, number = group.rpartition(".g")
    return f"{job}.g{int(number) - 1}"


def _reason(name: Any) -> Reason:
    try:
        return Reason(name)
    except ValueError:
        return Reason.INTERNAL


def _report(report: dict[str, Any], order: EpochOrder) -> EpochReport:
    seconds: dict[str, Any] = {name: float(report.get(name) or 0.0) for name in _SECONDS}
    return EpochReport(
        samples=int(report["samples"]),
        data_size=int(report["data_size"]),
        loss=float(report["loss"]) if order.action.evaluate else None,
        accuracy=None if report.get("accuracy") is None else float(report["accuracy"]),
        weights=order.action.weights_out,
        train_seconds=float(report["train_seconds"]),
        memory_gib=float(report.get("max_rss_gib") or 0.0),
        warm_up_samples=int(report.get("warm_up_samples") or 0),
        workers_lost=int(report.get("workers_lost") or 0),
        software=str(report.get("software") or "")[:100],
        data_sha256=str(report.get("data_sha256") or "")[:64],
        metrics={str(name): float(value) for name, value in (report.get("metrics") or {}).items()},
        processes=tuple(str(name)[:16] for name in report["processes"][:MAX_PROCESSES]),
        **seconds,
    )
