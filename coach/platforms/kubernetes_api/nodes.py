"""What a node's object says: how much it has for pods, and whether pods can be placed on it now."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coach.core.cluster import CapacityType, Node, Pod, Resources
from coach.core.spec import quantities
from coach.core.spec.types import GPU_RESOURCE

if TYPE_CHECKING:
    from coach.platforms.kubernetes_api.client import Object

#: The extended resource that NVIDIA's device plugin gives.
GPU = "nvidia.com/gpu"
_GPU_RESOURCE = re.compile(GPU_RESOURCE)
#: The label of a node's type, by its cloud.
_TYPE = "node.kubernetes.io/instance-type"
#: The labels that say of which kind a node is, the first that it has.
KINDS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", _TYPE)
#: The annotation that says what a node is billed by.
OFFER = "coach.dev/offer"
#: The annotation that says for how many an hour of one of its GPUs counts in hours of GPUs.
GPU_FACTOR = "coach.dev/gpu-factor"
_LARGEST_FACTOR = 1000.0
#: By the beginning of a node's providerID: the cloud in SkyPilot's catalogues.
_CLOUDS = {"aws": "aws", "gce": "gcp", "azure": "azure", "digitalocean": "do"}
#: Labels by which Karpenter and clouds mark nodes that they may take away; the last is for one's own.
_SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "coach.dev/capacity-type": "spot",
}
#: The last, as `kubectl label` takes it.
OWN_SPOT = "coach.dev/capacity-type=spot"
#: Taints by which the agents of clouds, Karpenter and the cluster autoscaler give notice that a node goes away.
_NOTICES = frozenset(
    {
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/spot-itn",
        "cloud.google.com/impending-node-termination",
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
    }
)
#: Effects of taints that keep pods without a toleration away.
_KEEPING_AWAY = ("NoSchedule", "NoExecute")


def read(node: Object) -> Node:
    """The node with its allocatable resources, and its kind by its labels.

    Its GPUs are those that its device plugins know, also where `lacking` ones cannot be given now.
    """
    allocatable = node.get("status", {}).get("allocatable", {})
    labels = node["metadata"].get("labels") or {}
    return Node(
        str(node["metadata"]["name"]),
        Resources(
            quantities.of_object(str(allocatable.get("cpu", "0"))),
            quantities.of_object(str(allocatable.get("memory", "0"))) / 2**30,
            gpus(allocatable) + lacking(node),
        ),
        spot=_spot(node),
        kind=next((labels[key] for key in KINDS if labels.get(key)), ""),
        gpu_factor=gpu_factor(node) or 1.0,
    )


def gpu_factor(node: Object) -> float | None:
    """For how many an hour of one of its GPUs counts, by its annotation; None where that is no such number."""
    written = (node["metadata"].get("annotations") or {}).get(GPU_FACTOR, "1")
    with contextlib.suppress(TypeError, ValueError):
        if 0.0 < float(written) <= _LARGEST_FACTOR:
            return float(written)
    return None


def gpus(amounts: Mapping[str, object]) -> float:
    """The GPUs among a node's or a container's resources, with parts of GPUs that are given as devices."""
    return sum(quantities.of_object(str(amount)) for name, amount in amounts.items() if _GPU_RESOURCE.match(name))


def lacking(node: Object) -> float:
    """Its GPUs that are unhealthy, or whose device plugin does not run: the kubelet gives none of them."""
    status = node.get("status", {})
    return max(0.0, gpus(status.get("capacity", {})) - gpus(status.get("allocatable", {})))


def offer(node: Object) -> str:
    """The offer of `coach prices` that it is, such as `aws/p5.48xlarge@us-east-1:spot`: by its annotation, else by its
    well-known labels; empty where these do not say.
    """
    metadata = node["metadata"]
    if named := (metadata.get("annotations") or {}).get(OFFER):
        return str(named)
    labels = metadata.get("labels") or {}
    cloud = _CLOUDS.get(str(node.get("spec", {}).get("providerID", "")).partition("://")[0])
    kind = labels.get(_TYPE)
    if not cloud or not kind:
        return ""
    region = labels.get("topology.kubernetes.io/region")
    return f"{cloud}/{kind}{f'@{region}' if region else ''}{':spot' if _spot(node) else ''}"


def _spot(node: Object) -> bool:
    """Whether its labels say that it may be taken away."""
    labels = node["metadata"].get("labels") or {}
    return any(labels.get(key) == value for key, value in _SPOT.items())


def affinity(of: Pod) -> Object:
    """The part of a pod's `spec` that says on which nodes it may be: one, those of a kind, or any.

    By labels, as the scheduler places the pod: autoscalers and Kueue read them too (docs/decisions). Terms are
    alternatives, what one has must all hold, and `NotIn` holds where there is no such label.
    """
    if of.node:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [of.node]}]}]
    elif of.capacity is CapacityType.SPOT:
        terms = [{"matchExpressions": [_label(key, "In", value)]} for key, value in _SPOT.items()]
    elif of.capacity is CapacityType.ON_DEMAND:
        terms = [{"matchExpressions": [_label(key, "NotIn", value) for key, value in _SPOT.items()]}]
    else:
        return {}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def _label(key: str, operator: str, value: str) -> Object:
    return {"key": key, "operator": operator, "values": [value]}


def unavailable(node: Object) -> str:
    """Why no pod can be placed there now; empty where pods can."""
    spec = node.get("spec", {})
    if spec.get("unschedulable"):
        return "cordoned"
    ready = _ready(node)
    if ready.get("status") != "True":
        return f"not ready: {ready.get('message') or ready.get('reason') or 'no report yet'}"
    taint = next((t for t in spec.get("taints") or () if t.get("effect") in _KEEPING_AWAY), None)
    return f"tainted: {taint.get('key')}" if taint else ""


def leaving(node: Object) -> str:
    """The taint that says that the node goes away soon, within seconds or minutes; empty where none does."""
    return next((t["key"] for t in node.get("spec", {}).get("taints") or () if t.get("key") in _NOTICES), "")


def lost(node: Object) -> bool:
    """Whether its kubelet no longer reports: what runs there is not known to run any more."""
    return bool(_ready(node).get("status") == "Unknown")


def _ready(node: Object) -> Object:
    conditions = node.get("status", {}).get("conditions") or ()
    return next((found for found in conditions if found.get("type") == "Ready"), {})
