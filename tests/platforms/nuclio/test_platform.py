"""The platform on a real API server with Nuclio's controller or our stand-in; the test does what kubelets would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coach.core.cluster import Node, Pod, PodId, Resources, Role
from coach.core.errors import PermanentError, UserError
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import Cluster, PodError
from coach.platforms.kubernetes import platform as kubernetes
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Api, ApiError
from coach.platforms.nuclio import functions, resources
from coach.platforms.nuclio.deployment import Deployment
from coach.platforms.nuclio.platform import NuclioPlatform
from tests.docs.pages import ROOT
from tests.packaging.api_server import ApiServer, until
from tests.platforms.kubernetes.test_platform import GANGS, PODS, SIZE, Heard, Kubelets, training_job
from tests.platforms.nuclio import controllers
from tests.platforms.nuclio.test_controller import DEPLOYMENTS, FUNCTIONS, MAPS, PROJECTS

pytestmark = pytest.mark.processes

WORKER = PodId("job", Role.WORKER, 0)
SETTINGS = Settings("coach-functions:9", handler="h")
Body = Callable[[NuclioPlatform, "Nuclio", Heard], Awaitable[None]]


class Nuclio(Kubelets):
    """A kubelet for the pods that the controller has made."""

    async def pods(self, pod: PodId = WORKER) -> list[dict[str, Any]]:
        found = (await self._ask("GET", f"{PODS}?labelSelector=nuclio.io/function-name={pod.name}"))["items"]
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    async def start(self, starting: asyncio.Task[Any], pod: PodId = WORKER, address: str = "10.1.1.7") -> str:
        """Run the pods of a function until the platform takes one for ready; its name."""
        name = ""
        async with asyncio.timeout(120):
            while not starting.done():
                for one in await self.pods(pod):  # one that a Deployment made before it was parked goes again
                    if not one["status"].get("podIP") and one["spec"]["schedulerName"] == "coach":
                        name = str(one["metadata"]["name"])
                        with contextlib.suppress(TimeoutError, AssertionError):
                            async with asyncio.timeout(5):
                                if not one["spec"].get("nodeName"):
                                    await self.bind(name, "n1")
                                await self.ready(name, address)
                await asyncio.sleep(0.05)
        return name


@pytest.fixture(params=controllers.kinds())
def run(request: Any, server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Run the body of a test with a platform that is open; nothing is left when it is closed."""
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    monkeypatch.setattr(kubernetes, "FORCE_SECONDS", 0.5)  # no kubelet consents here
    controller = controllers.Controller(request.param, server.admin.kubeconfig, tmp_path, 3)

    def started(body: Body, config: Any = None) -> None:
        async def main() -> None:
            cluster, heard = Nuclio(server), Heard()
            await cluster.node("n1")
            platform = NuclioPlatform(ROOT / "functions", Api.connect, SETTINGS, lambda _: tmp_path, lambda: 0.0)
            assert await platform.open(heard) == Cluster((Node("n1", Resources(4.0, 8.0)),))
            try:
                await asyncio.wait_for(body(platform, cluster, heard), 90)
            finally:
                await platform.close()

        with controller.running(config or resources.platform_config()):
            asyncio.run(main())
            paths = (FUNCTIONS, DEPLOYMENTS, GANGS, PODS)
            until("nothing is left", lambda: not any(server.admin.get(path)["items"] for path in paths))

    return started


def pod_of(job: TrainingJob, pod: PodId = WORKER) -> Pod:
    return Pod(pod, "", job.spec.resources.of(pod.role))


async def deployed(platform: NuclioPlatform, cluster: Nuclio, job: TrainingJob, address: str = "10.1.1.7") -> str:
    """A worker that runs on n1; the name of its pod."""
    await platform.gang(SIZE, job)
    starting = asyncio.create_task(platform.deploy(pod_of(job), job))
    name = await cluster.start(starting, address=address)
    assert (await starting)[:2] == (f"{address}:8080", "n1")
    return name


def test_a_function_is_made_woken_parked_woken_again_and_removed_with_its_job(run: Any) -> None:
    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        job = training_job()
        first = await deployed(platform, cluster, job)
        await platform.release([WORKER, PodId("job", Role.WORKER, 7)])
        assert not await cluster.pods()
        function = await cluster.there(WORKER.name, FUNCTIONS)
        assert function["spec"]["replicas"] == 0, "parked, not deleted"
        second = await deployed(platform, cluster, job, "10.1.1.8")
        assert second != first
        assert (await cluster.there(WORKER.name, FUNCTIONS))["metadata"]["uid"] == function["metadata"]["uid"]
        await platform.release([WORKER])
        await platform.forget("job")
        await cluster.gone(WORKER.name, FUNCTIONS)
        await cluster.gone(f"nuclio-{WORKER.name}", DEPLOYMENTS)
        assert not heard.lost

    run(body)


