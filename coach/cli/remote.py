"""`coach --context NAME COMMAND`: the commands about jobs, for the jobs of a cluster.

What the handler alone knows, its own `coach` says: the command runs in the handler's pod. What a user wants of a job is
written into its TrainingJob, as kubectl would.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import typer

from coach.core.errors import CoachError, UserError

if TYPE_CHECKING:
    from coach.platforms.kubernetes_api.client import Api

#: Commands that run in the handler's pod.
IN_POD = ("ps", "show", "why", "events", "logs", "cancel", "budget", "doctor", "plan", "compare", "prune")
#: Commands that change the cluster's objects.
ON_OBJECTS = ("submit", "suspend", "resume")
#: The command that brings a file from the handler's pod, and the one that makes its page reachable from here.
MODEL, UI = "model", "ui"
#: With a file it applies a TrainingSearch; with options alone, such as --show, it runs in the handler's pod.
SEARCH = "search"
_OPTIONS = ("--context", "--namespace")


def split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """`--context` and `--namespace` before the command, and the rest. Raises UserError for one without a value."""
    rest, found = list(arguments), dict[str, str]()
    while rest and rest[0].partition("=")[0] in _OPTIONS:
        name, equals, value = rest.pop(0).partition("=")
        if not equals:
            if not rest:
                raise UserError(f"{name} needs a value, such as: coach {name} NAME ps")
            value = rest.pop(0)
        found[name] = value
    return found, rest


def invoke(options: dict[str, str], arguments: Sequence[str]) -> int:
    """Run a command on a cluster; its exit code. Raises CoachError."""
    command = arguments[0] if arguments else ""
    if command not in (*IN_POD, *ON_OBJECTS, SEARCH, MODEL, UI):
        known = ", ".join(("run", *IN_POD, *ON_OBJECTS, SEARCH, MODEL, UI))
        raise UserError(
            f"coach --context {command or '(no command)'}: these commands work on a cluster's jobs: {known}; "
            "`coach serve` has --context itself"
        )
    import asyncio

    return asyncio.run(_on_cluster(options, list(arguments)))


async def _on_cluster(options: dict[str, str], arguments: list[str]) -> int:
    from coach.platforms.kubernetes_api.client import Api

    async with await Api.connect(options.get("--context"), options.get("--namespace")) as api:
        if arguments[0] in IN_POD or (arguments[0] == SEARCH and arguments[1:2] and arguments[1].startswith("--")):
            return await _in_pod(api, arguments)
        if arguments[0] == SEARCH:
            return await _search(api, [Path(word) for word in arguments[1:]])
        if arguments[0] == MODEL:
            return await _model(api, arguments[1:])
        if arguments[0] == UI:
            return await _ui(api, arguments[1:])
        if arguments[0] == "submit":
            return await _submit(api, [Path(word) for word in arguments[1:]])
        return await _change(api, arguments[0], arguments[1:])


async def _in_pod(api: Api, arguments: list[str]) -> int:
    streams = {1: sys.stdout, 2: sys.stderr}

    def out(channel: int, data: bytes) -> None:
        streams[channel].write(data.decode(errors="replace"))
        streams[channel].flush()

    return await _run(api, arguments, out)


async def _run(api: Api, arguments: list[str], out: Callable[[int, bytes], None]) -> int:
    """Run `coach` in the handler's pod; see run_in_pod."""
    from coach.platforms.kubernetes_api.exec import run_in_pod

    columns = shutil.get_terminal_size().columns
    command = ["env", f"COLUMNS={columns}", "coach", *arguments]
    return await run_in_pod(api, await _handler(api), command, out)


async def _handler(api: Api) -> str:
    """The handler's pod. Raises UserError where none runs."""
    from coach.platforms.kubernetes_api.client import CORE
    from coach.platforms.kubernetes_api.election import LEADER

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
    from coach.platforms.kubernetes_api.forward import connection, forwarded

    parser = argparse.ArgumentParser(prog="coach --context NAME ui", allow_abbrev=False)
    parser.add_argument("job", metavar="JOB", nargs="?")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--browser", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args(arguments)
    said = io.StringIO()

    def out(channel: int, data: bytes) -> None:
        (said if channel == 1 else sys.stderr).write(data.decode(errors="replace"))

    seen = set[str]()

    def failed(error: CoachError) -> None:
        if str(error) not in seen:  # a page asks again and again
            seen.add(str(error))
            typer.echo(f"coach: {error}", err=True)

    code = await _run(api, [UI, "--no-browser", "--no-serve", *([asked.job] if asked.job else [])], out)
    if code:
        return code
    there = urlsplit(said.getvalue().strip())
    import asyncio

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
                import webbrowser

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

        def out(channel: int, data: bytes) -> None:
            if channel == 1:
                archive.write(data)
            else:
                sys.stderr.write(data.decode(errors="replace"))

        code = await _run(api, [MODEL, asked.job, f"--epoch={asked.epoch}", "-o", "-"], out)
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
    from coach.cli.job_files import load
    from coach.cli.options import VOLUMES
    from coach.cli.remote_run import apply, apply_program
    from coach.platforms.kubernetes import model_files
    from coach.platforms.kubernetes_api.client import CORE

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
    import yaml

    from coach.cli.options import VOLUMES
    from coach.jobfiles.training_search import load_search
    from coach.platforms.kubernetes_api.client import COACH

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
    from coach.platforms.kubernetes_api.client import COACH, ApiError

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
