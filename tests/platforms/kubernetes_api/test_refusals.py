"""Refusals that pass by themselves are told from those that do not, by the API server's own words."""

from __future__ import annotations

import pytest

from coach.core.cluster import Resources
from coach.core.jobs.reasons import Reason
from coach.platforms.kubernetes_api.refusals import meaning, never_holds

FULL = (
    'pods "j-worker-0" is forbidden: exceeded quota: team-a, requested: pods=1,requests.memory=1Gi, '
    "used: pods=6,requests.memory=3Gi, limited: pods=6,requests.memory=4Gi"
)


@pytest.mark.parametrize(
    ("status", "reason", "message", "wanted"),
    [
        (403, "Forbidden", FULL, Reason.QUOTA_EXCEEDED),
        (
            403,
            "Forbidden",
            'gangs.coach.dev "j" is forbidden: exceeded quota: q, requested: count/gangs.coach.dev=1, '
            "used: count/gangs.coach.dev=2, limited: count/gangs.coach.dev=2",
            Reason.QUOTA_EXCEEDED,
        ),
        (
            403,
            "Forbidden",
            'pods "j-worker-0" is forbidden: status unknown for quota: q, resources: pods',
            Reason.QUOTA_EXCEEDED,
        ),
        (
            403,
            "FailedCreate",
            'pods "fn-5c8d" is forbidden: exceeded quota: q, requested: pods=1, used: pods=6, limited: pods=6',
            Reason.QUOTA_EXCEEDED,
        ),
        (
            403,
            "Forbidden",
            'pods "j-worker-0" is forbidden: failed quota: q: must specify limits.cpu for: function',
            Reason.POD_REFUSED,
        ),
        (
            403,
            "Forbidden",
            'pods "j-worker-0" is forbidden: maximum memory usage per Container is 512Mi, but limit is 1Gi',
            Reason.POD_REFUSED,
        ),
        (
            403,
            "Forbidden",
            'pods is forbidden: User "system:serviceaccount:ml:coach" cannot create resource "pods" in API '
            'group "" in the namespace "ml"',
            Reason.POD_REFUSED,
        ),
        (
            403,
            "Forbidden",
            'pods "j-worker-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            Reason.POD_REFUSED,
        ),
        (
            403,
            "Forbidden",
            'pods "j-worker-0" is forbidden: error looking up service account ml/f: serviceaccount "f" not found',
            Reason.POD_REFUSED,
        ),
        (400, "BadRequest", 'admission webhook "v.io" denied the request: no label team', Reason.POD_REFUSED),
        (403, "Forbidden", 'admission webhook "v.io" denied the request: exceeded', Reason.POD_REFUSED),
        (500, "InternalError", 'admission webhook "v.io" denied the request: no', Reason.POD_REFUSED),
        (
            500,
            "InternalError",
            'Internal error occurred: failed calling webhook "v.io": failed to call webhook: Post '
            '"https://v.ns.svc:443/?timeout=10s": context deadline exceeded',
            Reason.PODS_DELAYED,
        ),
        (
            500,
            "InternalError",
            'Internal error occurred: failed calling webhook "v.io": failed to call webhook: Post '
            '"https://v.ns.svc:443/": no endpoints available for service "v"',
            Reason.PODS_DELAYED,
        ),
        (
            500,
            "InternalError",
            "Internal error occurred: resource quota evaluation timed out",
            Reason.PODS_DELAYED,
        ),
        (
            504,
            "Timeout",
            "Timeout: request did not complete within requested timeout - context deadline exceeded",
            Reason.PODS_DELAYED,
        ),
        (
            503,
            "ServiceUnavailable",
            "the server is currently unable to handle the request",
            Reason.PODS_DELAYED,
        ),
        (429, "TooManyRequests", "Too many requests, please try again later.", Reason.PODS_DELAYED),
        (401, "Unauthorized", "Unauthorized", Reason.PODS_DELAYED),
        (
            409,
            "Conflict",
            'Operation cannot be fulfilled on resourcequotas "q": the object has been modified; please apply '
            "your changes to the latest version and try again",
            Reason.PODS_DELAYED,
        ),
        (
            422,
            "Invalid",
            'Pod "j-worker-0" is invalid: spec.containers[0].image: Required value',
            Reason.POD_REFUSED,
        ),
        (413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728", Reason.POD_REFUSED),
        (404, "NotFound", 'namespaces "ml" not found', Reason.FUNCTION_LOST),
        (409, "AlreadyExists", 'pods "j-worker-0" already exists', Reason.FUNCTION_LOST),
    ],
)
def test_what_passes_is_waited_for_and_what_does_not_ends_the_job(
    status: int, reason: str, message: str, wanted: Reason
) -> None:
    assert meaning(status, reason, message) is wanted


def test_the_limits_of_a_full_quota_are_read() -> None:
    assert never_holds(FULL, pods(6, memory=0.5)) == ""
    wanted = "quota team-a can never hold the smallest gang: it needs memory=4098Mi, the quota's limit is 4096Mi"
    assert never_holds(FULL, pods(6, memory=683 / 1024)) == wanted


def pods(count: int, cpu: float = 0.1, memory: float = 0.25, gpu: float = 0.0) -> list[Resources]:
    return [Resources(cpu, memory, gpu)] * count


@pytest.mark.parametrize(
    ("limited", "gang", "words"),
    [
        ("pods=3", pods(3), ""),
        (
            "pods=2",
            pods(3),
            "quota q can never hold the smallest gang: it needs pods=3, the quota's limit is 2",
        ),
        ("count/pods=2", pods(3), "pods=3, the quota's limit is 2"),
        ("requests.cpu=300m", pods(3), ""),
        ("requests.cpu=299m", pods(3), "cpu=0.3, the quota's limit is 0.299"),
        ("cpu=299m,pods=9", pods(3), "cpu=0.3"),
        ("limits.memory=768Mi", pods(3), ""),
        ("limits.memory=700Mi", pods(3), "memory=768Mi, the quota's limit is 700Mi"),
        ("requests.nvidia.com/gpu=1", pods(2, gpu=1.0), "nvidia.com/gpu=2, the quota's limit is 1"),
        ("count/gangs.coach.dev=0", pods(3), ""),
        ("persistentvolumeclaims=0", pods(3), ""),
    ],
)
def test_a_quota_that_is_too_small_even_when_it_is_empty_is_told_from_a_full_one(
    limited: str, gang: list[Resources], words: str
) -> None:
    message = f"exceeded quota: q, requested: pods=1, used: pods=0, limited: {limited}"
    said = never_holds(message, gang)
    assert words in said and bool(said) == bool(words)
