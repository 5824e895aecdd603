"""The objects of a job's functions, as Nuclio's controller takes them.

One NuclioFunction for each member of a gang, so that each has an address of its own: Nuclio gives the replicas of a
function no identity. `replicas` is 0 while a function is parked and 1 while it is awake. The controller fills nothing
in: an object that is made directly must carry its trigger and its state (nuclio 1.14, pkg/platform/kube/controller).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from coach.core.cluster import Allocation, Pod, PodId, Role
from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.platforms.base import GangSize
from coach.platforms.kubernetes import manifests
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Object
from coach.platforms.kubernetes_api.nodes import affinity
from coach.platforms.kubernetes_api.pods import requests

PROJECT = "coach"
#: Pods with this label are placed by Coach's kube-scheduler.
SCHEDULED = "coach.dev/scheduler"
#: Functions with this label were made by `coach deploy nuclio`: a handler parks them, and only its user deletes them.
DEPLOYED = "coach.dev/deployed"
#: The state with which the controller takes an object up. Any other change to an object may wait for a minute.
WAITING = "waitingForResourceConfiguration"


def platform_config(scheduler: str = "coach") -> dict[str, Any]:
    """What Nuclio's own platform configuration (Helm value `platform`) must say for Coach.

    Without a readiness timeout of 0 its controller waits for each function in turn, which starves a gang that
    starts together. The augmented config is the only way to name a scheduler; it must repeat the event timeout.
    """
    pod = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": manifests.GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
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


def project() -> Object:
    """The project that all functions belong to; Nuclio refuses functions without one."""
    return {
        "apiVersion": "nuclio.io/v1beta1",
        "kind": "NuclioProject",
        "metadata": {"name": PROJECT, "labels": manifests.MANAGED_BY},
        "spec": {"description": "Training functions of Coach"},
    }


def deployment(function: str) -> str:
    """The name of the Deployment, Service and ConfigMap that Nuclio makes of a function."""
    return f"nuclio-{function}"


def objects(job: TrainingJob, folder: Path, settings: Settings) -> Iterator[Object]:
    """What `coach deploy nuclio` makes for a job: its Gang, the ConfigMap with its model, and its functions.

    Raises UserError.
    """
    limits = job.spec.limits
    yield manifests.gang(GangSize(job.name, limits.smallest, limits.largest), settings, [])
    if (path := manifests.shipped_model(job)) is not None:
        yield manifests.model(job, path, settings, [])
    yield from functions(job, folder, settings)


def functions(job: TrainingJob, folder: Path, settings: Settings) -> Iterator[Object]:
    """A NuclioFunction for each member of the job's largest gang, parked. Raises UserError."""
    for pod in members(job.name, job.spec.limits.largest):
        made = function(Pod(pod, "", job.spec.resources.of(pod.role)), job, folder, settings, [])
        made["metadata"]["labels"][DEPLOYED] = "yes"
        yield made


def function(  # noqa: PLR0917
    of: Pod, job: TrainingJob, folder: Path, settings: Settings, owners: list[Object], key: str = ""
) -> Object:
    """The NuclioFunction of one member of a job's gang, parked; when it is woken, the Secret `key` has its key.

    `folder` has the three roles' function.yaml. Raises UserError for one that cannot be read.
    """
    base = _read(folder / of.id.role.value / "function.yaml")
    spec: Object = {
        **{key: value for key, value in base["spec"].items() if key not in ("minReplicas", "maxReplicas")},
        "image": manifests.image(job, settings),
        "imagePullPolicy": settings.pull_policy,  # else Nuclio pulls at each start
        "replicas": 0,
        "resources": requests(of.requests),
        "env": [*manifests.environment(job, key), *(base["spec"].get("env") or [])],
        "volumes": [
            {"volume": volume, "volumeMount": mount}
            for volume, mounts in manifests.volumes(job, settings)
            for mount in mounts
        ],
        "securityContext": manifests.security(),
        # A rolling update makes the new pod first: two members of a gang with one index.
        "deploymentStrategy": {"type": "Recreate"},
        # A member that waits for its gang has not failed.
        "waitReadinessTimeoutBeforeFailure": True,
        **affinity(of),
    }
    if settings.service_account:
        spec["serviceAccount"] = settings.service_account
    if settings.pull_secrets:
        spec["imagePullSecrets"] = settings.pull_secrets[0]
    made = manifests.of_job("nuclio.io/v1beta1", "NuclioFunction", of.id.name, job.name, settings, owners)
    made["metadata"]["labels"] |= manifests.labels(of.id) | {"nuclio.io/project-name": PROJECT, SCHEDULED: "yes"}
    return made | {"spec": spec, "status": {"state": WAITING}}


def deployed(function: Object) -> bool:
    """Whether `coach deploy nuclio` made it."""
    return (function["metadata"].get("labels") or {}).get(DEPLOYED) == "yes"


def members(job: str, allocation: Allocation) -> Iterator[PodId]:
    """The pods of a job's gang of this size."""
    yield PodId(job, Role.SCHEDULER, 0)
    for role, number in ((Role.SERVER, allocation.servers), (Role.WORKER, allocation.workers)):
        for index in range(number):
            yield PodId(job, role, index)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as a Nuclio function: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("spec"), dict):
        raise UserError(f"{path}: a Nuclio function has a spec; this file has none")
    return content
