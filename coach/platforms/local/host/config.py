"""What a host reads: Nuclio's processor.yaml and platform.yaml, the keys that this twin knows."""

import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_MAX_BODY = 4 * 1024 * 1024
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class ConfigError(Exception):
    """A configuration file cannot be used; the message is one line for a person."""


@dataclass(frozen=True)
class HostConfig:
    """One function's configuration.

    Times are seconds, sizes bytes. Addresses are (host, port); `None` serves nothing there. `python_path` goes before
    the functions' PYTHONPATH.
    """

    name: str
    namespace: str
    handler: str
    address: tuple[str, int]
    health_address: tuple[str, int] | None = None
    workers: int = 1
    trigger_name: str = "http"
    availability_timeout: float = 10.0
    termination_timeout: float = 10.0
    event_timeout: float | None = None
    max_body: int = DEFAULT_MAX_BODY
    python: str = sys.executable
    python_path: str = ""
    labels: dict[str, str] = field(default_factory=dict)


def duration(text: str, what: str) -> float:
    """Seconds of a Go duration such as `1m30s` or `250ms`."""
    if text == "0":
        return 0.0
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ConfigError(f'{what}: "{text}" is no duration - write for example 30s or 1m30s')
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def read(config: Path, platform_config: Path | None, environ: dict[str, str] | None = None) -> HostConfig:
    """Read both files, NUCLIO_PYTHON_EXE_PATH and NUCLIO_PYTHON_PATH. Raises ConfigError.

    NUCLIO_PYTHON_WRAPPER_PATH is Nuclio's own: the host has its own wrapper, which speaks to no other processor.
    """
    environ = dict(os.environ) if environ is None else environ
    document = _load(config)
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    if not spec.get("handler"):
        raise ConfigError(f"{config}: spec.handler is missing - write module:function")
    triggers = {
        n: t for n, t in (spec.get("triggers") or {}).items() if (t or {}).get("kind", "http") == "http"
    }
    if len(triggers) != 1:
        raise ConfigError(
            f"{config}: spec.triggers has {len(triggers)} http triggers - the host serves exactly one"
        )
    trigger_name, trigger = next(iter(triggers.items()))
    attributes = trigger.get("attributes") or {}
    address = _address(str(trigger.get("url") or "127.0.0.1:8080"), f"{config}: triggers.{trigger_name}.url")
    event_timeout = str(spec.get("eventTimeout") or "")
    wait = trigger.get("workerAvailabilityTimeoutMilliseconds")
    return HostConfig(
        name=str(metadata.get("name") or ""),
        namespace=str(metadata.get("namespace") or ""),
        labels={str(k): str(v) for k, v in (metadata.get("labels") or {}).items()},
        handler=str(spec["handler"]),
        address=address,
        health_address=_health(platform_config, address),
        workers=_count(trigger.get("numWorkers") or trigger.get("maxWorkers") or 1, "numWorkers"),
        trigger_name=str(trigger.get("name") or trigger_name),
        availability_timeout=10.0
        if wait is None
        else _count(wait, "workerAvailabilityTimeoutMilliseconds") / 1000,
        termination_timeout=duration(
            str(trigger.get("workerTerminationTimeout") or "10s"), "workerTerminationTimeout"
        ),
        event_timeout=duration(event_timeout, "eventTimeout") if event_timeout else None,
        max_body=_count(attributes.get("maxRequestBodySize") or DEFAULT_MAX_BODY, "maxRequestBodySize"),
        python=environ.get("NUCLIO_PYTHON_EXE_PATH") or sys.executable,
        python_path=environ.get("NUCLIO_PYTHON_PATH") or str(Path.cwd()),
    )


def _health(platform_config: Path | None, address: tuple[str, int]) -> tuple[str, int] | None:
    if platform_config is None:
        return None
    health = _load(platform_config).get("healthCheck") or {}
    if not health.get("enabled", True):
        return None
    listen = str(health.get("listenAddress") or f"{address[0]}:8082")
    return _address(listen, f"{platform_config}: healthCheck.listenAddress")


def _address(text: str, what: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise ConfigError(f'{what}: "{text}" is no address - write for example 127.0.77.1:8080')
    return host or "127.0.0.1", int(port)  # where Nuclio listens everywhere, a local host stays local


def _count(value: object, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ConfigError(f"{what}: {value!r} is no count")


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        document = json.loads(
            text
        )  # JSON is YAML, and what `launch` writes: it spares a host the YAML parser
    except ValueError:
        import yaml

        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: is no YAML ({' '.join(str(error).split())})") from None
    if document is not None and not isinstance(document, dict):
        raise ConfigError(f"{path}: must be a mapping")
    return document or {}
