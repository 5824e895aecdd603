"""What drivers call of a policy. There are two questions, and every policy answers both:

* `schedule(event, view)`: the event engine says what has happened, and carries out the actions one by one;
* `allocate(jobs, cluster)`: the reducer asks, when a job is at the boundary of an epoch, arrives or ends, how many
  workers and servers each job should have.

A policy is written for one of them. The two kinds in `coach.core.policies.kinds` answer the other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView
from coach.core.policies.api.parameters import spelled
from coach.core.policies.api.scheduling import EngineView, SchedulingAction, SchedulingEvent


class Policy(ABC):
    """A policy, as drivers see it. One object decides for one run."""

    #: Its name without parameters. (A policy of a package may set `name` instead.)
    registered: ClassVar[str] = ""
    #: In the reducer it also chooses the nodes (`places`).
    chooses_nodes: ClassVar[bool] = False
    #: It places single pods of jobs that do not run yet, which only the event engine has.
    places_waiting_pods: ClassVar[bool] = False
    #: Where all jobs fit at their maximum at once, each gets what it would get alone: drivers then ask about the moving
    #: jobs only.
    separable: ClassVar[bool] = False
    #: It has state about jobs (`memory`), which the driver saves.
    stateful: ClassVar[bool] = False

    #: Allocations at which every job is measured first, in this order. (): where the driver finds it worth the time.
    mini_epochs: ClassVar[tuple[Allocation, ...]] = ()
    #: Before every epoch all pods of its job are released, and others asked for.
    remakes_pods: bool = False

    #: What decides in its place where its decisions take more than `slow_after` seconds of a core.
    fallback: ClassVar[Policy | None] = None
    slow_after: float = math.inf
    #: Seconds between two decisions; None: at epoch boundaries, arrivals and ends.
    cadence: float | None = None
    #: SchedulingEvent types that cost time and are sent only where wanted: `EpochEnded`.
    wants: frozenset[type] = frozenset()
    #: By job, the allocation on each node as decided last; jobs that are not in it may be on any node. Drivers read it
    #: right after `allocate`.
    places: Mapping[str, Mapping[str, Allocation]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.stateful = cls.memory is not Policy.memory

    @property
    def name(self) -> str:
        """As `coach.plugins.policy` reads it: the parameters that differ from their defaults are part of it."""
        return spelled(self.registered, self)

    @abstractmethod
    def schedule(self, event: SchedulingEvent, view: EngineView) -> Iterable[SchedulingAction]:
        """The actions that follow from `event`; the rules are in `coach.core.policies.api.scheduling`."""

    @abstractmethod
    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """Decide for all `jobs`; the rules are in `coach.core.policies.api.allocation`."""

    def memory(self, job: str) -> dict[str, Any]:
        """The state to save about a job of the last decision, as JSON values; {}: nothing.

        A restarted handler's policy finds it in `policy_state` of the job's view.
        """
        return {}
