"""The objects of a job on a cluster: a pod for each function, and the Gang that its pods are members of."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from types import MappingProxyType

from coach.core.cluster import Pod, PodId, Role
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Framework
from coach.platforms.base import GangSize
from coach.platforms.function_calls import KEY_VARIABLE
from coach.platforms.kubernetes import kueue, model_files
from coach.platforms.kubernetes.settings import USER, Settings
from coach.platforms.kubernetes_api.client import Object
from coach.platforms.kubernetes_api.nodes import GPU, affinity
from coach.platforms.kubernetes_api.pods import requests

#: A pod's volume, and where its container mounts it.
Volume = tuple[Object, list[Object]]
#: Labels by which the scheduler knows the members of a gang (`docs/advanced/scheduler.md`).
JOB, ROLE, INDEX = "coach.dev/job", "coach.dev/role", "coach.dev/index"
#: Labels of a job that was applied as a TrainingJob: the object's name and unique id.
OWNER_NAME, OWNER_UID = "coach.dev/trainingjob", "coach.dev/trainingjob-uid"
#: The label by which the coscheduling plugin knows the members of a PodGroup.
POD_GROUP = "scheduling.x-k8s.io/pod-group"
#: The handler that made an object, and may delete it.
HANDLER = "coach.dev/handler"
MANAGED_BY = {"app.kubernetes.io/managed-by": "coach"}

#: What is wrong where `image` finds none.
NO_IMAGE = (
    "no image with PyTorch is known: say spec.image, or the chart's functions.pytorchImage "
    "(deploy/pod-pytorch.Dockerfile makes one)"
)
#: The model file in the ConfigMap with a job's model, and what the keys of the files next to it begin with.
MODEL_KEY, SIBLING = "model.py", "sibling."
FUNCTION_PORT = 8080
HEALTH_PORT = 8082
#: Where the volume is in every pod, the handler's too, so that a path means the same file everywhere.
VOLUME = "/var/lib/coach"
#: Folders of the volume that functions see: a model is a stranger's program, and the journal is not its business.
CHECKPOINTS, DATA = "checkpoints", "data"
#: The security context of a container that the restricted Pod Security Standard admits.
CONFINED = MappingProxyType({"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}})
#: Seconds without a request after which a function ends by itself: its handler died, and no other has come.
IDLE_SECONDS = 90.0
#: Seconds that a function has to end. It keeps nothing that is worth more, but in an elastic group, which it leaves.
GRACE_SECONDS = 1


def pod(of: Pod, job: TrainingJob, settings: Settings, owners: list[Object], key: str) -> Object:
    """The pod of one function of a job, whose key is in the Secret of this name."""
    container = {
        "name": "function",
        "image": image(job, settings),
        "args": [of.id.role.value, "--idle-seconds", f"{IDLE_SECONDS:g}"],
        "env": environment(job, key),
        "ports": [{"name": "http", "containerPort": FUNCTION_PORT}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": HEALTH_PORT}, "periodSeconds": 1},
        "securityContext": {**CONFINED, "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    grace = max(GRACE_SECONDS, math.ceil(job.spec.grace_period)) if job.spec.elastic else GRACE_SECONDS
    return pod_of(of, job, settings, owners, container, volumes(job, settings), grace, security())


def pod_of(  # noqa: PLR0917
    of: Pod,
    job: TrainingJob,
    settings: Settings,
    owners: list[Object],
    container: Object,
    volumes: list[Volume],
    grace: int,
    security: Object,
) -> Object:
    """A pod of a job with this container. It names a node, or a kind of nodes, only where that was chosen."""
    asked = job.spec.resources.asked(of.id.role)
    claims = [{"name": f"claim-{number}"} for number, _ in enumerate(asked.claims)]
    container |= store(settings) | {
        "imagePullPolicy": settings.pull_policy,
        "resources": requests(of.requests, asked.gpu_resource or GPU) | ({"claims": claims} if claims else {}),
        "volumeMounts": [mount for _, mounts in volumes for mount in mounts],
    }
    spec: Object = {
        "schedulerName": settings.scheduler,
        "restartPolicy": "Never",  # one that has ended is lost: its group is stopped, and another one made
        "terminationGracePeriodSeconds": grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security,
        "containers": [container],
        "volumes": [volume for volume, _ in volumes],
        **affinity(of),
    }
    if settings.scheduler_kind == "native":  # by it Kubernetes's own scheduler knows the members of a PodGroup
        spec["schedulingGroup"] = {"podGroupName": job.name}
    if claims:
        templates = zip(claims, asked.claims, strict=True)
        spec["resourceClaims"] = [claim | {"resourceClaimTemplateName": template} for claim, template in templates]
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    # `kubectl drain` and cluster autoscalers evict no pod without a controller: nothing would create it again.
    made = of_job("v1", "Pod", of.id.name, job.name, settings, [one | {"controller": True} for one in owners])
    made["metadata"]["labels"] |= labels(of.id) | _scheduling(job, settings)
    return made | {"spec": spec}


def of_job(version: str, kind: str, name: str, job: str, settings: Settings, owners: list[Object]) -> Object:  # noqa: PLR0917
    """An object that belongs to a job of this handler, without what it says."""
    labels = {**MANAGED_BY, HANDLER: settings.handler, JOB: job}
    metadata = {"name": name, "labels": labels, "ownerReferences": owners}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def gang(size: GangSize, settings: Settings, owners: list[Object]) -> Object:
    """The Gang of a job: how many of its pods start together or not at all, and how many more it can use."""
    sizes = {
        Role.SCHEDULER: (size.schedulers, size.schedulers),
        Role.SERVER: (size.required.servers, size.desired.servers),
        Role.WORKER: (size.required.workers, size.desired.workers),
    }
    roles = [{"name": role.value, "required": min(sizes[role]), "desired": sizes[role][1]} for role in Role]
    made = of_job("coach.dev/v1alpha1", "Gang", size.job, size.job, settings, owners)
    return made | {"spec": {"betweenEpochs": False, "roles": roles}}


def secret(name: str, key: str, job: str, settings: Settings, owners: list[Object]) -> Object:
    """The Secret with the key of a job's functions."""
    return of_job("v1", "Secret", name, job, settings, owners) | {"stringData": {"key": key}, "immutable": True}