def test_without_nuclios_configuration_the_deployment_is_sent_to_our_scheduler(run: Any) -> None:
    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        await deployed(platform, cluster, training_job())  # Nuclio.start looks at the scheduler's name

    run(body, {"functionReadinessTimeout": "0s"})


def test_where_the_deployment_may_not_be_changed_the_job_says_what_nuclio_needs(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        merge = platform._api.merge

        async def forbidden(path: str, change: Any) -> Any:
            if "/deployments/" in path and "template" in change["spec"]:
                raise ApiError(403, "Forbidden", "deployments is forbidden")
            return await merge(path, change)

        monkeypatch.setattr(platform._api, "merge", forbidden)
        job = training_job()
        await platform.gang(SIZE, job)
        with pytest.raises(PodError, match=r"to default-scheduler, not to scheduler coach: .*nuclio-values") as no:
            await platform.deploy(pod_of(job), job)
        assert no.value.reason is Reason.POD_REFUSED
        assert not await cluster.pods(), "none was placed by another scheduler"

    run(body, {"functionReadinessTimeout": "0s"})


def test_a_deleted_pod_is_lost_and_the_next_one_has_another_name_and_address(run: Any) -> None:
    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        job = training_job()
        name = await deployed(platform, cluster, job)
        await cluster._ask("DELETE", f"{PODS}/{name}")
        await heard.until(lambda: heard.lost)
        assert heard.lost[0][:2] == (WORKER, Reason.FUNCTION_LOST) and "deleted" in heard.lost[0][2]
        assert await deployed(platform, cluster, job, "10.1.1.9") != name
        assert len(heard.lost) == 1

    run(body)


def test_a_container_that_was_started_again_is_lost(run: Any) -> None:
    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        name = await deployed(platform, cluster, training_job())
        last = {"terminated": {"exitCode": 2, "reason": "Error", "message": "panic: wrapper exited"}}
        container = {"name": "nuclio", "image": "x", "imageID": "", "ready": True, "restartCount": 1}
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        await cluster.status(name, containerStatuses=[{**container, "state": state, "lastState": last}])
        await heard.until(lambda: heard.lost)
        assert heard.lost[0][1] is Reason.FUNCTION_LOST and "panic: wrapper exited" in heard.lost[0][2]

    run(body)


def test_functions_that_wait_for_their_gang_are_no_failure(run: Any) -> None:
    """Nuclio calls them unhealthy after its monitor's interval, three seconds here."""

    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        job = training_job()
        await platform.gang(SIZE, job)
        starting = asyncio.create_task(platform.deploy(pod_of(job), job))
        async with asyncio.timeout(60):
            while (await cluster.there(WORKER.name, FUNCTIONS))["status"]["state"] != "unhealthy":
                await asyncio.sleep(0.1)
        assert not starting.done()
        await cluster.start(starting)
        assert (await starting).node == "n1"

    run(body)


def test_what_nuclio_refuses_is_said_in_its_words(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        job = training_job()
        await platform.gang(SIZE, job)
        monkeypatch.setattr(resources, "PROJECT", "absent")
        with pytest.raises(PodError, match=r'nuclioprojects\.nuclio\.io "absent" not found') as refused:
            await platform.deploy(pod_of(job), job)
        assert refused.value.reason is Reason.POD_REFUSED

    run(body)


def test_a_function_that_is_deleted_while_its_pod_starts_is_lost(run: Any) -> None:
    """Nuclio itself deletes the functions of a project that is deleted."""

    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        job = training_job()
        await platform.gang(SIZE, job)
        starting = asyncio.create_task(platform.deploy(pod_of(job), job))
        async with asyncio.timeout(120):
            while not await cluster.pods():
                await asyncio.sleep(0.05)
        await cluster._ask("DELETE", f"{FUNCTIONS}/{WORKER.name}")
        with pytest.raises(PodError, match="its function was deleted, not by Coach") as lost:
            await starting
        assert lost.value.reason is Reason.FUNCTION_LOST

    run(body)


def test_a_function_of_another_handler_is_left_alone(run: Any) -> None:
    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        job = training_job()
        theirs = resources.function(pod_of(job), job, ROOT / "functions", Settings("x", handler="other"), [])
        await cluster._ask("POST", FUNCTIONS, theirs)
        await platform.gang(SIZE, job)
        with pytest.raises(PodError, match="there is a NuclioFunction job-worker-0 already, of handler other"):
            await platform.deploy(pod_of(job), job)
        await cluster.there(WORKER.name, FUNCTIONS)
        await cluster._ask("DELETE", f"{FUNCTIONS}/{WORKER.name}")
        await cluster.gone(f"nuclio-{WORKER.name}", DEPLOYMENTS)

    run(body)


def test_the_next_handler_removes_what_a_killed_one_left_and_parks_what_a_user_deployed(
    run: Any, server: ApiServer
) -> None:
    async def body(platform: NuclioPlatform, cluster: Nuclio, heard: Heard) -> None:
        job = training_job(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
        async with await Api.connect() as api:
            deployment = Deployment(api, SETTINGS)
            made = [one async for one in deployment.deploy([job], ROOT / "functions")]
            assert [one["metadata"]["name"] for one in made] == [
                "job-scheduler-0",
                "job-server-0",
                WORKER.name,
            ]
            await deployed(platform, cluster, job)
            with pytest.raises(UserError, match=r"a run uses the functions of job: stop it first"):
                await deployment.delete(["job"])
            other = training_job()
            orphan = resources.function(
                pod_of(other, PodId("gone", Role.WORKER, 0)), other, ROOT / "functions", SETTINGS, []
            )
            await cluster._ask("POST", FUNCTIONS, orphan)
            await cluster.there("nuclio-gone-worker-0", DEPLOYMENTS)
            following = NuclioPlatform(ROOT / "functions", Api.connect, SETTINGS, Path, lambda: 0.0)
            await following.open(Heard())
            assert not await cluster.pods()
            await cluster.gone("gone-worker-0", FUNCTIONS)
            assert (await cluster.there(WORKER.name, FUNCTIONS))["spec"]["replicas"] == 0
            await following.close()
            assert len(await deployment.delete(["job"])) == 3
            await cluster.gone(resources.PROJECT, PROJECTS)
            assert (await cluster._ask("GET", MAPS))["items"] == []

    run(body)


@pytest.mark.parametrize("real", controllers.kinds())
def test_where_nuclios_configuration_is_lost_its_pods_are_sent_to_our_scheduler_again(
    real: bool, server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    monkeypatch.setattr(kubernetes, "FORCE_SECONDS", 0.5)
    controller = controllers.Controller(real, server.admin.kubeconfig, tmp_path)

    async def main() -> None:
        cluster, job, second = Nuclio(server), training_job(), PodId("job", Role.WORKER, 1)
        await cluster.node("n1")
        platform = NuclioPlatform(ROOT / "functions", Api.connect, SETTINGS, lambda _: tmp_path, lambda: 0.0)
        await platform.open(Heard())
        try:
            with controller.running(resources.platform_config()):
                await deployed(platform, cluster, job)
            with controller.running({"functionReadinessTimeout": "0s"}):
                starting = asyncio.create_task(platform.deploy(pod_of(job, second), job))
                await cluster.start(starting, second, "10.1.1.8")
                assert (await starting).address == "10.1.1.8:8080"
        finally:
            await platform.close()

    asyncio.run(main())


@pytest.mark.parametrize("real", controllers.kinds())
def test_a_function_that_was_deleted_while_the_controller_was_away_leaves_nothing(
    real: bool, server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    controller = controllers.Controller(real, server.admin.kubeconfig, tmp_path)

    async def main() -> None:
        cluster, job = Nuclio(server), training_job()
        await cluster.node("n1")
        async with await Api.connect() as api:
            nuclio = functions.Functions(api, SETTINGS)
            await nuclio.prepare()
            made = resources.function(pod_of(job), job, ROOT / "functions", SETTINGS, [])
            with controller.running(resources.platform_config()):
                await nuclio.create(made)
                await nuclio.on_our_scheduler(WORKER.name)
            await cluster._ask("DELETE", f"{FUNCTIONS}/{WORKER.name}")
        platform = NuclioPlatform(ROOT / "functions", Api.connect, SETTINGS, Path, lambda: 0.0)
        await platform.open(Heard())
        await cluster.gone(f"nuclio-{WORKER.name}", DEPLOYMENTS)
        await platform.close()

    asyncio.run(main())


def test_a_cluster_without_nuclio_is_said_to_be_so(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    monkeypatch.setattr(functions, "NUCLIO", "/apis/absent.dev/v1")
    platform = NuclioPlatform(ROOT / "functions", Api.connect, SETTINGS, Path, lambda: 0.0)
    with pytest.raises(PermanentError, match="has no NuclioFunction resource: install Nuclio there first"):
        asyncio.run(platform.open(Heard()))
