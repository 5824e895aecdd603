"""The Kubernetes resources of a job's functions, as Nuclio's controller takes them.

One NuclioFunction for each role instance, so that every member of a gang has an address of its own; `replicas` is
0 until the gang starts, which parks a function without losing it. The controller does not fill anything in: a
resource made directly must carry its trigger and its state (nuclio 1.14, pkg/platform/kube/controller).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from coach.core.cluster import Allocation, Role
from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.platforms.kubernetes_api.pods import requests

PROJECT = "coach"
DEFAULT_IMAGE = "coach-functions:0.1.0"
#: Pods with this label are placed by Coach's kube-scheduler.
SCHEDULED = "coach.dev/scheduler"


def platform_config() -> dict[str, Any]:
    """What Nuclio's own platform configuration (Helm value `platform`) must say for Coach.

    Without a readiness timeout of 0 its controller waits for each function in turn, which starves a gang that
    starts together. The augmented config is the only way to name a scheduler; it must repeat the event timeout.
    """
    pod = {"schedulerName": "coach", "terminationGracePeriodSeconds": 5}
    return {
        "functionReadinessTimeout": "0s",
        "functionAugmentedConfigs": [
            {
                "labelSelector": {"matchLabels": {SCHEDULED: "yes"}},
                "functionConfig": {"spec": {"eventTimeout": ""}},
                "kubernetes": {"deployment": {"spec": {"template": {"spec": pod}}}},
            }
        ],
    }


def project(namespace: str) -> dict[str, Any]:
    """The project that all functions belong to; Nuclio refuses functions without one."""
    return {
        "apiVersion": "nuclio.io/v1beta1",
        "kind": "NuclioProject",
        "metadata": {"name": PROJECT, "namespace": namespace},
        "spec": {"description": "Training functions of Coach"},
    }


def functions(job: TrainingJob, folder: Path, namespace: str, image: str | None) -> Iterator[dict[str, Any]]:
    """A NuclioFunction for each member of the job's largest gang, parked.

    `folder` has the three roles' function.yaml; `image` is used where the job names none. Raises UserError for a
    function.yaml that cannot be read.
    """
    largest = job.spec.limits.largest
    for role, index in _members(largest):
        base = _read(folder / role.value / "function.yaml")
        spec = {
            key: value for key, value in base["spec"].items() if key not in ("minReplicas", "maxReplicas")
        }
        yield {
            "apiVersion": "nuclio.io/v1beta1",
            "kind": "NuclioFunction",
            "metadata": {
                "name": f"{job.name}-{role.value}-{index}",
                "namespace": namespace,
                "labels": {
                    "nuclio.io/project-name": PROJECT,
                    "coach.dev/job": job.name,
                    "coach.dev/role": role.value,
                    "coach.dev/index": str(index),
                    SCHEDULED: "yes",
                },
            },
            "spec": spec
            | {
                "image": job.spec.image or image or DEFAULT_IMAGE,
                "replicas": 0,
                "resources": requests(job.spec.resources.of(role)),
                "waitReadinessTimeoutBeforeFailure": True,
            },
            "status": {"state": "waitingForResourceConfiguration"},
        }


def _members(allocation: Allocation) -> Iterator[tuple[Role, int]]:
    yield Role.SCHEDULER, 0
    for index in range(allocation.servers):
        yield Role.SERVER, index
    for index in range(allocation.workers):
        yield Role.WORKER, index


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as a Nuclio function: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("spec"), dict):
        raise UserError(f"{path}: a Nuclio function has a spec; this file has none")
    return content
