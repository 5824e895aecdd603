"""What Coach relies on in Nuclio's controller: each case runs against our stand-in, and against the real one if there.

    COACH_NUCLIO_CONTROLLER=/path/to/controller python -m pytest tests/platforms/nuclio/test_controller.py

A real API server, and the Deployment controller; no kubelet, so a pod is ready when the test says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from coach.core.cluster import Pod, PodId, Role
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.nuclio import resources
from tests.docs.pages import ROOT
from tests.packaging.api_server import ApiServer, until
from tests.platforms.nuclio import controllers
from tests.platforms.nuclio.test_resources import demo

pytestmark = pytest.mark.processes

NAMESPACE = "/namespaces/default"
FUNCTIONS = f"/apis/nuclio.io/v1beta1{NAMESPACE}/nucliofunctions"
PROJECTS = f"/apis/nuclio.io/v1beta1{NAMESPACE}/nuclioprojects"
DEPLOYMENTS, REPLICA_SETS = f"/apis/apps/v1{NAMESPACE}/deployments", f"/apis/apps/v1{NAMESPACE}/replicasets"
PODS, SERVICES, MAPS = (f"/api/v1{NAMESPACE}/{kind}" for kind in ("pods", "services", "configmaps"))
MERGE = {"content-type": "application/merge-patch+json"}
NEVER = 2.0
"""Seconds in which a controller would have done what it must not do."""


class World:
    """A controller and its functions."""

    def __init__(self, server: ApiServer, controller: controllers.Controller) -> None:
        self.server = server
        self.http = server.admin.http
        self.controller = controller

    def function(self, index: int = 0, **changes: Any) -> dict[str, Any]:
        job = demo()
        pod = Pod(PodId("demo", Role.WORKER, index), "", job.spec.resources.of(Role.WORKER))
        made = resources.function(pod, job, ROOT / "functions", Settings("image:1", handler="h"), [])
        made["spec"] |= changes
        return made

    def create(self, function: dict[str, Any]) -> str:
        self.server.admin.create(FUNCTIONS, function)
        return str(function["metadata"]["name"])

    def patch(self, path: str, change: Mapping[str, Any]) -> None:
        self.http.patch(path, json=change, headers=MERGE).raise_for_status()

    def wake(self, name: str, **changes: Any) -> None:
        change = {"spec": {"replicas": 1, **changes}, "status": {"state": resources.WAITING}}
        self.patch(f"{FUNCTIONS}/{name}", change)

    def state(self, name: str) -> str:
        return str(self.server.admin.get(f"{FUNCTIONS}/{name}").get("status", {}).get("state"))

    def becomes(self, name: str, state: str) -> None:
        until(f"{name} becomes {state}", lambda: self.state(name) == state)

    def deployment(self, name: str) -> dict[str, Any]:
        path = f"{DEPLOYMENTS}/nuclio-{name}"
        until("a Deployment", lambda: self.server.admin.exists(path))
        found: dict[str, Any] = self.server.admin.get(path)
        return found

    def pods(self, name: str) -> list[dict[str, Any]]:
        selector = f"nuclio.io/function-name={name}"
        items: list[dict[str, Any]] = self.server.admin.get(PODS, labelSelector=selector)["items"]
        return items

    def replica_sets(self, name: str) -> list[str]:
        selector = f"nuclio.io/function-name={name}"
        found = self.server.admin.get(REPLICA_SETS, labelSelector=selector)["items"]
        return [one["metadata"]["name"] for one in found]


@pytest.fixture(params=controllers.kinds())
def world(request: Any, server: ApiServer, tmp_path: Path) -> Iterator[World]:
    """Without a running controller; nothing is left of earlier functions."""
    clear(server)
    yield World(server, controllers.Controller(request.param, server.admin.kubeconfig, tmp_path, 3))
    clear(server)


def clear(server: ApiServer) -> None:
    """Delete all that tests have left, projects of other files among it."""
    for path in (FUNCTIONS, PROJECTS, DEPLOYMENTS, REPLICA_SETS, PODS, MAPS):
        server.admin.http.delete(path, params={"gracePeriodSeconds": "0"}).raise_for_status()
    for service in server.admin.get(SERVICES)["items"]:
        if service["metadata"]["name"].startswith("nuclio-"):
            server.admin.http.delete(f"{SERVICES}/{service['metadata']['name']}")
    until("nothing is left", lambda: not any(server.admin.get(path)["items"] for path in (FUNCTIONS, PODS)))


@pytest.fixture
def running(world: World) -> Iterator[World]:
    """With the configuration that Coach asks for, and its project."""
    world.server.admin.create(PROJECTS, resources.project())
    with world.controller.running(resources.platform_config()):
        yield world


def stays(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + NEVER
    while time.monotonic() < deadline:
        assert condition()
        time.sleep(0.1)


def test_a_function_becomes_a_configmap_a_service_and_a_deployment(running: World) -> None:
    name = running.create(running.function())
    running.becomes(name, "ready")
    made = running.deployment(name)
    assert running.server.admin.exists(f"{SERVICES}/nuclio-{name}")
    file = running.server.admin.get(f"{MAPS}/nuclio-{name}")["data"]["processor.yaml"]
    assert "training.nuclio:handler" in file and f"name: {name}" in file
    assert made["spec"]["replicas"] == 0 and not running.pods(name)
    pod = made["spec"]["template"]
    ours = running.function()["metadata"]["labels"]
    assert ours.items() <= pod["metadata"]["labels"].items()
    assert {"nuclio.io/class": "function", "nuclio.io/function-name": name}.items() <= pod["metadata"]["labels"].items()
    assert made["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert not any("ownerReferences" in one["metadata"] for one in (made,))


@pytest.mark.parametrize("role", [role.value for role in Role])
def test_a_function_file_is_deployed_by_nuctl_as_it_is(running: World, role: str) -> None:
    """What nuctl 1.14.1 sends for: deploy NAME --file functions/ROLE/function.yaml --run-image IMAGE."""
    function = yaml.safe_load((ROOT / "functions" / role / "function.yaml").read_text())
    function["metadata"]["labels"]["nuclio.io/project-name"] = "coach"
    function["spec"] |= {
        "alias": "latest",
        "build": {"functionConfigPath": f"functions/{role}/function.yaml"},
        "disableDefaultHTTPTrigger": False,
        "eventTimeout": "",
        "image": "image:1",
        "imageHash": "1795614834726941881",
        "platform": {},
        "readinessTimeoutSeconds": 120,
        "resources": {"requests": {"cpu": "25m", "memory": "1Mi"}},
        "securityContext": {},
        "targetCPU": 75,
    }
    function["spec"]["triggers"]["http"]["attributes"]["serviceType"] = "ClusterIP"
    name = running.create({**function, "status": {"state": resources.WAITING}})
    until("a pod", lambda: running.pods(name))
    file = running.server.admin.get(f"{MAPS}/nuclio-{name}")["data"]["processor.yaml"]
    assert "training.nuclio:handler" in file


def test_its_container_is_the_image_with_probes_of_nuclio_and_what_the_function_says(running: World) -> None:
    name = running.create(running.function())
    spec = running.deployment(name)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert (container["name"], container["image"]) == ("nuclio", "image:1")
    assert container["readinessProbe"]["initialDelaySeconds"] == 5
    assert container["readinessProbe"]["httpGet"]["path"] == "/__internal/health"
    assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": 8082, "scheme": "HTTP"}
    names = [one["name"] for one in container["env"]]
    assert names[:2] == ["OMP_NUM_THREADS", "COACH_FRAMEWORK"] and "NUCLIO_FUNCTION_INSTANCE" in names
    assert container["resources"]["requests"]["cpu"] == "1"
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounts["processor-config-volume"] == "/etc/nuclio/config/processor"
    assert mounts["tmp"] == "/tmp"
    assert spec["securityContext"]["runAsNonRoot"]


def test_an_image_is_pulled_always_unless_the_function_says_otherwise(running: World) -> None:
    first = running.create(running.function(0, imagePullPolicy=None))
    second = running.create(running.function(1))

    def policy(name: str) -> str:
        (container,) = running.deployment(name)["spec"]["template"]["spec"]["containers"]
        return str(container["imagePullPolicy"])

    assert (policy(first), policy(second)) == ("Always", "IfNotPresent")


def test_a_function_is_updated_with_a_surge_unless_it_says_otherwise(running: World) -> None:
    first = running.create(running.function(0, deploymentStrategy=None))
    second = running.create(running.function(1))
    strategies = [running.deployment(name)["spec"]["strategy"]["type"] for name in (first, second)]
    assert strategies == ["RollingUpdate", "Recreate"]


def test_the_augmented_config_names_the_scheduler_and_fills_only_what_is_empty(running: World) -> None:
    name = running.create(running.function())
    running.becomes(name, "ready")
    spec = running.deployment(name)["spec"]["template"]["spec"]
    assert spec["schedulerName"] == "coach" and spec["automountServiceAccountToken"] is False
    change = {"spec": {"template": {"spec": {"schedulerName": "another"}}}}
    running.patch(f"{DEPLOYMENTS}/nuclio-{name}", change)
    running.wake(name)
    running.becomes(name, "ready")
    assert running.deployment(name)["spec"]["template"]["spec"]["schedulerName"] == "another"


def test_without_it_pods_go_to_the_default_scheduler_until_the_deployment_is_changed(world: World) -> None:
    world.server.admin.create(PROJECTS, resources.project())
    with world.controller.running({"functionReadinessTimeout": "0s"}):
        name = world.create(world.function())
        world.becomes(name, "ready")
        assert world.deployment(name)["spec"]["template"]["spec"]["schedulerName"] == "default-scheduler"
        change = {"spec": {"template": {"spec": {"schedulerName": "coach"}}}}
        world.patch(f"{DEPLOYMENTS}/nuclio-{name}", change)
        world.wake(name)
        until("a pod", lambda: world.pods(name))
        assert world.pods(name)[0]["spec"]["schedulerName"] == "coach"


def test_a_function_without_a_state_is_ignored(running: World) -> None:
    name = running.create({**running.function(), "status": {}})
    stays(lambda: not running.server.admin.exists(f"{DEPLOYMENTS}/nuclio-{name}"))


def test_a_function_without_a_project_is_an_error(running: World) -> None:
    function = running.function()
    del function["metadata"]["labels"]["nuclio.io/project-name"]
    name = running.create(function)
    running.becomes(name, "error")
    status = running.server.admin.get(f"{FUNCTIONS}/{name}")["status"]
    assert "Failed to determine a project name" in status["message"]
    assert not running.server.admin.exists(f"{DEPLOYMENTS}/nuclio-{name}")


def test_a_function_of_a_project_that_is_not_there_is_an_error(world: World) -> None:
    with world.controller.running(resources.platform_config()):
        name = world.create(world.function())
        world.becomes(name, "error")
        status = world.server.admin.get(f"{FUNCTIONS}/{name}")["status"]
        assert 'nuclioprojects.nuclio.io "coach" not found' in status["message"]


def test_one_merge_patch_wakes_a_function_and_parks_it_and_the_pod_stays_when_nothing_changes(
    running: World,
) -> None:
    name = running.create(running.function())
    running.becomes(name, "ready")
    before = running.replica_sets(name)
    running.wake(name)
    until("a pod", lambda: running.pods(name))
    uid = running.pods(name)[0]["metadata"]["uid"]
    running.becomes(name, "ready")
    running.wake(name, **{key: value for key, value in running.function()["spec"].items() if key != "replicas"})
    running.becomes(name, "ready")
    stays(lambda: [pod["metadata"]["uid"] for pod in running.pods(name)] == [uid])
    running.wake(name, replicas=0)
    until("no pod", lambda: not running.pods(name))
    assert running.replica_sets(name) == before


def test_a_changed_function_replaces_its_pod(running: World) -> None:
    name = running.create(running.function())
    running.wake(name)
    until("a pod", lambda: running.pods(name))
    running.wake(name, env=[{"name": "NEW", "value": "1"}])
    until(
        "the pod of another",
        lambda: any({"name": "NEW", "value": "1"} in pod["spec"]["containers"][0]["env"] for pod in running.pods(name)),
    )
    assert len(running.pods(name)) == 1, "never two of one index"


def test_replicas_alone_are_not_looked_at_soon_after_a_deployment(running: World) -> None:
    name = running.create(running.function())
    running.becomes(name, "ready")
    running.patch(f"{FUNCTIONS}/{name}", {"spec": {"replicas": 1}})
    stays(lambda: not running.pods(name))


def test_without_a_readiness_timeout_many_functions_are_made_at_once(running: World) -> None:
    names = [running.create(running.function(index, replicas=1)) for index in range(6)]
    for name in names:
        running.becomes(name, "ready")
    until("six pods", lambda: all(len(running.pods(name)) == 1 for name in names))


def test_with_a_readiness_timeout_four_functions_that_wait_keep_all_others_waiting(world: World) -> None:
    world.server.admin.create(PROJECTS, resources.project())
    config = {**resources.platform_config(), "functionReadinessTimeout": "120s"}
    with world.controller.running(config):
        for index in range(6):
            world.create(world.function(index, replicas=1))

        def many() -> int:
            return len(world.server.admin.get(DEPLOYMENTS)["items"])

        until("four Deployments", lambda: many() == 4)
        stays(lambda: many() == 4)


def test_a_function_that_waits_for_its_gang_is_called_unhealthy_and_can_be_parked_and_woken(
    running: World,
) -> None:
    name = running.create(running.function(replicas=1))
    running.becomes(name, "unhealthy")
    assert len(running.pods(name)) == 1, "and its pod goes on waiting"
    running.wake(name, replicas=0)
    until("no pod", lambda: not running.pods(name))
    running.wake(name)
    until("a pod", lambda: running.pods(name))


def test_a_deleted_function_takes_all_with_it_while_the_controller_runs(running: World) -> None:
    name = running.create(running.function(replicas=1))
    until("a pod", lambda: running.pods(name))
    running.http.delete(f"{FUNCTIONS}/{name}").raise_for_status()
    for path in (DEPLOYMENTS, SERVICES, MAPS):
        until("it goes", lambda path=path: not running.server.admin.exists(f"{path}/nuclio-{name}"))  # type: ignore[misc]
    until("no pod", lambda: not running.pods(name))


def test_what_is_deleted_while_the_controller_is_away_leaves_its_objects(world: World) -> None:
    world.server.admin.create(PROJECTS, resources.project())
    with world.controller.running(resources.platform_config()):
        name = world.create(world.function())
        world.becomes(name, "ready")
    world.http.delete(f"{FUNCTIONS}/{name}").raise_for_status()
    with world.controller.running(resources.platform_config()):
        other = world.create(world.function(1))
        world.becomes(other, "ready")
        stays(lambda: world.server.admin.exists(f"{DEPLOYMENTS}/nuclio-{name}"))


def test_a_deleted_pod_comes_back_under_another_name(running: World) -> None:
    name = running.create(running.function(replicas=1))
    until("a pod", lambda: running.pods(name))
    first = running.pods(name)[0]["metadata"]["name"]
    running.http.delete(f"{PODS}/{first}", params={"gracePeriodSeconds": "0"}).raise_for_status()
    until("another pod", lambda: [one["metadata"]["name"] for one in running.pods(name)] not in ([first], []))
