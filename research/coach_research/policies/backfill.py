"""EASY backfill (Lifka 1995; Mu'alem and Feitelson, IEEE TPDS 2001): Slurm's default way, with known run times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coach_research.policies.rounds.rounds import seconds_left, total
from coach_research.scheduling.api import (
    EngineView,
    EpochEnded,
    JobState,
    SchedulingAction,
    SchedulingEvent,
    Start,
)
from coach_research.scheduling.incremental import give, grow, take
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import FloatArray


@dataclass
class Backfill(SchedulingPolicy):
    """First come, first served, by priority; a later job starts if it does not delay the first that waits.

    The first one's start is reserved: when enough running jobs have ended, on the nodes that it has room on then.
    Each of the next `depth` jobs that fits now starts if it ends before, or fits next to the reservation. Slurm knows
    time limits, this policy predicted run times.
    """

    depth: int = 100
    registered: ClassVar[str] = "backfill"

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        if isinstance(event, EpochEnded):
            return
        line = sorted(view.waiting.values(), key=lambda job: (-job.priority, job.id))
        while line:
            plan = grow(view.free, line[0], (), line[0].maximum, whole=True)
            if not plan:
                break
            yield Start(line.pop(0).id, plan)
        if len(line) < 2 or not view.free.any():
            return
        begins, later = self._reserved(line[0], view)
        for job in line[1 : 1 + self.depth]:
            if not (total(job) <= view.free.sum(axis=0)).all():
                continue
            plan = grow(view.free, job, (), job.maximum, whole=True)
            if not plan:
                continue
            if view.now + seconds_left(job) > begins:
                # It still runs when the first one starts: it has to leave the room that is reserved.
                plan = grow(np.minimum(view.free, later), job, (), job.maximum, whole=True)
                if not plan:
                    continue
                take(later, job, plan)
            yield Start(job.id, plan)

    @staticmethod
    def _reserved(job: JobState, view: EngineView) -> tuple[float, FloatArray]:
        """When the first job can start, and the room [node, resource] that is left then next to it."""
        room = view.free.copy()
        for running in sorted(view.running.values(), key=seconds_left):
            give(room, running, running.plan)
            if plan := grow(room, job, (), job.maximum, whole=True):
                take(room, job, plan)
                return view.now + seconds_left(running), room
        return math.inf, view.free.copy()  # it never fits: nobody delays it
