"""The pods of one program: followed by their objects and their logs, from when they run to their end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coach.core.cluster import PodId
from coach.core.errors import CoachError
from coach.core.jobs.actions import StallTimeouts
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason
from coach.platforms.base import EpochOrder
from coach.platforms.kubernetes.manifests import CHECKPOINTS, VOLUME
from coach.platforms.kubernetes.pod_logs import lines, nanoseconds
from coach.platforms.kubernetes.program_manifests import grace_seconds
from coach.platforms.kubernetes_api import pods
from coach.platforms.kubernetes_api.client import CORE, Api, Object, until_answered
from coach.platforms.kubernetes_api.watch import Collection
from coach.platforms.local.function_log import FunctionLog
from coach.platforms.local.programs import SHORTEST_INTERVAL, SHORTEST_PART, Run
from coach.platforms.local.supervisor import LAST_WORDS_SECONDS, Ended
from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.collector import LAST_CHARACTERS, LAST_LINES
from coach.platforms.program_metrics.status import Flags, Sender

#: Called with a report and the time of its line.
Said = Callable[[int, ProgramReport], None]
#: Bytes that wait for the process that looks for metrics, at most.
LONGEST_QUEUE = 1 << 20
#: Kubernetes's words for a command that cannot be run.
_NO_START = frozenset({"StartError", "ContainerCannotRun"})
#: Ends after which another attempt needs other pods, though it was Coach that ended these.
_ANOTHER = (Reason.STALLED, Reason.DISRUPTED, Reason.PROGRAM_FAILED)
#: A pod that ends so many seconds before its lease does is ended by it.
LEASE_SLACK = 3.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """What all programs use: requests, the handler's pods as they are, work in the background, its clock."""

    api: Api
    pods: Collection
    keep: Callable[[Coroutine[Any, Any, None]], None]
    now: Callable[[], float]
    #: Reports a pod as lost, and ends what is left of it.
    lose: Callable[[PodId, Reason, str], None]


