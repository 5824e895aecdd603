"""What `coach --context NAME COMMAND` does on a cluster.

What the handler alone knows, its own `coach` says: the command runs in the handler's pod. What a user wants of a job is
written into its TrainingJob, as kubectl would. The cluster's handler runs the jobs, so `run`, which follows them to
their ends, may lose its connection meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import shutil
import signal
import sys
import tarfile
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import typer
import yaml

from coach.cli.job_files import load
from coach.cli.options import VOLUMES
from coach.core.errors import CoachError, UserError
from coach.core.jobs.reasons import State
from coach.handler.interactive_run import EXIT_CODES_BY_WEIGHT
from coach.jobfiles.dump import to_yaml
from coach.jobfiles.load import LoadedJob
from coach.jobfiles.training_search import load_search
from coach.platforms.kubernetes import model_files, program_files
from coach.platforms.kubernetes.manifests import owner
from coach.platforms.kubernetes_api.client import COACH, CORE, Api, ApiError, Object, until_answered
from coach.platforms.kubernetes_api.election import LEADER
from coach.platforms.kubernetes_api.pod_access import connection, forwarded, run_in_pod

#: Commands that run in the handler's pod.
IN_POD = ("ps", "show", "why", "events", "logs", "cancel", "budget", "doctor", "plan", "compare", "prune")
#: Commands that change the cluster's objects.
ON_OBJECTS = ("submit", "suspend", "resume")
#: The command that brings a file from the handler's pod, and the one that makes its page reachable from here.
MODEL, UI = "model", "ui"
#: With a file it applies a TrainingSearch; with options alone, such as --show, it runs in the handler's pod.
SEARCH = "search"
#: Seconds between two looks at a job.
LOOK_SECONDS = 1.0


async def invoke(options: dict[str, str], arguments: list[str]) -> int:
    """Run one of the commands that work on a cluster's jobs; its exit code. Raises CoachError."""
    command = arguments[0] if arguments else ""
    if command not in (*IN_POD, *ON_OBJECTS, SEARCH, MODEL, UI):
        known = ", ".join(("run", *IN_POD, *ON_OBJECTS, SEARCH, MODEL, UI))
        raise UserError(
            f"coach --context {command or '(no command)'}: these commands work on a cluster's jobs: {known}; "
            "`coach serve` has --context itself"
        )
    async with await Api.connect(options.get("--context"), options.get("--namespace")) as api:
        if arguments[0] in IN_POD or (arguments[0] == SEARCH and arguments[1:2] and arguments[1].startswith("--")):
            return await _run(api, arguments)
        if arguments[0] == SEARCH:
            return await _search(api, [Path(word) for word in arguments[1:]])
        if arguments[0] == MODEL:
            return await _model(api, arguments[1:])
        if arguments[0] == UI:
            return await _ui(api, arguments[1:])
        if arguments[0] == "submit":
            return await _submit(api, [Path(word) for word in arguments[1:]])
        return await _change(api, arguments[0], arguments[1:])


async def _run(api: Api, arguments: list[str], out: BinaryIO | None = None) -> int:
    """Run `coach` in the handler's pod; its output goes to `out`, or to stdout, its errors to stderr. The exit code."""

    def write(channel: int, data: bytes) -> None:
        if channel == 1 and out is not None:
            out.write(data)
        else:
            print(data.decode(errors="replace"), end="", file=sys.stdout if channel == 1 else sys.stderr, flush=True)

    columns = shutil.get_terminal_size().columns
    command = ["env", f"COLUMNS={columns}", "coach", *arguments]
    return await run_in_pod(api, await _handler(api), command, write)


async def _handler(api: Api) -> str:
    """The handler's pod. Raises UserError where none runs."""
    labels = "app.kubernetes.io/name=coach,app.kubernetes.io/component=handler"
    found = (await api.get(f"{CORE}/namespaces/{api.namespace}/pods", labelSelector=labels))["items"]
    found = [pod for pod in found if pod["status"].get("phase") == "Running"]
    found.sort(key=lambda pod: LEADER not in pod["metadata"]["labels"])  # of several, the one that leads
    running = [pod["metadata"]["name"] for pod in found]
    if not running:
        raise UserError(
            f"no handler of Coach runs in namespace {api.namespace} of {api.server}; name its --namespace, "
            "or install it there: helm install coach deploy/chart"
        )
    return str(running[0])


async def _ui(api: Api, arguments: list[str]) -> int:
    """Forward a port of this machine to the handler's page until Ctrl-C; the handler's `coach ui` makes the login."""
    parser = argparse.ArgumentParser(prog="coach --context NAME ui", allow_abbrev=False)
    parser.add_argument("job", metavar="JOB", nargs="?")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--browser", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args(arguments)
    said, seen = io.BytesIO(), set[str]()

    def failed(error: CoachError) -> None:
        if str(error) not in seen:  # a page asks again and again
            seen.add(str(error))
            typer.echo(f"coach: {error}", err=True)

    code = await _run(api, [UI, "--no-browser", "--no-serve", *([asked.job] if asked.job else [])], said)
    if code:
        return code
    there = urlsplit(said.getvalue().decode().strip())
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with connection(api, await _handler(api), there.port or 80):
        pass  # whether this user may
    try:
        async with forwarded(api, lambda: _handler(api), there.port or 80, asked.port, failed) as port:
            typer.echo(f"the page of the jobs in {api.namespace} at {api.server}; Ctrl-C ends it", err=True)
            address = there._replace(netloc=f"127.0.0.1:{port}").geturl()
            typer.echo(address)
            if asked.browser:
                webbrowser.open(address)
            await stopped.wait()
    except OSError as error:
        raise UserError(f"port {asked.port} cannot be used here ({error.strerror}); --port names another") from error
    return 0