def pod_group(gang: Object, settings: Settings, owners: list[Object]) -> Object:
    """What others' schedulers know of a Gang: so many pods start, or none.

    Of Kubernetes itself (k8s.io/api/scheduling/v1beta1), or of the coscheduling plugin (sigs.k8s.io/scheduler-plugins).
    """
    name, least = gang["metadata"]["name"], sum(role["required"] for role in gang["spec"]["roles"])
    native = {"schedulingPolicy": {"gang": {"minCount": least}}}
    spec = native if settings.scheduler_kind == "native" else {"minMember": least}
    return of_job(settings.pod_groups, "PodGroup", name, name, settings, owners) | {"spec": spec}


def network_policy(job: str, settings: Settings, owners: list[Object]) -> Object:
    """What lets the pods of a job reach each other; whom else they reach, the chart's own NetworkPolicy says."""
    group = {"matchLabels": {HANDLER: settings.handler, JOB: job}}
    spec = {
        "podSelector": group,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": group}]}],
        "egress": [{"to": [{"podSelector": group}]}],
    }
    return of_job("networking.k8s.io/v1", "NetworkPolicy", f"{job}-group", job, settings, owners) | {"spec": spec}


def training_job(job: TrainingJob) -> list[Object]:
    """What refers to the TrainingJob that a job was applied as; nothing where `coach run` started it."""
    labels = job.metadata.labels or {}
    if OWNER_UID not in labels:
        return []
    found = {"apiVersion": job.api_version, "kind": job.kind}
    return [found | {"name": labels[OWNER_NAME], "uid": labels[OWNER_UID]}]


def owner(found: Object) -> list[Object]:
    """What refers to an object as owner: what it owns goes with it."""
    one = {key: found[key] for key in ("apiVersion", "kind")}
    return [one | {key: found["metadata"][key] for key in ("name", "uid")}]


def shipped_model(job: TrainingJob) -> Path | None:
    """The job's model file where the handler has it, to be given to the pods; else it is in their image or volume."""
    if job.spec.model is None:
        return None
    uri = job.spec.model.file.removeprefix("file://")
    shared = any(Path(uri).is_relative_to(Path(VOLUME, folder)) for folder in (CHECKPOINTS, DATA))
    return Path(uri) if "://" not in uri and not shared and Path(uri).is_file() else None


def model(job: TrainingJob, path: Path, settings: Settings, owners: list[Object]) -> Object:
    """The ConfigMap with the model file of a job and those next to it; pods see each at its own path.

    Raises UserError where they cannot be read, or are too large.
    """
    content = model_files.contents(job, path)
    data = {key: base64.b64encode(content[place]).decode() for key, place in _model_keys(job, path).items()}
    return of_job("v1", "ConfigMap", f"{job.name}-model", job.name, settings, owners) | {"binaryData": data}


