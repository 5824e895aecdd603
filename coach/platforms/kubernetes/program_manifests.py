"""The objects of a program on a cluster: a pod for each worker, the lease that keeps them, and their common name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType

from coach.core.cluster import Pod, PodId, Role
from coach.core.spec.job import JobSpec, TrainingJob
from coach.core.spec.program import Program
from coach.platforms import torchrun
from coach.platforms.kubernetes import manifests
from coach.platforms.kubernetes.manifests import Volume
from coach.platforms.kubernetes.program_status import AUDIENCE
from coach.platforms.kubernetes.settings import USER, Settings
from coach.platforms.kubernetes_api.client import Object
from coach.platforms.program_metrics.files import USUAL_NAMES

#: Label of the pods of programs.
PROGRAM = "coach.dev/program"
#: Annotation of a lease: when it was made, on the handler's clock.
MADE_AT = "coach.dev/made-at"
#: What is wrong where a program has no image.
NO_IMAGE = (
    "a program on a cluster runs in an image of its own: say spec.image, or run it on this machine: "
    "coach run --platform local"
)
#: Where a program's files are that were sent along, if its job names no folder of the image.
CODE_FOLDER = "/workspace"
#: Where a pod's token is, and for how many seconds one is good.
TOKEN_FOLDER, TOKEN_SECONDS = "/var/run/secrets/coach.dev", 3600
#: Where the workers of a program meet, on the first one.
RENDEZVOUS_PORT = 29500


def pod(  # noqa: PLR0917
    of: Pod,
    job: TrainingJob,
    workers: int,
    settings: Settings,
    owners: list[Object],
    files: Mapping[str, str] = MappingProxyType({}),
) -> Object:
    """The pod of one of `workers` workers: the user's image and command, and nothing of Coach inside.

    `files`: the program's that were sent along, by their relative paths, with their keys in its ConfigMap.
    """
    spec, program = job.spec, _program(job)
    container: Object = {
        "name": "program",
        "image": spec.image,
        "command": [_literal(word) for word in program.command],
        "env": _environment(of.id, job, workers, settings),
        "securityContext": _confined(settings),
    }
    if folder := program.directory or (CODE_FOLDER if program.code else None):
        container["workingDir"] = folder
    volumes = [manifests.shared_memory(), *_volumes(job, settings), *_code(program, files), *_token(settings)]
    grace = grace_seconds(spec.grace_period)
    made = manifests.pod_of(of, job, settings, owners, container, volumes, grace, _security(settings))
    made["metadata"]["labels"][PROGRAM] = "true"
    if spec.limits.largest.workers > 1:
        made["spec"] |= {"hostname": of.id.name, "subdomain": service_name(of.id.job)}
    return made


def _security(settings: Settings) -> Object:
    """Of a program's pod: the restricted Pod Security Standard, or baseline where it runs as its image's user."""
    if settings.program_user:
        return manifests.user_security(settings.program_user)
    return {"seccompProfile": {"type": "RuntimeDefault"}, "supplementalGroups": [USER]}


def _confined(settings: Settings) -> Object:
    return dict(manifests.CONFINED) if settings.program_user else {"allowPrivilegeEscalation": False}


def lease_name(job: str) -> str:
    """The name of a program's lease."""
    return f"{job}-lease"


def lease(job: TrainingJob, seconds: int, now: float, settings: Settings, owners: list[Object]) -> Object:
    """A Job of no pods, done at once, that Kubernetes deletes `seconds` later, and with it the pods that it owns.

    What a handler renews as long as it pays; one that is dead does not.
    """
    container = {"name": "program", "image": job.spec.image, "securityContext": _confined(settings)}
    template = {"restartPolicy": "Never", "securityContext": _security(settings), "containers": [container]}
    made = manifests.of_job("batch/v1", "Job", lease_name(job.name), job.name, settings, owners)
    made["metadata"]["annotations"] = {MADE_AT: f"{now:.3f}"}
    counts = {"completions": 0, "parallelism": 0, "ttlSecondsAfterFinished": seconds}
    return made | {"spec": {**counts, "template": {"spec": template}}}


