"""Sia (Jayaram Subramanya et al., SOSP 2023, section 3): each round an integer program over GPUs and their kinds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint
from scipy.sparse import coo_array

from coach.core.cluster import Allocation
from coach_research.platforms.kube_scheduler import TOLERANCE
from coach_research.policies.rounds import integer_program
from coach_research.policies.rounds.rounds import Rounds, Turn, in_order, of_kinds, total
from coach_research.scheduling.api import (
    Arrived,
    EngineView,
    Finished,
    IntArray,
    JobId,
    JobState,
    Phase,
    SchedulingEvent,
)
from coach_research.scheduling.incremental import most
from coach_research.workload import FloatArray, Plan, totals


class Option(NamedTuple):
    """A configuration that a job may have: what it gets, on nodes like `node`, and what that adds to the sum."""

    job: JobState
    turn: Turn
    node: int
    cost: float = 0.0
    #: The job is in the middle of a change, and keeps this.
    forced: bool = False


@dataclass
class Sia(Rounds):
    """Every job gets one configuration (how many workers, on which kind of nodes), or waits.

    A job's worth of a configuration is its speed there, as a multiple of its speed in its worst one. The sum over jobs
    of worth to the power -`p` is as small as possible; a job that waits adds `waits`. A change
    loses by the share of its age that the job has trained so far, as if it went on changing so often. A job in the
    middle of a change keeps what it has.

    Configurations of a kind: 1, 2, 4, ... workers, up to what a node holds, then whole nodes; those of a job double at
    most from one to the next. Before its first run nothing is known of a job's speeds: it gets its minimum, anywhere.
    The batch is the driver's: where it adapts the batch, the job's speed has that.
    """

    round: float = 60.0
    p: float = 0.5
    waits: float = 1.1
    registered: ClassVar[str] = "sia"

    #: The most workers that each job has had.
    _most: dict[JobId, int] = field(default_factory=dict, init=False, repr=False)
    #: The jobs that may have several sizes.
    _elastic: set[JobId] = field(default_factory=set, init=False, repr=False)

    def line(self, jobs: list[JobState], view: EngineView) -> Iterable[JobState]:
        """See `Rounds`."""
        return (job for job, _ in self.turns(jobs, view))

    def takes_all(self, view: EngineView) -> bool:
        """See `Rounds`: it may choose other sizes, and other kinds."""
        return not self._elastic and len(set(view.kinds)) == 1

    def count(self, view: EngineView) -> None:
        """See `Rounds`: nothing is chosen."""

    def note(self, event: SchedulingEvent, view: EngineView) -> None:
        """See `Rounds`."""
        super().note(event, view)
        match event:
            case Arrived() if view.jobs[event.job].minimum != view.jobs[event.job].maximum:
                self._elastic.add(event.job)
            case Finished():
                self._elastic.discard(event.job)

    def counts(self, a_node: int, nodes: int) -> Iterable[int]:
        """How many workers jobs may have on a kind with so many nodes, of which each holds `a_node`; ascending."""
        doubled = [1 << power for power in range(max(1, a_node).bit_length()) if 1 << power < a_node]
        return chain(doubled, range(a_node, a_node * nodes + 1, a_node)) if a_node else ()

    def base(self, job: JobState, speeds: FloatArray, jobs: int, view: EngineView) -> float:
        """The speed of a job whose worth is 1; `speeds` [configuration] are above 0, and 1 where nothing is known."""
        del job, jobs, view
        return float(speeds.min())

    def cost(self, worth: float) -> float:
        """What a configuration of this worth adds to the sum; as in the authors' code in hundredths."""
        return round(float(max(worth, 1e-3) ** -self.p), 2)

    def turns(self, jobs: list[JobState], view: EngineView) -> Iterable[tuple[JobState, Turn]]:
        """See `Rounds`."""
        kinds = of_kinds(view)
        self._follow(jobs)
        options = [option for job in jobs for option in self._priced(job, len(jobs), view, kinds)]
        room = {kind: view.capacity[nodes].sum(axis=0) for kind, nodes in kinds.items()}
        taken = best_of(options, self.waits, room)
        return [(option.job, option.turn) for option in taken]

    def _priced(self, job: JobState, jobs: int, view: EngineView, kinds: Mapping[str, list[int]]) -> Iterator[Option]:
        """The options of a job with their costs."""
        mine = self._options(job, view, kinds)
        if job.id in self._most:
            speeds = np.array([job.speed(*one.turn.size, one.node) for one in mine])
        else:
            speeds = np.ones(len(mine))
        if not (speeds > 0).any():
            return
        base = self.base(job, speeds[speeds > 0], jobs, view)
        kept = Turn(totals(job.plan), view.kinds[job.plan[0][0]]) if job.phase is Phase.RUNNING else None
        changing = kept is not None and view.now < job.since + job.rescale_seconds
        for one, speed in zip(mine, speeds.tolist(), strict=True):
            if speed > 0.0 and (not changing or one.turn == kept):
                factor = 1.0 if kept is None or one.turn == kept else _kept_by_a_change(job, view)
                yield one._replace(cost=self.cost(speed / base * factor), forced=changing)

    def place(self, room: FloatArray, job: JobState, size: Allocation) -> Plan:
        """See `Rounds`: several nodes from the last on, a part of one where least is left."""
        if size.servers:
            return super().place(room, job, size)
        holds = most(room + TOLERANCE, job.worker)
        fits = holds >= size.workers
        order = np.argsort(holds, kind="stable")[fits[np.argsort(holds, kind="stable")]] if fits.any() else None
        whole = np.argsort(-holds[::-1], kind="stable")
        return in_order(room, job, size.workers, len(holds) - 1 - whole if order is None else order)

    def _follow(self, jobs: list[JobState]) -> None:
        here = {job.id: job for job in jobs}
        self._most = {number: count for number, count in self._most.items() if number in here}
        for job in here.values():
            if job.phase is Phase.RUNNING:
                self._most[job.id] = max(self._most.get(job.id, 0), job.workers)

    def _options(self, job: JobState, view: EngineView, kinds: Mapping[str, list[int]]) -> list[Option]:
        found, least, so_far = [], job.minimum.workers, self._most.get(job.id, 0)
        for kind, nodes in kinds.items():
            holds: IntArray = most(view.capacity[nodes[:1]], job.worker)
            every = set[int]()
            for count in self.counts(int(holds[0]), len(nodes)):
                every.add(min(count, job.maximum.workers))
                if count >= job.maximum.workers:
                    break
            some = sorted({count for count in every if least <= count} | {least})
            for count in some:
                if count <= min(max(2 * so_far, least), int(holds[0]) * len(nodes)):
                    found.append(Option(job, Turn(Allocation(count, _servers(job, count)), kind), nodes[0]))
        return found


