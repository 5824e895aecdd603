"""What a pod's status says: whether it runs, and what keeps it from running, in the words of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coach.core.cluster import NOTHING, Resources
from coach.core.jobs.reasons import Reason
from coach.core.spec import quantities
from coach.platforms.kubernetes_api.nodes import GPU, gpus

if TYPE_CHECKING:
    from coach.platforms.kubernetes_api.client import Object

#: Why a container waits for longer than it should. The kubelet tries again; what is amiss may still be mended.
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable"})
_CONFIGURATION = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
#: Typed reasons of Coach's own scheduler (`docs/advanced/scheduler.md`). No other word of a message is a job's reason:
#: who may write a pod's status could end the job by one.
_SCHEDULER = frozenset(
    {
        Reason.MISCONFIGURED,
        Reason.WAITING_MEMBERS,
        Reason.WAITING_CAPACITY,
        Reason.SHADOW_RESERVED,
        Reason.NEVER_FITS,
        Reason.DRAINING,
        Reason.PLACING,
    }
)
#: Messages of a pod whose group waits for the sake of another, which says why: of Coach's scheduler (its plan was
#: dropped, or another plugin refused its node, of which the gang's own reason speaks), coscheduling, native gangs.
_ANOTHER_SAYS = (": 1 removed.", " was rejected by ", "rejection in ", "minCount (")
#: Reasons of the condition DisruptionTarget that are no fault of the pod, of its memory or of its disk.
_DISRUPTIONS = frozenset({"PreemptionByScheduler", "EvictionByEvictionAPI"})
#: Exit code of a process that the kernel killed with SIGKILL.
_KILLED = 137


def requests(amount: Resources, device: str = GPU) -> Object:
    """The `resources` of a container that requests so much, GPUs as `device`; of memory and GPUs it gets no more."""
    memory = f"{round(amount.memory * 1024)}Mi"
    limits = {"memory": memory}
    if amount.gpu:
        limits[device] = f"{amount.gpu:g}"
    return {"requests": {"cpu": f"{round(amount.cpu * 1000)}m", "memory": memory}, "limits": limits}


def held(pod: Object) -> Resources:
    """What it holds on its node as the scheduler counts: containers, or an init container that needs more; overhead."""
    spec = pod["spec"]
    running, most = NOTHING, NOTHING
    for container in spec.get("initContainers") or ():
        asked = _asked(container.get("resources"))
        most = _most(most, running + asked)
        if container.get("restartPolicy") == "Always":  # a sidecar
            running += asked
    for container in spec["containers"]:
        running += _asked(container.get("resources"))
    overhead = {"requests": spec["overhead"]} if spec.get("overhead") else None
    return _most(running, most) + _asked(overhead)


def footprint(pod: Object) -> Object:
    """The parts of a pod that `held` and `node` read, and what a watch needs."""
    parts = ("nodeName", "containers", "initContainers", "overhead")
    spec = {name: pod["spec"][name] for name in parts if name in pod["spec"]}
    for name in ("containers", "initContainers"):
        if name in spec:
            kept = ("resources", "restartPolicy")
            spec[name] = [{part: one[part] for part in kept if part in one} for one in spec[name]]
    wanted = ("name", "namespace", "uid", "resourceVersion")
    return {"metadata": {name: pod["metadata"][name] for name in wanted}, "spec": spec}


def _asked(resources: Object | None) -> Resources:
    """What `resources` requests, whatever spelling its writer chose."""
    asked = (resources or {}).get("requests") or {}
    cpu, memory = (quantities.of_object(str(asked.get(name, 0))) for name in ("cpu", "memory"))
    return Resources(cpu, memory / 2**30, gpus(asked))


def _most(one: Resources, other: Resources) -> Resources:
    return Resources(max(one.cpu, other.cpu), max(one.memory, other.memory), max(one.gpu, other.gpu))


def node(pod: Object) -> str:
    """The node that it is bound to; empty before that."""
    return str(pod.get("spec", {}).get("nodeName") or "")


def address(pod: Object) -> str:
    """Its IP address, once its sandbox is there."""
    return str(pod.get("status", {}).get("podIP") or "")


def terminated(pod: Object) -> Object | None:
    """How its first container ended; None while it runs, or where none of it ever ran."""
    found: Object | None = _first_state(pod).get("terminated")
    return found


def started_at(pod: Object) -> str:
    """When its first container started, as Kubernetes writes it; empty before that."""
    state = _first_state(pod)
    return str((state.get("running") or state.get("terminated") or {}).get("startedAt") or "")


def _first_state(pod: Object) -> Object:
    found: Object = next(iter(pod.get("status", {}).get("containerStatuses") or ()), {})
    return found.get("state") or {}


def ending(pod: Object) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def ready(pod: Object) -> bool:
    """Whether its readiness probe has succeeded."""
    return _condition(pod, "Ready").get("status") == "True" and not ending(pod)


def waiting(pod: Object) -> tuple[Reason, str] | None:
    """What it waits for, in the words of the scheduler or the kubelet; None where neither has said anything."""
    condition = _condition(pod, "PodScheduled")
    if condition.get("status") == "False":
        # Coach's scheduler begins with its typed reason, `WaitingCapacity: needs ...`.
        word, _, rest = str(condition.get("message", "")).partition(": ")
        if word in _SCHEDULER:
            return Reason(word), rest
        if gates := [one["name"] for one in pod["spec"].get("schedulingGates") or ()]:
            return Reason.WAITING_CAPACITY, f"SchedulingGated: until {', '.join(gates)} is taken away"
        if any(words in condition.get("message", "") for words in _ANOTHER_SAYS):
            return None
        return Reason.WAITING_CAPACITY, f"{condition.get('reason')}: {condition.get('message', '')}".rstrip(": ")
    for container in _containers(pod):
        state = container.get("state", {}).get("waiting", {})
        word, said = state.get("reason", ""), state.get("message", "")
        if word in _IMAGE:
            return Reason.IMAGE_UNAVAILABLE, f"{word}: {container.get('image', '')}: {said}".rstrip(": ")
        if word in _CONFIGURATION:
            return Reason.MISCONFIGURED, f"{word}: {said}".rstrip(": ")
    return None


def failure(pod: Object) -> tuple[Reason, str] | None:
    """Why it has ended, or will not start: the reason and Kubernetes's own words. None while it may still run."""
    status = pod.get("status", {})
    ended = status.get("phase") in ("Failed", "Succeeded")
    if status.get("reason") in ("Evicted", "Preempting", "Terminated", "NodeLost", "NodeShutdown"):
        return Reason.FUNCTION_LOST, f"{status['reason']}: {status.get('message', '')}".rstrip(": ")
    for container in _containers(pod):
        state = container.get("state", {})
        if state.get("waiting", {}).get("reason") == "InvalidImageName":
            return Reason.POD_REFUSED, f"InvalidImageName: {container.get('image', '')}"
        # One that was started again has lost all it knew. Coach's own pods are never started again, others are.
        before = container.get("lastState", {}).get("terminated") if container.get("restartCount") else None
        if terminated := state.get("terminated") or before:
            return _terminated(terminated)
    if ended:
        return Reason.FUNCTION_LOST, str(status.get("message") or f"phase {status.get('phase')}")
    return None


