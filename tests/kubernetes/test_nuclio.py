"""Jobs that Nuclio's controller makes the pods of: our stand-in for it, or the real one and its processor.

The real ones run where COACH_NUCLIO_CONTROLLER names the controller, and COACH_NUCLIO_PROCESSOR, _WRAPPER and
_PYTHONPATH what `scripts/images.py nuclio-functions` makes an image of.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coach.platforms.nuclio import resources
from scripts import images
from tests.kubernetes.cluster import ROOT, ExistingCluster
from tests.kubernetes.installed import LARGE, Coach, job, ours
from tests.kubernetes.test_laptop import coach_command
from tests.kubernetes.test_more_scenarios import ENDLESS, kill_in_pod, went_on
from tests.packaging.api_server import until
from tests.platforms.nuclio.controllers import CONTROLLER, Controller, definitions

REAL = bool(os.environ.get(CONTROLLER))
FUNCTIONS_IMAGE = f"coach-nuclio-functions:{images.VERSION}"


@dataclass
class Nuclio:
    """A controller whose process may be killed and started again."""

    controller: Controller
    stack: contextlib.ExitStack

    def start(self) -> None:
        """With the configuration that Coach asks for."""
        self.process = self.stack.enter_context(self.controller.running(resources.platform_config()))

    def restart(self) -> None:
        """After a SIGKILL."""
        self.process.kill()
        self.process.wait()
        self.start()


@pytest.fixture(scope="module")
def nuclio(coach: Coach, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nuclio]:
    """A cluster with Nuclio's resources and a controller."""
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
        with contextlib.ExitStack() as stack:
            started = Nuclio(controller, stack)
            started.start()
            yield started
            ours = ("nucliofunctions,deployments,services", "-l", "nuclio.io/project-name=coach")
            # A Deployment that is deleted in the foreground goes after its pods.
            until("nothing is left", lambda: not cluster.get(*ours)["items"])
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


@pytest.mark.parametrize("servers", ["ps-lite", pytest.param("elastic", marks=pytest.mark.full)])
def test_a_job_trains_to_its_target_as_functions_that_are_gone_afterwards(
    servers: str, coach: Coach, nuclio: Nuclio, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    two = {"workers": {"min": 2, "max": 2}, "resources": LARGE, "parameterServer": servers}
    file = job_file(tmp_path, target={"loss": 1.0, "epochsInARow": 1}, **two)
    ran = coach_command(coach, home, "run", "--platform", "nuclio", str(file), "-o", "json")
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(coach_command(coach, home, "show", "serverless", "-o", "json").stdout)
    assert shown["state"] == "Succeeded" and shown["spent"] <= shown["budget"]
    assert shown["spent"] == pytest.approx(sum(epoch["cost"] for epoch in shown["epochs"]), rel=0.2)
    workers = {epoch["workers"] for epoch in shown["epochs"]}
    assert workers == {2}
    assert "scheduler-0" in coach_command(coach, home, "logs", "serverless").stdout
    coach.nothing_left("serverless")
    assert nuclio.process.poll() is None, "Nuclio's controller lives"


@pytest.fixture(scope="module")
def served(coach: Coach, nuclio: Nuclio) -> Iterator[Nuclio]:
    """The chart's handler trains with Nuclio."""
    image = ("functions.image.repository=coach-nuclio-functions",) if REAL else ()
    coach.upgrade("platform=nuclio", *image)
    yield nuclio
    coach.upgrade()


def pod_of(cluster: ExistingCluster, function: str) -> str:
    """The pod of a function that has not ended."""
    found = cluster.get("pods", "-l", f"nuclio.io/function-name={function}")["items"]
    [name] = [one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]]
    return str(name)


def delete_pod(coach: Coach, function: str) -> None:
    pod = pod_of(coach.cluster, function)
    coach.cluster.kubectl("delete", "pod", pod, "--grace-period=0", "--force")


def kill_wrapper(coach: Coach, function: str) -> None:
    kill_in_pod(coach.cluster, pod_of(coach.cluster, function))


def kill_processor(coach: Coach, function: str) -> None:
    pod = coach.cluster.get("pod", pod_of(coach.cluster, function))
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    node = ours(coach.cluster).nodes[pod["spec"]["nodeName"]]
    node.ctr("tasks", "kill", "--signal", "SIGKILL", container)


def kill_handler(coach: Coach) -> None:
    selector = ("-l", "app.kubernetes.io/component=handler")
    coach.cluster.kubectl("delete", "pod", *selector, "--grace-period=0", "--force")
    coach.cluster.kubectl("rollout", "status", "deployment/coach-handler", "--timeout=120s")


@pytest.mark.full
@pytest.mark.parametrize("kill", [delete_pod, kill_wrapper, kill_processor])
@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_a_killed_function_costs_an_attempt(
    coach: Coach, served: Nuclio, kill: Callable[[Coach, str], None], role: str
) -> None:
    name = f"{kill.__name__.replace('_', '-')}-{role}"
    coach.apply(job(name, **ENDLESS))
    coach.training(name, epochs=2)
    kill(coach, f"{name}-{role}-0")
    went_on(coach, name, attempts=1)


@pytest.mark.full
def test_a_killed_handler_is_followed_by_another_that_goes_on(coach: Coach, served: Nuclio) -> None:
    coach.apply(job("handled", **ENDLESS))
    epochs = coach.training("handled", epochs=2)["epochs"]
    kill_handler(coach)
    coach.training("handled", epochs + 1)
    went_on(coach, "handled")


@pytest.mark.full
def test_a_killed_controller_costs_nothing_while_functions_are_warm(coach: Coach, served: Nuclio) -> None:
    coach.apply(job("uncontrolled", **ENDLESS))
    coach.training("uncontrolled", epochs=2)
    served.restart()
    assert went_on(coach, "uncontrolled") == 0


@pytest.mark.full
def test_functions_are_warm_between_epochs_and_parked_while_their_job_is_suspended(
    coach: Coach, served: Nuclio
) -> None:
    cluster = coach.cluster
    coach.apply(job("warm", **ENDLESS))
    coach.training("warm")
    before = pod_of(cluster, "warm-worker-0")
    coach.training("warm", epochs=4)
    assert pod_of(cluster, "warm-worker-0") == before
    cluster.kubectl("patch", "trainingjob", "warm", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    coach.until("warm", lambda status: status.get("reason") == "Suspended", "suspended")
    coach.nothing_left("warm")
    cluster.kubectl("patch", "trainingjob", "warm", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    assert went_on(coach, "warm") == 0


@pytest.mark.full
def test_deployed_functions_are_used_by_a_run_and_stay_until_they_are_deleted(
    coach: Coach, nuclio: Nuclio, tmp_path: Path
) -> None:
    file, home = job_file(tmp_path), tmp_path / "home"
    deployed = coach_command(coach, home, "deploy", "nuclio", str(file), "-o", "json")
    assert deployed.returncode == 0, deployed.stderr
    names = sorted(row["function"] for row in json.loads(deployed.stdout))
    assert names[0] == "serverless-scheduler-0"
    ran = coach_command(coach, home, "run", "--platform", "nuclio", str(file), "-o", "json")
    assert ran.returncode == 0, ran.stderr
    there = coach.cluster.get("nucliofunctions")["items"]
    assert sorted(one["metadata"]["name"] for one in there) == names
    assert {one["spec"]["replicas"] for one in there} == {0}
    deleted = coach_command(coach, home, "deploy", "nuclio", str(file), "--delete")
    assert f"removed {len(names)} functions" in deleted.stdout
    assert coach.cluster.get("nucliofunctions,nuclioprojects")["items"] == []
