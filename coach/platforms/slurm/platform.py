"""The Slurm platform: see `coach.platforms.base.Platform`. It runs programs alone.

The workers of a program are the tasks of one Slurm job, which all start or none. Handler and workers talk by files of
the job's folder, which is in Coach's state folder, so that has to be on the file system that login and compute nodes
share. A job carries Coach's mark in its comment, by which it is found again whatever its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from coach.core.cluster import NOTHING, Pod, PodId, Resources, Role
from coach.core.errors import CoachError, PermanentError, TemporaryError
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.core.spec.slurm import Slurm
from coach.platforms import torchrun
from coach.platforms.base import Cluster, Deployed, EpochOrder, GangSize, PlatformEvents, PodError
from coach.platforms.logged_programs import LoggedPrograms, LoggedRun
from coach.platforms.slurm import queue
from coach.platforms.slurm.attempt import LOOK_SECONDS, MARGIN, Attempt, RankWorker, interval, silence

#: Looks at the queue between two at the nodes, and between two questions of how long a larger job would wait.
NODES_EVERY = 4
#: Seconds in the queue that are no wait: Slurm looks for room once in a while.
SHORT_WAIT = 30.0
#: Seconds that workers go on without a handler before their program's first report is waited for.
WAITING_SECONDS = 90.0
#: Seconds that a Slurm job may take to end when its workers have, before it is cancelled.
END_SECONDS = 10.0
#: Longest time that a job asks for where nothing else says it, and the shortest, in seconds.
LONGEST, SHORTEST = 7 * 86400.0, 60.0
#: Variables that make of one job something else, and no option takes that back.
_NO_JOB = ("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_TEST_ONLY", "SBATCH_WRAP")


def refusal(job: TrainingJob) -> str:
    """Why a job cannot run on Slurm as it is described; empty where it can."""
    if job.spec.program is None:
        return (
            "a model file does not run on Slurm, a program does: coach run --platform slurm ... -- python train.py; "
            "or run it inside an allocation: srun coach run FILE"
        )
    if job.spec.image is not None:
        return "image: on Slurm a program names its container itself: program.command: [apptainer, exec, ...]"
    if bad := [name for name in _NO_JOB if name in os.environ]:
        return f"{bad[0]} is set in this shell, so sbatch would not start one job: unset {bad[0]}"
    return ""


class SlurmPlatform(LoggedPrograms):
    """`folder` is Coach's, `handler` its id; `checkpoints` gives a job's own folder, `logs` the one for its logs."""

    places_pods = True
    programs_outlive = True
    linger_seconds = 0.0
    checkpoints: str | None = None

    def __init__(
        self,
        folder: Path,
        handler: str,
        logs: Callable[[str], Path],
        checkpoints: Callable[[str], Path],
        now: Callable[[], float],
    ) -> None:
        super().__init__(now)
        self._folder, self._handler = folder / "slurm", handler
        self._logs, self._checkpoints = logs, checkpoints
        #: The Slurm jobs by their tokens, until Slurm has them no more; and those that Coach's jobs now use.
        self.attempts: dict[str, Attempt] = {}
        self._current: dict[str, asyncio.Future[Attempt]] = {}
        #: Jobs that an earlier handler left in the queue, or that began since, by Coach's jobs.
        self._queued: dict[str, Attempt] = {}
        #: By job: the workers of its next Slurm job.
        self._sizes: dict[str, int] = {}
        #: By job: a pod that waits, and what was last said of it.
        self._waiting: dict[str, tuple[PodId, str]] = {}
        #: By the id of a Slurm job that waits: how many are before it.
        self._before: dict[str, int] = {}
        self._left: Collection[str] = ()
        self._submitting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def refusal(self, spec: TrainingJob) -> str:
        """What a node has only the node knows."""
        return ""

    async def open(self, events: PlatformEvents) -> Cluster:
        """Take over what an earlier handler left. Raises PermanentError, TemporaryError where Slurm is not there."""
        self.events, self._clock = events, asyncio.get_running_loop().time
        self._cluster = await queue.nodes_now()
        there = await queue.queue(self._handler)
        followed: list[Attempt] = []
        for path in sorted(self._folder.glob("*/order.json")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                attempt = self.attempts[path.parent.name] = Attempt(path.parent)
                entry = there.get(attempt.token)
                attempt.seen(entry)
                attempt.over = attempt.over if entry else "FORGOTTEN"  # its last words are in its folder
                if attempt.followed:
                    followed.append(attempt)
                elif not attempt.over and not attempt.hold:
                    self._queued[attempt.job], attempt.waits = attempt, WAITING_SECONDS
        # Of two Slurm jobs of one job the one that runs goes on.
        runs = {pod: one.token for one in sorted(followed, key=lambda one: not one.over) for pod in one.pods}
        kept = {runs[pod] for pod in (self.events.takes_over(runs) if runs else ())}
        for token, attempt in self.attempts.items():
            if token in kept:
                self._current[attempt.job] = _done(attempt)
            elif attempt not in self._queued.values():
                await self._end(attempt)
        self._keep(self._follow(self._clock() + WAITING_SECONDS))
        return self._cluster

    async def close(self) -> None:
        """End every Slurm job of this handler, but those that were left for the next one."""
        await self.follow_none()
        ends: list[asyncio.Future[Any]] = [*self._tasks, *self._current.values()]
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        mine = [one for one in self.attempts.values() if one.hold or one.job not in self._left]
        for attempt in mine:  # also where Slurm is away
            attempt.tell(end=0.0, cause="asked")
        with contextlib.suppress(CoachError, TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                for attempt in mine:
                    await self._end(attempt)
                    attempt.unwanted = 0.0
                if mine:
                    await asyncio.sleep(2 * LOOK_SECONDS)
                    await self._heard(await queue.queue(self._handler))

    def leave(self, jobs: Collection[str]) -> Collection[str]:
        """Let the programs of these jobs go on; they end by themselves if no handler comes."""
        self._left = frozenset(jobs)
        return self._left

    async def gang(self, size: GangSize, spec: TrainingJob) -> None:
        """How many workers the job's next Slurm job has."""
        if why := refusal(spec):
            raise PodError(Reason.POD_REFUSED, why)
        self._sizes[size.job] = size.desired.workers

    async def forget(self, job: str) -> None:
        """The job holds nothing and wants nothing."""
        if (queued := self._queued.pop(job, None)) is not None:
            await self._end(queued)

    async def deploy(self, pod: Pod, spec: TrainingJob) -> Deployed:
        """Wait until the job's tasks run; the first of its workers submits the Slurm job."""
        job = pod.id.job
        self._waiting.setdefault(job, (pod.id, ""))
        if job not in self._current:
            self._current[job] = asyncio.create_task(self._submit(spec))
        try:
            attempt = await asyncio.shield(self._current[job])
            silent = 0.0
            while (began := await asyncio.to_thread(attempt.began, pod.id.index)) is None:
                if attempt.over:
                    raise PodError(*_never_began(attempt))
                runs = attempt.entry is not None and attempt.entry.state == "RUNNING"
                silent = silent + LOOK_SECONDS if runs else 0.0
                if silent >= attempt.silence:
                    raise PodError(Reason.DISRUPTED, f"Slurm job {attempt.id} runs, and {pod.id.name} is not seen")
                await asyncio.sleep(LOOK_SECONDS)
        except Exception:
            await self._drop(job)
            raise
        self._waiting.pop(job, None)
        attempt.held[pod.id.index] = began[1], pod.requests
        if pod.id.index == 0 and attempt.grows:
            self._keep(self._ask_wait(attempt))
        return Deployed(attempt.token, began[1])

    async def release(self, pods: Sequence[PodId]) -> None:
        """End a job's Slurm job; all of its workers go together."""
        for job in {pod.job for pod in pods}:
            await self.end_program(job)
            await self._drop(job)

    def worker(self, pod: PodId, order: EpochOrder) -> RankWorker:
        """The task of a worker."""
        memory, log = order.spec.spec.resources.worker.resources.memory, self._logs(pod.job) / f"{pod.name}.log"
        return RankWorker(self.attempts[order.addresses[pod]], pod, memory, log, str(_directory(order.spec)))

    def until(self, run: LoggedRun, due: float) -> float:
        """They get their grace period then."""
        return due - run.grace - MARGIN

    def renew(self, run: LoggedRun, until: float) -> None:
        """Write the deadline into the job's folder."""
        for worker in run.workers:
            assert isinstance(worker, RankWorker)
            worker.attempt.tell(seconds=until - self._now())

    def lose(self, pod: PodId, reason: Reason, message: str) -> None:
        """A worker that ran is gone, and so are the others of its Slurm job."""
        self._keep(self._drop(pod.job))
        self.events.pod_lost(pod, reason, message)

    async def queue_ahead(self, spec: TrainingJob, workers: int, seconds: float) -> None:
        """See `coach.platforms.base.QueuesAhead`: its workers wait at their start until it is deployed."""
        await self.forget(spec.name)
        if workers:
            self._keep(self._run_ahead(spec, workers, seconds))

    async def _run_ahead(self, spec: TrainingJob, workers: int, seconds: float) -> None:
        job, asked, why = spec.name, self._asked(spec, workers), ""
        attempt: Attempt | None = None
        try:
            attempt = self._queued[job] = await self._made(spec, asked, workers, seconds)
            while not attempt.id and self._queued.get(job) is attempt:
                await self._sbatch(attempt)
            while not attempt.over and self._queued.get(job) is attempt:
                began = await asyncio.to_thread(lambda: [attempt.began(pod.index) for pod in attempt.pods])
                if not attempt.held and all(began):
                    requests = spec.spec.resources.of(Role.WORKER)
                    attempt.held = {rank: (one[1], requests) for rank, one in enumerate(began) if one}
                    self.events.ahead_started(job)
                    with contextlib.suppress(CoachError):
                        await self._nodes()
                await asyncio.sleep(LOOK_SECONDS)
            why = _never_began(attempt)[1]
        except (CoachError, OSError) as error:
            why = str(error)
        if why and self._queued.get(job) is attempt:
            await self.forget(job)
            self.events.ahead_lost(job, why)

    # -- Slurm jobs ---------------------------------------------------------------------------------------

    async def _submit(self, spec: TrainingJob) -> Attempt:
        """Make a Slurm job of the job's program, or take the one that an earlier handler queued. Raises PodError."""
        asked = self._asked(spec, self._sizes[spec.name])
        if (queued := self._queued.pop(spec.name, None)) is not None:
            if queued.asked == asked and not queued.over:
                queued.hold = False
                queued.tell(seconds=WAITING_SECONDS)
                return queued
            await self._end(queued)
        try:
            attempt = await self._made(spec, asked, self._sizes[spec.name])
            while not attempt.id:
                await self._sbatch(attempt)
        except PermanentError as error:
            raise PodError(Reason.QUOTA_EXCEEDED if queue.limited(error) else Reason.POD_REFUSED, str(error)) from error
        except OSError as error:
            raise PodError(Reason.STORAGE_FAILED, f"{error.filename}: {error.strerror}") from error
        return attempt

    def _asked(self, spec: TrainingJob, workers: int) -> list[str]:
        """Options of sbatch: what one attempt has in common with another of the same size."""
        resources = spec.spec.resources.worker.resources
        cores = max(1, math.ceil(resources.cpu))
        memory = max(1, math.ceil(resources.memory * 1024 / cores))
        return [
            f"--ntasks={workers}", f"--cpus-per-task={cores}", f"--mem-per-cpu={memory}M",
            *([f"--gpus-per-task={resources.gpu:.0f}"] if resources.gpu else ()),
            *(spec.spec.slurm or Slurm()).words,
        ]  # fmt: skip

    async def _made(self, spec: TrainingJob, asked: list[str], workers: int, ahead: float = 0.0) -> Attempt:
        """An attempt's folder; `ahead`: for how long it waits for a smaller one. Raises OSError, CoachError."""
        program, grace, uri = spec.spec.program, spec.spec.grace_period, spec.spec.checkpoint.uri
        assert program is not None
        limit = spec.spec.time_limit
        partition = (spec.spec.slurm or Slurm()).chosen_partition or os.environ.get("SBATCH_PARTITION")
        walls = [LONGEST, await self._longest(partition), None if limit is None else limit + grace + WAITING_SECONDS]
        checkpoints = f"{uri.rstrip('/')}/{spec.name}" if uri else str(self._checkpoints(spec.name))
        checkpoints = checkpoints.removeprefix("file://")
        several = spec.spec.limits.largest.workers > 1
        groups = [torchrun.variables(spec.name, 0, rank, workers, "", 0, one_node=False) for rank in range(workers)]
        written = {
            "command": program.command, "directory": str(_directory(spec)), "env": program.env,
            "own": {"COACH_JOB": spec.name, "COACH_CHECKPOINTS": checkpoints},
            "workers": workers, "groups": groups if several else [], "grace": grace, "silence": silence(),
            "wall": max(SHORTEST, min(wall for wall in walls if wall is not None)), "asked": asked,
            "ahead": bool(ahead), "grows": program.resumes and workers < spec.spec.limits.largest.workers,
            "srun": [*asked[:2], "--kill-on-bad-exit=1", "--wait=0", "--export=ALL", "--input=none"],
        }  # fmt: skip

        def make() -> Attempt:
            Path(checkpoints).mkdir(0o700, parents=True, exist_ok=True)
            return Attempt.make(self._folder / f"{spec.name}-{secrets.token_hex(6)}", written)

        attempt = await asyncio.to_thread(make)
        attempt.waits = ahead or WAITING_SECONDS
        attempt.tell(seconds=attempt.waits)
        self.attempts[attempt.token] = attempt
        return attempt

    async def _longest(self, partition: str | None) -> float | None:
        """Seconds that the partition gives a job; where Slurm is away, waited for."""
        while True:
            try:
                return await queue.longest(partition)
            except TemporaryError:
                await asyncio.sleep(interval())

    async def _sbatch(self, attempt: Attempt) -> None:
        """Submit it, one at a time. What Slurm accepted without saying so is found by its mark, and not sent twice."""
        words = [
            "sbatch", "--parsable", "--no-requeue", attempt.time,
            f"--job-name={attempt.job}", f"--comment={queue.MARK}:{self._handler}:{attempt.token}",
            f"--output={attempt.folder}/slurm.out", "--open-mode=append", *attempt.asked,
            str(attempt.folder / "batch.sh"),
        ]  # fmt: skip
        try:
            async with self._submitting:
                attempt.id = (await queue.command(*words)).strip().partition(";")[0]
        except TemporaryError as error:
            self._say(attempt.job, Reason.PLACING, f"Slurm does not answer; waiting for it: {error}")
            looks = 0
            while looks < 2 and not attempt.id:
                await asyncio.sleep(interval())
                with contextlib.suppress(CoachError):
                    attempt.seen((await queue.queue(self._handler)).get(attempt.token))
                    looks += 1

    async def _ask_wait(self, attempt: Attempt) -> None:
        """Report how long one more worker would wait in the queue, where that has changed."""
        attempt.asked_at = self._clock()
        with contextlib.suppress(CoachError):
            async with self._submitting:
                wait = await queue.wait([attempt.time, "--ntasks=1", *attempt.asked[1:]])
            wait = 0.0 if wait is not None and wait < SHORT_WAIT else wait
            if wait is not None and abs(wait - attempt.wait) > attempt.wait / 4:
                attempt.wait = wait
                self.events.wait_expected(attempt.job, wait)

    def _drop(self, job: str) -> Coroutine[Any, Any, None]:
        """Take from a job the Slurm job that it uses, or is submitting; what is returned ends it."""
        if (current := self._current.pop(job, None)) is not None:
            current.cancel()
        self._waiting.pop(job, None)
        mine = [one for one in self.attempts.values() if one.job == job and one.unwanted == math.inf and not one.hold]
        for attempt in mine:
            attempt.unwanted = self._clock()

        async def ends() -> None:
            for attempt in mine:
                await self._end(attempt)

        return ends()

    async def _end(self, attempt: Attempt) -> None:
        """End a Slurm job whose program has ended, or never began."""
        attempt.tell(end=0.0, cause="asked")
        attempt.unwanted = self._clock()
        over = attempt.over in queue.ENDED or await asyncio.to_thread(lambda: attempt.finished)
        if attempt.id and not over:
            with contextlib.suppress(CoachError):
                await queue.cancel_own(attempt.id, attempt.token)

    # -- what Slurm says ----------------------------------------------------------------------------------

    async def _follow(self, queued_until: float) -> None:
        """Look at the queue while anything is in it, and renew what waits."""
        looks = 0
        while True:
            await asyncio.sleep(interval())
            if self._clock() > queued_until:
                for job in list(self._queued):
                    await self.forget(job)
            for attempt in self.attempts.values():
                waits = not attempt.held if attempt.hold else not self.followed(attempt.job)
                if attempt.unwanted == math.inf and waits and attempt.waits:
                    attempt.tell(seconds=attempt.waits)
            if not self.attempts:
                continue
            looks += 1
            growing = [one for one in self.attempts.values() if one.grows and not one.hold and self.followed(one.job)]
            oldest = min(growing, key=lambda one: one.asked_at, default=None)
            if oldest is not None and oldest.asked_at < self._clock() - NODES_EVERY * interval():
                await self._ask_wait(oldest)
            try:
                await self._heard(await queue.queue(self._handler))
                if looks % NODES_EVERY == 0:
                    await self._nodes()
                    self._before = await queue.positions() if self._waiting else {}
            except CoachError as error:
                for job in list(self._waiting):
                    self._say(job, Reason.PLACING, f"Slurm does not answer; waiting for it: {error}")

    async def _heard(self, there: Mapping[str, queue.Entry]) -> None:
        """What one look at the queue says of all jobs. What no job needs is ended, also what was accepted too late."""
        ends = []
        for token, entry in there.items():
            attempt = self.attempts.get(token)
            if entry.state not in queue.ENDED and (attempt is None or self._clock() > attempt.unwanted + END_SECONDS):
                ends.append(entry.id)
        if ends:
            await queue.cancel(ends)
        for attempt in list(self.attempts.values()):
            attempt.seen(now := there.get(attempt.token))
            if attempt.over and attempt.unwanted < math.inf:
                del self.attempts[attempt.token]
                await asyncio.to_thread(shutil.rmtree, attempt.folder, ignore_errors=True)
            elif now is not None and now.state == "PENDING" and now.reason != "None" and not attempt.hold:
                reason, words = queue.waits(now, self._before.get(now.id))
                # Slurm looks for room once in a while: a smaller job is worth it only after that.
                early = reason is Reason.WAITING_CAPACITY and attempt.waited < 3
                self._say(attempt.job, Reason.PLACING if early else reason, words)

    def _say(self, job: str, reason: Reason, words: str) -> None:
        """What a job waits for, where that has changed."""
        pod, said = self._waiting.get(job, (None, ""))
        if pod is not None and said != f"{reason} {words}":
            self._waiting[job] = pod, f"{reason} {words}"
            self.events.pod_pending(pod, reason, words)

    async def _nodes(self) -> None:
        ours: dict[str, Resources] = {}
        for node, held in itertools.chain(*(one.held.values() for one in self.attempts.values() if not one.over)):
            ours[node] = ours.get(node, NOTHING) + held
        cluster = await queue.nodes_now(ours)
        if cluster != self._cluster:
            self._cluster = cluster
            self.events.nodes_changed(cluster)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _never_began(attempt: Attempt) -> tuple[Reason, str]:
    how = attempt.how()
    if how == "CANCELLED":
        return Reason.CANCELLED_OUTSIDE, f"Slurm job {attempt.id}, before it began, by scancel"
    nodes = f" on {attempt.entry.nodes}" if attempt.entry and attempt.entry.nodes else ""
    words, printed = f"Slurm job {attempt.id} ended before its program began ({how}{nodes})", attempt.printed()
    reason = Reason.DISRUPTED if how in queue.TAKEN_AWAY else Reason.FUNCTION_LOST
    return reason, f"{words}; it printed: {printed}" if printed else words


def _directory(spec: TrainingJob) -> Path:
    assert spec.spec.program is not None
    return Path(spec.spec.program.folder).absolute()


def _done(attempt: Attempt) -> asyncio.Future[Attempt]:
    found = asyncio.get_running_loop().create_future()
    found.set_result(attempt)
    return found
