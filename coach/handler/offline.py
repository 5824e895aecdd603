"""Changes to a job while no handler has its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from coach.core.cluster import Pod
from coach.core.errors import PermanentError
from coach.core.jobs.epoch import EpochReport
from coach.core.spec.job import TrainingJob
from coach.handler.clock import Clock, ClockGapError, refuse_gap
from coach.handler.handler import Handler
from coach.handler.session import suspend_orphans
from coach.handler.state.journal import Journal
from coach.platforms.base import Cluster, Deployed, EpochOrder, PlatformEvents, Progress
from coach.plugins import policy


class NullPlatform:
    """A platform without nodes: no job can run on it, so what there is to do for one is nothing."""

    #: As on the local platform: the jobs' functions ran there.
    linger_seconds = 0.5
    programs_outlive = False
    places_pods = False
    checkpoints: str | None = None

    def refusal(self, spec: TrainingJob) -> str:
        """Nothing starts here anyway."""
        return ""

    async def open(self, events: PlatformEvents) -> Cluster:
        """No nodes."""
        return Cluster(())

    async def _nothing(self, *_: Any, **__: Any) -> None:
        """Nothing was started."""

    close = gang = forget = release = extend_epoch = kill_program = stop_epoch = _nothing

    def leave(self, jobs: Collection[str]) -> Collection[str]:
        """Nothing runs."""
        return ()

    async def deploy(self, pod: Pod, spec: TrainingJob) -> Deployed:
        """Nothing can be started. Raises PermanentError."""
        raise PermanentError(f"{pod.id.name}: there is no platform to start it on")

    async def run_epoch(self, order: EpochOrder, progress: Callable[[Progress], None]) -> tuple[EpochReport, int]:
        """Nothing can run. Raises PermanentError."""
        raise PermanentError("there is no platform to run an epoch on")


def cancel(journal: Journal, names: Sequence[str]) -> None:
    """End jobs of a journal for good. Other jobs that were left in the middle count as suspended."""
    asyncio.run(_cancel(journal, names))


async def _cancel(journal: Journal, names: Sequence[str]) -> None:
    then = journal.left_at or 0.0
    try:
        refuse_gap(journal.left_at, journal.clock.now(), journal.accounts({}).known.values())
    except ClockGapError:  # whether the clock is right is asked when money could be spent
        journal.clock = Clock(then, lambda: then)
    suspend_orphans(journal)
    async with Handler(NullPlatform(), journal, policy("coach")) as handler:
        for name in names:
            handler.cancel(name)
        await handler.wait(lambda: all(handler.jobs[name].ended for name in names))
    journal.beat(journal.clock.now())
