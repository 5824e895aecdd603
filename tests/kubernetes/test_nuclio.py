"""Jobs that Nuclio's controller makes the pods of: our stand-in for it, or the real one and its processor.

The real ones run where COACH_NUCLIO_CONTROLLER names the controller, and COACH_NUCLIO_PROCESSOR, _WRAPPER and
_PYTHONPATH what `scripts/images.py nuclio-functions` makes an image of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coach.platforms.nuclio import resources
from scripts import images
from tests.kubernetes.cluster import ROOT
from tests.kubernetes.installed import LARGE, Coach, job
from tests.kubernetes.test_laptop import coach_command
from tests.platforms.nuclio.controllers import CONTROLLER, Controller, definitions

REAL = bool(os.environ.get(CONTROLLER))
FUNCTIONS_IMAGE = f"coach-nuclio-functions:{images.VERSION}"


@pytest.fixture(scope="module")
def nuclio(coach: Coach, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """A cluster with Nuclio's resources and a controller; its process."""
    cluster, kinds = coach.cluster, list(definitions())
    with pytest.MonkeyPatch.context() as patch:
        if REAL:
            subprocess.run([sys.executable, "scripts/images.py", "nuclio-functions"], cwd=ROOT, check=True)
            cluster.load_image(images.OUT / "coach-nuclio-functions.tar")
            patch.setenv("COACH_FUNCTIONS_IMAGE", FUNCTIONS_IMAGE)
        cluster.apply(*kinds)
        for kind in kinds:
            cluster.kubectl("wait", "--for=condition=Established", f"crd/{kind['metadata']['name']}")
        controller = Controller(REAL, cluster.kubeconfig, tmp_path_factory.mktemp("nuclio"))
        with controller.running(resources.platform_config()) as process:
            yield process
            left = cluster.get("nucliofunctions,deployments,services", "-l", "nuclio.io/project-name=coach")
            assert left["items"] == []
    cluster.kubectl("delete", "crd", *(kind["metadata"]["name"] for kind in kinds))


def job_file(folder: Path, **spec: object) -> Path:
    """A job file for `coach run`, with the model of the image."""
    path = folder / "job.yaml"
    document = job("serverless", **spec)
    document["spec"]["data"]["uri"] = "/var/lib/coach/data/mnist-digits"
    model = folder / "lenet_of_mine.py"
    model.write_text((ROOT / "functions/models/lenet.py").read_text())
    document["spec"]["model"] = {"file": model.name}
    path.write_text(json.dumps(document))
    return path


def test_a_job_trains_to_its_target_as_functions_that_are_gone_afterwards(
    coach: Coach, nuclio: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    two = {"workers": {"min": 2, "max": 2}, "resources": LARGE}
    file = job_file(tmp_path, target={"loss": 1.0, "epochsInARow": 1}, **two)
    ran = coach_command(coach, home, "run", "--platform", "nuclio", str(file), "-o", "json")
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(coach_command(coach, home, "show", "serverless", "-o", "json").stdout)
    assert shown["state"] == "Succeeded" and shown["spent"] <= shown["budget"]
    assert shown["spent"] == pytest.approx(sum(epoch["cost"] for epoch in shown["epochs"]), rel=0.2)
    workers = {epoch["workers"] for epoch in shown["epochs"]}
    assert workers == {2}
    assert "ready" in coach_command(coach, home, "logs", "serverless").stdout
    coach.nothing_left("serverless")
    assert nuclio.poll() is None
