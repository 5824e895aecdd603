"""Programs on this machine: each worker is a process under a supervisor, from an epoch's order until its pod's end.

An epoch of a program is what lies between two of its reports. The program goes on while Coach decides; the order of the
next epoch finds it running, and waits for its next report.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from coach.core.cluster import PodId
from coach.core.jobs.actions import RunEpoch
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.program_axis import ProgramAxis
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import JobSpec
from coach.platforms.base import EpochError, EpochOrder
from coach.platforms.local.supervisor import Ended, Order
from coach.platforms.program_metrics.base import ProgramReport, Wanted

#: Seconds between two reports that count, at least; those in between are replaced by the last of them ...
SHORTEST_INTERVAL = 0.5
#: ... and at least this part of the program's time so far: a program that reports each step fills no journal.
SHORTEST_PART = 1 / 3600
#: Seconds that the other workers get to end when one has failed.
PEERS_GRACE = 3.0
#: Parts of a pass over the data that are counted.
PARTS = 1_000_000
#: Bytes of one answer of a supervisor.
LONGEST_ANSWER = 1 << 20
#: Seconds before the end of what is paid by which all processes are gone.
MARGIN = 0.05


#: Called with a report, and the seconds since the program's start.
Heard = Callable[[ProgramReport, float], None]


class Worker:
    """One worker's process, from `start` until `ended`."""

    def __init__(self, supervisor: asyncio.subprocess.Process, heard: Heard):
        self._supervisor = supervisor
        self.ended = asyncio.create_task(self._follow(heard))

    @classmethod
    async def start(cls, order: Order, heard: Heard) -> Worker:
        """Start it. `heard` is called with each report, and the seconds since the start. Raises OSError."""
        supervisor = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "coach.platforms.local.supervisor"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LONGEST_ANSWER,
            start_new_session=True,
        )
        worker = cls(supervisor, heard)
        worker._send(asdict(order))
        return worker

    def extend(self, seconds: float) -> None:
        """Let it run until so many seconds from now."""
        self._send({"seconds": seconds})

    def end(self, grace: float) -> None:
        """SIGTERM now, SIGKILL after `grace` seconds or at its deadline."""
        self._send({"end": grace})

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
                heard(ProgramReport(said["values"], said["epoch"]), said["seconds"])
        finally:
            with contextlib.suppress(ProcessLookupError):
                self._supervisor.kill()
            await self._supervisor.wait()
        return Ended(137, "lost", "its supervisor was killed", 0.0, 0.0, 0.0)


class Run:
    """The workers of a job from their start to their end."""

    def __init__(self, spec: JobSpec, action: RunEpoch) -> None:
        self.group = action.group
        self.grace = spec.grace_period
        self._metric = spec.metric
        self._target = spec.target
        self._axis = ProgramAxis(action.after_epoch, action.position > 0)
        self._epoch: float | None = None
        self._stopped: Reason | None = None
        self._workers: list[Worker] = []
        self._values: dict[str, float] = {}
        self._heard = asyncio.Event()
        #: Seconds since the program's start: of its last report, and of the last that counted.
        self._last = self._counted = 0.0
        #: When the next report may count, on the event loop's clock.
        self._next = 0.0

    async def start(self, orders: Sequence[Order]) -> None:
        """Start all workers; the first one's reports count. Raises OSError."""
        try:
            for order in orders:
                heard = self._note if order is orders[0] else _nothing
                self._workers.append(await Worker.start(order, heard))
        finally:  # those that have started can be ended
            self.over = asyncio.create_task(self._follow())

    def extend(self, now: float, due: float) -> None:
        """Let them run until `due`; both on the handler's clock."""
        for worker in self._workers:
            worker.extend(due - MARGIN - now)

    async def end(self, grace: float, reason: Reason | None = None) -> None:
        """End all workers; returns when nothing of them is left. `reason`: what `report` then raises."""
        self._stopped = self._stopped or reason
        for worker in self._workers:
            worker.end(grace)
        await asyncio.wait({self.over})

    async def report(self) -> EpochReport:
        """The next report that counts. Raises EpochError where the program ended without one."""
        clock = asyncio.get_running_loop().time
        heard = asyncio.ensure_future(self._heard.wait())
        try:
            await asyncio.wait({heard, self.over}, return_when=asyncio.FIRST_COMPLETED)
            if self._heard.is_set() and not self.over.done() and (early := self._next - clock()) > 0:
                await asyncio.wait({self.over}, timeout=early)
        finally:
            heard.cancel()
        if self._heard.is_set() and self._stopped is None:
            self._next = clock() + max(SHORTEST_INTERVAL, SHORTEST_PART * self._last)
            return self._taken()
        await asyncio.wait({self.over})
        reason, message = self._stopped_because(self.over.result())
        raise EpochError(reason, message, 0)

    def _note(self, report: ProgramReport, seconds: float) -> None:
        value = report.values.get(self._metric)
        if value is not None:
            reached = self._target is not None and self._target.reached(value)
            if not self._axis.counts(report.epoch, value, reached):
                return
            self._last, self._epoch = seconds, report.epoch
            self._heard.set()
        self._values |= report.values

    def _taken(self) -> EpochReport:
        values, seconds = dict(self._values), self._last - self._counted
        self._heard.clear()
        self._counted = self._last
        finite = {
            name: value for name, value in values.items() if name == self._metric or math.isfinite(value)
        }
        loss, accuracy = finite.pop("loss", None), finite.pop("accuracy", None)
        parts = max(1, round(PARTS * self._axis.take(self._epoch, values[self._metric])))
        time = max(seconds, 1e-6)
        return EpochReport(parts, PARTS, loss, accuracy, "", time, 0.0, metrics=finite, at_epoch=self._epoch)

    async def _follow(self) -> list[Ended]:
        """Wait for all of them. Where one fails the others, which may wait for it for ever, are ended."""
        pending: set[asyncio.Task[Ended]] = {worker.ended for worker in self._workers}
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result().code != 0 for task in done):
                for worker in self._workers:
                    worker.end(PEERS_GRACE)
        return [worker.ended.result() for worker in self._workers]

    def _stopped_because(self, ends: Sequence[Ended]) -> tuple[Reason, str]:
        time = f"after {max(end.seconds for end in ends):.1f} s"
        if self._stopped is not None:
            return self._stopped, f"stopped {time}"
        by_cause = {end.cause: (rank, end) for rank, end in reversed(list(enumerate(ends)))}
        for cause, reason in _REASONS.items():
            if cause in by_cause:
                rank, end = by_cause[cause]
                who = f"worker {rank}: " if len(ends) > 1 else ""
                return reason, who + _words(end, time)
        failed = [(rank, end) for rank, end in enumerate(ends) if end.cause == "" and end.code != 0]
        if failed:
            rank, end = failed[0]
            who = f"worker {rank}: " if len(ends) > 1 else ""
            return Reason.PROGRAM_FAILED, who + _words(end, time)
        return Reason.PROGRAM_ENDED, time