def _servers(job: JobState, workers: int) -> int:
    """As many servers for a worker as its minimum has."""
    least = job.minimum
    return min(job.maximum.servers, math.ceil(workers * least.servers / least.workers))


def _kept_by_a_change(job: JobState, view: EngineView) -> float:
    """What a change leaves of a speed: the share of its age in which the job has trained (equation 2)."""
    age, each = view.now - job.arrived, job.rescale_seconds
    lost = each * (job.preemptions + job.resizes + job.migrations)
    return 1.0 if age < each else max(0.0, age - lost) / (age + each)


def best_of(options: Sequence[Option], waits: float, room: Mapping[str, FloatArray]) -> list[Option]:
    """The options of the least cost, one for a job at most, that the nodes of each kind hold together.

    A job without one adds `waits`. `room`: what all nodes of a kind have, [resource].
    """
    if not options:
        return []
    owners = {number: at for at, number in enumerate(dict.fromkeys(option.job.id for option in options))}
    kinds = {kind: len(owners) + 3 * at for at, kind in enumerate(room)}
    rows, columns, values = list[int](), list[int](), list[float]()
    for at, option in enumerate(options):
        first = kinds[option.turn.kind or ""]
        rows += [owners[option.job.id], first, first + 1, first + 2]
        columns += [at] * 4
        values += [1.0, *total(option.job, option.turn.size).tolist()]
    limits = np.concatenate([np.ones(len(owners)), *room.values()]) + TOLERANCE
    found = integer_program.solve(
        np.array([option.cost - waits for option in options]),
        integrality=np.ones(len(options), int),
        bounds=Bounds(np.array([float(option.forced) for option in options]), 1.0),
        constraints=LinearConstraint(
            coo_array((values, (rows, columns)), (len(limits), len(options))).tocsr(), ub=limits
        ),
        options={"mip_rel_gap": 1e-4, "time_limit": 10.0},
    )
    return [] if found.x is None else [option for option, x in zip(options, found.x.tolist(), strict=True) if x > 0.5]
