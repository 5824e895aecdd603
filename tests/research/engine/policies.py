"""Small policies for tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    EpochEnded,
    Migrate,
    Phase,
    Preempt,
    PreemptionCompleted,
    Reserve,
    Resize,
    ScheduleTimer,
    SchedulingAction,
    SchedulingEvent,
    Start,
    TimerFired,
    first,
    fitting,
)


class Fifo:
    """One node each, no job passes the head of the queue."""

    wants: frozenset[type] = frozenset()

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        while job := first(view.waiting):
            nodes = fitting(view.free, job.worker)
            if not len(nodes):
                return
            yield Start(job.id, ((int(nodes[0]), 1, 0),))


class AtOnce:
    """Every job starts at once, on the node with the fewest jobs."""

    wants: frozenset[type] = frozenset()

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        if isinstance(event, Arrived | PreemptionCompleted):
            node = min(range(len(view.free)), key=lambda n: len(list(view.on_node(n))))
            yield Start(event.job, ((node, 1, 0),))


class Anything:
    """Does whatever is allowed, at random: the engine has to stay right under any policy."""

    wants: frozenset[type] = frozenset({EpochEnded})

    def __init__(self, seed: int) -> None:
        self._dice = np.random.default_rng(seed)
        self._awake = False

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        dice = self._dice
        for job in list(view.jobs.values()):
            if job.id not in view.jobs or dice.random() < 0.5:
                continue
            nodes = fitting(view.free, job.worker + job.scheduler)
            plan = ((int(dice.choice(nodes)), 1, 0),) if len(nodes) else ()
            if job.phase is Phase.RUNNING:
                if dice.random() < 0.3:
                    yield Preempt(job.id)
                elif plan and plan[0][0] != job.plan[0][0]:
                    yield Migrate(job.id, plan) if dice.random() < 0.5 else Resize(job.id, plan)
            elif job.phase is Phase.WAITING:
                if plan:
                    yield Start(job.id, plan) if dice.random() < 0.7 else Reserve(job.id, plan)
            elif job.phase is Phase.HOLDING:
                yield Start(job.id, job.plan) if dice.random() < 0.7 else Reserve(job.id, ())
        if isinstance(event, TimerFired) or not self._awake:
            self._awake = bool(view.jobs)
            if self._awake:
                yield ScheduleTimer(view.now + 1.0 + 10 * dice.random())
