"""Programs whose workers run elsewhere and are followed by their logs, which outlive the handler.

A worker's log has a time with each line, so that a handler that takes a program over reads on after the last report
that counted. The platforms for Kubernetes and for Slurm start the workers, and say when they are to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from coach.core.cluster import PodId
from coach.core.jobs.actions import StallTimeouts
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason
from coach.platforms.base import EpochError, EpochOrder, PlatformEvents
from coach.platforms.local.function_log import FunctionLog
from coach.platforms.local.programs import SHORTEST_INTERVAL, SHORTEST_PART, Run, RunningPrograms
from coach.platforms.local.supervisor import Ended
from coach.platforms.program_metrics.base import ProgramReport, Wanted
from coach.platforms.program_metrics.collector import LAST_CHARACTERS, LAST_LINES

#: Called with a report and the time of its line.
Said = Callable[[int, ProgramReport], None]
#: Bytes that wait for the process that looks for metrics, at most.
LONGEST_QUEUE = 1 << 20
#: Ends after which another attempt needs other workers, though it was Coach that ended these.
_ANOTHER = (Reason.STALLED, Reason.DISRUPTED, Reason.PROGRAM_FAILED)


class LoggedWorker(ABC):
    """One worker. `memory`: what it asked for, GiB; `log`: the file for what it prints; `files`: with its metrics."""

    ended: asyncio.Task[Ended]

    def __init__(self, pod: PodId, memory: float, log: Path, files: str) -> None:
        self.pod, self.name = pod, pod.name
        #: Whether the cluster took it away, though it was sound.
        self.disrupted = False
        self.reader: MetricReader | None = None
        self._memory, self._log, self._files = memory, log, files
        #: Why Coach ends it; how it was lost.
        self._cause = self._lost = ""

    @abstractmethod
    def began(self) -> int:
        """When it started, nanoseconds since 1970 on the clock of its log."""

    async def follow(self, run: LoggedRun, *, metrics: bool) -> None:
        """Follow it to its end; `metrics`: what it reports counts."""
        self._run = run
        if metrics:
            since = self.began() / 1e9
            self.reader = await MetricReader.start(run.wanted, run.said, self._files, since, again=run.again)
        self.ended = asyncio.create_task(self._follow(Printed(self._log, self.name, self.reader)))

    @abstractmethod
    async def _follow(self, printed: Printed) -> Ended:
        """What it prints goes to `printed`, until it has ended."""

    def end(self, grace: float, cause: str = "asked") -> None:
        """SIGTERM now, SIGKILL after `grace` seconds."""
        self._cause = self._cause or cause
        self._run.ends(self, grace)

    def lose(self, words: str) -> None:
        """It is gone."""
        self._lost = words


class LoggedRun(Run):
    """The workers of a job."""

    def __init__(self, order: EpochOrder, changing: Callable[[], float], events: PlatformEvents) -> None:
        """`changing`: seconds since the program before it was asked to end for a change; 0 where there was none."""
        spec = order.spec.spec
        super().__init__(spec, order.action, 0.0, events)
        self._changing = changing
        self.wanted = Wanted.of(spec)
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

    async def start_worker(self, worker: LoggedWorker, heard: object) -> LoggedWorker:
        """Follow a worker. The first one's log has the metrics."""
        if not self._workers:
            self._began = worker.began()
            if self.mark:
                self._last = self._counted = (self.mark - self._began) / 1e9
        await worker.follow(self, metrics=not self._workers)
        return worker

    def ends(self, worker: LoggedWorker, grace: float) -> None:
        """A worker is to end within `grace` seconds."""
        if not worker.ended.done():
            self.got("SIGTERM" if grace else "SIGKILL", grace)

    async def _follow(self) -> list[Ended]:
        ends = await super()._follow()
        if any(end.code == 137 and end.cause in ("asked", "deadline") for end in ends):
            self.got("SIGKILL", 0.0)
        return ends

    def said(self, time: int, report: ProgramReport) -> None:
        """A line of this time reports, in the first worker's log."""
        self._later.append((time, report))
        self._read_on()

    def _read_on(self) -> None:
        """Take what belongs to the next report: one with the metric, and all within the shortest interval."""
        while self._later:
            time, report = self._later[0]
            if self._heard.is_set() and (time >= self._ends or self._by_itself(report)):
                break
            self._later.popleft()
            if self._metric in report.values:
                self.mark = time
            self._note(report, (time - self._began) / 1e9)

    async def report(self, stall: StallTimeouts | None, *, by_reports: bool) -> EpochReport:
        """The next report that counts, and where it is in the log. Raises EpochError."""
        if self._later:
            self._next = 0.0  # it was made long ago
        self._read_on()
        return await super().report(stall, by_reports=by_reports)

    def _taken(self) -> EpochReport:
        report = replace(super()._taken(), mark=self.mark)
        if report.warm_up_samples:  # the first: pods end, are placed, and start
            report = replace(report, stop_seconds=max(0.0, self._changing() - report.train_seconds))
        self._ends = self.mark + round(1e9 * max(SHORTEST_INTERVAL, SHORTEST_PART * self._last))
        return report

    def unheard(self) -> list[EpochReport]:
        """See `Run.unheard`; read in the log."""
        found = super().unheard()
        while self._later:
            self._read_on()
            found += super().unheard()
        return found

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
        """Whether what is paid for them has ended."""
        return now > self._until

    def lost(self, pod: PodId, words: str) -> None:
        """The cluster lost a worker."""
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
        """Whether the cluster took one of its workers away: then the others have time for a checkpoint, too."""
        return any(worker.disrupted for worker in self._workers)

    def _stopped_because(self, ends: Any) -> tuple[Reason, str]:
        if self._stopped is None and (cancelled := [end for end in ends if end.cause == "cancelled"]):
            return Reason.CANCELLED_OUTSIDE, cancelled[0].words
        reason, words = super()._stopped_because(ends)
        if self.resumes and self._stopped is None and self.disrupted:
            return Reason.DISRUPTED, words
        return reason, words

    @property
    def workers(self) -> Collection[LoggedWorker]:
        """Those that are followed."""
        return self._workers

    async def close(self) -> None:
        """Follow it no longer."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [self.over, *(worker.ended for worker in self._workers)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LoggedPrograms(RunningPrograms):
    """The programs of all jobs of a handler."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        #: By job: when its last program was asked to end, until it is started again.
        self._ended: dict[str, float] = {}

    def lose(self, pod: PodId, reason: Reason, message: str) -> None:
        """Report a worker as lost, and end what is left of it."""
        raise NotImplementedError

    def worker(self, pod: PodId, order: EpochOrder) -> LoggedWorker:
        """The worker of a program that runs already."""
        raise NotImplementedError

    def renew(self, run: LoggedRun, until: float) -> None:
        """Have a program end by itself then, in its grace period, unless this is called again."""
        raise NotImplementedError

    def until(self, run: LoggedRun, due: float) -> float:
        """When a program is to end, so that nothing of it is left when what is paid ends."""
        raise NotImplementedError

    def followed(self, job: str) -> bool:
        """Whether the job's program is being followed: what happens to its workers is an epoch's end."""
        return job in self._runs

    async def run_epoch(self, order: EpochOrder, progress: object = None) -> tuple[EpochReport, int]:
        """Wait for the program's next report; nothing is called for it. Raises EpochError."""
        action = order.action
        if (late := self.late(action)) is not None:
            return late, 0
        run = self._runs.get(action.job)
        if run is None or run.group != action.group:
            began, now = self._ended.pop(action.job, None), self._now
            changing = lambda: 0.0 if began is None else now() - began  # noqa: E731
            run = self._runs[action.job] = LoggedRun(order, changing, self.events)
            await run.start([self.worker(pod, order) for pod in sorted(action.pods)])
        self._extend(run, order.due)
        program = order.spec.spec.program
        assert program is not None
        try:
            # How much the processes of a worker compute is not known: a hang is the absence of reports.
            return await self.report(order, run, by_reports=True, stall=program.stall_timeout is not None), 0
        except EpochError as error:
            if not run.stopped and error.reason is not Reason.PROGRAM_ENDED:
                for pod in action.pods:  # another attempt needs others
                    self.lose(pod, Reason.FUNCTION_LOST, str(error))
            raise

    def _extend(self, run: LoggedRun, due: float) -> None:
        until = self.until(run, due)
        self.renew(run, until)
        run.extend(self._now(), until)

    async def extend_epoch(self, token: str, due: float) -> None:
        """Let the program of a running epoch go on until `due`."""
        if token in self._epochs:
            self._extend(self._epochs[token], due)

    def lost(self, pod: PodId, words: str) -> None:
        """The cluster lost a worker of a program that is followed."""
        self._runs[pod.job].lost(pod, words)

    def drain(self, job: str, words: str) -> None:
        """The room of a job's program is needed for another: it ends in its grace period."""
        if (run := self._runs.get(job)) is not None:
            run.drain(words)

    def leave_node(self, job: str, words: str) -> None:
        """A node of a job's program goes away soon: one that can resume ends in its grace period, with a checkpoint."""
        if (run := self._runs.get(job)) is not None and run.resumes:
            run.drain(words)

    async def end_program(self, job: str) -> None:
        """End a job's program in its grace period."""
        if job in self._runs:
            self._ended[job] = self._now()
        await super().end_program(job)

    async def follow_none(self) -> None:
        """Follow no program any more."""
        await asyncio.gather(*(run.close() for run in self._runs.values()))


