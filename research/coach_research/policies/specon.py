"""SpeCon (Mao et al., "Speculative Container Scheduling for Deep Learning Applications"): slow-growing jobs make room.

A container that stops gaining is moved, once, to a worker where fewer containers still gain. Algorithms 1 to 3 of the
paper are `monitor`, `destination` and `rebalance`; `RoundRobin` is the initial placement of both SpeCon and its
baseline DS (section VI.A: "a fixed initial container placement"), and all that DS does.

A *container* is a whole job at its smallest allocation, *worker* is the paper's word for a node. Loss is the
evaluation function E, divided by its first value, as in Figure 1, so that the threshold is "a percentage" (V.A).

Where the paper says nothing, we chose:

1. All workers categorize at the same instants, each `interval` seconds from the first start on.
2. A container's first sample only serves as E(t_0), and its first gain, which has no gain before it, leaves the
   category as it is. An interval without any training (a pause, or an epoch that is longer) gives no sample.
3. G = alpha, which no line of Algorithm 1 names, leaves the category as it is.
4. Lines 10-12 of Algorithm 1 repeat lines 7-9; the text (V.A) says "removed from WC and inserted to CC". So do we.
5. R(w, t), the resources consumed on a worker, is its number of containers: without requests each takes what it can
   get. Equal ones: the lower number.
6. A container that moves keeps its category. ("Inserted into PC when they join a worker", but it would never leave PC
   again: only containers that did not move are monitored.)
7. Algorithm 3 runs after each categorization ("when the system is unbalanced" is just what its branches test). D is the
   containers that are marked `migrated`, those that have a t_c, and not yet `rebalanced`: none is moved twice by it.
8. The balance factor is at least 1: rounded down to 0, an idle worker would get nothing while there are fewer
   containers than workers. And a container alone on its worker is not moved: that would only change which worker idles.
9. Lines 23-31: c_j goes to the first worker of T that still has less than bf - 1 containers.
10. Where nodes are reserved, a worker on which c_j does not fit is no candidate; a job too large for any single node
    is spread, counted on its first node, and never moved. A job that lost its node starts again as a new container.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from coach_research.policies.consolidated import fewest_nodes, whole
from coach_research.scheduling.api import (
    EngineView,
    Finished,
    JobId,
    Migrate,
    NodeChanged,
    NodeId,
    PreemptionCompleted,
    ScheduleTimer,
    SchedulingAction,
    SchedulingEvent,
    Start,
    TimerFired,
    first,
    fitting,
)
from coach_research.scheduling.scheduling_policy import SchedulingPolicy
from coach_research.workload import Plan


class Category(StrEnum):
    """How a container's loss still falls (section V.A)."""

    PROGRESSING = "PC"
    WATCHING = "WC"
    CONVERGED = "CC"


#: Section VI.A: w_pc = 2, w_wc = 1.5, w_cc = 1.
WEIGHTS: Mapping[Category, float] = {
    Category.PROGRESSING: 2.0,
    Category.WATCHING: 1.5,
    Category.CONVERGED: 1.0,
}


@dataclass(slots=True)
class Container:
    """SpeCon's state of a running job."""

    job: JobId
    worker: NodeId
    category: Category = Category.PROGRESSING
    migrated: bool = False
    rebalanced: bool = False
    #: t_c: when it was marked as migrated, seconds.
    marked: float = math.nan
    #: First loss ever seen; E(t_m-1); G(t_m-1). NaN: none yet.
    scale: float = math.nan
    loss: float = math.nan
    gain: float = math.nan
    #: Epochs done at the last sample.
    done: float = 0.0


#: What a restarted handler restores.
REMEMBERED = ("category", "migrated", "rebalanced", "marked", "scale", "loss", "gain", "done")

#: The containers of each worker that is up, in the order of the workers' numbers.
Workers = Mapping[NodeId, Sequence[Container]]


def monitor(container: Container, loss: float, alpha: float, neighbours: Sequence[Container], crowd: int = 1) -> bool:
    """Algorithm 1 for one container that is not migrated: update its category; whether to request reallocation.

    `loss` is E(t_m), normalised; `neighbours` are all containers on its worker, itself included (those of all workers:
    the other reading of line 15); `crowd` is the 1 of line 15.
    """
    gain, before = abs(loss - container.loss), container.gain  # lines 4-5
    container.loss, container.gain = loss, gain
    if math.isnan(gain) or math.isnan(before):
        return False  # choice 2
    if gain < before and gain < alpha:  # line 6
        if container.category is Category.PROGRESSING:  # lines 7-9
            container.category = Category.WATCHING
        elif container.category is Category.WATCHING:  # lines 10-12, choice 4
            container.category = Category.CONVERGED
        else:  # lines 13-16
            return sum(other.category is not Category.CONVERGED for other in neighbours) > crowd
    elif gain > alpha:  # lines 19-22; lines 17-18 (not less than before) change nothing
        container.category = Category.PROGRESSING
    return False


