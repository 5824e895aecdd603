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

from coach_research.policies.rounds.rounds import Rounds, Turn, by_arrival, of_kinds, widest
from coach_research.scheduling.api import EngineView, IntArray, JobState, SchedulingEvent, TimerFired
from coach_research.workload import FloatArray


@dataclass
class Shares(Rounds):
    """See the module. A policy defines `shares`."""

    reset: float = 1000.0

    _since: float = field(default=float("-inf"), init=False, repr=False)
    #: The kinds that jobs have had shares of, as columns; those of the present shares.
    _kinds: list[str | None] = field(default_factory=list, init=False, repr=False)
    _now: list[int] = field(default_factory=list, init=False, repr=False)
    #: The jobs as rows, in order; what each requests in all; those with epochs, whose speeds may change; the kinds of
    #: nodes, and these speeds on them, as of the present shares.
    _ids: IntArray = field(default_factory=lambda: np.zeros(0, np.intp), init=False, repr=False)
    _needs: FloatArray = field(default_factory=lambda: np.zeros((0, 3)), init=False, repr=False)
    _learning: list[JobState] = field(default_factory=list, init=False, repr=False)
    _of: tuple[list[str], list[list[float]]] = field(default=([], []), init=False, repr=False)
    #: [quantity, job, kind]: the share; seconds run; those when the shares were counted anew; seconds that it is behind
    #: its share, from the times before.
    _table: FloatArray = field(default_factory=lambda: np.zeros((4, 0, 0)), init=False, repr=False)

    @abstractmethod
    def shares(self, jobs: list[JobState], wide: FloatArray, view: EngineView) -> FloatArray:
        """The share of the time, 0 to 1, that each job should run; [job].

        `wide` [job]: the share of the cluster that the job holds while it runs.
        """

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

    def takes_all(self, view: EngineView) -> bool:
        """See `Rounds`: on nodes of several kinds jobs may change nodes."""
        return len(set(view.kinds)) == 1

    def count(self, view: EngineView) -> None:
        """See `Rounds`."""
        self._share_out(view)

    def turns(self, jobs: list[JobState], view: EngineView) -> Iterable[tuple[JobState, Turn]]:
        """See `Rounds`."""
        self._share_out(view)
        self._count_times()
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

    def _share_out(self, view: EngineView) -> None:
        """Bring the table to the present jobs."""
        kinds = of_kinds(view)
        ids = np.sort(np.fromiter(view.jobs, np.intp, len(view.jobs)))
        others = not np.array_equal(ids, self._ids)
        if others:
            self._keep(ids, view)
        nodes = [found[0] for found in kinds.values()]
        of = list(kinds), [[job.speed(*job.maximum, node) for node in nodes] for job in self._learning]
        if others or of != self._of:
            # The counting of times is separate: with it alone, jobs that come often would never be behind.
            self._of, jobs = of, by_arrival(view)
            columns, shares = self._shared(jobs, view, kinds)
            self._add(columns)
            self._now = [self._kinds.index(kind) for kind in columns]
            before, got, counted, behind = self._table
            if view.now - self._since >= self.reset:
                self._count_times()
                arrived = np.array([job.arrived for job in jobs])
                given = before * (view.now - np.maximum(self._since, arrived))[:, None]
                behind[:, self._now] = (behind + given - (got - counted))[:, self._now]
                self._since, self._table[2] = view.now, got
            self._table[0] = 0.0
            self._table[0][:, self._now] = shares

    def _shared(
        self, jobs: list[JobState], view: EngineView, kinds: Mapping[str, list[int]]
    ) -> tuple[list[str | None], FloatArray]:
        """The kinds that jobs have shares of, and the shares [job, kind]."""
        for row, job in zip(
            np.searchsorted(self._ids, [job.id for job in self._learning]), self._learning, strict=True
        ):
            self._needs[row] = job.at_maximum
        if len(kinds) > 1:
            rates = np.array([[self.rate(job, nodes[0]) for nodes in kinds.values()] for job in jobs])
            room = np.array([view.capacity[nodes].sum(axis=0) for nodes in kinds.values()])
            needs = self._needs[:, None, :]
            wide = np.where(needs > 0, needs / np.maximum(room, 1e-12), 0.0).max(axis=2)
            if (found := self.shares_by_kind(jobs, rates, wide)) is not None:
                return list(kinds), found
        return [None], self.shares(jobs, widest(self._needs, view), view)[:, None]

    def note(self, event: SchedulingEvent, view: EngineView) -> None:
        """See `Rounds`: on which kinds jobs run is counted at timers."""
        looked = self._looked
        super().note(event, view)
        if isinstance(event, TimerFired) and len(self._now) and self._kinds[self._now[0]] is not None:
            rows = {number: row for row, number in enumerate(self._ids.tolist())}
            for number, job in view.running.items():
                if more := self._looked - max(looked, self._began[number]):
                    kind = view.kinds[job.plan[0][0]]
                    self._add([kind])
                    self._table[1, rows[number], self._kinds.index(kind)] += more

    def _count_times(self) -> None:
        """Bring the seconds run without regard to kinds to the last timer: what was not counted for a kind."""
        if None in self._kinds:
            at, got = self._kinds.index(None), self._table[1]
            got[:, at] += [self.ran(number) for number in self._ids.tolist()] - got.sum(axis=1)

    def _keep(self, ids: IntArray, view: EngineView) -> None:
        """The rows are those of these jobs."""
        at = np.minimum(np.searchsorted(self._ids, ids), max(0, len(self._ids) - 1))
        old = self._ids[at] == ids if len(self._ids) else np.zeros(len(ids), bool)
        table, needs = np.zeros((4, len(ids), len(self._kinds))), np.zeros((len(ids), 3))
        table[:, old], needs[old] = self._table[:, at[old]], self._needs[at[old]]
        new = [view.jobs[number] for number in ids[~old].tolist()]
        if new:
            needs[~old] = [job.at_maximum for job in new]
        self._learning = [job for job in self._learning if job.id in view.jobs] + [job for job in new if job.has_epochs]
        self._ids, self._table, self._needs = ids, table, needs

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
