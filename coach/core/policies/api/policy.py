"""What drivers call of a policy: `allocate(jobs, cluster)`.

The reducer asks, when a job is at the boundary of an epoch, arrives or ends, how many workers and servers each job
should have.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView
from coach.core.policies.api.parameters import spelled


class Policy(ABC):
    """Chooses how many workers and servers each job has; the driver chooses nodes. One object decides for one run.

    For every job: `minimum <= allocation <= maximum`, or `fixed` itself, or None. All allocations together fit
    on the nodes, and those of the jobs that are not busy fit in addition to what the busy ones hold now.
    """

    #: Its name without parameters. (A policy of a package may set `name` instead.)
    registered: ClassVar[str] = ""
    #: It also chooses the nodes (`places`).
    chooses_nodes: ClassVar[bool] = False
    #: It preempts jobs: live, it is also asked when a job that arrives finds no room where an elastic group trains,
    #: which can end its epoch early.
    preempts: ClassVar[bool] = False
    #: It places single pods of jobs that do not run yet, which live jobs do not have.
    places_waiting_pods: ClassVar[bool] = False
    #: Where all jobs fit at their maximum at once, each gets what it would get alone on the empty cluster. Drivers then
    #: ask about the jobs to which something happened, so a decision costs no time for the others. A policy of yours
    #: that leaves no room free, and no job waiting where there is room, says True.
    separable: ClassVar[bool] = False
    #: The same as long as all jobs are rigid: they have no epochs, and one size (minimum = maximum).
    separable_if_rigid: ClassVar[bool] = False
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
    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """Decide for all `jobs`; the rules are in `coach.core.policies.api.allocation`."""

    def memory(self, job: str) -> dict[str, Any]:
        """The state to save about a job of the last decision, as JSON values; {}: nothing.

        A restarted handler's policy finds it in `policy_state` of the job's view.
        """
        return {}
