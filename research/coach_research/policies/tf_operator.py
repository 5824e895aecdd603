"""KOD2's baseline: Kubeflow's tf-operator with the default scheduler of Kubernetes (KOD2 sections 2.3, 5.2).

Each pod of a job is placed by itself, on a random node, as soon as this one pod fits; it then holds its resources while
the others wait. A job trains when its servers and *all* its workers run. So two jobs can each hold half of what the
other one waits for: a deadlock, "and are terminated without completion".

Where the paper says nothing, we chose:

1. A TFJob has a fixed number of workers: the job's largest ("a fixed amount of resources ... specified by the job
   owner").
2. New pods are tried at once, the servers first. Whenever pods are released all pending pods are tried again, in random
   order: kube-scheduler moves them out of its backoff queue by their own timers. With `random_retry=no` in the order of
   their creation.
3. A job with some of its pods placed is killed `deadlock_timeout` seconds after its first pod. The paper does not say
   when or by whom jobs "are terminated"; nothing in tf-operator does it by itself. None: never.
4. A job's scheduler, which TFJobs do not have, is placed with its first pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    Finished,
    JobId,
    Kill,
    NodeChanged,
    NodeId,
    PreemptionCompleted,
    Reserve,
    ScheduleTimer,
    SchedulingAction,
    SchedulingEvent,
    Start,
    TimerFired,
    fitting,
)
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import FloatArray


@dataclass(slots=True)
class Pods:
    """The pods of a job that does not run yet."""

    #: In the order in which they are tried: True for a server.
    pending: list[bool]
    #: Node -> [workers, servers], in the order of the first pod on it.
    placed: dict[NodeId, list[int]] = field(default_factory=dict)
    #: When the job is killed, seconds. None while none of its pods is placed.
    deadline: float | None = None


@dataclass(slots=True)
class TFOperator(SchedulingPolicy):
    """tf-operator. Draws nodes and the order of retries from `rng`."""

    rng: np.random.Generator
    #: Seconds.
    deadlock_timeout: float | None = None
    random_retry: bool = True
    registered: ClassVar[str] = "tf-operator"
    places_waiting_pods: ClassVar[bool] = True
    jobs: dict[JobId, Pods] = field(default_factory=dict, init=False)

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        match event:
            case Arrived():
                self._create(event.job, view)
                yield from self._place([event.job], view, in_order=True)
            case TimerFired():
                for job, pods in list(self.jobs.items()):
                    if pods.deadline is not None and pods.deadline <= view.now and job in view.jobs:
                        yield Kill(job)
            case Finished():
                self.jobs.pop(event.job, None)
                yield from self._place(self.jobs, view)
            case PreemptionCompleted():
                self._create(event.job, view)
                yield from self._place(self.jobs, view)
            case NodeChanged():
                for job in event.jobs:
                    self._create(job, view)
                yield from self._place(self.jobs, view)

    def _create(self, job: JobId, view: EngineView) -> None:
        workers, servers = view.jobs[job].maximum
        self.jobs[job] = Pods([True] * servers + [False] * workers)

    def _place(self, jobs: Iterable[JobId], view: EngineView, in_order: bool = False) -> Iterator[SchedulingAction]:
        """Try each pending pod of `jobs` once; start the jobs that are complete, hold room for the others."""
        pods = [(job, server) for job in jobs for server in self.jobs[job].pending]
        if not in_order and self.random_retry:
            self.rng.shuffle(pods)
        free = view.free.copy()
        changed: dict[JobId, None] = {}
        for job, server in pods:
            if self._place_pod(job, server, free, view):
                changed[job] = None
        for job in changed:
            mine = self.jobs[job]
            plan = tuple((node, workers, servers) for node, (workers, servers) in mine.placed.items())
            if not mine.pending:
                del self.jobs[job]
                yield Start(job, plan)
                continue
            yield Reserve(job, plan)
            if mine.deadline is None and self.deadlock_timeout is not None:
                mine.deadline = view.now + self.deadlock_timeout
                yield ScheduleTimer(mine.deadline)

    def _place_pod(self, job: JobId, server: bool, free: FloatArray, view: EngineView) -> bool:
        state, mine = view.jobs[job], self.jobs[job]
        demand = state.server if server else state.worker
        if not mine.placed:
            demand = demand + state.scheduler
        nodes = fitting(free, demand)
        nodes = nodes[view.capacity[nodes].any(axis=1)]
        if not len(nodes):
            return False
        node = int(self.rng.choice(nodes))
        free[node] -= demand
        mine.placed.setdefault(node, [0, 0])[server] += 1
        mine.pending.remove(server)
        return True
