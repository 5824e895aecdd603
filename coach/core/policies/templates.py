"""The two kinds of policies: each is written for one question of a driver; a template method answers the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from coach.core.cluster import Allocation
from coach.core.policies.adapters.node_placement import NodePlacement
from coach.core.policies.adapters.planned_allocation import PlannedAllocation
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView
from coach.core.policies.api.policy import Policy
from coach.core.policies.api.scheduling import Action, EpochEnded, Event, JobId, View


class AllocationPolicy(Policy):
    """Chooses how many workers and servers each job has (`allocate`); the driver chooses nodes.

    For every job: `minimum <= allocation <= maximum`, or `fixed` itself, or None. All allocations together fit
    on the nodes, and those of the jobs that are not busy fit in addition to what the busy ones hold now.
    """

    @property
    def wants(self) -> frozenset[type]:  # type: ignore[override]
        """With a cadence no job is asked about at its epochs."""
        return frozenset() if self.cadence else frozenset({EpochEnded})

    def schedule(self, event: Event, view: View) -> Iterable[Action]:
        """See `Policy`: `allocate`, with pods on few nodes (`NodePlacement`)."""
        placement: NodePlacement | None = self.__dict__.get("_placement")
        if placement is None or placement.view is not view:
            placement = self.__dict__["_placement"] = NodePlacement(self, view)
        return placement.schedule(event)


class SchedulingPolicy(Policy):
    """Reacts to events (`schedule`): it chooses nodes, and may preempt, move and reserve."""

    chooses_nodes: ClassVar[bool] = True

    @abstractmethod
    def schedule(self, event: Event, view: View) -> Iterable[Action]:
        """See `Policy`."""

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`: what it has planned so far, as far as live jobs can follow (`PlannedAllocation`)."""
        return self._planned.allocate(jobs, cluster)

    @property
    def places(self) -> Mapping[str, Mapping[str, Allocation]]:  # type: ignore[override]
        """See `Policy`."""
        return self._planned.places

    def memory(self, job: str) -> dict[str, Any]:
        """See `Policy`."""
        return self._planned.memory(job)

    def remembered(self, job: JobId, /) -> dict[str, Any]:
        """The state to save about a job, as JSON values; {}: nothing."""
        return {}

    def recall(self, job: JobId, known: Mapping[str, Any], /) -> None:
        """Restore what `remembered` returned, for a job that is about to arrive."""

    @cached_property
    def _planned(self) -> PlannedAllocation:
        return PlannedAllocation(self)