def service_name(job: str) -> str:
    """The name under which the workers of a program are known to each other; a Service's begins with a letter."""
    return f"coach-{job}"


def service(job: str, settings: Settings, owners: list[Object]) -> Object:
    """A headless Service: `POD.SERVICE` is a worker's address, before it is ready too."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {manifests.JOB: job, PROGRAM: "true"},
        "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
    }
    return manifests.of_job("v1", "Service", service_name(job), job, settings, owners) | {"spec": spec}


def refusal(job: TrainingJob, settings: Settings) -> str:
    """Why a program cannot run as its job describes it; empty where it can."""
    spec, program = job.spec, _program(job)
    if spec.image is None:
        return NO_IMAGE
    if not settings.status_url and any(one.kind == "status" for one in program.sources()):
        return "program.metrics: a status is sent to a handler in the cluster alone: coach --context NAME submit FILE"
    if why := _unreadable(job, settings):
        return why
    if own := {settings.volume_claim, settings.state_claim}.intersection(filter(None, program.volumes.values())):
        return (
            f"program.volumes: {own.pop()} is Coach's own volume, with the journal of all jobs; "
            f"its data are at {manifests.VOLUME}/{manifests.DATA} in every program"
        )
    for name, one in program.secrets.items():
        # Helm's record of a release has all that was installed, the token too.
        if one.secret == settings.token_secret or one.secret.startswith("sh.helm.release."):
            return f"program.secrets.{name}: {one.secret} opens Coach's own API; name a Secret of yours"
    if program.resumes and checkpoint_folder(job, settings) is None:
        return (
            "program.resumes: Coach has no volume here, so checkpoints would go with the pod; name a claim in "
            "program.volumes, and a folder of it in checkpoint.uri"
        )
    return ""


def _unreadable(job: TrainingJob, settings: Settings) -> str:
    """What is wrong with files of metrics; empty where the handler can read them all."""
    own = f"{manifests.VOLUME}/{manifests.CHECKPOINTS}/{job.name}"
    for one in _program(job).sources():
        if one.kind not in USUAL_NAMES:
            continue
        where = f"program.metrics.{one.metric}: {one.kind}:{one.where}"
        if not settings.status_url or not settings.volume_claim:
            right = "print the metric, or send it"
            return f"{where}: only a handler in the cluster, with Coach's volume, reads files; {right}"
        folder = checkpoint_folder(job, settings)
        if folder != own or not _is_inside(one.where, own):
            return (
                f"{where}: is not on Coach's volume, where alone this handler can read it; have the program write "
                f"below COACH_CHECKPOINTS, without checkpoint.uri: {one.kind}:{own}/{PurePosixPath(one.where).name}"
            )
    return ""


def _is_inside(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder) and ".." not in PurePosixPath(path).parts


def checkpoint_folder(job: TrainingJob, settings: Settings) -> str | None:
    """The job's folder for checkpoints, as its program sees it: on a volume, or in an object store; None on none."""
    own = f"{manifests.VOLUME}/{manifests.CHECKPOINTS}" if settings.volume_claim else ""
    base = job.spec.checkpoint.uri or settings.checkpoints or own
    return f"{base.rstrip('/')}/{job.name}" if base else None


def grace_seconds(grace: float) -> int:
    """Of a pod, from SIGTERM to SIGKILL: whole seconds, and 0 would take the pod away before it has ended."""
    return max(1, math.ceil(grace))


def _environment(of: PodId, job: TrainingJob, workers: int, settings: Settings) -> list[Object]:
    program, folder = _program(job), checkpoint_folder(job, settings)
    said = {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(1, int(job.spec.resources.worker.resources.cpu))),  # else those of the node
        **({"HOME": "/tmp"} if settings.program_user else {}),  # noqa: S108 - the image knows no such user, nor its home
        **(_rendezvous(of, workers) if job.spec.limits.largest.workers > 1 else {}),
        **program.env,
        "COACH_JOB": job.name,
        **({"COACH_CHECKPOINTS": folder} if folder else {}),
        **(_status(settings) if settings.status_url else {}),
    }
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": one.secret, "key": one.key}}}
        for name, one in program.secrets.items()
    ]
    return [{"name": name, "value": _literal(value)} for name, value in said.items()] + secrets


