"""The platform on a real API server, without a kubelet: the test binds pods and reports their status, as one would."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from coach.core.cluster import Allocation, CapacityType, Node, Pod, PodId, Resources, Role
from coach.core.errors import PermanentError, TemporaryError
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import Cluster, EpochOrder, GangSize, PodError
from coach.platforms.kubernetes import platform as module
from coach.platforms.kubernetes.platform import KubernetesPlatform
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api import client, nodes
from coach.platforms.kubernetes_api.client import Api, ApiError
from tests.core.lifecycle.faulty_cluster import spec
from tests.docs.pages import ROOT
from tests.packaging.api_server import ApiServer, api_server, served
from tests.platforms.orders import whole_epoch

pytestmark = pytest.mark.processes

PODS = "/api/v1/namespaces/default/pods"
GANGS = "/apis/coach.dev/v1alpha1/namespaces/default/gangs"
WORKER = PodId("job", Role.WORKER, 0)
#: Labels of a node, and whether it is spot.
LABELLED: list[tuple[dict[str, str], bool]] = [
    ({}, False),
    ({"karpenter.sh/capacity-type": "spot"}, True),
    ({"karpenter.sh/capacity-type": "on-demand"}, False),
    ({"karpenter.sh/capacity-type": "reserved"}, False),
    ({"eks.amazonaws.com/capacityType": "SPOT"}, True),
    ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, False),
    ({"cloud.google.com/gke-spot": "true"}, True),
    ({"cloud.google.com/gke-preemptible": "true"}, True),
    ({"kubernetes.azure.com/scalesetpriority": "spot"}, True),
    ({"kubernetes.azure.com/scalesetpriority": "regular"}, False),
    ({"coach.dev/capacity-type": "spot", "karpenter.sh/capacity-type": "on-demand"}, True),
]


class Kubelets:
    """What a scheduler and two kubelets do, one request at a time, off the event loop."""

    def __init__(self, server: ApiServer) -> None:
        self.http = server.admin.http

    async def _ask(self, method: str, path: str, body: Any = None, kind: str = "merge-patch+json") -> Any:
        headers = {"content-type": f"application/{kind if method == 'PATCH' else 'json'}"}
        answer = await asyncio.to_thread(self.http.request, method, path, json=body, headers=headers)
        assert answer.status_code < 300 or answer.status_code == 404, answer.text
        return answer.json()

    async def node(self, name: str, ready: str = "True", **spec: Any) -> None:
        status = {
            "allocatable": {"cpu": "4", "memory": "8Gi"},
            "conditions": [{"type": "Ready", "status": ready, "message": "so it is"}],
        }
        await self._ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        await self._ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None, "taints": None, **spec}})

    async def there(self, name: str, path: str = PODS) -> dict[str, Any]:
        async with asyncio.timeout(120):
            while True:
                found: dict[str, Any] = await self._ask("GET", f"{path}/{name}")
                if found.get("kind") != "Status":
                    return found
                await asyncio.sleep(0.02)

    async def gone(self, name: str, path: str = PODS) -> None:
        async with asyncio.timeout(120):
            while (await self._ask("GET", f"{path}/{name}")).get("kind") != "Status":
                await asyncio.sleep(0.02)

    async def bind(self, name: str, node: str) -> None:
        await self.there(name)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        await self._ask("POST", f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": target})

    async def status(self, name: str, **status: Any) -> None:
        await self.there(name)
        await self._ask("PATCH", f"{PODS}/{name}/status", {"status": status})

    async def run(self, name: str, node: str, address: str) -> None:
        await self.bind(name, node)
        await self.ready(name, address)

    async def ready(self, name: str, address: str) -> None:
        ready = [{"type": "Ready", "status": "True"}]
        await self.status(name, phase="Running", podIP=address, podIPs=[{"ip": address}], conditions=ready)


class Heard:
    """What the platform reported."""

    def __init__(self) -> None:
        self.lost: list[tuple[PodId, Reason, str]] = []
        self.pending: list[tuple[PodId, Reason, str]] = []
        self.clusters: list[Cluster] = []
        self.signals: list[tuple[str, str, float]] = []

    def pod_lost(self, pod: PodId, reason: Reason, message: str) -> None:
        self.lost.append((pod, reason, message))

    def pod_pending(self, pod: PodId, reason: Reason, message: str) -> None:
        self.pending.append((pod, reason, message))

    def program_signalled(self, job: str, signal: str, grace: float) -> None:
        self.signals.append((job, signal, grace))

    def metric_not_found(self, job: str, message: str) -> None:
        self.pending.append((PodId(job, Role.WORKER, 0), Reason.METRIC_NOT_FOUND, message))

    def nodes_changed(self, cluster: Cluster) -> None:
        self.clusters.append(cluster)

    async def until(self, done: Callable[[], Any]) -> None:
        async with asyncio.timeout(120):
            while not done():
                await asyncio.sleep(0.02)


def training_job(**changes: Any) -> TrainingJob:
    return TrainingJob.from_json(spec("job", **changes))


def pod_of(job: TrainingJob, pod: PodId = WORKER) -> Pod:
    return Pod(pod, "", job.spec.resources.of(pod.role))


SIZE = GangSize("job", Allocation(1, 1), Allocation(2, 1))


Body = Callable[[KubernetesPlatform, Kubelets, Heard], Awaitable[None]]


@pytest.fixture
def run(server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Body], None]:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    monkeypatch.setattr(module, "FORCE_SECONDS", 0.3)  # no kubelet consents here

    def started(body: Body) -> None:
        async def main() -> None:
            cluster, heard = Kubelets(server), Heard()
            for name in ("n1", "n2"):
                await cluster.node(name)
            platform = KubernetesPlatform(
                Api.connect,
                Settings("coach-functions:9", handler="h"),
                lambda _: tmp_path,
                lambda: 0.0,
            )
            nodes = (Node("n1", Resources(4.0, 8.0)), Node("n2", Resources(4.0, 8.0)))
            assert await platform.open(heard) == Cluster(nodes)
            try:
                await asyncio.wait_for(body(platform, cluster, heard), 60)
            finally:
                await platform.close()
            assert server.admin.get(PODS)["items"] == server.admin.get(GANGS)["items"] == []

        asyncio.run(main())

    return started


@contextlib.asynccontextmanager
async def deployed(
    platform: KubernetesPlatform, cluster: Kubelets, job: TrainingJob, address: str = "10.1.1.7"
) -> AsyncIterator[None]:
    """A worker that runs on n1."""
    await platform.gang(SIZE, job)
    starting = asyncio.create_task(platform.deploy(pod_of(job), job))
    await cluster.run(WORKER.name, "n1", address)
    assert (await starting)[:2] == (f"{address}:8080", "n1")
    yield


def test_a_pod_is_made_as_the_job_says_and_is_ready_when_its_kubelet_says_so(run: Any, tmp_path: Path) -> None:
    model = tmp_path / "net.py"
    model.write_text("def net(): ...\n")

    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        job = training_job(model={"file": f"file://{model}"})
        async with deployed(platform, cluster, job):
            gang = await cluster.there("job", GANGS)
            counts = {role["name"]: (role["required"], role["desired"]) for role in gang["spec"]["roles"]}
            assert counts == {"scheduler": (1, 1), "server": (1, 1), "worker": (1, 2)}
            made = await cluster.there(WORKER.name)
            assert made["spec"]["schedulerName"] == "coach"
            assert made["metadata"]["ownerReferences"][0]["uid"] == gang["metadata"]["uid"]
            assert made["metadata"]["labels"]["coach.dev/role"] == "worker"
            (container,) = made["spec"]["containers"]
            assert container["image"] == "coach-functions:9" and container["imagePullPolicy"] == "IfNotPresent"
            assert {"name": "COACH_FRAMEWORK", "value": "mxnet"} in container["env"]
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert made["spec"]["securityContext"]["runAsNonRoot"]
            assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp", str(model)}
            await platform.release([WORKER, PodId("job", Role.WORKER, 7)])
            await cluster.gone(WORKER.name)
            await platform.forget("job")
            await cluster.gone("job", GANGS)
            assert not heard.lost and not heard.pending

    run(body)


def test_a_pod_sees_the_model_file_and_those_beside_it_at_their_own_paths(run: Any, tmp_path: Path) -> None:
    files = {"net.py": b"import model", "model.py": b"import lib.nets", "lib/nets.py": b"Net = 1"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        beside = {name: "0" * 64 for name in files if name != "net.py"}
        job = training_job(model={"file": f"file://{tmp_path}/net.py", "files": beside})
        async with deployed(platform, cluster, job):
            (container,) = (await cluster.there(WORKER.name))["spec"]["containers"]
            keys = (await cluster.there("job-model", "/api/v1/namespaces/default/configmaps"))["binaryData"]
            seen = {
                mount["mountPath"]: base64.b64decode(keys[mount["subPath"]])
                for mount in container["volumeMounts"]
                if mount["name"] == "model"
            }
            assert seen == {f"{tmp_path}/{name}": content for name, content in files.items()}

    run(body)


def test_a_pod_that_names_a_node_may_be_bound_to_no_other(run: Any) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        job = training_job()
        await platform.gang(SIZE, job)
        pod = Pod(WORKER, "n2", job.spec.resources.of(Role.WORKER))
        starting = asyncio.create_task(platform.deploy(pod, job))
        made = await cluster.there(WORKER.name)
        required = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [term] = required["nodeSelectorTerms"]
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]
        await cluster.run(WORKER.name, "n2", "10.1.1.7")
        assert (await starting).node == "n2"

    run(body)


@pytest.mark.parametrize("kind", [CapacityType.SPOT, CapacityType.ON_DEMAND])
def test_pods_for_spot_or_on_demand_nodes_say_so_by_the_labels_of_nodes(run: Any, kind: CapacityType) -> None:
    """The API server takes it. What it means is evaluated here as Kubernetes describes it, on nodes as clouds label."""

    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        job = training_job()
        await platform.gang(SIZE, job)
        starting = asyncio.create_task(platform.deploy(replace(pod_of(job), capacity=kind), job))
        made = await cluster.there(WORKER.name)
        required = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        for labels, spot in LABELLED:
            found = {"metadata": {"name": "n", "labels": labels}}
            matches = any(
                all(
                    (labels.get(one["key"]) in one["values"]) == (one["operator"] == "In")
                    for one in term["matchExpressions"]
                )
                for term in required["nodeSelectorTerms"]
            )
            assert matches == (nodes.read(found).spot is (kind is CapacityType.SPOT)), labels
            assert nodes.read(found).spot is spot
        await cluster.run(WORKER.name, "n1", "10.1.1.7")
        assert (await starting).node == "n1"

    run(body)


def test_the_gang_of_a_job_without_servers_needs_none_and_every_gang_needs_a_worker(run: Any) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        imageless = training_job(framework="pytorch", servers={"max": 0})
        with pytest.raises(PodError, match=r"no image with PyTorch is known: say spec\.image"):
            await platform.gang(GangSize("job", Allocation(1, 0), Allocation(2, 0)), imageless)
        job = training_job(framework="pytorch", servers={"max": 0}, image="torch:1")
        await platform.gang(GangSize("job", Allocation(1, 0), Allocation(2, 0)), job)
        gang = await cluster.there("job", GANGS)
        counts = {role["name"]: (role["required"], role["desired"]) for role in gang["spec"]["roles"]}
        assert counts == {"scheduler": (1, 1), "server": (0, 0), "worker": (1, 2)}
        with pytest.raises(PodError, match="every gang has a worker"):
            await platform.gang(GangSize("job", Allocation(0, 1), Allocation(2, 1)), job)
        await platform.forget("job")
        await cluster.gone("job", GANGS)

    run(body)


def test_what_a_pod_waits_for_is_reported_in_the_words_of_scheduler_and_kubelet(run: Any) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        job = training_job(startTimeout=1)
        await platform.gang(SIZE, job)
        starting = asyncio.create_task(platform.deploy(pod_of(job), job))
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        for said_of_another in (
            "0/1 nodes are available: 1 rejection in Unreserve.",
            "0/1 nodes are available: 1 removed.",
            "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) didn't satisfy plugin(s) [CoachGang]. "
            "planned node n1 was rejected by DynamicResources: cannot allocate all claims",
            "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining",
        ):
            await cluster.status(WORKER.name, conditions=[{**condition, "message": said_of_another}])
        words = "WaitingCapacity: needs 1 worker x 1 cpu"
        await cluster.status(WORKER.name, conditions=[{**condition, "message": words}])
        await heard.until(lambda: heard.pending)
        await asyncio.sleep(1.5)
        assert not starting.done(), "without a node it waits as long as it takes"
        await cluster.bind(WORKER.name, "n2")
        waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
        container = {"name": "function", "image": "x", "state": {"waiting": waiting}}
        await cluster.status(
            WORKER.name,
            conditions=[{"type": "PodScheduled", "status": "True"}],
            containerStatuses=[{**container, "imageID": "", "ready": False, "restartCount": 0}],
        )
        with pytest.raises(PodError, match=r"did not start in 1 s: ImagePullBackOff: x: no such image") as failed:
            await starting
        assert failed.value.reason is Reason.START_TIMED_OUT
        assert [(reason, message) for _, reason, message in heard.pending] == [
            (Reason.WAITING_CAPACITY, "needs 1 worker x 1 cpu"),
            (Reason.IMAGE_UNAVAILABLE, "ImagePullBackOff: x: no such image"),
        ]

    run(body)


def test_a_scheduler_that_knows_no_gang_is_named_with_what_a_pod_waits_for(run: Any) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        platform._settings = replace(platform._settings, scheduler="default-scheduler")
        job = training_job()
        await platform.gang(SIZE, job)
        starting = asyncio.create_task(platform.deploy(pod_of(job), job))
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        await cluster.status(WORKER.name, conditions=[{**condition, "message": "0/2 nodes are available"}])
        await heard.until(lambda: heard.pending)
        (_, reason, said) = heard.pending[0]
        assert reason is Reason.WAITING_CAPACITY and "0/2 nodes are available" in said
        assert said.endswith(
            "default-scheduler places pods one by one: jobs with a part of the nodes each wait for each other"
        )
        starting.cancel()
        await platform.release([WORKER])
        await platform.forget("job")

    run(body)


def test_a_pod_that_ends_is_lost_with_its_reason_and_leaves_room_for_the_next_of_its_name(run: Any) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        job = training_job()
        async with deployed(platform, cluster, job):
            terminated = {"exitCode": 137, "reason": "OOMKilled"}
            container = {"name": "function", "image": "x", "state": {"terminated": terminated}}
            await cluster.status(
                WORKER.name,
                phase="Failed",
                containerStatuses=[{**container, "imageID": "", "ready": False, "restartCount": 0}],
            )
            await heard.until(lambda: heard.lost)
            assert heard.lost[0][:2] == (WORKER, Reason.OUT_OF_MEMORY)
            await cluster.gone(WORKER.name)
        async with deployed(platform, cluster, job, "10.1.1.8"):
            await cluster._ask("DELETE", f"{PODS}/{WORKER.name}")
            await heard.until(lambda: len(heard.lost) == 2)
            assert heard.lost[1][1] is Reason.FUNCTION_LOST and "deleted" in heard.lost[1][2]

    run(body)


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("PreemptionByScheduler", Reason.DISRUPTED),
        ("EvictionByEvictionAPI", Reason.DISRUPTED),
        ("TerminationByKubelet", Reason.FUNCTION_LOST),
    ],
)
def test_a_pod_that_the_cluster_takes_away_is_no_failure_unless_it_used_too_much(
    run: Any, why: str, reason: Reason
) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        async with deployed(platform, cluster, training_job()):
            target = {"type": "DisruptionTarget", "status": "True", "reason": why, "message": "for another"}
            await cluster.status(WORKER.name, conditions=[{"type": "Ready", "status": "True"}, target])
            await cluster._ask("DELETE", f"{PODS}/{WORKER.name}")
            await heard.until(lambda: heard.lost)
            assert heard.lost[0][:2] == (WORKER, reason)
            await cluster.gone(WORKER.name)

    run(body)


def test_no_epoch_begins_while_the_scheduler_drains_the_gang(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []

    class Client(module.GangClient):
        async def run(self, progress: Any) -> Any:
            began.append(self._order.action.token)

    monkeypatch.setattr(module, "GangClient", Client)

    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        async def drain(draining: Any) -> None:
            await cluster._ask("PATCH", f"{GANGS}/job/status", {"status": {"draining": draining}})
            await heard.until(lambda: platform._draining("job") == bool(draining))

        async def between_epochs() -> bool:
            return bool((await cluster.there("job", GANGS))["spec"].get("betweenEpochs"))

        job = training_job()
        async with deployed(platform, cluster, job):
            order = EpochOrder(whole_epoch([WORKER], "file:///out"), job, {WORKER: "10.1.1.7:8080"}, 60.0)
            at = "2026-01-01T12:00:00Z"
            await drain({"by": "default/trial", "since": at, "until": at})
            epoch = asyncio.create_task(platform.run_epoch(order, lambda _: None))
            async with asyncio.timeout(120):
                while not await between_epochs():
                    await asyncio.sleep(0.02)
            assert not began
            await drain(None)  # the preemptor has gone
            await asyncio.wait_for(epoch, 120)
            assert began and not await between_epochs()

    run(body)


@pytest.fixture(params=["mxnet", "pytorch"])
def disturbed(request: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Body, Body], None]:
    """Runs an epoch that something happens to: it counts; the elastic one, PyTorch's, is asked to end early."""
    asked: list[str] = []
    over = asyncio.Event()
    elastic = request.param == "pytorch"

    class Client(module.GangClient):
        async def _epoch(self, progress: Any) -> Any:
            await over.wait()
            return "report"

        async def _call(self, member: Any, body: dict[str, Any], timeout: float) -> dict[str, Any]:
            asked.append(body["op"])
            over.set()
            return {}

    def started(happens: Body, afterwards: Body) -> None:
        async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
            torch = {"servers": {"max": 0}, "image": "torch:1"} if elastic else {"servers": {"max": 1}}
            job = training_job(framework=request.param, **torch)
            async with deployed(platform, cluster, job):
                action = whole_epoch([WORKER], "file:///out")
                order = EpochOrder(action, job, {WORKER: "10.1.1.7:8080"}, platform._now() + 60)
                epoch = asyncio.create_task(platform.run_epoch(order, lambda _: None))
                await asyncio.sleep(0)
                await happens(platform, cluster, heard)
                if not elastic:
                    assert not over.is_set() and not heard.lost
                    over.set()
                assert (await asyncio.wait_for(epoch, 120))[0] == "report"
                assert asked == ["cut"] * elastic
                await afterwards(platform, cluster, heard)

        run(body)

    monkeypatch.setattr(module, "GangClient", Client)
    return started


