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
from itertools import product

import numpy as np
from scipy.optimize import linprog

from coach_research.policies.rounds.rounds import Rounds, Turn, of_kinds, total
from coach_research.scheduling.api import EngineView, JobId, JobState, Phase
from coach_research.workload import FloatArray

#: A job on nodes of a kind; None: on any.
Pair = tuple[JobId, str | None]


@dataclass
class Shares(Rounds):
    """See the module. A policy defines `shares`."""

    reset: float = 1000.0

    _since: float = field(default=float("-inf"), init=False, repr=False)
    _of: tuple[tuple[JobId, tuple[float, ...]], ...] = field(default=(), init=False, repr=False)
    _shares: Mapping[Pair, float] = field(default_factory=dict, init=False, repr=False)
    #: Seconds that each pair has run, and had when the shares were counted anew.
    _got: dict[Pair, float] = field(default_factory=dict, init=False, repr=False)
    _counted: dict[Pair, float] = field(default_factory=dict, init=False, repr=False)
    #: Seconds that each pair is behind its share, from the times before.
    _behind: dict[Pair, float] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def shares(self, jobs: list[JobState], view: EngineView) -> Mapping[JobId, float]:
        """The share of the time, 0 to 1, that each job should run."""

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

    def turns(self, jobs: list[JobState], view: EngineView) -> Iterable[tuple[JobState, Turn]]:
        """See `Rounds`."""
        kinds = of_kinds(view)
        nodes = [found[0] for found in kinds.values()]
        of = tuple((job.id, tuple(job.speed(*job.maximum, node) for node in nodes)) for job in jobs)
        if of != self._of:
            # The counting of times is separate: with it alone, jobs that come often would never be behind.
            self._of, shares = of, self._shared(jobs, view, kinds)
            if view.now - self._since >= self.reset:
                arrived = {job.id: job.arrived for job in jobs}
                for pair in shares:
                    given = self._shares.get(pair, 0.0) * (view.now - max(self._since, arrived[pair[0]]))
                    got = self._got.get(pair, 0.0) - self._counted.get(pair, 0.0)
                    self._behind[pair] = self._behind.get(pair, 0.0) + given - got
                self._since, self._counted = view.now, dict(self._got)
            self._shares = shares
        times = {
            pair: self.round / 2 + self._got.get(pair, 0.0) - self._counted.get(pair, 0.0) for pair in self._shares
        }
        every: dict[str | None, float] = {}
        for (_, kind), seconds in times.items():
            every[kind] = every.get(kind, 0.0) + seconds

        def priority(pair: Pair) -> tuple[float, float, float]:
            share = self._shares[pair]
            return share * every[pair[1]] / times[pair], self._behind.get(pair, 0.0), share

        here = {job.id: job for job in jobs}
        order = sorted(self._shares, key=priority, reverse=True)
        return ((here[number], Turn(here[number].maximum, kind)) for number, kind in order)

    def _shared(self, jobs: list[JobState], view: EngineView, kinds: Mapping[str, list[int]]) -> Mapping[Pair, float]:
        found = None
        if len(kinds) > 1:
            rates = np.array([[self.rate(job, nodes[0]) for nodes in kinds.values()] for job in jobs])
            room = np.array([view.capacity[nodes].sum(axis=0) for nodes in kinds.values()])
            needs = np.array([total(job) for job in jobs])[:, None, :]
            wide = np.where(needs > 0, needs / np.maximum(room, 1e-12), 0.0).max(axis=2)
            found = self.shares_by_kind(jobs, rates, wide)
        if found is None:
            given = self.shares(jobs, view)
            return {(job.id, None): given.get(job.id, 0.0) for job in jobs}
        pairs = product((job.id for job in jobs), kinds)
        return dict(zip(pairs, found.ravel().tolist(), strict=True))

    def _look(self, view: EngineView) -> None:
        before = self._ran
        super()._look(view)
        for number, ran in self._ran.items():
            job = view.jobs[number]
            if job.phase is Phase.RUNNING and (more := ran - before.get(number, 0.0)):
                kind = view.kinds[job.plan[0][0]] if (number, None) not in self._shares else None
                self._got[number, kind] = self._got.get((number, kind), 0.0) + more
        for kept in (self._behind, self._counted, self._got):
            for pair in [pair for pair in kept if pair[0] not in self._ran]:
                del kept[pair]


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
