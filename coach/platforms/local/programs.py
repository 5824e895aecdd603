"""Programs on this machine: each worker is a process under a supervisor, from an epoch's order until its pod's end.

An epoch of a program is what lies between two of its reports. The program goes on while Coach decides; the order of the
next epoch finds it running, and waits for its next report.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import re
import shutil
import signal
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from coach.core.cluster import PodId
from coach.core.jobs.actions import RunEpoch, StallTimeouts
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.program_axis import ProgramAxis
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import JobSpec
from coach.platforms import torchrun
from coach.platforms.base import EpochError, EpochOrder, PlatformEvents
from coach.platforms.local.devices.device import Device
from coach.platforms.local.devices.pool import DevicePool
from coach.platforms.local.program_group import Group, Variables
from coach.platforms.local.supervisor import Ended, Order
from coach.platforms.process_table import end_marked
from coach.platforms.program_checkpoints import Checkpoints
from coach.platforms.program_metrics.base import ProgramReport, Wanted

log = logging.getLogger(__name__)

#: Seconds between two reports that count, at least; those in between are replaced by the last of them ...
SHORTEST_INTERVAL = 0.5
#: ... and at least this part of the program's time so far: a program that reports each step fills no journal.
SHORTEST_PART = 1 / 3600
#: Reports of different epochs that may follow each other at once; reports that wait for those before them.
BURST, MAX_WAITING = 20, 100
#: Seconds that the other workers get to end when one has failed.
PEERS_GRACE = 3.0
#: Seconds for a last look at a program that may hang.
LOOK_AGAIN_SECONDS = 2.0
#: The variable by which the processes of a worker are found where its supervisor was killed.
MARK = "COACH_WORKER"
#: Part of the time between two reports in which the calls of `group_changed` wait for what the last one decides.
DECIDE_PART = 0.01
#: Parts of a pass over the data that are counted.
PARTS = 1_000_000
#: Bytes of one answer of a supervisor.
LONGEST_ANSWER = 1 << 20
#: Seconds before the end of what is paid by which all processes are gone.
MARGIN = 0.05
#: Seconds after its deadline in which a supervisor ends what its program has started, and says what it printed last.
LATE_SECONDS = 15.0

#: Called with a report, and the seconds since the program's start.
Heard = Callable[[ProgramReport, float], None]
#: Called with a signal that the program got, and the seconds that it then has.
Signalled = Callable[[str, float], None]
#: Called with a worker's name when its program calls `group_changed`; `Worker.answer` answers.
Called = Callable[[str], None]


class Worker:
    """One worker's process, from `start` until `ended`."""

    def __init__(
        self,
        supervisor: asyncio.subprocess.Process,
        name: str,
        mark: str,
        heard: Heard,
        *,
        called: Called | None,
        signalled: Signalled | None,
    ):
        self.name = name
        self._signalled = signalled
        self._supervisor = supervisor
        self._mark = mark
        self._called = called
        #: When its processes last worked, on the event loop's clock.
        self.worked = asyncio.get_running_loop().time()
        #: What kills a supervisor that does not keep its deadline, or does not end when it is asked to.
        self._late: asyncio.TimerHandle | None = None
        self._due, self._asked = math.inf, False
        self.ended = asyncio.create_task(self._follow(heard))

    @classmethod
    async def start(
        cls, order: Order, heard: Heard, called: Called | None = None, signalled: Signalled | None = None
    ) -> Worker:
        """Start it. Without `called` its group never changes. Raises OSError."""
        supervisor = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "coach.platforms.local.supervisor"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=order.leases,
            limit=LONGEST_ANSWER,
            start_new_session=True,
        )
        mark = uuid.uuid4().hex
        worker = cls(supervisor, order.name, f"{MARK}={mark}", heard, called=called, signalled=signalled)
        worker._send(asdict(replace(order, env={**order.env, MARK: mark})))
        worker._ends_in(order.seconds)
        return worker

    def extend(self, seconds: float) -> None:
        """Let it run until so many seconds from now."""
        self._send({"seconds": seconds})
        if not self._asked:
            self._due = math.inf
        self._ends_in(seconds)

    def answer(self, what: Mapping[str, object]) -> None:
        """Answer its call of `group_changed`: `env` of another group, `leave`, or nothing new."""
        self._send({"group": what})

    def end(self, grace: float) -> None:
        """SIGTERM now, SIGKILL after `grace` seconds or at its deadline."""
        self._send({"end": grace})
        self._asked = True
        self._ends_in(grace)

    def _ends_in(self, seconds: float) -> None:
        """It has ended so many seconds from now, or at its deadline; one that has not is killed."""
        loop = asyncio.get_running_loop()
        self._due = min(self._due, loop.time() + seconds)
        if self._late is not None:
            self._late.cancel()
        if self._supervisor.returncode is None:
            self._late = loop.call_at(self._due + LATE_SECONDS, self._kill)

    def _kill(self) -> None:
        if self._supervisor.returncode is not None:
            return
        log.warning("%s: its supervisor has not ended %g s after its deadline; it is killed", self.name, LATE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            self._supervisor.kill()

    def _send(self, what: Mapping[str, object]) -> None:
        assert self._supervisor.stdin is not None
        if not self._supervisor.stdin.is_closing():
            self._supervisor.stdin.write(json.dumps(what).encode() + b"\n")

    async def _follow(self, heard: Heard) -> Ended:
        assert self._supervisor.stdout is not None
        try:
            async for line in self._supervisor.stdout:
                said = json.loads(line)
                if "code" in said:
                    return Ended(**said)
                if "signal" in said:
                    if self._signalled is not None:
                        self._signalled(said["signal"], said["grace"])
                    continue
                if "works" in said:
                    self.worked = asyncio.get_running_loop().time()
                    continue
                if "call" in said:
                    if self._called is None:
                        self.answer({})
                    else:
                        self._called(self.name)
                    continue
                seconds = said.pop("seconds")
                heard(ProgramReport(**said), seconds)
        finally:
            if self._late is not None:
                self._late.cancel()
            with contextlib.suppress(ProcessLookupError):
                self._supervisor.kill()
            await self._supervisor.wait()
        await asyncio.to_thread(end_marked, self._mark)
        return Ended(137, "lost", "its supervisor was killed")


class Run:
    """The workers of a job from their start to their end."""

    def __init__(self, spec: JobSpec, action: RunEpoch, stopped: float, events: PlatformEvents) -> None:
        """`stopped`: seconds in which the processes before these ended for a change.

        `events` hears of the first SIGTERM and the first SIGKILL that a worker gets, and of another metric than wanted.
        """
        self._events, self._signals = events, set[str]()
        self.job, self.group = action.job, action.group
        #: The devices that the process of each worker sees; they stay the same for as long as it runs.
        self.sees: dict[str, Sequence[Device]] = {}
        #: The names of the workers that it is to have.
        self.names = [pod.name for pod in sorted(action.pods)]
        self._members = Group(self.names, self._answer)
        self._changes = spec.limits.smallest != spec.limits.largest
        #: Of the last report: whether it is the first of a new group, and of how many workers its group was.
        self._regrouped, self._size = False, 0
        self._checkpoints = Checkpoints(_folder(action))
        self._stop_seconds = stopped
        self.grace = spec.grace_period
        self.resumes = spec.program is not None and spec.program.resumes
        self._metric = spec.metric
        self._target = spec.target
        self._axis = ProgramAxis(action.after_epoch, action.position > 0)
        self._epoch: float | None = None
        self._guess = ProgramReport({})
        #: Whether the next report reaches the target; those that come after it; how many may come at once; since when.
        self._reached = False
        self._waiting = deque[tuple[ProgramReport, float]]()
        self._room, self._room_at = float(BURST), 0.0
        self._stopped: tuple[Reason, str] | None = None
        self._workers: list[Any] = []
        self._values: dict[str, float] = {}
        self._heard = asyncio.Event()
        #: Seconds since the program's start: of its last report, and of the last that counted.
        self._last = self._counted = 0.0
        #: When the next report may count, on the event loop's clock.
        self._next = 0.0
        #: When it was started, or its last report came, on that clock.
        self._said = asyncio.get_running_loop().time()

    async def start(self, orders: Sequence[Any]) -> None:
        """Start all workers; the first one's reports count. Raises OSError."""
        try:
            for order in orders:
                await self._add(order, self._note if order is orders[0] else _nothing)
        finally:  # those that have started can be ended
            self.over = asyncio.create_task(self._follow())

    async def _add(self, order: Any, heard: Heard) -> None:
        worker = await self.start_worker(order, heard)
        self._workers.append(worker)
        worker.ended.add_done_callback(lambda _: self._one_ended())

    async def start_worker(self, order: Any, heard: Heard) -> Any:
        """Start one worker. Raises OSError."""
        return await Worker.start(order, heard, self._members.called, self.got)

    def got(self, name: str, grace: float) -> None:
        """One of its workers got this signal."""
        if name not in self._signals:
            self._signals.add(name)
            self._events.program_signalled(self.job, name, grace)

    def _answer(self, name: str, what: Mapping[str, object]) -> None:
        for worker in self._workers:
            if worker.name == name:
                worker.answer(what)

    @property
    def regroups(self) -> bool:
        """Whether its workers can change in the same process."""
        return self._members.asked and not self.over.done()

    async def change(self, variables: Variables, orders: Sequence[Order]) -> None:
        """Go on with the workers of `variables`, when those of `orders`, which start now, have come. Raises OSError."""
        self.names = list(variables)
        for order in orders:
            self._members.forget(order.name)
            await self._add(order, _nothing)
            self._one_ended()  # perhaps before this one was known
            if self.over.done():
                await asyncio.wait({self._workers[-1].ended})
        self._members.decide(variables)

    async def leave(self, variables: Variables) -> bool:
        """Go on with the workers of `variables` alone; whether the others have left within the grace period."""
        self.names = list(variables)
        gone = [worker for worker in self._workers if worker.name not in variables]
        self._members.decide(variables)
        for worker in gone:
            if worker.name not in self._members.members and worker.name not in self._members.left:
                self._members.left.add(worker.name)  # it has not come yet
                worker.end(0.0)
        staying = {worker.ended for worker in gone}
        if staying:
            _, staying = await asyncio.wait(staying, timeout=self.grace)
        if staying and {worker.name for worker in gone} <= self._members.left:
            for worker in gone:  # it was to leave in time
                worker.end(0.0)
            _, staying = await asyncio.wait(staying)
        if staying or {worker.name for worker in gone} - self._members.left:
            return False  # one stays, or it died before it was to leave: the others have been ended for that
        self._workers = [worker for worker in self._workers if worker.name in variables]
        return True

    def extend(self, now: float, due: float) -> None:
        """Let them run until `due`; both on the handler's clock."""
        for worker in self._workers:
            worker.extend(due - MARGIN - now)

    async def end(self, grace: float, reason: Reason | None = None, why: str = "stopped") -> None:
        """End all workers; returns when nothing of them is left. `reason` and `why`: what `report` then raises."""
        if reason is not None:
            self._stopped = self._stopped or (reason, why)
        self._members.close()
        for worker in self._workers:
            worker.end(grace)
        await asyncio.wait({self.over})

    def kill(self) -> None:
        """End all workers now, also where their end is waited for."""
        for worker in self._workers:
            worker.end(0.0)

    async def saved(self) -> None:
        """Return when the checkpoint is there that the program writes after a report, or when it is late."""
        clock = asyncio.get_running_loop().time
        late = clock() + self._checkpoints.patience
        while self._checkpoints.expected and not self.over.done() and clock() < late:
            await asyncio.sleep(0.05)

    async def report(self, stall: StallTimeouts | None, *, by_reports: bool) -> EpochReport:
        """The next report that counts. Raises EpochError where the program ended without one, or hangs.

        It hangs when none of its processes works for as long as `stall` says; with `by_reports` when no report comes.
        """
        clock = asyncio.get_running_loop().time
        self._members.decide()
        heard = asyncio.ensure_future(self._heard.wait())
        try:
            while not (self._heard.is_set() or self.over.done()):
                alive, left = 0.0, None
                if stall is not None:
                    alive = self._alive(by_reports)
                    left = max(LOOK_AGAIN_SECONDS, alive + self._patience(stall) - clock())
                await asyncio.wait({heard, self.over}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                # A handler that was itself stopped reads first what came meanwhile.
                ends = self._heard.is_set() or self.over.done()
                if left == LOOK_AGAIN_SECONDS and not ends and alive == self._alive(by_reports):
                    await self._hangs(clock() - self._said, by_reports)
            if self._heard.is_set() and not (self.over.done() or self._waiting) and (early := self._next - clock()) > 0:
                await asyncio.wait({self.over}, timeout=early)
        finally:
            heard.cancel()
        if self._heard.is_set() and self._stopped is None:
            interval = max(SHORTEST_INTERVAL, SHORTEST_PART * self._last)
            self._next = clock() + interval
            self._room = min(float(BURST), self._room + (self._last - self._room_at) / interval) - 1.0
            self._room_at = self._last
            found = self._taken()
            self._take_waiting()
            return found
        await asyncio.wait({self.over})
        reason, message = self._stopped_because(self.over.result())
        raise EpochError(reason, message, 0)

    def unheard(self) -> list[EpochReport]:
        """What it has reported and `report` has not returned, once it has ended. It measures no speed of the next."""
        found = list[EpochReport]()
        while self._heard.is_set():
            found.append(self._taken())
            self._take_waiting()
        return [
            replace(report, workers_lost=1, mark=0, warm_up_samples=0, warm_up_seconds=0.0, stop_seconds=0.0)
            for report in found
        ]

    def _take_waiting(self) -> None:
        """Take in what waits and belongs to the next report."""
        while self._waiting and not self._by_itself(self._waiting[0][0]):
            self._take_in(*self._waiting.popleft())

    def _patience(self, stall: StallTimeouts) -> float:
        return stall.starting if self._counted == 0.0 else stall.training

    def _alive(self, by_reports: bool) -> float:
        """When it last gave a sign of life, on the event loop's clock."""
        return self._said if by_reports else max(self._said, *(worker.worked for worker in self._workers))

    async def _hangs(self, silent: float, by_reports: bool) -> None:
        idle = "" if by_reports else ", and none of its processes computed, read or wrote for long"
        self._stopped = self._stopped or (Reason.STALLED, f"no report in {silent:.0f} s{idle}")
        await self.end(PEERS_GRACE)

    def _note(self, report: ProgramReport, seconds: float) -> None:
        if report.hint:
            self._events.metric_not_found(self.job, report.hint)
        if self._metric in report.values:
            self._said = asyncio.get_running_loop().time()
            self._checkpoints.report(time.time())
        if self._waiting or self._by_itself(report):
            self._waiting.append((report, seconds))
        else:
            self._take_in(report, seconds)
        while len(self._waiting) > MAX_WAITING:
            self._take_in(*self._waiting.popleft())

    def _by_itself(self, report: ProgramReport) -> bool:
        """Whether a report does not replace the one that comes next: that one reaches the target, or is of another
        epoch and no more of them come than may follow each other.
        """
        if not self._heard.is_set() or self._metric not in report.values:
            return False
        another = report.epoch is not None and self._epoch is not None and int(report.epoch) != int(self._epoch)
        return self._reached or (another and self._room >= 1.0)

    def _take_in(self, report: ProgramReport, seconds: float) -> None:
        value = report.values.get(self._metric)
        if value is not None:
            reached = self._target is not None and not report.guessed and self._target.reached(value)
            if not self._axis.counts(report.epoch, value, reached):
                return
            self._last, self._epoch, self._guess = seconds, report.epoch, report
            self._reached = reached
            self._regrouped, self._members.changed = self._regrouped or self._members.changed, False
            self._size = len(self._members.members)
            if self._changes:
                self._members.hold(DECIDE_PART * (seconds - self._counted))
            self._heard.set()
        self._values |= report.values

    def _taken(self) -> EpochReport:
        values, seconds = dict(self._values), max(self._last - self._counted, 1e-6)
        first, regrouped = self._counted == 0.0, self._regrouped
        self._heard.clear()
        self._regrouped = self._reached = False
        self._counted = self._last
        finite = {name: value for name, value in values.items() if name == self._metric or math.isfinite(value)}
        loss, accuracy = finite.pop("loss", None), finite.pop("accuracy", None)
        parts = max(1, round(PARTS * self._axis.take(self._epoch, values[self._metric])))
        report = EpochReport(
            *(parts, PARTS, loss, accuracy, "", seconds, 0.0),
            metrics=finite,
            at_epoch=self._epoch,
            guessed=self._guess.guessed,
            line=self._guess.line,
            regroups=self._members.asked,
            workers_lost=abs(self._size - len(self.names)),
        )
        if not (first or regrouped):
            return report
        stopped = self._stop_seconds if first else 0.0
        return replace(report, warm_up_samples=parts, warm_up_seconds=seconds, stop_seconds=stopped)

    def _one_ended(self) -> None:
        """Where one fails, or all of the group have ended, the others may wait for ever: they are ended."""
        over = {worker.name: worker.ended for worker in self._workers if worker.ended.done()}
        if any(task.cancelled() or task.exception() for task in over.values()):
            return
        failed = any(task.result().code != 0 for name, task in over.items() if name not in self._members.left)
        if failed or over.keys() >= set(self._members.members):
            for worker in self._workers:
                worker.end(PEERS_GRACE)

    async def _follow(self) -> list[Ended]:
        """Wait for all of them."""
        while pending := {worker.ended for worker in self._workers if not worker.ended.done()}:
            await asyncio.wait(pending)
        return [worker.ended.result() for worker in self._workers]

    def _stopped_because(self, ends: Sequence[Ended]) -> tuple[Reason, str]:
        time = f"after {max(end.seconds for end in ends):.1f} s"
        if self._stopped is not None:
            reason, words = self._stopped
            return reason, f"{words} {time}"
        for worker, end in zip(self._workers, ends, strict=True):
            if end.code and not end.cause and (said := _DEVICE_MEMORY.search(end.words)):
                seen = ", ".join(map(str, self.sees.get(worker.name, ())))
                on = f"; on {seen}" if seen else ""
                return Reason.DEVICE_MEMORY, f"{worker.name} {time}: {said[0].strip()[:500]}{on}; {_LESS}"
        for cause, reason in _REASONS.items():
            ended_so = [(rank, end) for rank, end in enumerate(ends) if end.cause == cause and (cause or end.code)]
            for rank, end in ended_so[:1]:
                who = f"worker {rank}: " if len(ends) > 1 else ""
                return reason, who + _words(end, time)
        return Reason.PROGRAM_ENDED, time


#: What frameworks say where a GPU has too little memory: PyTorch, CUDA and its libraries, XLA (JAX), TensorFlow.
_DEVICE_MEMORY = re.compile(
    r"(?:CUDA|HIP|XPU)\W+out of memory.*|CUDA_ERROR_OUT_OF_MEMORY.*|cudaMalloc failed: out of memory.*"
    r"|cudaErrorMemoryAllocation.*|CUBLAS_STATUS_ALLOC_FAILED.*|RESOURCE_EXHAUSTED.*|OOM when allocating.*",
    re.IGNORECASE,
)
_LESS = "the same again would end so too: take smaller batches, lower precision, or GPUs with more memory"

#: What ended a program, in the order in which causes explain the others.
_REASONS = {
    "cannot start": Reason.PROGRAM_FAILED,
    "memory": Reason.OUT_OF_MEMORY,
    "lost": Reason.PROGRAM_FAILED,
    "deadline": Reason.DEADLINE_EXCEEDED,
    "": Reason.PROGRAM_FAILED,  # by itself
}


def _words(end: Ended, time: str) -> str:
    if end.cause == "cannot start":
        return f"cannot start {end.words}"
    if end.cause == "memory":
        return f"its processes had {end.memory_gib:.2f} GiB {time}; ask for more: resources.worker.memory"
    if end.cause == "lost":
        return f"{end.words} {time}"
    if end.cause == "deadline":
        return f"stopped {time}"
    how = f"ended by signal {signal.Signals(end.code - 128).name}" if 128 < end.code < 160 else f"exit code {end.code}"
    last = f"; it printed last: {' / '.join(end.words.splitlines())}" if end.words else "; it printed nothing"
    return f"{how} {time}{last}"


def _nothing(_report: ProgramReport, _seconds: float) -> None:
    """Reports of other workers than the first say the same."""


class RunningPrograms:
    """The programs of all jobs of a handler: of each its run, whose reports are waited for, or which ends."""

    events: PlatformEvents

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._runs: dict[str, Any] = {}
        self._epochs: dict[str, Any] = {}
        self._ending: dict[str, Any] = {}
        #: What programs that resume have reported while they left; by the group that comes next.
        self._unheard: dict[str, list[EpochReport]] = {}

    def late(self, action: RunEpoch) -> EpochReport | None:
        """What the program of the group before this one has reported while it left: each counts, once."""
        reports = self._unheard.get(action.group)
        return reports.pop(0) if reports else None

    async def report(self, order: EpochOrder, run: Run, *, by_reports: bool, stall: bool = True) -> EpochReport:
        """The next report of a program. `by_reports`, `stall`: as it hangs. Raises EpochError when it has ended."""
        action = order.action
        self._epochs[action.token] = run
        try:
            return await run.report(action.stall_timeouts if stall else None, by_reports=by_reports)
        except EpochError:
            self._runs.pop(action.job, None)
            self._keep_unheard(run)
            raise
        finally:
            del self._epochs[action.token]

    def _keep_unheard(self, run: Run) -> None:
        job, _, number = run.group.rpartition(".g")
        if run.resumes and (reports := run.unheard()):
            self._unheard[f"{job}.g{int(number) + 1}"] = reports

    async def stop_epoch(self, token: str, reason: Reason) -> None:
        """End the program of a running epoch, which then raises EpochError with `reason`."""
        if token in self._epochs:
            await self._epochs[token].end(self._epochs[token].grace, reason)

    async def end_program(self, job: str) -> None:
        """End a job's program in its grace period; returns when nothing of it is left."""
        if (run := self._runs.pop(job, None)) is not None:
            self._ending[job] = run
            try:
                await run.saved()
                await run.end(run.grace)
                self._keep_unheard(run)
            finally:
                del self._ending[job]

    async def kill_program(self, job: str) -> None:
        """End a job's program now."""
        for runs in (self._runs, self._ending):
            if job in runs:
                runs[job].kill()


class Programs(RunningPrograms):
    """The programs of all jobs on this machine. `logs(job)` is the folder for a job's logs."""

    def __init__(self, logs: Callable[[str], Path], now: Callable[[], float], devices: DevicePool) -> None:
        super().__init__(now)
        self._logs = logs
        self._devices = devices
        #: By job: the seconds that its last stop took, until it is started again.
        self._ends: dict[str, float] = {}

    async def run_epoch(self, order: EpochOrder, cpus: Callable[[PodId], Sequence[int] | None]) -> EpochReport:
        """Wait for the program's next report; one that does not run yet, with these pods, is started."""
        action = order.action
        if (late := self.late(action)) is not None:
            return late
        run = self._runs.get(action.job)
        if run is None or run.group != action.group:
            if run is not None:
                await run.end(0.0)
            stopped = self._ends.pop(action.job, 0.0)
            run = self._runs[action.job] = Run(order.spec.spec, action, stopped, self.events)
            group = self._variables(run, action.pods)
            await run.start([self._order(order, pod, run, group, cpus(pod)) for pod in sorted(action.pods)])
        elif set(run.names) != {pod.name for pod in action.pods}:
            group = self._variables(run, action.pods)
            new = [pod for pod in sorted(action.pods) if pod.name not in run.names]
            await run.change(group, [self._order(order, pod, run, group, cpus(pod)) for pod in new])
        run.extend(self._now(), order.due)
        program = order.spec.spec.program
        assert program is not None
        return await self.report(order, run, by_reports=program.stall_timeout is not None)

    def extend_epoch(self, token: str, due: float) -> None:
        """Let the program of a running epoch go on until `due`."""
        if token in self._epochs:
            self._epochs[token].extend(self._now(), due)

    async def lose(self, job: str, why: str) -> None:
        """End a job's program, one of whose devices no longer works."""
        if (run := self._runs.get(job)) is not None:
            await run.end(run.grace, Reason.DEVICE_LOST, why)

    async def release(self, job: str, kept: Collection[PodId]) -> None:
        """End a job's program, in its grace period; returns when nothing of it is left.

        One that forms its group anew in the same process goes on with the workers in `kept`.
        """
        run = self._runs.get(job)
        if run is not None and kept and run.regroups and await run.leave(self._variables(run, kept)):
            return
        began = self._now()
        await self.end_program(job)
        if run is not None:
            self._ends[job] = self._now() - began

    async def close(self) -> None:
        """End all programs at once."""
        await asyncio.gather(*(run.end(0.0) for run in (*self._runs.values(), *self._ending.values())))

    def _variables(self, run: Run, pods: Collection[PodId]) -> Variables:
        """What torchrun says to the workers of a group; they meet at a port that is free.

        With one device each, a process that starts sees those of all, and `LOCAL_RANK` is the place of its own among
        them, also when others have come or left since. With more, or MIG instances, of which a process sees one only,
        each sees its own alone, as if it was alone on its node.
        """
        job, _, number = run.group.rpartition(".g")
        port, pods = _free_port(), sorted(pods)
        own = {pod.name: self._devices.of(pod) for pod in pods}
        of_all = [device for each in own.values() for device in each]
        alone = len(of_all) > len(pods) or any(device.mig for device in of_all)
        run.sees = {name: run.sees.get(name, devices if alone else of_all) for name, devices in own.items()}
        found = {}
        for rank, (name, devices) in enumerate(own.items()):
            of_torchrun = torchrun.variables(
                job, int(number) - 1, rank, len(pods), "127.0.0.1", port, one_node=not alone
            )
            if devices:
                of_torchrun["LOCAL_RANK"] = str(run.sees[name].index(devices[0]))
            found[name] = of_torchrun
        return found

    def _order(self, order: EpochOrder, pod: PodId, run: Run, groups: Variables, cpus: Sequence[int] | None) -> Order:
        spec, action = order.spec.spec, order.action
        program = spec.program
        assert program is not None
        logs = self._logs(action.job)
        logs.mkdir(0o700, parents=True, exist_ok=True)
        group, threads = dict[str, str](), dict[str, str]()
        # A program that finds these variables takes part in a group, which costs time and may need a backend.
        if spec.limits.largest.workers > 1:
            group = dict(groups[pod.name])
            threads = {"OMP_NUM_THREADS": str(max(1, int(spec.resources.worker.resources.cpu)))}
        asks = spec.resources.worker.gpu > 0
        seen = self._devices.environment(run.sees[pod.name] if asks else None, program.env)
        return Order(
            name=pod.name,
            command=program.command,
            directory=program.folder,
            env={"PYTHONUNBUFFERED": "1", **threads, **os.environ, **group, **program.env, **seen, **_own(order)},
            log=str(logs / f"{pod.name}.log"),
            # Only the first worker's reports count.
            wanted=Wanted.of(spec) if pod.name == next(iter(groups)) else Wanted(spec.metric),
            seconds=max(0.0, order.due - self._now()),
            grace=spec.grace_period,
            memory=spec.resources.worker.resources.memory,
            cpus=cpus,
            job=action.job,
            leases=self._devices.descriptors(pod),
        )


def not_there(spec: JobSpec) -> str:
    """Why the command of a program cannot be run on this machine; empty where it can, or is no program's."""
    program = spec.program
    if program is None or spec.image is not None:
        return ""
    word, folder = program.command[0], program.folder
    where = os.path.join(folder, word) if "/" in word else word  # noqa: PTH118 - `./a` is to stay one
    path = program.env.get("PATH") or os.environ.get("PATH")
    if shutil.which(where, path=path) is not None:
        return ""
    if "/" not in word:
        return f"no program {word!r} in PATH"
    return f"{where} is not a program that may be executed" if Path(where).exists() else f"there is no {where}"


def _folder(action: RunEpoch) -> Path:
    return Path(action.weights_out.removeprefix("file://")).parent


def _own(order: EpochOrder) -> dict[str, str]:
    """What Coach says to a program: its job, and a folder for its checkpoints, which is made."""
    folder = _folder(order.action)
    folder.mkdir(0o700, parents=True, exist_ok=True)
    return {"COACH_JOB": order.action.job, "COACH_CHECKPOINTS": str(folder)}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