class PodRun(Run):
    """The workers of a job, each in a pod."""

    def __init__(self, order: EpochOrder, changing: Callable[[], float]) -> None:
        """`changing`: seconds since the program before it was asked to end for a change; 0 where there was none."""
        spec, program = order.spec.spec, order.spec.spec.program
        assert program is not None
        super().__init__(spec, order.action, 0.0)
        self.job = order.action.job
        self._changing = changing
        self.resumes = program.resumes
        self.wanted = Wanted(spec.metric, program.sources(), program.samples_per_epoch)
        #: The time in the log of the last report that counts.
        self.mark = order.mark
        #: Whether the job's program ran before this handler, or this group, began to follow it.
        self.again = order.mark > 0 or not order.action.group.endswith(".g1")
        #: What was read of later reports: after a break of the connection all that came meanwhile is read at once.
        self._later = deque[tuple[int, ProgramReport]]()
        #: Until when, in the log's time, what is read belongs to the report that comes next.
        self._ends = 0
        self._began = 0
        self._until = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    async def start_worker(self, worker: WorkerPod, heard: object) -> WorkerPod:
        """Follow a pod. The first one's log has the metrics."""
        if not self._workers:
            self._began = worker.began()
            if self.mark:
                self._last = self._counted = (self.mark - self._began) / 1e9
        await worker.follow(self, metrics=not self._workers)
        return worker

    def said(self, time: int, report: ProgramReport) -> None:
        """A line of this time reports, in the first worker's log."""
        self._later.append((time, report))
        self._read_on()

    def _read_on(self) -> None:
        """Take what belongs to the next report: one with the metric, and all within the shortest interval."""
        while self._later and (self._later[0][0] < self._ends or not self._heard.is_set()):
            time, report = self._later.popleft()
            if self._metric in report.values:
                self.mark = time
            self._note(report, (time - self._began) / 1e9)

    async def report(self, stall: StallTimeouts | None, *, by_reports: bool) -> EpochReport:
        """The next report that counts, and where it is in the log. Raises EpochError."""
        if self._later:
            self._next = 0.0  # it was made long ago
        self._read_on()
        report = replace(await super().report(stall, by_reports=by_reports), mark=self.mark)
        if report.warm_up_samples:  # the first: pods end, are placed, and start
            report = replace(report, stop_seconds=max(0.0, self._changing() - report.train_seconds))
        self._ends = self.mark + round(1e9 * max(SHORTEST_INTERVAL, SHORTEST_PART * self._last))
        return report

    def extend(self, now: float, due: float) -> None:
        """Let them run until `due`, when they get SIGTERM."""
        self._until = due
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - now), self._deadline)

    def _deadline(self) -> None:
        for worker in self._workers:
            worker.end(self.grace, "deadline")

    def expired(self, now: float) -> bool:
        """Whether Kubernetes may have ended them because their lease did."""
        return now > self._until - LEASE_SLACK

    def lost(self, pod: PodId, words: str) -> None:
        """The cluster lost a pod."""
        for worker in self._workers:
            if worker.pod == pod:
                worker.lose(words)

    @property
    def stopped(self) -> bool:
        """Whether it was ended for a reason of the job's."""
        return self._stopped is not None and self._stopped[0] not in _ANOTHER

    def drain(self, words: str) -> None:
        """Another job gets its room, or its node goes away: it ends, in its grace period, unless it already does."""
        if self._stopped is not None:
            return
        self._stopped = Reason.DISRUPTED if self.resumes else Reason.PROGRAM_FAILED, words
        for worker in self._workers:
            worker.end(self.grace)

    @property
    def disrupted(self) -> bool:
        """Whether the cluster took one of its pods away: then the others have time for a checkpoint, too."""
        return any(worker.disrupted for worker in self._workers)

    def _stopped_because(self, ends: Any) -> tuple[Reason, str]:
        reason, words = super()._stopped_because(ends)
        if self.resumes and self._stopped is None and self.disrupted:
            return Reason.DISRUPTED, words
        return reason, words

    def sender(self, identity: str) -> Sender | None:
        """The one of its workers that has this identity."""
        return next((worker.sender for worker in self._workers if worker.identity == identity), None)

    async def close(self) -> None:
        """Follow it no longer."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [self.over, *(worker.ended for worker in self._workers)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class WorkerPod:
    """One worker's pod. `identity` is its object's; `memory` its limit, GiB; `log` the file for what it prints."""

    def __init__(self, cluster: Cluster, pod: PodId, identity: str, memory: float, log: Path) -> None:
        self.pod, self.name = pod, pod.name
        #: Whether the cluster took a sound pod away.
        self.disrupted = False
        self.identity = identity
        self._cluster, self._memory, self._log = cluster, memory, log
        self._path = f"{CORE}/namespaces/{cluster.api.namespace}/pods/{pod.name}"
        self._seen: Object = cluster.pods.objects.get(pod.name, {"metadata": {}})
        self._cause = self._lost = ""
        self._printed = asyncio.Event()
        self._reader: MetricReader | None = None
        #: By what its program sends and asks.
        self.sender = Sender(Flags(), self._sent)
        self._loop = asyncio.get_running_loop()
        self._last_lines = deque[str](maxlen=LAST_LINES)

    def began(self) -> int:
        """When its container started, nanoseconds since 1970 on the node's clock, to the second."""
        return nanoseconds(stamp) if (stamp := pods.started_at(self._seen)) else 0

    async def follow(self, run: PodRun, *, metrics: bool) -> None:
        """Follow it to its end; `metrics`: what it reports counts."""
        self._run = run
        if metrics:
            folder, since = f"{VOLUME}/{CHECKPOINTS}/{run.job}", self.began() / 1e9
            self._reader = await MetricReader.start(run.wanted, run.said, folder, since, again=run.again)
        self.ended = asyncio.create_task(self._follow())

    def end(self, grace: float, cause: str = "asked") -> None:
        """SIGTERM now, SIGKILL after `grace` seconds; one that the cluster takes away has its own."""
        if self._run.disrupted:
            grace = max(grace, self._run.grace)
        self.sender.flags.stop = True
        self._cause = self._cause or cause
        self._cluster.keep(self._delete(grace_seconds(grace)))

    def lose(self, words: str) -> None:
        """Its node does not report any more."""
        self._lost = words
        self._cluster.pods.look_again()

    async def _delete(self, grace: int) -> None:
        there = self._cluster.pods.objects.get(self.name, {"metadata": {}})["metadata"].get("uid")
        if there not in (None, self.identity):
            return  # it has gone; another program of the job has its name
        with contextlib.suppress(CoachError):
            await until_answered(lambda: self._cluster.api.delete(self._path, gracePeriodSeconds=grace))

    async def _follow(self) -> Ended:
        printing = asyncio.create_task(self._print(self._reader))
        try:
            await self._cluster.pods.until(self._is_over)
            self._printed.set()
            await asyncio.wait({printing}, timeout=LAST_WORDS_SECONDS)
        finally:
            printing.cancel()
            await asyncio.gather(printing, return_exceptions=True)
        return self._how()

    def _is_over(self) -> bool:
        found = self._cluster.pods.objects.get(self.pod.name)
        if found is None or found["metadata"]["uid"] != self.identity:
            self._lost = self._lost or "its pod was deleted, not by Coach"
            return True
        self._seen = found
        ended = found.get("status", {}).get("phase") in ("Succeeded", "Failed")
        return ended or pods.terminated(found) is not None or bool(self._lost)

    def _how(self) -> Ended:
        terminated, last = pods.terminated(self._seen), "\n".join(self._last_lines)
        code = 137 if terminated is None else int(terminated.get("exitCode", 137))
        seconds = _seconds(terminated)
        if not self._cause and pods.ending(self._seen):
            if self._run.expired(self._cluster.now()):
                self._cause = "deadline"
            else:
                taken = pods.disrupted(self._seen)
                self.disrupted = bool(taken)
                self._lost = taken or "its pod was deleted, not by Coach"
        if self._cause:
            return Ended(code, self._cause, last, seconds)
        word = "" if terminated is None else terminated.get("reason", "")
        if self._lost or terminated is None:
            _, words = pods.failure(self._seen) or (None, "its pod was lost")
            return Ended(code or 137, "lost", self._lost or words, seconds)
        if word == "OOMKilled":
            return Ended(code, "memory", "", seconds, self._memory)
        if word in _NO_START:
            return Ended(code, "cannot start", str(terminated.get("message", "")), seconds)
        return Ended(code, "", last, seconds)

    def _sent(self, kind: str, record: Mapping[str, Any]) -> None:
        """A record that its program sent; called by another thread."""
        self._loop.call_soon_threadsafe(self._note, kind, record)

    def _note(self, kind: str, record: Mapping[str, Any]) -> None:
        if self._reader is not None:
            self._reader.record(round(1e9 * self._cluster.now()), kind, record)

    async def _print(self, reader: MetricReader | None) -> None:
        """Keep what it prints, and look for metrics in it."""
        log = FunctionLog(self._log, self.pod.name)
        try:
            async for time, line in lines(self._cluster.api, self.pod.name, self._printed, after=self._run.mark):
                for part in line.split("\r"):
                    if part.strip():
                        log.write("info", part)
                        self._last_lines.append(part[:LAST_CHARACTERS])
                if reader is not None:
                    await reader.read(time, line)
            if reader is not None:
                await reader.finish()
        finally:
            log.close()
            if reader is not None:
                await reader.close()