def test_an_elastic_epoch_ends_early_where_the_scheduler_drains_the_gang(disturbed: Any) -> None:
    async def drain(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        at = "2026-01-01T12:00:00Z"
        draining = {"by": "default/trial", "since": at, "until": at}
        await cluster._ask("PATCH", f"{GANGS}/job/status", {"status": {"draining": draining}})
        await heard.until(lambda: platform._draining("job"))

    async def afterwards(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        assert not heard.lost

    disturbed(drain, afterwards)


def test_a_node_with_a_notice_ends_an_elastic_epoch_early_and_loses_its_pod_after_it(disturbed: Any) -> None:
    async def notice(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        await cluster.node("n1", taints=[{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}])
        await heard.until(lambda: heard.clusters and heard.clusters[-1].unavailable == ("n1",))

    async def afterwards(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        await heard.until(lambda: heard.lost)
        ((lost, reason, words),) = heard.lost
        assert (lost, reason) == (WORKER, Reason.DISRUPTED) and "karpenter.sh/disrupted" in words

    disturbed(notice, afterwards)


def test_nodes_that_are_cordoned_or_stop_reporting_reach_the_handler(run: Any) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        async with deployed(platform, cluster, training_job()):
            await cluster.node("n2", unschedulable=True)
            await heard.until(lambda: heard.clusters and heard.clusters[-1].unavailable == ("n2",))
            assert not heard.lost
            await cluster.node("n1", "Unknown")
            await heard.until(lambda: heard.lost)
            assert heard.clusters[-1].unavailable == ("n1", "n2")
            assert heard.lost[0][0] == WORKER and "node n1" in heard.lost[0][2]

    run(body)


def test_what_pods_of_others_hold_reaches_the_handler_as_they_come_and_go(
    run: Any, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OTHERS_SECONDS", 0.0)
    server.admin.create("/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
    elsewhere = "/api/v1/namespaces/elsewhere/pods"

    def other(cpu: str) -> dict[str, Any]:
        container = {"name": "a", "image": "a", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
        return {"metadata": {"name": "web"}, "spec": {"nodeName": "n1", "containers": [container]}}

    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        async def taken(*expected: tuple[str, Resources]) -> None:
            await heard.until(lambda: heard.clusters and tuple(one[:2] for one in heard.clusters[-1].taken) == expected)

        async with deployed(platform, cluster, training_job()):  # and what its pod holds is not counted
            await cluster._ask("POST", PODS, other("500m"))
            await taken(("n1", Resources(0.5, 1.0)))
            await cluster._ask("POST", elsewhere, other("1"))
            await taken(("n1", Resources(1.5, 2.0)))
            await cluster.status("web", phase="Succeeded")
            await taken(("n1", Resources(1.0, 1.0)))
            await cluster._ask("DELETE", f"{elsewhere}/web?gracePeriodSeconds=0")
            await taken()
            await cluster._ask("DELETE", f"{PODS}/web?gracePeriodSeconds=0")

    run(body)


def test_a_handler_deletes_what_the_one_before_it_left_and_nothing_else(
    run: Any, server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = {"spec": {"containers": [{"name": "a", "image": "a"}]}}
    for name, handler in (("mine", "h"), ("other", "i")):
        labels = {"coach.dev/handler": handler, "coach.dev/job": "j", "coach.dev/role": "worker"}
        server.admin.create(PODS, {"metadata": {"name": name, "labels": labels}, **body})
        members = {"roles": [{"name": role.value, "required": 1} for role in Role]}
        gang = {"apiVersion": "coach.dev/v1alpha1", "kind": "Gang", "spec": members}
        server.admin.create(GANGS, {**gang, "metadata": {"name": name, "labels": labels}})

    async def look(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        await cluster.gone("mine")
        await cluster.there("other")
        gangs = (await cluster._ask("GET", GANGS))["items"]
        assert [gang["metadata"]["name"] for gang in gangs] == ["other"]
        await cluster._ask("DELETE", f"{PODS}/other")
        await cluster._ask("DELETE", f"{GANGS}/other")

    run(look)


def test_a_pod_that_the_cluster_refuses_fails_with_its_words(run: Any) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        job = training_job()
        bad = Pod(PodId("j" * 300, Role.WORKER, 0), "", job.spec.resources.of(Role.WORKER))
        with pytest.raises(PodError, match=r"was refused: .*must be no more than") as refused:
            await platform.deploy(bad, job)
        assert refused.value.reason is Reason.POD_REFUSED

    run(body)


@contextlib.asynccontextmanager
async def quota(cluster: Kubelets, hard: int, used: int) -> AsyncIterator[None]:
    """A quota of pods, as its controller would have counted it."""
    path = "/api/v1/namespaces/default/resourcequotas"
    spec = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": f"{hard}"}}}
    await cluster._ask("POST", path, spec)
    counted = {"status": {"hard": {"pods": f"{hard}"}, "used": {"pods": f"{used}"}}}
    await cluster._ask("PATCH", f"{path}/q/status", counted)
    try:
        yield
    finally:
        await cluster._ask("DELETE", f"{path}/q")


@pytest.mark.parametrize(
    ("hard", "used", "reason", "words"),
    [
        (6, 5, Reason.QUOTA_EXCEEDED, "used: pods=6, limited: pods=6$"),
        (
            2,
            1,
            Reason.NEVER_FITS,
            "used: pods=2, limited: pods=2; quota q can never hold the smallest gang: it needs pods=3, "
            "the quota's limit is 2",
        ),
    ],
)
def test_a_full_quota_is_said_with_its_numbers_and_whether_it_can_ever_hold_the_gang(
    run: Any, hard: int, used: int, reason: Reason, words: str
) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        job = training_job()
        await platform.gang(SIZE, job)
        async with quota(cluster, hard, used):
            first = asyncio.create_task(platform.deploy(pod_of(job), job))
            await cluster.there(WORKER.name)
            with pytest.raises(PodError, match=f"job-server-0 was refused: .*exceeded quota: q.*{words}") as full:
                await platform.deploy(pod_of(job, PodId("job", Role.SERVER, 0)), job)
            assert full.value.reason is reason
            first.cancel()
            await platform.release([WORKER])
        await platform.forget("job")

    run(body)


def test_a_pod_that_was_being_made_when_nobody_wanted_it_any_more_is_gone_after_its_release(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        job, create, asked = training_job(), platform._api.create, asyncio.Event()

        async def slow(path: str, made: dict[str, Any]) -> Any:
            asked.set()
            await asyncio.sleep(0.2)  # a webhook looks at it
            return await create(path, made)

        monkeypatch.setattr(platform._api, "create", slow)
        starting = asyncio.create_task(platform.deploy(pod_of(job), job))
        await asked.wait()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await platform.release([WORKER])
        await cluster.gone(WORKER.name)

    run(body)


def test_a_busy_api_server_has_the_gang_wait_as_a_whole(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.2)

    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        async def busy(*_: Any) -> Any:
            raise ApiError(500, "InternalError", 'failed calling webhook "v.io": context deadline exceeded')

        monkeypatch.setattr(platform._api, "create", busy)
        with pytest.raises(PodError, match="context deadline exceeded") as refused:
            await platform.deploy(pod_of(training_job()), training_job())
        assert refused.value.reason is Reason.PODS_DELAYED

    run(body)


def test_a_restart_of_the_api_server_costs_no_pod(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request of a pod's life is lost: Gang, owner, creation, deletion, and the Gang's end."""
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.05)

    async def body(platform: KubernetesPlatform, cluster: Kubelets, heard: Heard) -> None:
        request, failed = platform._api._request, set[tuple[str, str]]()

        async def failing(method: str, path: str, *rest: Any) -> Any:
            if (method, path) in failed:
                return await request(method, path, *rest)
            failed.add((method, path))
            raise ApiError(503, "", "not yet") if method == "DELETE" else TemporaryError("refused")

        monkeypatch.setattr(platform._api, "_request", failing)
        async with deployed(platform, cluster, training_job()):
            await platform.release([WORKER])
            await cluster.gone(WORKER.name)
            await platform.forget("job")
            await cluster.gone("job", GANGS)
        assert {method for method, _ in failed} == {"PATCH", "GET", "POST", "DELETE"} and not heard.lost

    run(body)


def test_a_cluster_without_coach_is_said_to_be_so(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    monkeypatch.setattr(module, "COACH", "/apis/nobody.dev/v1")
    platform = KubernetesPlatform(Api.connect, Settings("x"), Path, lambda: 0.0)
    with pytest.raises(PermanentError, match="has no Gang resource: install Coach there first"):
        asyncio.run(platform.open(Heard()))


@pytest.mark.parametrize(
    ("kind", "what", "right"),
    [
        ("native", "scheduling.k8s.io/v1beta1", "Kubernetes 1.37, with --feature-gates=GenericWorkload=true"),
        ("coscheduling", "scheduling.x-k8s.io/v1alpha1", "install the coscheduling plugin and its CRD"),
    ],
)
def test_a_cluster_without_the_pod_groups_of_the_chosen_scheduler_is_said_to_be_so(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, kind: str, what: str, right: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    platform = KubernetesPlatform(Api.connect, Settings("x", scheduler_kind=kind), Path, lambda: 0.0)
    with pytest.raises(PermanentError) as raised:
        asyncio.run(platform.open(Heard()))
    version = server.admin.get("/version")["gitVersion"]
    assert f"({version}) has no PodGroup ({what}) resource: " in str(raised.value)
    assert right in str(raised.value) and "scheduler.kind=coach" in str(raised.value)


GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"


@pytest.mark.skipif(os.environ.get("COACH_KUBERNETES") != "1.37", reason="native gangs are in Kubernetes 1.37")
def test_a_native_gang_goes_with_its_job_and_another_of_its_name_waits_until_it_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FORCE_SECONDS", 0.3)  # no kubelet consents here
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.3)

    async def main(server: ApiServer) -> None:
        cluster, heard, job = Kubelets(server), Heard(), training_job()
        await cluster.node("n1")
        settings = Settings("i:1", handler="h", scheduler="default-scheduler", scheduler_kind="native")
        platform = KubernetesPlatform(Api.connect, settings, lambda _: tmp_path, lambda: 0.0)
        await platform.open(heard)
        await platform.gang(SIZE, job)
        group = await cluster.there("job", GROUPS)
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["Gang"]
        await platform.gang(GangSize("job", Allocation(2, 1), Allocation(2, 1)), job)
        group = await cluster.there("job", GROUPS)
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
        starting = asyncio.create_task(platform.deploy(pod_of(job), job))
        made = await cluster.there(WORKER.name)
        assert made["spec"]["schedulingGroup"] == {"podGroupName": "job"}
        assert made["spec"]["schedulerName"] == "default-scheduler"
        await cluster.run(WORKER.name, "n1", "10.1.1.7")
        await starting
        # Somebody deletes it under the pod, which its finalizer outlasts.
        await cluster._ask("DELETE", f"{GROUPS}/job")
        with pytest.raises(PodError, match="PodGroup job was deleted and is still there") as raised:
            await platform.gang(SIZE, job)
        assert raised.value.reason is Reason.PODS_DELAYED
        await platform.release([WORKER])
        monkeypatch.setattr(module, "BUSY_SECONDS", 60.0)
        await platform.gang(SIZE, job)
        again = await cluster.there("job", GROUPS)
        assert again["metadata"]["uid"] != group["metadata"]["uid"] and "deletionTimestamp" not in again["metadata"]
        await platform.forget("job")
        await cluster.gone("job", GROUPS)
        await platform.close()

    options = {
        "feature-gates": "GenericWorkload=true",
        "runtime-config": "scheduling.k8s.io/v1beta1=true",
    }
    controllers = "garbage-collector-controller,podgroup-protection-controller"
    with api_server(tmp_path, controllers, options) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
        served(server.admin, yaml.safe_load((ROOT / "deploy/chart/files/gang-crd.yaml").read_text()))
        server.admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
        asyncio.run(main(server))
