"""Start and end function hosts from asyncio.

    host = await launch(folder, "demo-worker-0", "127.0.77.3:8080", python=..., env={}, log_path=..., run_dir=...)
    await host.wait_ready(timeout=30)
    ...
    await host.terminate(grace=2)

A host started here ends with its launcher, however that ends, and its wrappers end with it.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from coach.core.errors import UserError
from coach.platforms.local.host.command import Command, HostProcess, base_environment
from coach.platforms.local.host.warm_pool import Spares

#: A host that is started in the folder that `write_config` wrote to.
CONFIG_ARGUMENTS = ("--config", "processor.yaml", "--platform-config", "platform.yaml")


async def launch(
    function_dir: Path,
    name: str,
    address: str,
    *,
    python: Path,
    env: Mapping[str, str],
    log_path: Path,
    run_dir: Path,
    python_path: Sequence[Path] = (),
    cpus: Sequence[int] | None = None,
    network: str | None = None,
    namespace: str = "nuclio",
    trigger: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    health: str | None = None,
    spares: Spares | None = None,
) -> HostProcess:
    """Start one function on `address` ("127.x.y.z:8080") and return at once; `wait_ready` waits for it.

    Reads `function_dir`/function.yaml (Nuclio's format), gives the function the name `name`, and writes processor.yaml
    and platform.yaml into `run_dir`, which is its working directory too. `python` is the functions' interpreter;
    `function_dir` and the folders of `python_path` are importable. The function's environment is this process's without
    its Python settings, then `spec.env` of function.yaml, then `env`. `trigger` overrides keys of the HTTP trigger, as
    numWorkers or workerTerminationTimeout. `health` is the address of /live and /ready; by default there is none,
    because `wait_ready` and `wait` report the same. `network` is the path of a network namespace to run it in, which
    only root may do. One of `spares` becomes this host where there is one. Raises UserError when function.yaml cannot
    be used.
    """
    from_file = write_config(
        function_dir,
        name,
        address,
        run_dir,
        python_path=python_path,
        namespace=namespace,
        trigger=trigger,
        labels=labels,
        health=health,
    )
    arguments = [*CONFIG_ARGUMENTS, "--log-file", str(log_path.resolve())]
    if cpus:
        arguments += ["--cpus", ",".join(str(cpu) for cpu in cpus)]
    if network:
        arguments += ["--network", network]
    environment = {**base_environment(python), **from_file, **env}
    command = Command(arguments, environment, run_dir.resolve(), run_dir.resolve() / "host.log")
    if spares is not None and (host := spares.take(name, address, command)) is not None:
        return host
    return command.start(name, address)


def write_config(
    function_dir: Path,
    name: str,
    address: str,
    run_dir: Path,
    *,
    python_path: Sequence[Path] = (),
    namespace: str = "nuclio",
    trigger: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    health: str | None = None,
) -> dict[str, str]:
    """Write what CONFIG_ARGUMENTS name into `run_dir`, and return what the host needs in its environment.

    The arguments are those of `launch`. Raises UserError when function.yaml cannot be used.
    """
    document = _read_function(function_dir / "function.yaml")
    spec = dict(document.get("spec") or {})
    spec["triggers"] = {"http": {**_http_trigger(spec), **(trigger or {}), "kind": "http", "url": address}}
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    platform = {"healthCheck": {"enabled": health is not None, "listenAddress": health or ""}}
    run_dir.mkdir(parents=True, exist_ok=True)
    _write(run_dir / "processor.yaml", {"metadata": metadata, "spec": spec})
    _write(run_dir / "platform.yaml", platform)
    paths = os.pathsep.join(str(path.resolve()) for path in (function_dir, *python_path))
    from_file = {entry["name"]: str(entry.get("value", "")) for entry in spec.get("env") or []}
    return {**from_file, "NUCLIO_PYTHON_PATH": paths}


def _read_function(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); a function's folder needs one") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: is no YAML ({' '.join(str(error).split())})") from None
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        raise UserError(f"{path}: has no spec; it must be a Nuclio function file")
    return document


def _http_trigger(spec: Mapping[str, Any]) -> dict[str, Any]:
    for trigger in (spec.get("triggers") or {}).values():
        if trigger.get("kind") == "http":
            return dict(trigger)
    return {"kind": "http", "name": "http", "numWorkers": 1}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
