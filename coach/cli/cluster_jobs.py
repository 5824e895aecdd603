"""The jobs of a cluster as its objects: what `coach --context NAME submit`, `search FILE` and `run` write and follow.

What a user wants of a job is written into its TrainingJob, as kubectl would. The cluster's handler runs the jobs, so
`run`, which follows them to their ends, may lose its connection meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from coach.cli.options import VOLUMES
from coach.core.errors import UserError
from coach.core.jobs.reasons import State
from coach.handler.interactive_run import EXIT_CODES_BY_WEIGHT
from coach.jobfiles.dump import to_yaml
from coach.jobfiles.load import LoadedJob
from coach.jobfiles.training_search import load_search
from coach.platforms.kubernetes import model_files, program_files
from coach.platforms.kubernetes.manifests import owner
from coach.platforms.kubernetes_api.client import COACH, CORE, Api, ApiError, Object, until_answered

#: Seconds between two looks at a job.
LOOK_SECONDS = 1.0


def submit(place: tuple[str, str], jobs: Sequence[LoadedJob]) -> None:
    """Apply jobs. Raises CoachError."""
    asyncio.run(_submit(place, jobs))


def search(place: tuple[str, str], file: Path) -> None:
    """Apply the TrainingSearch of a file. Raises CoachError."""
    asyncio.run(_search(place, file))


def _connected(place: tuple[str, str]) -> Awaitable[Api]:
    context, namespace = place
    return Api.connect(context or None, namespace or None)


async def _submit(place: tuple[str, str], jobs: Sequence[LoadedJob]) -> None:
    async with await _connected(place) as api:
        for one in jobs:
            if one.spec.spec.program is None:
                await _apply_model(api, one)
            else:
                await apply_program(api, one, one.path.parent)


async def _apply_model(api: Api, one: LoadedJob) -> None:
    """Apply a job's model in a ConfigMap, and its TrainingJob."""
    document = one.spec.to_json()
    model = document["spec"]["model"]
    path = Path(model["file"].removeprefix("file://"))
    source = f"{one.spec.name}-source"
    if path.is_file():
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": source},
            "data": {
                path.name if place == path else model_files.key(place.relative_to(path.parent).as_posix()): (
                    content.decode()
                )
                for place, content in model_files.contents(one.spec, path).items()
            },
        }
        await api.apply(f"{CORE}/namespaces/{api.namespace}/configmaps/{source}", body)
        model |= {"file": path.name, "configMap": source}
    await apply(api, document)


async def _search(place: tuple[str, str], file: Path) -> None:
    data = file.read_bytes()
    _, base = load_search(file, data, volumes=VOLUMES)
    async with await _connected(place) as api:
        await api.apply(f"{COACH}/namespaces/{api.namespace}/trainingsearches/{base.name}", yaml.safe_load(data))
        typer.echo(
            f"trainingsearch {base.name} applied to {api.namespace}; "
            f"see: coach --context NAME search --show {base.name}"
        )


async def apply_program(api: Api, job: LoadedJob, folder: Path, *, err: bool = False) -> Object:
    """Apply a program's TrainingJob, and before it the files that it needs of `folder`. Raises UserError, ApiError."""
    document = yaml.safe_load(to_yaml(job.spec))
    program, name = document["spec"]["program"], f"{job.spec.name}-code"
    given = "code" in program or "directory" in program
    files = {} if given else program_files.sources(folder, program["command"])
    path = f"{CORE}/namespaces/{api.namespace}/configmaps/{name}"
    if files:
        program["code"] = name
        keys = program_files.keys(files)
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "binaryData": {keys[one]: base64.b64encode(content).decode() for one, content in files.items()},
        }
        await api.apply(path, body)
        typer.echo(f"configmap {name}: {program_files.words(files, program_files.left_out(folder))}", err=err)
    applied = await apply(api, document, err=err)
    if files:
        await api.merge(path, {"metadata": {"ownerReferences": owner(applied)}})
    return applied


async def apply(api: Api, document: dict[str, Any], *, err: bool = False) -> Object:
    """Apply a TrainingJob, and say so, on stderr if `err`. Raises ApiError."""
    name = document["metadata"]["name"]
    applied = await api.apply(f"{COACH}/namespaces/{api.namespace}/trainingjobs/{name}", document)
    typer.echo(f"trainingjob {name} applied to {api.namespace} at {api.server}", err=err)
    return applied


def run(place: tuple[str, str], jobs: Sequence[LoadedJob], *, as_json: bool) -> int:
    """Apply programs to a cluster and follow them; the exit code. Raises CoachError."""
    for job in jobs:
        if job.spec.spec.program is None:
            raise UserError(
                f"{job.path}: coach --context NAME run takes programs; a model goes by coach --context NAME submit FILE"
            )
        if job.spec.spec.image is None:
            raise UserError("--image: required on a cluster, such as --image registry.example.com/me/train:1")
    return asyncio.run(_run_jobs(place, jobs, as_json=as_json))


async def _run_jobs(place: tuple[str, str], jobs: Sequence[LoadedJob], *, as_json: bool) -> int:
    async with await _connected(place) as api:
        for job in jobs:
            try:
                found = await api.get(f"{COACH}/namespaces/{api.namespace}/trainingjobs/{job.spec.name}")
            except ApiError as error:
                if error.status != 404:
                    raise
                continue
            status = found.get("status", {})
            if _ended(status) and status["state"] != "BudgetExhausted":
                raise UserError(
                    f"{job.spec.name} has ended there ({status['state']}, {status.get('reason')}); another --name, or "
                    f"kubectl -n {api.namespace} delete trainingjob {job.spec.name}"
                )
        for job in jobs:
            await apply_program(api, job, job.path.parent, err=as_json)
        names = [job.spec.name for job in jobs]
        typer.echo(f"Ctrl-C leaves {'them' if len(names) > 1 else 'it'} running there", err=as_json)
        ends = await asyncio.gather(*(_follow(api, name, err=as_json) for name in names))
    if as_json:
        typer.echo(json.dumps([{"name": name, **end} for name, end in zip(names, ends, strict=True)], indent=2))
    codes = {State(end["state"]).exit_code for end in ends}
    return next(code for code in EXIT_CODES_BY_WEIGHT if code in codes)


async def _follow(api: Api, name: str, *, err: bool) -> dict[str, Any]:
    """The status of a job when it has ended; each that differs is a line."""
    path, said = f"{COACH}/namespaces/{api.namespace}/trainingjobs/{name}", ""
    while True:
        found = await until_answered(lambda: api.get(path))
        status: dict[str, Any] = found.get("status", {})
        if status and (line := _line(name, status)) != said:
            said = line
            typer.echo(line, err=err)
        if _ended(status) and status.get("observedGeneration") == found["metadata"]["generation"]:
            return status
        await asyncio.sleep(LOOK_SECONDS)


def _ended(status: dict[str, Any]) -> bool:
    return "state" in status and State(status["state"]).ended


def _line(name: str, status: dict[str, Any]) -> str:
    """A status in a line: its state and why, reports, metrics, money."""
    measured = [f"{one['name']} {one['value']}" for one in status.get("trainerStatus", {}).get("metrics", ())]
    money = [f"{status['spent']} of {status['budget']}"] if "spent" in status and "budget" in status else []
    reports = [f"report {status['epochs']}"] if status.get("epochs") else []
    what = f"{status.get('state', '')} ({status.get('reason', '')}) {status.get('message', '')}".rstrip()
    return " · ".join([f"{name}: {what}", *reports, *measured[:3], *money])
