"""Run an exec plugin of a kubeconfig, by which managed clusters log their users in.

The protocol is that of `client.authentication.k8s.io`: ExecCredential in an environment variable, ExecCredential out.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from coach.core.errors import TemporaryError

#: Seconds that a plugin without a terminal may take.
PLUGIN_SECONDS = 30.0

_KIND = "ExecCredential"
#: Fields of a kubeconfig's cluster that a plugin may ask for (`provideClusterInfo`).
_CLUSTER = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
)


async def run(plugin: Any, cluster: Any, folder: Path, *, interactive: bool) -> dict[str, Any]:
    """The `status` that a plugin gives: a token, or a certificate with its key, and when it ends.

    `plugin` is a user's `exec`, `cluster` the cluster, as the kubeconfig in `folder` has them. `interactive`: it may
    ask the user at the terminal. Raises TemporaryError with what it said.
    """
    command = str(plugin.get("command", ""))
    name, mode = f"exec plugin {command}", plugin.get("interactiveMode", "IfAvailable")
    asks = interactive and mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    if mode == "Always" and not asks:
        raise TemporaryError(f"{name} needs a terminal (interactiveMode: Always), and here is none")
    program = str(folder / command) if os.sep in command else command
    given = {one["name"]: str(one["value"]) for one in plugin.get("env") or ()}
    spec: dict[str, Any] = {"interactive": asks}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = _cluster_info(cluster, folder)
    version = plugin.get("apiVersion")
    asked = {"apiVersion": version, "kind": _KIND, "spec": spec}
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *map(str, plugin.get("args") or ()),
            env=os.environ | given | {"KUBERNETES_EXEC_INFO": json.dumps(asked)},
            stdin=None if asks else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if asks else asyncio.subprocess.PIPE,
            start_new_session=not asks,
        )
    except OSError as error:
        hint = str(plugin.get("installHint") or "").strip()
        raise TemporaryError(f"{name}: {error.strerror}{hint and f'; {hint}'}") from error
    try:
        async with asyncio.timeout(None if asks else PLUGIN_SECONDS):
            out, said = await process.communicate()
    except TimeoutError:
        raise TemporaryError(f"{name} did not end in {PLUGIN_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                if asks:
                    process.kill()
                else:
                    os.killpg(process.pid, signal.SIGKILL)  # with what it started
                await asyncio.wait_for(process.communicate(), 1.0)  # its pipes end
    if process.returncode:
        words = (said or b"").decode(errors="replace").strip()
        raise TemporaryError(f"{name} ended with exit code {process.returncode}{words and f': {words}'}")
    try:
        answer = json.loads(out)
        status: dict[str, Any] = answer["status"]
        if (answer["kind"], answer["apiVersion"]) != (_KIND, version):
            raise ValueError
        if not ("token" in status or {"clientCertificateData", "clientKeyData"} <= status.keys()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TemporaryError(
            f"{name} gave no {_KIND} of {version} with a token, or a certificate and its key"
        ) from None
    return status


def _cluster_info(cluster: Any, folder: Path) -> dict[str, Any]:
    """What `spec.cluster` has; a certificate authority's file is sent as its content."""
    found = {name: cluster[name] for name in _CLUSTER if name in cluster}
    if "certificate-authority" in cluster and "certificate-authority-data" not in found:
        content = (folder / cluster["certificate-authority"]).read_bytes()
        found["certificate-authority-data"] = base64.b64encode(content).decode()
    for one in cluster.get("extensions") or ():
        if one.get("name") == "client.authentication.k8s.io/exec":
            found["config"] = one.get("extension")
    return found
