"""Gang-like scheduling: the order of pods, which of them may start, and on which nodes.

Three files, pure like all of `coach.core`:

- `rules`: the thesis's three rules (section 4.5, algorithms 1-3), as printed;
- `plan`: beyond the thesis, one job's pods as a gang: all required members or none, on one snapshot;
- `queue`: several gangs in queue order on one snapshot, and which of them may pass a waiting gang.

`packing` places pods for the last two. The local platform and the simulator call `schedule_queue`. The Kubernetes
plugins make the same decisions in Go; `tests/conformance/*.yaml` checks that both agree.
"""

from coach.core.gang.plan import Gang, GangPlan, Pending, PendingReason, never_fits, plan_gang, plan_on
from coach.core.gang.queue import Backfill, schedule_queue
from coach.core.gang.rules import (
    ForeignPod,
    PodRequest,
    QueueKey,
    all_types_present,
    queue_key,
    same_job_score,
)
from coach.core.gang.snapshot import Occupancy, Snapshot

__all__ = [
    "Backfill",
    "ForeignPod",
    "Gang",
    "GangPlan",
    "Occupancy",
    "Pending",
    "PendingReason",
    "PodRequest",
    "QueueKey",
    "Snapshot",
    "all_types_present",
    "never_fits",
    "plan_gang",
    "plan_on",
    "queue_key",
    "same_job_score",
    "schedule_queue",
]
