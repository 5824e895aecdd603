"""Gavel's mechanism (OSDI 2020, section 5): policies say which share of the time each job should run.

A job's priority is its share divided by the part of all jobs' run time that it got, since the shares were counted
anew (every `reset` seconds, when a job came, ended or changed its speed). The one farthest behind its share is first.
As in the authors' code a job counts with half a round from the start.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coach_research.policies.rounds.rounds import Rounds
from coach_research.scheduling.api import EngineView, JobId, JobState


@dataclass
class Shares(Rounds):
    """See the module. A policy defines `shares`."""

    reset: float = 1000.0

    _since: float = field(default=float("-inf"), init=False, repr=False)
    _of: tuple[tuple[JobId, float], ...] = field(default=(), init=False, repr=False)
    _shares: Mapping[JobId, float] = field(default_factory=dict, init=False, repr=False)
    #: Seconds that each job had run when the shares were counted anew.
    _counted: dict[JobId, float] = field(default_factory=dict, init=False, repr=False)
    #: Seconds that each job is behind its share, from the times before.
    _behind: dict[JobId, float] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def shares(self, jobs: list[JobState], view: EngineView) -> Mapping[JobId, float]:
        """The share of the time, 0 to 1, that each job should run."""

    def line(self, jobs: list[JobState], view: EngineView) -> Iterable[JobState]:
        """See `Rounds`."""
        of = tuple((job.id, job.speed(*job.maximum)) for job in jobs)
        if of != self._of:
            # The counting of times is separate: with it alone, jobs that come often would never be behind.
            self._of, shares = of, self.shares(jobs, view)
            if view.now - self._since >= self.reset:
                for job in jobs:
                    given = self._shares.get(job.id, 0.0) * (view.now - max(self._since, job.arrived))
                    got = self._ran[job.id] - self._counted.get(job.id, 0.0)
                    self._behind[job.id] = self._behind.get(job.id, 0.0) + given - got
                self._since, self._counted = view.now, dict(self._ran)
            self._shares = shares
        times = {job.id: self.round / 2 + self._ran[job.id] - self._counted.get(job.id, 0.0) for job in jobs}
        every = sum(times.values())
        behind = self._behind

        def priority(job: JobState) -> tuple[float, float, float]:
            share = self._shares.get(job.id, 0.0)
            return share * every / times[job.id], behind.get(job.id, 0.0), share

        return sorted(jobs, key=priority, reverse=True)

    def _look(self, view: EngineView) -> None:
        super()._look(view)
        ran = self._ran
        self._behind = {job: seconds for job, seconds in self._behind.items() if job in ran}
        self._counted = {job: seconds for job, seconds in self._counted.items() if job in ran}
