"""Whom the pods of jobs reach, by the rules of the chart's NetworkPolicies and of each job's own.

The rules are read as the API's reference has them; the nodes of the test cluster have a network that enforces none.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from coach.core.cluster import PodId, Role
from coach.platforms.kubernetes import manifests
from coach.platforms.kubernetes.settings import Settings
from tests.packaging.test_chart import rendered, with_helm

Labels = dict[str, str]
Object = dict[str, Any]
SETTINGS = Settings("image", handler="coach-handler")


def chosen(selector: Object, labels: Labels) -> bool:
    """Whether a label selector chooses a pod; one with other operators than these is an error here."""
    expressions = selector.get("matchExpressions", [])
    assert all(one["operator"] == "Exists" for one in expressions)
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        one["key"] in labels for one in expressions
    )


def peer(rule: Object, end: str, other: Labels | None) -> bool:
    """Whether a rule is about this other end; None: an address outside of the cluster."""
    peers = rule.get(end)
    if not peers:
        return True
    inside = other is not None and any("podSelector" in one and chosen(one["podSelector"], other) for one in peers)
    return inside or (other is None and any("ipBlock" in one for one in peers))


def open_end(policies: list[Object], kind: str, mine: Labels, other: Labels | None, port: int) -> bool:
    """Whether one end lets a connection through: no policy is about it, or a rule of one allows it."""
    about = [one["spec"] for one in policies if kind in one["spec"]["policyTypes"]]
    about = [one for one in about if chosen(one["podSelector"], mine)]
    rules = [rule for one in about for rule in one.get(kind.lower(), [])]
    end = "from" if kind == "Ingress" else "to"
    fits = [rule for rule in rules if peer(rule, end, other)]
    return not about or any("ports" not in one or port in [p["port"] for p in one["ports"]] for one in fits)


def reaches(policies: list[Object], source: Labels, target: Labels | None, port: int) -> bool:
    """Whether a pod's connection to another one, or to an address outside, is let through."""
    there = target is None or open_end(policies, "Ingress", target, source, port)
    return open_end(policies, "Egress", source, target, port) and there


def worker(job: str, index: int = 0, role: Role = Role.WORKER) -> Labels:
    of_job: dict[str, str] = manifests.of_job("v1", "Pod", "", job, SETTINGS, [])["metadata"]["labels"]
    return of_job | manifests.labels(PodId(job, role, index))


HANDLER = {f"app.kubernetes.io/{key}": value for key, value in (("name", "coach"), ("instance", "coach"))}
SCHEDULER = {**HANDLER, "app.kubernetes.io/component": "scheduler"}
HANDLER |= {"app.kubernetes.io/component": "handler"}
STRANGER = {"app": "web"}


@functools.cache
def policies(*settings: str) -> list[Object]:
    ours = [one for (kind, _), one in rendered(*settings).items() if kind == "NetworkPolicy"]
    return [*ours, *(manifests.network_policy(job, SETTINGS, []) for job in ("a", "b"))]


@with_helm
@pytest.mark.parametrize(
    ("source", "target", "port", "is_open"),
    [
        (worker("a"), worker("a", 1), 29500, True),
        (worker("a"), worker("a", 0, Role.SERVER), 41234, True),
        (worker("a"), worker("b"), 8080, False),
        (HANDLER, worker("a"), 8080, True),
        (STRANGER, worker("a"), 8080, False),
        (SCHEDULER, worker("a"), 8080, False),
        (worker("a"), HANDLER, 8422, True),
        (worker("a"), HANDLER, 8421, False),
        (worker("a"), SCHEDULER, 10259, False),
        (worker("a"), STRANGER, 80, False),
        (worker("a"), {"k8s-app": "kube-dns"}, 53, True),
        (worker("a"), None, 443, False),
        (STRANGER, HANDLER, 8421, True),
        (STRANGER, HANDLER, 8422, False),
        (HANDLER, None, 443, True),
    ],
    ids=lambda one: "-".join(one.values()).replace("/", ".") if isinstance(one, dict) else str(one),
)
def test_pods_of_a_job_reach_their_own_group_and_the_handler_alone(
    source: Labels, target: Labels | None, port: int, is_open: bool
) -> None:
    assert reaches(policies(), source, target, port) is is_open


@with_helm
def test_what_else_they_reach_the_values_say() -> None:
    rule = "networkPolicy.egress[0]"
    more = ("--set", f"{rule}.to[0].ipBlock.cidr=0.0.0.0/0", "--set", f"{rule}.ports[0].port=443")
    assert reaches(policies(*more), worker("a"), None, 443)
    assert not reaches(policies(*more), worker("a"), None, 80)
    assert not reaches(policies(*more), worker("a"), worker("b"), 443), "an ipBlock is of no pod"
    off = rendered("--set", "networkPolicy.enabled=false")
    assert not [kind for kind, _ in off if kind == "NetworkPolicy"]
    (container,) = off["Deployment", "coach-handler"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "COACH_NETWORK_POLICY", "value": "false"} in container["env"]
