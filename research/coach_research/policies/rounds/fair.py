"""Gavel's mechanism (OSDI 2020, section 5): policies say which share of the time each job should run.

A job's priority is its share divided by the part of all jobs' run time that it got, since the shares were counted
anew (every `reset` seconds, when a job came, ended or changed its speed). The one farthest behind its share is first.
As in the authors' code a job counts with half a round from the start. Where nodes are of several kinds, a policy that
knows them (`shares_by_kind`) gives each job a share of the time on each kind, and each pair has its priority; the
others see one kind.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from coach_research.policies.rounds.rounds import Rounds, Turn, of_kinds, total
from coach_research.scheduling.api import EngineView, JobId, JobState
from coach_research.workload import FloatArray


@dataclass
class Shares(Rounds):
    """See the module. A policy defines `shares`."""

    reset: float = 1000.0

    _since: float = field(default=float("-inf"), init=False, repr=False)
    #: The kinds that jobs have had shares of, as columns; those of the present shares.
    _kinds: list[str | None] = field(default_factory=list, init=False, repr=False)
    _now: list[int] = field(default_factory=list, init=False, repr=False)
    #: The jobs as rows, in order; jobs and their speeds on each kind as of the present shares.
    _ids: list[JobId] = field(default_factory=list, init=False, repr=False)
    _of: tuple[list[JobId], list[tuple[float, ...]]] = field(default=([], []), init=False, repr=False)
    #: [quantity, job, kind]: the share; seconds run; those when the shares were counted anew; seconds that it is behind
    #: its share, from the times before.
    _table: FloatArray = field(default_factory=lambda: np.zeros((4, 0, 0)), init=False, repr=False)
    #: The speeds of jobs without epochs, which do not change, on the nodes that come next.
    _fixed: dict[JobId, tuple[float, ...]] = field(default_factory=dict, init=False, repr=False)
    _nodes: list[int] = field(default_factory=list, init=False, repr=False)

    @abstractmethod
    def shares(self, jobs: list[JobState], view: EngineView) -> FloatArray:
        """The share of the time, 0 to 1, that each job should run; [job]."""

    def shares_by_kind(self, jobs: list[JobState], rates: FloatArray, wide: FloatArray) -> FloatArray | None:
        """The share of the time that each job should run on each kind, [job, kind]; None: it knows no kinds.

        `rates` [job, kind]: what the policy's `rate` says. `wide` [job, kind]: the share of all nodes of a kind that
        the job holds.
        """
        del jobs, rates, wide
        return None

    def rate(self, job: JobState, node: int) -> float:
        """How fast it is on nodes like `node`: epochs/s."""
        return job.speed(*job.maximum, node)

    def line(self, jobs: list[JobState], view: EngineView) -> Iterable[JobState]:
        """See `Rounds`."""
        return (job for job, _ in self.turns(jobs, view))

    def run_on(self, jobs: list[JobState], view: EngineView) -> bool:
        """See `Rounds`: on nodes of several kinds jobs may change nodes."""
        kinds = of_kinds(view)
        if len(kinds) > 1:
            return False
        self._share_out(jobs, view, kinds)
        return True

    def turns(self, jobs: list[JobState], view: EngineView) -> Iterable[tuple[JobState, Turn]]:
        """See `Rounds`."""
        self._share_out(jobs, view, of_kinds(view))
        share, got, counted, behind = self._table[:, :, self._now]
        times = self.round / 2 + got - counted
        every = [sum(column) for column in times.T.tolist()]
        first = share * every / times
        order = np.lexsort([-each.ravel() for each in (share, behind, first)]).tolist()
        if len(self._now) == 1:
            kind = self._kinds[self._now[0]]
            turns = {size: Turn(size, kind) for size in {job.maximum for job in jobs}}
            return ((job, turns[job.maximum]) for job in map(jobs.__getitem__, order))
        pairs = (divmod(at, len(self._now)) for at in order)
        return ((jobs[at], Turn(jobs[at].maximum, self._kinds[self._now[kind]])) for at, kind in pairs)

    def _share_out(self, jobs: list[JobState], view: EngineView, kinds: Mapping[str, list[int]]) -> None:
        """Bring the table to the present jobs."""
        of = [job.id for job in jobs], self._speeds(jobs, [found[0] for found in kinds.values()])
        if of != self._of:
            # The counting of times is separate: with it alone, jobs that come often would never be behind.
            self._of = of
            self._keep(of[0])
            columns, shares = self._shared(jobs, view, kinds)
            self._add(columns)
            self._now = [self._kinds.index(kind) for kind in columns]
            before, got, counted, behind = self._table
            if view.now - self._since >= self.reset:
                arrived = np.array([job.arrived for job in jobs])
                given = before * (view.now - np.maximum(self._since, arrived))[:, None]
                behind[:, self._now] = (behind + given - (got - counted))[:, self._now]
                self._since, self._table[2] = view.now, got
            self._table[0] = 0.0
            self._table[0][:, self._now] = shares

    def _speeds(self, jobs: list[JobState], nodes: list[int]) -> list[tuple[float, ...]]:
        """How fast each job is on nodes like these."""
        if nodes != self._nodes:
            self._nodes = nodes
            self._fixed.clear()
        found = []
        for job in jobs:
            speeds = self._fixed.get(job.id)
            if speeds is None:
                speeds = tuple(job.speed(*job.maximum, node) for node in nodes)
                if not job.has_epochs:
                    self._fixed[job.id] = speeds
            found.append(speeds)
        return found

    def _shared(
        self, jobs: list[JobState], view: EngineView, kinds: Mapping[str, list[int]]
    ) -> tuple[list[str | None], FloatArray]:
        """The kinds that jobs have shares of, and the shares [job, kind]."""
        if len(kinds) > 1:
            rates = np.array([[self.rate(job, nodes[0]) for nodes in kinds.values()] for job in jobs])
            room = np.array([view.capacity[nodes].sum(axis=0) for nodes in kinds.values()])
            needs = np.array([total(job) for job in jobs])[:, None, :]
            wide = np.where(needs > 0, needs / np.maximum(room, 1e-12), 0.0).max(axis=2)
            if (found := self.shares_by_kind(jobs, rates, wide)) is not None:
                return list(kinds), found
        return [None], self.shares(jobs, view)[:, None]

    def _look(self, view: EngineView) -> None:
        before = self._ran
        super()._look(view)
        self._keep(sorted(self._ran))
        if self._now and self._kinds[self._now[0]] is None:
            found, get = self._ran, before.get
            more = [found[number] - get(number, 0.0) for number in self._ids]
            self._table[1, :, self._now[0]] += more
            return
        rows = {number: row for row, number in enumerate(self._ids)}
        for number, job in view.running.items():
            if more_of_it := self._ran[number] - before.get(number, 0.0):
                kind = view.kinds[job.plan[0][0]]
                self._add([kind])
                self._table[1, rows[number], self._kinds.index(kind)] += more_of_it

    def _keep(self, ids: list[JobId]) -> None:
        """The rows are those of these jobs."""
        if ids != self._ids:
            before = {number: row for row, number in enumerate(self._ids)}
            rows = [before.get(number, -1) for number in ids]
            self._table = np.pad(self._table, ((0, 0), (0, 1), (0, 0)))[:, rows]
            for gone in before.keys() - ids:
                self._fixed.pop(gone, None)
            self._ids = ids

    def _add(self, kinds: list[str | None]) -> None:
        """There are columns of these kinds."""
        new = [kind for kind in kinds if kind not in self._kinds]
        self._kinds += new
        self._table = np.pad(self._table, ((0, 0), (0, 0), (0, len(new)))) if new else self._table


def most_of(values: FloatArray, wide: FloatArray, least: FloatArray | None = None) -> tuple[FloatArray, float]:
    """Shares [job, kind] of the largest sum of `values` times shares: a job runs once at a time, and kinds have room.

    `least` [job, kind]: first the smallest sum of a job, of these times its shares, is made as large as possible; the
    second result is that sum.
    """
    jobs, kinds = values.shape
    size = jobs * kinds
    once = np.kron(np.eye(jobs), np.ones(kinds))
    room = (wide[:, None, :] * np.eye(kinds)).transpose(1, 0, 2).reshape(kinds, size)
    rows, limits = np.vstack([once, room]), np.ones(jobs + kinds)
    bounds = [(0.0, 0.0 if each > 1.0 + 1e-9 else 1.0) for each in wide.ravel().tolist()]
    level = 0.0
    if least is not None:
        sums = once * least.ravel()
        top = np.vstack([np.hstack([rows, np.zeros((len(rows), 1))]), np.hstack([-sums, np.ones((jobs, 1))])])
        found = linprog(np.r_[np.zeros(size), -1.0], top, np.r_[limits, np.zeros(jobs)], bounds=[*bounds, (0.0, None)])
        assert found.x is not None
        level = float(found.x[-1])
        rows, limits = np.vstack([rows, -sums]), np.r_[limits, np.full(jobs, -level * (1.0 - 1e-6))]
    found = linprog(-values.ravel(), rows, limits, bounds=bounds)
    assert found.x is not None  # nothing for nobody is a solution
    shares: FloatArray = np.clip(found.x, 0.0, 1.0).reshape(jobs, kinds)
    return shares, level
