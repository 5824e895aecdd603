"""The nodes that the reducer knows: all of them, those that are away for now, and what stands on the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from coach.core.cluster import Allocation, Node, Resources
from coach.core.gang import GangPlan, Stand
from coach.core.jobs.job import Job
from coach.core.lifecycle.cluster_state import plan_alone

#: Nodes away that are named, at most.
_MOST_NAMED = 5


class Nodes:
    """Jobs are placed on the nodes that are `there`. What none of `all` can hold will never start."""

    def __init__(self) -> None:
        self.all: tuple[Node, ...] = ()
        self.there: tuple[Node, ...] = ()
        self.away: frozenset[str] = frozenset()
        #: All pods on the nodes that are there, and the jobs whose pods may have changed since.
        self._stand = Stand(())
        self._touched: set[str] = set()
        #: Whether empty nodes (all; those that are there) can hold an allocation of pods that ask for so much
        #: (worker, server, scheduler).
        self._holds: dict[tuple[bool, tuple[Resources, ...], Allocation], bool] = {}

    def are(self, nodes: tuple[Node, ...], away: Collection[str], jobs: Iterable[str]) -> None:
        """These are the nodes from now on, and those named in `away` are away; `jobs` are all that may stand there."""
        self.all = nodes
        self.away = frozenset(away).intersection(node.name for node in nodes)
        self.there = tuple(node for node in nodes if node.name not in self.away)
        self._holds.clear()
        self._stand = Stand(self.there)
        self._touched.update(jobs)

    def touch(self, job: str) -> None:
        """The pods of this job may have changed, or it is gone."""
        self._touched.add(job)

    def stand(self, jobs: Mapping[str, Job]) -> Stand:
        """What stands on the nodes that are there."""
        for name in self._touched:
            job = jobs.get(name)
            pods = [] if job is None or job.ended else [held.pod for held in job.pods.values()]
            self._stand.hold(name, pods)
        self._touched.clear()
        return self._stand

    def can_hold(self, job: Job, allocation: Allocation, *, ever: bool = False) -> bool:
        """Whether the nodes that are there have room for `allocation` when empty; `ever`: those away too."""
        key = ever, job.spec.spec.resources.each, allocation
        if key not in self._holds:
            nodes = self.all if ever else self.there
            self._holds[key] = isinstance(plan_alone(job, allocation, nodes), GangPlan)
        return self._holds[key]

    def away_words(self) -> str:
        """`2 of 3 nodes are away: node-0, node-2`."""
        named = sorted(self.away)[:_MOST_NAMED]
        more = f" and {len(self.away) - len(named)} more" if len(self.away) > len(named) else ""
        verb = "is" if len(self.away) == 1 else "are"
        return f"{len(self.away)} of {len(self.all)} nodes {verb} away: {', '.join(named)}{more}"