def _rendezvous(of: PodId, workers: int) -> dict[str, str]:
    """The variables of torchrun for a worker that is alone on its node."""
    first = f"{PodId(of.job, Role.WORKER, 0).name}.{service_name(of.job)}"
    return torchrun.variables(of.job, 0, of.index, workers, first, RENDEZVOUS_PORT, one_node=False)


def _status(settings: Settings) -> dict[str, str]:
    """What Kubeflow says to a trainer."""
    return {
        "KUBEFLOW_TRAINER_SERVER_URL": settings.status_url,
        "KUBEFLOW_TRAINER_SERVER_TOKEN": f"{TOKEN_FOLDER}/token",
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": f"{TOKEN_FOLDER}/ca.crt",
    }


def _token(settings: Settings) -> Iterator[Volume]:
    """The pod's own token for its status, and the cluster's certificates, which each namespace has."""
    if settings.status_url:
        token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
        roots = {"name": "kube-root-ca.crt", "optional": True, "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        sources = [{"serviceAccountToken": token}, {"configMap": roots}]
        yield (
            {"name": "status", "projected": {"sources": sources}},
            [{"name": "status", "mountPath": TOKEN_FOLDER, "readOnly": True}],
        )


def _volumes(job: TrainingJob, settings: Settings) -> list[Volume]:
    """The volumes of a program's pod, each with where it is mounted. Folders for checkpoints are made by that."""
    spec, program, folder = job.spec, _program(job), checkpoint_folder(job, settings)
    found: list[Volume] = []
    within = _volume_of(spec, program)
    for number, (path, claim) in enumerate(sorted(program.volumes.items())):
        name = f"volume-{number}"
        on_volume: list[Object] = [{"name": name, "mountPath": path}]
        if folder is not None and path == within:
            inside = str(PurePosixPath(folder).relative_to(path))
            on_volume.append({"name": name, "mountPath": folder, "subPath": inside})
        found.append((manifests.claim(name, claim), on_volume))
    if settings.volume_claim:
        data = {"mountPath": f"{manifests.VOLUME}/{manifests.DATA}", "subPath": manifests.DATA}
        mounts: list[Object] = [{"name": "coach", **data, "readOnly": True}]
        if within is None and folder is not None and "://" not in folder:
            own = f"{manifests.CHECKPOINTS}/{job.name}"
            mounts.append({"name": "coach", "mountPath": folder, "subPath": own})
        found.append((manifests.claim("coach", settings.volume_claim), mounts))
    return found


def _code(program: Program, files: Mapping[str, str]) -> Iterator[Volume]:
    """The program's files, in a folder of the image or in one of their own, in which it may write."""
    if program.code is None:
        return
    folder = program.directory or CODE_FOLDER
    if program.directory is None:
        yield {"name": "workspace", "emptyDir": {}}, [{"name": "workspace", "mountPath": folder}]
    yield (
        {"name": "code", "configMap": {"name": program.code, "defaultMode": 0o555}},
        [
            {"name": "code", "mountPath": f"{folder.rstrip('/')}/{name}", "subPath": key, "readOnly": True}
            for name, key in sorted(files.items())
        ],
    )


def _volume_of(spec: JobSpec, program: Program) -> str | None:
    """Where the volume of the checkpoints is mounted, of the innermost that holds them; None: on none of its own."""
    uri = spec.checkpoint.uri
    holds = [path for path in program.volumes if uri is not None and PurePosixPath(uri).is_relative_to(path)]
    return max(holds, key=len, default=None)


def _literal(text: str) -> str:
    """Kubernetes puts variables into `$(NAME)`; a program gets its words as they are written."""
    return text.replace("$", "$$")


def _program(job: TrainingJob) -> Program:
    assert job.spec.program is not None
    return job.spec.program
