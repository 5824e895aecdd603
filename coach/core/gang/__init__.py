"""Gang-like scheduling: which pod comes first, which may start, and where a job's pods go.

Three files, pure like all of `coach.core`:

- `rules`: the thesis's three rules (section 4.5, algorithms 1-3), as they are printed;
- `plan`: beyond them, one job's pods as a gang - all needed members or nothing, on one snapshot;
- `queue`: several gangs in queue order over one snapshot, and who may pass a gang that waits.

`packing` is the arithmetic under the last two. The local platform and the simulator call `schedule_queue`; the
Kubernetes plugins are the same decisions in Go, held equal by `tests/conformance/*.yaml`.
"""

from coach.core.gang.plan import Gang, GangPlan, Pending, PendingReason, plan_gang, plan_on
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
    "plan_gang",
    "plan_on",
    "queue_key",
    "same_job_score",
    "schedule_queue",
]
