"""One handler in the foreground: what `coach run` does, without showing anything.

It chooses names and a journal, goes on with what was left in the middle, submits the rest, and waits until every job
has ended or was interrupted. Signals stop it in three steps: at the checkpoint of the running epochs, at once, and
without waiting for anything. All but the last leave a settled journal; after each of them the jobs can be resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from coach.core.budget import Money
from coach.core.cluster import Node
from coach.core.errors import UserError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import EXIT_CODE
from coach.core.jobs.spec import TrainingJob
from coach.core.policies.base import AllocationPolicy
from coach.handler.clock import Clock
from coach.handler.endpoint import ServiceRunsError, find
from coach.handler.experience import known_epochs, known_points
from coach.handler.handler import Handler
from coach.handler.home import Chosen, Home, Past, choose
from coach.handler.journal import Journal
from coach.platforms.base import Platform, Progress

log = logging.getLogger(__name__)

#: Exit code of a run that was interrupted.
INTERRUPTED = 130
#: What a run of several jobs ends with: the first of these that any of them has. Interrupted comes first, because
#: then the rest is not known yet; a failure, which wants a look, before ends that the job file itself foresaw.
EXIT_CODES_BY_WEIGHT = (INTERRUPTED, 1, 4, 3, 0)

#: Makes the platform: from the nodes, the folder for a job's logs, and the handler's clock.
MakePlatform = Callable[[Home, Callable[[], float]], Platform]


class Shown(Protocol):
    """What a watcher can see: a session of this process, or one of a service's (coach.service.joined)."""

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs to show, in the order of the files."""

    @property
    def stops(self) -> int:
        """How urgently it was asked to stop."""

    @property
    def progress(self) -> Mapping[str, Progress]:
        """How far running epochs are."""

    def now(self) -> float:
        """Seconds since 1970 on the clock that the jobs' times are of."""