def _model_keys(job: TrainingJob, path: Path) -> dict[str, Path]:
    files = model_files.siblings(job, path).items()
    return {MODEL_KEY: path, **{f"{SIBLING}{model_files.key(name)}": place for name, place in files}}


def refusal(job: TrainingJob, settings: Settings) -> str:
    """Why functions cannot run as their job describes them; empty where they can."""
    if not image(job, settings):
        return NO_IMAGE
    folder = Path((job.spec.checkpoint.uri or "").removeprefix("file://"))
    if folder.is_relative_to(VOLUME) and folder != Path(VOLUME, CHECKPOINTS):
        own = f"{VOLUME}/{CHECKPOINTS}/{job.name}"
        return f"checkpoint.uri: {folder}: on Coach's volume the checkpoints of {job.name} are in {own}; leave it out"
    return ""


def image(job: TrainingJob, settings: Settings) -> str:
    """The image of a job's functions: its own, or the one for its framework; empty where there is none."""
    by_framework = {Framework.MXNET: settings.image, Framework.PYTORCH: settings.pytorch_image}
    return job.spec.image or by_framework[job.spec.framework]


def pod_id(found: Object) -> PodId | None:
    """The member of a gang that a pod's labels name."""
    labels = found["metadata"].get("labels") or {}
    try:
        return PodId(labels[JOB], Role(labels[ROLE]), int(labels[INDEX]))
    except (KeyError, ValueError):
        return None


def labels(pod_id: PodId) -> dict[str, str]:
    """What says which member of its job's gang a pod is: see `pod_id`."""
    return {ROLE: pod_id.role.value, INDEX: str(pod_id.index)}


def _scheduling(job: TrainingJob, settings: Settings) -> dict[str, str]:
    """Labels of a job's pods for others' schedulers."""
    coscheduling = settings.scheduler_kind == "coscheduling"
    return kueue.labels(job) | ({POD_GROUP: job.name} if coscheduling else {})


def volumes(job: TrainingJob, settings: Settings) -> list[Volume]:
    """The volumes of a function's pod: a place for files of its own, its model, and Coach's volume."""
    found: list[Volume] = [({"name": "tmp", "emptyDir": {}}, [{"name": "tmp", "mountPath": "/tmp"}])]  # noqa: S108
    if job.spec.data is not None and job.spec.data.readers > 0:
        found.append(shared_memory())  # in it processes that read ahead give batches to a worker
    if path := shipped_model(job):
        mounts = [
            {"name": "model", "mountPath": str(place), "subPath": key, "readOnly": True}
            for key, place in _model_keys(job, path).items()
        ]
        found.append(({"name": "model", "configMap": {"name": f"{job.name}-model"}}, mounts))
    if settings.volume_claim:
        # Of the checkpoints its own alone: a link in the folder of all would be the folder of a job of that name.
        others, own = (DATA, CHECKPOINTS) if job.spec.init else (DATA,), f"{CHECKPOINTS}/{job.name}"
        mounts = [{"name": "coach", "mountPath": f"{VOLUME}/{one}", "subPath": one, "readOnly": True} for one in others]
        mounts.append({"name": "coach", "mountPath": f"{VOLUME}/{own}", "subPath": own})
        found.append((claim("coach", settings.volume_claim), mounts))
    return found


def shared_memory() -> Volume:
    """What processes of a container share; the kernel's default there is 64 MiB."""
    return {"name": "shm", "emptyDir": {"medium": "Memory"}}, [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108


def claim(name: str, claim: str) -> Object:
    """A volume of a claim."""
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


def store(settings: Settings) -> Object:
    """What a container needs to reach object stores."""
    return {"envFrom": [{"secretRef": {"name": settings.store_secret}}]} if settings.store_secret else {}


def environment(job: TrainingJob, key: str) -> list[Object]:
    """The environment variables of a function; without the name of a `key` it answers no caller."""
    secret = {"secretKeyRef": {"name": key, "key": "key"}}
    return [
        *([{"name": KEY_VARIABLE, "valueFrom": secret}] if key else []),
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "COACH_FRAMEWORK", "value": job.spec.framework.value},
    ]


def security() -> Object:
    """The security context of a function's pod: a model is a stranger's program."""
    return {**user_security(USER), "runAsGroup": USER}


def user_security(user: int) -> Object:
    """The security context of a pod that runs as this user, in the group that owns Coach's volume."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