class Printed:
    """What one worker has printed: kept in its log, its last lines for an error, and searched for metrics."""

    def __init__(self, log: Path, name: str, reader: MetricReader | None) -> None:
        self.reader = reader
        self._log = FunctionLog(log, name)
        self._last = deque[str](maxlen=LAST_LINES)

    async def take(self, time: int, line: str) -> None:
        """A line that it printed; a progress bar is one line with many."""
        for part in line.split("\r"):
            if part.strip():
                self._log.write("info", part)
                self._last.append(part[:LAST_CHARACTERS])
        if self.reader is not None:
            await self.reader.read(time, line)

    @property
    def last(self) -> str:
        """Its last lines."""
        return "\n".join(self._last)

    async def finish(self) -> None:
        """Wait until all of it has been looked at."""
        if self.reader is not None:
            await self.reader.finish()

    async def close(self) -> None:
        """Close the log."""
        self._log.close()
        if self.reader is not None:
            await self.reader.close()


class MetricReader:
    """The process that looks for reports in lines (`coach.platforms.program_metrics.log_reader`)."""

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
            *(sys.executable, "-m", "coach.platforms.program_metrics.log_reader"),
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
        await self._process.wait()  # asyncio warns of a process that is killed at the instant of its end

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
            said(found.pop("time"), ProgramReport(**found))
