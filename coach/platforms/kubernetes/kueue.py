"""Kueue (0.15 or later): pods that wait for a queue's quota, a program's together.

Kueue keeps a Workload for each group of pods, and says in it what they wait for. It gates pods, and holds the objects
of a group until all its pods have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from coach.core.errors import CoachError
from coach.core.spec.job import TrainingJob
from coach.platforms.kubernetes_api.client import Api, ApiError, Object, until_answered
from coach.platforms.kubernetes_api.watch import Collection

log = logging.getLogger(__name__)

#: Labels of a job, and so of its pods: the queue whose quota they need, and their priority in it.
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
#: Label and annotations of pods that are admitted together or not at all.
GROUP, COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
#: What keeps a pod from the scheduler until it is admitted.
GATE = "kueue.x-k8s.io/admission"


def labels(job: TrainingJob) -> dict[str, str]:
    """Those of a job's pods; none where it names no queue."""
    found = job.metadata.labels or {}
    return {name: found[name] for name in (QUEUE, PRIORITY) if name in found} if QUEUE in found else {}


def join(pod: Object, group: str, count: int) -> None:
    """Make a pod with a queue one of `count` that are admitted together; the next attempt's are another group."""
    if QUEUE in pod["metadata"]["labels"]:
        pod["metadata"]["labels"][GROUP] = group
        pod["metadata"]["annotations"] = {COUNT: str(count), RETRIABLE: "false"}


def gated(pod: Object) -> bool:
    """Whether it waits for its admission."""
    return any(one["name"] == GATE for one in pod["spec"].get("schedulingGates") or ())


class Workloads:
    """What Kueue says of the pods of a namespace; `changed` is called when that is news."""

    def __init__(self, api: Api, changed: Callable[[], None]) -> None:
        self._api, self._changed = api, changed
        self._path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{api.namespace}/workloads"
        self._workloads = Collection(api, self._path, keep=_footprint)
        self._workloads.listeners.append(self._note)
        self._follows = False
        #: By the unique id of a pod: the name of its Workload.
        self._names: dict[str, str] = {}

    async def follow(self) -> None:
        """Follow them from now on, where they can be read: a cluster without Kueue has none."""
        if self._follows:
            return
        self._follows = True
        try:
            await self._workloads.open()
        except CoachError as error:
            self._follows = False
            log.warning("a job names a queue, and what Kueue says of it cannot be read: %s", error)

    async def close(self) -> None:
        """Stop following."""
        await self._workloads.close()

    def waiting(self, pod: Object) -> str:
        """Why a pod is not admitted, in Kueue's words; empty where it has said nothing."""
        workload = self._workloads.objects.get(self._names.get(pod["metadata"]["uid"], ""), {})
        conditions = workload.get("status", {}).get("conditions") or ()
        said = {one["type"]: str(one.get("message", "")) for one in conditions if one["status"] == "False"}
        return said.get("QuotaReserved") or said.get("Admitted") or ""

    async def let_go(self, pod: Object) -> None:
        """Have Kueue let go of the pods of this one's group. Raises ApiError."""
        if group := pod["metadata"].get("labels", {}).get(GROUP):
            try:
                await until_answered(lambda: self._api.delete(f"{self._path}/{group}"))
            except ApiError as error:
                if error.status != 403:
                    raise

    def _note(self, name: str, found: Object | None) -> None:
        self._names = {pod: of for pod, of in self._names.items() if of != name}
        owners = found["metadata"].get("ownerReferences") or () if found else ()
        self._names |= {one["uid"]: name for one in owners}
        self._changed()


def _footprint(workload: Object) -> Object:
    """The parts of a Workload that are read here, and what a watch needs."""
    wanted = ("name", "namespace", "uid", "resourceVersion", "ownerReferences")
    metadata = {name: workload["metadata"][name] for name in wanted if name in workload["metadata"]}
    return {"metadata": metadata, "status": {"conditions": workload.get("status", {}).get("conditions") or []}}