async def _model(api: Api, arguments: list[str]) -> int:
    """Bring a job's checkpoint and its card here. Raises UserError."""
    parser = argparse.ArgumentParser(prog="coach --context NAME model", allow_abbrev=False)
    parser.add_argument("job", metavar="JOB")
    parser.add_argument("-o", "--output-file", metavar="FILE", type=Path, help="JOB.pt or JOB.npz here without it")
    parser.add_argument("--epoch", metavar="best|last|N", default="best")
    parser.add_argument("--force", action="store_true", help="overwrite a file that is there")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryFile() as archive:
        code = await _run(api, [MODEL, asked.job, f"--epoch={asked.epoch}", "-o", "-"], archive)
        if code:
            return code
        archive.seek(0)
        typer.echo(f"{unpacked(archive, asked.output_file, force=asked.force)}: {asked.job}, its {asked.epoch} epoch")
    return 0


def unpacked(archive: BinaryIO, to: Path | None, *, force: bool) -> Path:
    """Write the model and its card from the archive that `coach model -o -` makes. Raises UserError."""
    try:
        with tarfile.open(fileobj=archive) as found:
            model, card = (found.extractfile(entry) if entry.isfile() else None for entry in found.getmembers())
            name = Path(found.getnames()[0]).name  # whatever folder it names
            if model is None or card is None:
                raise ValueError
            path = to or Path(name)
            path = path / name if path.is_dir() else path
            cards = path.with_name(f"{path.name}.json")
            if path.exists() and not force:
                raise UserError(f"{path} is there already; --force overwrites it, -o FILE names another")
            half = path.with_name(f".{path.name}.half")
            with half.open("wb") as file:
                shutil.copyfileobj(model, file)
            half.replace(path)
            said = json.loads(card.read(1 << 20)) | {"file": path.name}
            cards.write_text(json.dumps(said, indent=2) + "\n")
    except (tarfile.TarError, ValueError) as error:
        raise UserError("the handler sent no model; are its version and yours the same? coach --version") from error
    except OSError as error:
        raise UserError(f"{to or '.'}: cannot be written ({error.strerror})") from error
    return path


async def _submit(api: Api, files: list[Path]) -> int:
    """Apply the jobs of files: each one's model in a ConfigMap, and its TrainingJob."""
    if not files or any(str(file).startswith("-") for file in files):
        raise UserError("coach --context NAME submit takes job files alone: coach --context NAME submit job.yaml")
    for one in load(files, volumes=VOLUMES):
        if one.spec.spec.program is not None:
            await apply_program(api, one, one.path.parent)
            continue
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
    return 0


async def _search(api: Api, files: list[Path]) -> int:
    """Apply the TrainingSearch of a file."""
    right = "coach --context NAME search search.yaml (kind: TrainingSearch), or --show, --stop or --resume SEARCH"
    if len(files) != 1 or str(files[0]).startswith("-"):
        raise UserError(f"one file, or options of a search that is there: {right}")
    try:
        data = files[0].read_bytes()
    except OSError as error:
        raise UserError(f"{files[0]}: cannot be read ({error.strerror}): {right}") from error
    _, base = load_search(files[0], data, volumes=VOLUMES)
    await api.apply(f"{COACH}/namespaces/{api.namespace}/trainingsearches/{base.name}", yaml.safe_load(data))
    typer.echo(
        f"trainingsearch {base.name} applied to {api.namespace}; see: coach --context NAME search --show {base.name}"
    )
    return 0


async def _change(api: Api, command: str, names: list[str]) -> int:
    """Suspend or resume: what the TrainingJob says is what the controller makes true."""
    if not names or any(name.startswith("-") for name in names):
        raise UserError(
            f"coach --context NAME {command} takes names of jobs alone; for more money: "
            "kubectl edit trainingjob JOB, spec.budget.amount"
        )
    for name in names:
        path = f"{COACH}/namespaces/{api.namespace}/trainingjobs/{name}"
        try:
            await api.merge(path, {"spec": {"suspend": command == "suspend"}})
        except ApiError as error:
            raise UserError(f"{name}: {error}; see: coach --context NAME ps") from error
        typer.echo(f"{name}: spec.suspend is {str(command == 'suspend').lower()}")
    return 0


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
        typer.echo(f"configmap {name}: {program_files.words(files)}", err=err)
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


def run(options: dict[str, str], jobs: Sequence[LoadedJob], *, as_json: bool) -> int:
    """Apply programs to a cluster and follow them; the exit code. Raises CoachError."""
    for job in jobs:
        if job.spec.spec.program is None:
            raise UserError(
                f"{job.path}: coach --context NAME run takes programs; a model goes by coach --context NAME submit FILE"
            )
        if job.spec.spec.image is None:
            raise UserError("--image: required on a cluster, such as --image registry.example.com/me/train:1")
    return asyncio.run(_run_jobs(options, jobs, as_json=as_json))


async def _run_jobs(options: dict[str, str], jobs: Sequence[LoadedJob], *, as_json: bool) -> int:
    async with await Api.connect(options.get("--context"), options.get("--namespace")) as api:
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