class Watcher(Protocol):
    """Whoever shows a session. OSError from any of these (the terminal is gone) stops the session cleanly."""

    def said(self, text: str) -> None:
        """Something worth a line, which is in no journal."""

    def happened(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        """An event and the actions that followed were journalled; `session.jobs` shows them."""

    async def watch(self, session: Shown) -> None:
        """Runs beside the handler, from its start until it is cancelled at the end."""

    def close(self) -> None:
        """Give the terminal back; called once at the end, and before an end that waits for nothing."""


class Session:
    """Runs `specs` in the foreground. `run` returns the exit code; then `jobs` has them as they ended.

    `resumed` names jobs that go on as they are, with `added_budget` nano-units more each.
    """

    def __init__(
        self,
        home: Home,
        specs: Sequence[TrainingJob],
        *,
        nodes: tuple[Node, ...],
        policy: AllocationPolicy,
        make_platform: MakePlatform,
        watcher: Watcher,
        resumed: Sequence[str] = (),
        added_budget: Money = 0,
    ) -> None:
        self.home = home
        self.nodes = nodes
        self.policy = policy
        self.handler: Handler | None = None
        self.chosen: list[Chosen] = []
        self._specs = specs
        self._make_platform = make_platform
        self._watcher = watcher
        self._resumed = resumed
        self._added_budget = added_budget
        self._pending: set[str] = set()
        self._stops = 0
        self._main_task: asyncio.Task[None] | None = None
        self._muted = False

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs of this session (not all of the journal), in the order of the files."""
        known = self.handler.jobs if self.handler else {}
        return {one.name: known[one.name] for one in self.chosen if one.name in known}

    @property
    def stops(self) -> int:
        """How urgently it was asked to stop: 0 not at all, 1 to 3 as in `stop`."""
        return self._stops

    @property
    def progress(self) -> Mapping[str, Progress]:
        """How far running epochs are."""
        return self.handler.progress if self.handler else {}

    def now(self) -> float:
        """Seconds since 1970 on the handler's clock."""
        return self.handler.now() if self.handler else Clock().now()

    def run(self) -> int:
        """Until all jobs have ended or are interrupted. Raises CoachError where it cannot start or go on.

        ServiceRunsError: a service has the state folder, and the jobs should go there.
        """
        with contextlib.ExitStack() as planning:
            planning.enter_context(
                self.home.planning(lambda: self._say("another run is starting; waiting for it"))
            )
            if find(self.home) and not self._resumed:
                raise ServiceRunsError(
                    f"{self.home.path}: a service has just started; give it the jobs instead"
                )
            past = self.home.past()
            self.chosen = self._choose(past)
            journal = self.home.open_journal(_common_journal(self.chosen))
            try:
                asyncio.run(self._main(journal, past, planning))
            except asyncio.CancelledError:
                return INTERRUPTED
            finally:
                self._watcher.close()
                journal.close()
        return exit_code(self.jobs.values())

    def _choose(self, past: dict[str, Past]) -> list[Chosen]:
        chosen = [Chosen(past[name].job.spec, past[name]) for name in self._resumed]
        for spec in self._specs:
            chosen.append(choose(spec, past, [one.name for one in chosen]))
        return chosen

    async def _main(self, journal: Journal, past: dict[str, Past], planning: contextlib.ExitStack) -> None:
        self._main_task = asyncio.current_task()
        self._listen_to_signals()
        interrupt_orphans(journal)
        platform = self._make_platform(self.home, lambda: self.handler.now() if self.handler else 0.0)
        self.handler = Handler(platform, journal, self.policy)
        self.handler.observers.append(self._observe)
        watching = asyncio.create_task(self._watch())
        try:
            async with self.handler:
                self._start_jobs(self.handler, past)
                for one in self.chosen:
                    if one.said:
                        self._say(one.said)
                await self.handler.wait(lambda: not self._pending)
                planning.close()
                await self.handler.wait(lambda: all(over(job) for job in self.jobs.values()))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def _start_jobs(self, handler: Handler, past: dict[str, Past]) -> None:
        """Submit the new ones with what is known of their like, and go on with the others."""
        for one in self.chosen:
            if one.past is None:
                self._pending.add(one.name)
                handler.submit(
                    one.spec,
                    checkpoints_uri(self.home, one.spec),
                    known_points(past.values(), one.spec, self.nodes),
                    known_epochs(past.values(), one.spec),
                )
            elif (
                job := handler.jobs[one.name]
            ).ended or not job.ending:  # else its end only has to be written down
                self._pending.add(one.name)
                handler.resume(one.name, self._added_budget)

    # -- stopping -----------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: self.stop(self._stops + 1))
        loop.add_signal_handler(signal.SIGTERM, lambda: self.stop(max(2, self._stops + 1)))
        loop.add_signal_handler(signal.SIGHUP, self.output_lost)

    def stop(self, level: int) -> None:
        """1: at the running epochs' checkpoints. 2: at once, from the last checkpoints. 3: do not wait for anything."""
        if level <= self._stops:
            return
        self._stops = level
        if level > 3:
            self._watcher.close()
            os._exit(INTERRUPTED)
        if self.handler is None or self._pending or level == 3:
            assert self._main_task is not None
            self._main_task.cancel()
            return
        living = [name for name, job in self.jobs.items() if not over(job)]
        self.handler.interrupt(living, now=level == 2)

    def output_lost(self) -> None:
        """Nobody sees what is shown any more: show nothing, and stop cleanly."""
        self._muted = True
        self.stop(1)

    # -- showing ------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._show(lambda: self._watcher.said(text))

    def _observe(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        if isinstance(event, ev.JobSubmitted | ev.ResumeAsked):
            self._pending.discard(event.job)
        self._show(lambda: self._watcher.happened(event, actions))

    async def _watch(self) -> None:
        try:
            await self._watcher.watch(self)
        except OSError:
            self.output_lost()
        except Exception as error:
            log.error("what shows the jobs failed, the jobs go on: %r", error)

    def _show(self, show: Callable[[], None]) -> None:
        if not self._muted:
            try:
                show()
            except OSError:
                self.output_lost()


def exit_code(jobs: Iterable[Job]) -> int:
    """What a command about `jobs` ends with: see EXIT_CODES_BY_WEIGHT."""
    codes = {EXIT_CODE[job.state] for job in jobs}
    return next((code for code in EXIT_CODES_BY_WEIGHT if code in codes), 0)


def checkpoints_uri(home: Home, spec: TrainingJob) -> str:
    """URI of the folder for a job's checkpoints: its own, also where several job files name one folder."""
    uri = spec.spec.checkpoint.uri
    # Nothing in our file URIs is escaped: fsspec reads them as they stand.
    return f"{uri.rstrip('/')}/{spec.name}" if uri else f"file://{home.checkpoints(spec.name)}"


def over(job: Job) -> bool:
    """Whether nothing more happens to it by itself, and all it held is given back and paid."""
    return job.ended or (job.interrupt and job.phase is Phase.PAUSED and not job.pods)


def _common_journal(chosen: Sequence[Chosen]) -> Path | None:
    """The journal of the jobs that go on; None: any."""
    journals = {one.past.journal: one.name for one in chosen if one.past}
    if len(journals) > 1:
        first, second, *_ = journals.values()
        raise UserError(
            f"{first} and {second} were left by different runs and cannot go on in one; "
            "give each its own: coach run FILE"
        )
    return next(iter(journals), None)


def interrupt_orphans(journal: Journal) -> None:
    """Jobs whose handler died without a word count as interrupted, so that only those asked for go on.

    Their users did not stop them: a service that starts goes on with them.
    """
    at = Clock(journal.last_at()).now()
    orphans = [job for job in journal.jobs().values() if not job.ended and not job.interrupt]
    if orphans:
        journal.append([ev.InterruptAsked(at, job.name, True, by_user=False) for job in orphans])
