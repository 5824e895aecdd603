"""`coach deploy nuclio` changes and removes what it has made, and nothing that a run uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.platforms.base import PodError
from coach.platforms.kubernetes import manifests
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Api
from coach.platforms.nuclio import functions, resources
from coach.platforms.nuclio.deployment import Deployment
from tests.docs.pages import ROOT
from tests.packaging.api_server import ApiServer, until
from tests.platforms.kubernetes.test_platform import GANGS, SIZE, training_job
from tests.platforms.nuclio import controllers
from tests.platforms.nuclio.test_controller import DEPLOYMENTS, FUNCTIONS, MAPS
from tests.platforms.nuclio.test_platform import SETTINGS, WORKER, pod_of

pytestmark = pytest.mark.processes


Body = Callable[[Api, Deployment], Awaitable[None]]


@pytest.fixture
def run(server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))

    def started(body: Body, config: Any = None) -> None:
        async def main() -> None:
            async with await Api.connect() as api:
                await asyncio.wait_for(body(api, Deployment(api, SETTINGS)), 60)

        controller = controllers.Controller(False, server.admin.kubeconfig, tmp_path)
        with controller.running(config or resources.platform_config()):
            try:
                asyncio.run(main())
            finally:
                for path in (FUNCTIONS, GANGS, MAPS):
                    server.admin.http.delete(path).raise_for_status()
                # The controller deletes what it has made of a function, as long as it runs.
                until("nothing is left", lambda: not server.admin.get(DEPLOYMENTS)["items"])

    return started


def job(**changes: Any) -> TrainingJob:
    return training_job(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1}, **changes)


async def deploy(deployment: Deployment, spec: TrainingJob) -> list[dict[str, Any]]:
    return [one async for one in deployment.deploy([spec], ROOT / "functions")]


def test_what_is_deployed_again_has_the_new_job_s_spec(run: Any) -> None:
    async def body(api: Api, deployment: Deployment) -> None:
        assert {one["spec"]["image"] for one in await deploy(deployment, job(image="first:1"))} == {"first:1"}
        assert {one["spec"]["image"] for one in await deploy(deployment, job(image="second:1"))} == {"second:1"}
        await api.merge(f"{FUNCTIONS}/{WORKER.name}", {"spec": {"replicas": 1}})
        third = await deploy(deployment, job(image="third:1"))
        images = {one["metadata"]["name"]: one["spec"]["image"] for one in third}
        assert images.pop(WORKER.name) == "second:1", "a run uses it"
        assert set(images.values()) == {"third:1"}

    run(body)


def test_the_gang_of_a_run_keeps_its_size(run: Any) -> None:
    async def body(api: Api, deployment: Deployment) -> None:
        made = await api.create(GANGS, manifests.gang(SIZE, SETTINGS, []))
        await deploy(deployment, job())
        assert (await api.get(f"{GANGS}/job"))["spec"] == made["spec"]

    run(body)


def test_of_a_job_that_has_no_functions_nothing_is_removed(run: Any) -> None:
    """It may train in plain pods."""

    async def body(api: Api, deployment: Deployment) -> None:
        await api.create(GANGS, manifests.gang(SIZE, SETTINGS, []))
        assert await deployment.delete(["job"]) == []
        await api.get(f"{GANGS}/job")

    run(body)


def test_functions_that_a_run_made_for_itself_are_its_own(run: Any) -> None:
    async def body(api: Api, deployment: Deployment) -> None:
        await deploy(deployment, job())
        other = resources.function(pod_of(job()), job(), ROOT / "functions", SETTINGS, [])
        other["metadata"]["name"] = "job-worker-1"
        await api.create(FUNCTIONS, other)
        with pytest.raises(UserError, match="a run uses the functions of job"):
            await deployment.delete(["job"])
        assert len((await api.get(FUNCTIONS))["items"]) == 4

    run(body)


def test_a_deployment_that_was_corrected_says_nothing_of_nuclios_configuration(run: Any) -> None:
    """So the next function is made parked, too, and none of its pods goes to another scheduler."""

    async def body(api: Api, deployment: Deployment) -> None:
        await deploy(deployment, job())
        later = functions.Functions(api, SETTINGS)  # of a handler that starts now
        await later.start(resources.function(pod_of(job()), job(), ROOT / "functions", SETTINGS, []))
        assert later._configured is None
        new = resources.function(pod_of(job()), job(), ROOT / "functions", SETTINGS, [])
        new["metadata"]["name"] = "job-worker-1"
        await later.start(new)
        assert later._configured is False
        template = (await api.get(f"{DEPLOYMENTS}/nuclio-job-worker-1"))["spec"]["template"]
        assert template["spec"]["schedulerName"] == "coach"

    run(body, {"functionReadinessTimeout": "0s"})


def test_a_job_without_an_image_is_refused_before_anything_is_made(run: Any) -> None:
    async def body(api: Api, deployment: Deployment) -> None:
        with pytest.raises(UserError, match="job job: no image with PyTorch is known"):
            await deploy(deployment, training_job(framework="pytorch", servers={"max": 0}))
        assert (await api.get(FUNCTIONS))["items"] == []
        with pytest.raises(PodError, match="already, of handler h, not of another"):
            await deploy(deployment, job())
            await deploy(Deployment(api, Settings("x", handler="another")), job())

    run(body)
