"""The two controllers under contract: Nuclio's own, where COACH_NUCLIO_CONTROLLER names it, and our stand-in."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.forked import Forked
from tests.packaging.api_server import ApiServer, api_server, served

CONTROLLER = "COACH_NUCLIO_CONTROLLER"
#: Kinds that the controller lists when it starts. It has no schema of them, and no status subresource.
KINDS = {
    "nucliofunctions": "NuclioFunction",
    "nuclioprojects": "NuclioProject",
    "nucliofunctionevents": "NuclioFunctionEvent",
    "nuclioapigateways": "NuclioAPIGateway",
}


def definitions() -> Iterator[dict[str, Any]]:
    """Nuclio's resources, as its chart defines them."""
    anything = {"x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    for plural, kind in KINDS.items():
        version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.nuclio.io"},
            "spec": {
                "group": "nuclio.io",
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [version],
            },
        }


@contextlib.contextmanager
def api_server_with_nuclio(folder: Path) -> Iterator[ApiServer]:
    """An API server with Nuclio's resources, and the controllers of Kubernetes that Nuclio's relies on."""
    with api_server(folder, "deployment-controller,replicaset-controller,garbage-collector-controller") as one:
        for definition in definitions():
            served(one.admin, definition)
        yield one


@dataclass
class Controller:
    """One of the two: `real` is Nuclio's. It runs between `start` and `stop`."""

    real: bool
    kubeconfig: Path
    folder: Path
    monitor_seconds: int = 180

    @contextlib.contextmanager
    def running(self, config: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
        """With this platform configuration; killed at the end."""
        file = self.folder / "platform.yaml"
        file.write_text(yaml.safe_dump({"kind": "kube", **config}))
        program = (
            [os.environ[CONTROLLER]]
            if self.real
            else [sys.executable, "-m", "tests.platforms.nuclio.controller_double"]
        )
        command = [
            *program,
            *("--kubeconfig-path", str(self.kubeconfig), "--namespace", "default"),
            *("--platform-config", str(file), "--function-monitor-interval", f"{self.monitor_seconds}s"),
        ]
        with (self.folder / "nuclio-controller.log").open("ab") as log:
            start = subprocess.Popen if self.real else Forked
            process = start(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def kinds() -> list[Any]:
    """Parameters of a test: both controllers. The real one's cases are skipped where it is not to be had."""
    absent = not os.environ.get(CONTROLLER)
    reason = f"{CONTROLLER} is not set: Nuclio's controller was not run; see results/kubernetes/nuclio-controller.md"
    return [
        pytest.param(False, id="double"),
        pytest.param(True, id="nuclio", marks=pytest.mark.skipif(absent, reason=reason)),
    ]