#: What ended a program, in the order in which causes explain the others.
_REASONS = {
    "cannot start": Reason.PROGRAM_FAILED,
    "memory": Reason.OUT_OF_MEMORY,
    "lost": Reason.PROGRAM_FAILED,
    "deadline": Reason.DEADLINE_EXCEEDED,
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
    how = (
        f"ended by signal {signal.Signals(end.code - 128).name}"
        if 128 < end.code < 160
        else f"exit code {end.code}"
    )
    last = f"; it printed last: {' / '.join(end.words.splitlines())}" if end.words else "; it printed nothing"
    return f"{how} {time}{last}"


def _nothing(_report: ProgramReport, _seconds: float) -> None:
    """Reports of other workers than the first say the same."""


class Programs:
    """The programs of all jobs on this machine. `logs(job)` is the folder for a job's logs."""

    def __init__(self, logs: Callable[[str], Path], now: Callable[[], float]) -> None:
        self._logs = logs
        self._now = now
        self._runs: dict[str, Run] = {}
        self._epochs: dict[str, Run] = {}

    async def run_epoch(
        self, order: EpochOrder, cpus: Callable[[PodId], Sequence[int] | None]
    ) -> EpochReport:
        """Wait for the program's next report; one that does not run yet, with these pods, is started."""
        action = order.action
        run = self._runs.get(action.job)
        if run is None or run.group != action.group:
            if run is not None:
                await run.end(0.0)
            run = self._runs[action.job] = Run(order.spec.spec, action)
            port = _free_port()
            await run.start([self._order(order, pod, port, cpus(pod)) for pod in sorted(action.pods)])
        run.extend(self._now(), order.due)
        self._epochs[action.token] = run
        try:
            return await run.report()
        except EpochError:
            del self._runs[action.job]
            raise
        finally:
            del self._epochs[action.token]

    def extend_epoch(self, token: str, due: float) -> None:
        """Let the program of a running epoch go on until `due`."""
        if token in self._epochs:
            self._epochs[token].extend(self._now(), due)

    async def stop_epoch(self, token: str, reason: Reason) -> None:
        """End the program of a running epoch, which then raises EpochError with `reason`."""
        if token in self._epochs:
            await self._epochs[token].end(self._epochs[token].grace, reason)

    async def release(self, job: str, grace: float | None = None) -> None:
        """End a job's program, in its own grace period or in `grace` seconds; returns when nothing of it is left."""
        if (run := self._runs.pop(job, None)) is not None:
            await run.end(run.grace if grace is None else grace)

    async def close(self) -> None:
        """End all programs at once."""
        await asyncio.gather(*(self.release(job, 0.0) for job in list(self._runs)))

    def _order(self, order: EpochOrder, pod: PodId, port: int, cpus: Sequence[int] | None) -> Order:
        spec, action = order.spec.spec, order.action
        program = spec.program
        assert program is not None
        logs = self._logs(action.job)
        logs.mkdir(0o700, parents=True, exist_ok=True)
        group = _rendezvous(action.group, port, sorted(action.pods).index(pod), len(action.pods))
        return Order(
            name=pod.name,
            command=program.command,
            directory=(program.directory or ".").removeprefix("file://"),
            env={"PYTHONUNBUFFERED": "1", **os.environ, **group, **program.env, **_own(order)},
            log=str(logs / f"{pod.name}.log"),
            wanted=Wanted(spec.metric, program.sources(), program.samples_per_epoch),
            seconds=max(0.0, order.due - self._now()),
            grace=spec.grace_period,
            memory=spec.resources.worker.resources.memory,
            cpus=cpus,
        )


def _own(order: EpochOrder) -> dict[str, str]:
    """What Coach says to a program: its job, and a folder for its checkpoints, which is made."""
    folder = Path(order.action.weights_out.removeprefix("file://")).parent
    folder.mkdir(0o700, parents=True, exist_ok=True)
    return {"COACH_JOB": order.action.job, "COACH_CHECKPOINTS": str(folder)}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _rendezvous(group: str, port: int, rank: int, workers: int) -> dict[str, str]:
    """What torchrun would say to a worker of a group on one machine; nothing where there is one worker alone.

    A program that finds these variables takes part in a group, which costs it time and may need a backend.
    """
    if workers == 1:
        return {}
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "TORCHELASTIC_RUN_ID": group,
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
