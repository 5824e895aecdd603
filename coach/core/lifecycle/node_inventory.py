"""The nodes that the reducer knows: all, those unavailable at present, and the pods on the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from coach.core.cluster import NOTHING, Allocation, Node, Resources, Taken, without
from coach.core.gang.plan import GangPlan
from coach.core.gang.snapshot import Occupancy
from coach.core.jobs.job import Job
from coach.core.lifecycle.cluster_state import plan_alone

#: Unavailable nodes that a message names, at most.
_MAX_NAMED = 5


class NodeInventory:
    """Jobs are placed on the `available` nodes, less what pods that are not Coach's hold there.

    A job that does not fit on `all`, as if these were empty, will never start.
    """

    def __init__(self) -> None:
        self.all: tuple[Node, ...] = ()
        self.available: tuple[Node, ...] = ()
        self.unavailable: frozenset[str] = frozenset()
        self.taken: dict[str, Taken] = {}
        #: All pods on the available nodes, and the jobs whose pods may have changed since.
        self._occupancy = Occupancy(())
        self._touched: set[str] = set()
        #: Whether the empty nodes (True: all, False: the available ones) can hold an allocation whose worker, server
        #: and scheduler have these requests.
        self._holds: dict[tuple[bool, tuple[Resources, ...], Allocation], bool] = {}

    def replace(
        self,
        nodes: tuple[Node, ...],
        unavailable: Collection[str],
        jobs: Iterable[str],
        taken: Iterable[Taken] | None = None,
    ) -> None:
        """Set all nodes; `jobs` are those that may have pods there; `taken`: None for the same as before."""
        self.all = nodes
        if taken is not None:
            self.taken = {one.node: one for one in taken}
        self.unavailable = frozenset(unavailable).intersection(node.name for node in nodes)
        self.available = without(self.there, self.taken.values())
        self._holds.clear()
        self._occupancy = Occupancy(self.available)
        self._touched.update(jobs)

    @property
    def there(self) -> tuple[Node, ...]:
        """Those that are not unavailable, with all of their capacity."""
        return tuple(node for node in self.all if node.name not in self.unavailable)

    def invalidate(self, job: str) -> None:
        """Note that the pods of this job may have changed, or that it is gone."""
        self._touched.add(job)

    def occupancy(self, jobs: Mapping[str, Job]) -> Occupancy:
        """The pods on the available nodes."""
        for name in self._touched:
            job = jobs.get(name)
            pods = [] if job is None or job.ended else [held.pod for held in job.gang.pods.values()]
            self._occupancy.hold(name, pods)
        self._touched.clear()
        return self._occupancy

    def can_hold(self, job: Job, allocation: Allocation, *, ever: bool = False) -> bool:
        """Whether `allocation` fits on the available nodes when they are empty; `ever`: on all nodes."""
        key = ever, job.spec.resources.each, allocation
        if key not in self._holds:
            nodes = self.all if ever else self.available
            self._holds[key] = isinstance(plan_alone(job, allocation, nodes), GangPlan)
        return self._holds[key]

    def taken_words(self) -> str:
        """Who else than Coach's jobs holds what of the nodes, where that is known."""
        return "; ".join(one.why for one in self.taken.values() if one.why)

    def describe_unavailable(self) -> str:
        """`2 of 3 nodes are unavailable: node-0, node-2`, or what pods that are not Coach's hold."""
        if not self.unavailable:
            if words := self.taken_words():
                return words
            held = sum((one.amount for one in self.taken.values()), NOTHING)
            return f"pods that are not Coach's hold {held.cpu:g} cpu and {held.memory:.3g} GiB"
        named = sorted(self.unavailable)[:_MAX_NAMED]
        more = f" and {len(self.unavailable) - len(named)} more" if len(self.unavailable) > len(named) else ""
        verb = "is" if len(self.unavailable) == 1 else "are"
        return f"{len(self.unavailable)} of {len(self.all)} nodes {verb} unavailable: {', '.join(named)}{more}"