def score(containers: Sequence[Container]) -> float:
    """S_w of Algorithm 2, line 3."""
    return sum(WEIGHTS[container.category] for container in containers)


def destination(worker: NodeId, workers: Workers) -> NodeId:
    """Algorithm 2: the new worker of a container that is now on `worker`, or `worker` itself.

    `workers` are the candidates, `worker` among them.
    """
    scores = {node: score(containers) for node, containers in workers.items()}  # lines 2-3
    least = min(scores.values())
    candidates = [node for node in workers if scores[node] == least]  # lines 4-7
    if worker in candidates:  # lines 8-10
        return worker
    # Lines 11-21. With one candidate the ranking has nothing to rank.
    return min(candidates, key=lambda node: (len(workers[node]), node))


def rebalance(workers: Workers) -> list[tuple[Container, NodeId]]:
    """Algorithm 3: which containers to move where, in this order, each at most once.

    The smallest d_c = t - t_c is the latest t_c: the container marked last (of equal ones, the latest job).
    """
    count = {node: len(containers) for node, containers in workers.items()}
    durations = [c for containers in workers.values() for c in containers if c.migrated and not c.rebalanced]
    durations.sort(key=lambda c: (-c.marked, -c.job))  # lines 2-6: D, smallest first
    balance = max(1, sum(count.values()) // len(count))  # line 9, choice 8
    moves: list[tuple[Container, NodeId]] = []

    def move(container: Container, node: NodeId) -> None:
        durations.remove(container)  # line 14
        count[container.worker] -= 1
        count[node] += 1
        moves.append((container, node))

    idle = [node for node in workers if not workers[node]]  # lines 7-8
    if idle:
        for node in idle:  # lines 10-18
            # Line 12 always holds: nothing runs on it, and the balance factor is at least 1 (choice 8).
            least = next((c for c in durations if count[c.worker] > 1), None)  # line 13
            if least is not None:
                move(least, node)
        return moves
    roomy = [node for node in workers if count[node] < balance - 1]  # lines 19-22
    for worker in workers:  # lines 23-25
        least = next((c for c in durations if c.worker == worker and worker not in roomy), None)
        to = next((node for node in roomy if count[node] < balance - 1), None)  # lines 26-27, choice 9
        if least is not None and to is not None:
            move(least, to)  # lines 28-29
    return moves


@dataclass(slots=True)
class RoundRobin(SchedulingPolicy):
    """The baseline DS: container k starts on worker ((k - 1) mod W) + 1 and stays there until it ends.

    A worker on which it does not fit is passed; when it fits on no worker, containers wait, first come first served.
    """

    registered: ClassVar[str] = "round-robin"
    #: Containers started so far: k - 1.
    started: int = field(default=0, init=False)

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        return self.place(view)

    def place(self, view: EngineView) -> Iterator[Start]:
        """Start the waiting containers as long as they fit."""
        while job := first(view.waiting):
            fits = fitting(view.free, whole(job, job.minimum))
            fits = fits[view.capacity[fits].any(axis=1)]
            plan: Plan | None
            if len(fits):
                turn = self.started % len(view.capacity)
                plan = ((int(min(fits, key=lambda node: (node < turn, node))), *job.minimum),)
            else:
                plan = fewest_nodes(job, job.minimum, view.free, view.capacity)
            if plan is None:
                return
            self.started += 1
            yield Start(job.id, plan)


@dataclass(slots=True)
class SpeCon(SchedulingPolicy):
    """SpeCon. `alpha`: gain of the normalised loss; `interval`: seconds |t_m - t_m-1|. Defaults of section VI.

    `crowd` is the 1 of "|PC| + |WC| > 1" (Algorithm 1, line 15). With 1 a converged container leaves only a worker with
    at least two others, with 0 one with any other: with 1, hardly any moves in Figure 5
    (docs/advanced/policies.md). PC and WC have no subscript there: `everywhere` counts those of all workers.
    """

    alpha: float = 0.01
    interval: float = 30.0
    crowd: int = 1
    everywhere: bool = False
    registered: ClassVar[str] = "specon"
    containers: dict[JobId, Container] = field(default_factory=dict, init=False)
    placement: RoundRobin = field(default_factory=RoundRobin, init=False)
    _recalled: dict[JobId, dict[str, Any]] = field(default_factory=dict, init=False)
    _ticking: bool = field(default=False, init=False)
    #: Running jobs that have a loss. The others' containers stay in their category.
    _watched: set[JobId] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and self.interval > 0):
            raise ValueError(f"SpeCon needs alpha and interval above zero, got {self.alpha} and {self.interval}")

    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterator[SchedulingAction]:
        """See `Policy`."""
        match event:
            case Finished() | PreemptionCompleted():
                self.containers.pop(event.job, None)
                self._recalled.pop(event.job, None)
                self._watched.discard(event.job)
            case NodeChanged():
                for job in event.jobs:
                    self.containers.pop(job, None)
                    self._watched.discard(job)
            case TimerFired():
                self._ticking = False
                if self._watched:
                    yield from self._categorize(view)
                    yield from self._rebalance(view)
        for start in self.placement.place(view):
            yield start
            known = self._recalled.pop(start.job, {})
            self.containers[start.job] = container = Container(start.job, start.plan[0][0], **known)
            self._measured(container, view)
            if view.jobs[start.job].has_loss:
                self._watched.add(start.job)
        if self.containers and not self._ticking:
            self._ticking = True
            yield ScheduleTimer(view.now + self.interval)

    def remembered(self, job: JobId, /) -> dict[str, Any]:
        """The state of Algorithms 1 to 3 for its container, without its worker."""
        container = self.containers.get(job)
        if container is None:
            return self._recalled.get(job, {})
        values = {name: getattr(container, name) for name in REMEMBERED}
        values["category"] = container.category.value
        return {name: value for name, value in values.items() if name == "category" or not math.isnan(value)}

    def recall(self, job: JobId, known: Mapping[str, Any], /) -> None:
        """See `SchedulingPolicy`."""
        values = {name: known[name] for name in REMEMBERED if name in known}
        if "category" in values:
            values["category"] = Category(values["category"])
        self._recalled[job] = values

    def _categorize(self, view: EngineView) -> Iterator[SchedulingAction]:
        workers = self._workers(view)
        every = [container for containers in workers.values() for container in containers]
        for worker, containers in workers.items():
            requests = []
            counted = every if self.everywhere else containers
            for container in containers:
                if container.job not in self._watched or container.migrated:
                    continue
                done = view.jobs[container.job].done()
                if done <= container.done:
                    continue
                container.done = done
                if monitor(container, self._measured(container, view), self.alpha, counted, self.crowd):
                    requests.append(container)
            for container in requests:
                now = self._workers(view)
                to = destination(worker, self._with_room(container, now, view))
                container.migrated, container.marked = True, view.now  # Algorithm 2, lines 9, 15, 20
                yield from self._move(container, to, view)

    def _rebalance(self, view: EngineView) -> Iterator[SchedulingAction]:
        for container, node in rebalance(self._workers(view)):
            if node in self._with_room(container, self._workers(view), view):
                container.rebalanced = True
                yield from self._move(container, node, view)

    def _measured(self, container: Container, view: EngineView) -> float:
        """The normalised loss now; NaN where none was measured yet."""
        loss = view.jobs[container.job].loss()
        if math.isnan(container.scale) and loss:
            container.scale = abs(loss)
        return loss / container.scale

    def _move(self, container: Container, node: NodeId, view: EngineView) -> Iterator[SchedulingAction]:
        if node != container.worker:
            container.worker = node
            job = view.jobs[container.job]
            yield Migrate(job.id, ((node, job.workers, job.servers),))

    def _workers(self, view: EngineView) -> dict[NodeId, list[Container]]:
        workers: dict[NodeId, list[Container]] = {
            node: [] for node, row in enumerate(view.capacity.tolist()) if any(row)
        }
        for container in self.containers.values():
            workers[container.worker].append(container)
        return workers

    def _with_room(self, container: Container, workers: Workers, view: EngineView) -> Workers:
        """Those of `workers` that could hold the container; its own always (choice 10)."""
        job = view.jobs[container.job]
        if len(job.plan) > 1:
            return {container.worker: workers[container.worker]}
        fits = set(fitting(view.free, whole(job, job.minimum)).tolist()) | {container.worker}
        return {node: containers for node, containers in workers.items() if node in fits}
