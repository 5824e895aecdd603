"""What the API server's refusal of an object means for its job: wait, or give up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from coach.core.cluster import Resources
from coach.core.jobs.reasons import Reason
from coach.platforms.kubernetes_api.nodes import GPU

#: Words of ResourceQuota, in Kubernetes's plugin/pkg/admission/resourcequota.
_QUOTA = re.compile(r"exceeded quota: (\S+), requested: \S+, used: \S+, limited: ([^\s;]+)")
#: What a quota says before its controller has counted for the first time.
_UNCOUNTED = re.compile(r"status unknown for quota: ")
#: A webhook that did answer.
_DENIED = re.compile(r'admission webhook "[^"]+" denied the request')


def meaning(status: int, reason: str, message: str) -> Reason:
    """What follows from an error of HTTP's `status` with Kubernetes's `reason`.

    A full quota, a webhook that did not answer, a busy API server and a conflict pass by themselves: QUOTA_EXCEEDED,
    PODS_DELAYED. What the object says wrongly, or the user may not do, does not: POD_REFUSED. The rest is tried again
    a few times: FUNCTION_LOST.
    """
    if _DENIED.search(message):
        return Reason.POD_REFUSED
    if status == 403 and (_QUOTA.search(message) or _UNCOUNTED.search(message)):
        return Reason.QUOTA_EXCEEDED
    if status in (401, 429) or status >= 500 or (status == 409 and reason != "AlreadyExists"):
        return Reason.PODS_DELAYED
    return Reason.POD_REFUSED if status in (400, 403, 413, 422) else Reason.FUNCTION_LOST


def never_holds(message: str, gang: Iterable[Resources], device: str = GPU) -> str:
    """Why a quota in a refusal can never hold these pods, however empty it is; empty where it can.

    `device`: the extended resource that their GPUs are.
    """
    pods = list(gang)
    needs = {
        "pods": Decimal(len(pods)),
        "cpu": sum((Decimal(round(pod.cpu * 1000)) / 1000 for pod in pods), Decimal(0)),
        "memory": sum((Decimal(round(pod.memory * 1024)) for pod in pods), Decimal(0)) * 2**20,
        device: sum((Decimal(f"{pod.gpu:g}") for pod in pods), Decimal(0)),
    }
    for quota, limited in _QUOTA.findall(message):
        for name, most in _amounts(limited).items():
            # `requests.cpu` and `cpu` are the same; of memory and devices a pod's limit is its request.
            kind = name.removeprefix("count/").removeprefix("requests.")
            kind = "memory" if kind == "limits.memory" else kind
            if needs.get(kind, 0) > most:
                return (
                    f"quota {quota} can never hold the smallest gang: it needs {kind}={_said(kind, needs[kind])}, "
                    f"the quota's limit is {_said(kind, most)}"
                )
    return ""


def _amounts(said: str) -> dict[str, Decimal]:
    """Of `pods=6,requests.cpu=2`."""
    read: Callable[[str], Decimal] = parse_quantity
    found = {}
    for one in said.split(","):
        name, _, amount = one.rpartition("=")
        try:
            found[name] = read(amount)
        except ValueError:
            continue
    return found


def _said(kind: str, amount: Decimal) -> str:
    return f"{amount / 2**20:.10g}Mi" if kind == "memory" else f"{amount:.10g}"