class MetricReader:
    """The process that looks for reports in lines (`coach.platforms.kubernetes.metric_reader`)."""

    def __init__(self, process: asyncio.subprocess.Process, said: Said) -> None:
        self._process = process
        self._answers = asyncio.create_task(self._hear(said))

    @classmethod
    async def start(cls, wanted: Wanted, said: Said, folder: str, since: float, *, again: bool) -> MetricReader:
        """Start it. `said` is called with a line's time and what it reports.

        Its files are in `folder`. The program runs since `since`, in seconds since 1970; `again`: some of what its
        files have may have counted.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "coach.platforms.kubernetes.metric_reader"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LONGEST_QUEUE,
            start_new_session=True,
        )
        reader = cls(process, said)
        begin = {"wanted": asdict(wanted), "folder": folder, "since": since, "again": again}
        reader._write(json.dumps(begin))
        return reader

    async def read(self, time: int, line: str) -> None:
        """Look at a line; waits while many are looked at."""
        self._write(f"{time} line {line}")
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()

    def record(self, time: int, kind: str, record: Mapping[str, Any]) -> None:
        """Look at a record that came from such a source."""
        with contextlib.suppress(ValueError):
            self._write(f"{time} {kind} {json.dumps(record)}")

    async def finish(self) -> None:
        """Wait until all lines have been looked at."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._answers

    async def close(self) -> None:
        """End the process."""
        self._answers.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await asyncio.gather(self._answers, self._process.wait(), return_exceptions=True)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():
            return
        self._process.stdin.write(line.encode(errors="replace") + b"\n")

    async def _hear(self, said: Said) -> None:
        assert self._process.stdout is not None
        async for answer in self._process.stdout:
            found = json.loads(answer)
            said(found["time"], ProgramReport(found["values"], found["epoch"]))


def _seconds(terminated: Object | None) -> float:
    """For how long a container ran."""
    times = [(terminated or {}).get(key) for key in ("startedAt", "finishedAt")]
    began, ended = (nanoseconds(str(time)) if time else 0 for time in times)
    return max(0.0, (ended - began) / 1e9)