def disrupted(pod: Object) -> str:
    """The cluster's words where it takes a sound pod away: for a gang that preempts, to drain a node, or by Kueue."""
    by_cluster, by_kueue = _condition(pod, "DisruptionTarget"), _condition(pod, "TerminationTarget")
    if by_cluster.get("status") == "True" and by_cluster.get("reason") in _DISRUPTIONS:
        return f"{by_cluster['reason']}: {by_cluster.get('message', '')}".rstrip(": ")
    if by_kueue.get("status") == "True":
        return f"Kueue: {by_kueue.get('reason', '')}: {by_kueue.get('message', '')}".rstrip(": ")
    return ""


def _terminated(terminated: Object) -> tuple[Reason, str]:
    word, code = terminated.get("reason", ""), terminated.get("exitCode")
    if word == "OOMKilled":
        return Reason.OUT_OF_MEMORY, "OOMKilled: it needed more memory than its limit"
    words = f"its container ended with exit code {code}" + (" (SIGKILL)" if code == _KILLED else "")
    said = str(terminated.get("message") or "").strip()
    return Reason.FUNCTION_LOST, f"{words}: {said}" if said else words


def _containers(pod: Object) -> Iterator[Object]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _condition(pod: Object, kind: str) -> Object:
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((found for found in conditions if found.get("type") == kind), {})
