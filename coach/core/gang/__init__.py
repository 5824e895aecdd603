"""Gang scheduling: one job's pods are placed all or none, on one snapshot of the nodes.

`plan` says which pods get which node, or why none does; `packing` places them; `snapshot` is what the nodes have. The
Kubernetes plugins make the same decisions in Go: `tests/conformance/*.yaml` checks that both agree.
"""

from coach.core.gang.plan import Gang, GangPlan, Pending, PendingReason, never_fits, plan_gang, plan_on
from coach.core.gang.snapshot import ForeignPod, Occupancy, PodRequest, Snapshot

__all__ = [
    "ForeignPod",
    "Gang",
    "GangPlan",
    "Occupancy",
    "Pending",
    "PendingReason",
    "PodRequest",
    "Snapshot",
    "never_fits",
    "plan_gang",
    "plan_on",
]
