"""Programs on a real API server with the controllers of Jobs.

The test binds pods, reports their status and answers with their logs, as a kubelet would.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from coach.core.cluster import Allocation, Pod, PodId, Resources, Role
from coach.core.errors import TemporaryError
from coach.core.jobs.actions import StallTimeouts
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason
from coach.core.spec.job import TrainingJob
from coach.platforms.base import EpochError, EpochOrder, GangSize, PodError
from coach.platforms.kubernetes import manifests, pod_logs, program_pods
from coach.platforms.kubernetes import platform as module
from coach.platforms.kubernetes.platform import KubernetesPlatform
from coach.platforms.kubernetes.pod_logs import nanoseconds
from coach.platforms.kubernetes.program_status import AUDIENCE, Statuses
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.client import Api
from coach.platforms.program_metrics import status as program_metrics_status
from tests.docs.pages import ROOT
from tests.packaging.api_server import ApiServer, api_server, served
from tests.platforms.kubernetes.test_platform import GANGS, PODS, Heard, Kubelets
from tests.platforms.orders import whole_epoch

pytestmark = pytest.mark.processes

LEASES = "/apis/batch/v1/namespaces/default/jobs"
MAPS = "/api/v1/namespaces/default/configmaps"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
SERVICES = "/api/v1/namespaces/default/services"
FIRST, SECOND = PodId("job", Role.WORKER, 0), PodId("job", Role.WORKER, 1)
CONTROLLERS = "job-controller,ttl-after-finished-controller,garbage-collector-controller"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("api-server"), CONTROLLERS) as started:
        served(started.admin, yaml.safe_load((ROOT / "deploy/chart/files/gang-crd.yaml").read_text()))
        started.admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
        started.admin.create(ACCOUNTS, {"metadata": {"name": "programs"}})
        yield started


class Node1(Kubelets):
    """The kubelet of n1, and the logs of its pods."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server)
        self.logs: dict[str, list[tuple[str, str]]] = {}
        self.ended: set[str] = set()
        self.changed = asyncio.Event()
        self.breaks = False

    async def start(self, pod: PodId) -> None:
        """Its container runs."""
        self.logs[pod.name] = []
        self.ended.discard(pod.name)
        await self.bind(pod.name, "n1")
        await self.status(
            pod.name,
            phase="Running",
            podIP="10.1.1.7",
            podIPs=[{"ip": "10.1.1.7"}],
            conditions=[{"type": "Ready", "status": "True"}],
            containerStatuses=[self._container(running={"startedAt": _now()})],
        )

    async def end(self, pod: PodId, code: int = 0, reason: str = "Completed", message: str = "") -> None:
        """Its container ends."""
        self.ended.add(pod.name)
        self._changed()
        terminated = {"exitCode": code, "reason": reason, "message": message}
        await self.status(
            pod.name,
            phase="Failed" if code else "Succeeded",
            containerStatuses=[self._container(terminated={**terminated, "startedAt": _now(), "finishedAt": _now()})],
        )

    async def obey(self, pod: PodId) -> int:
        """Wait until it is to end, and end it; the grace period."""
        async with asyncio.timeout(120):
            while "deletionTimestamp" not in (found := await self.there(pod.name))["metadata"]:
                await asyncio.sleep(0.02)
        await self.end(pod, 143, "Error")
        await self._ask("DELETE", f"{PODS}/{pod.name}?gracePeriodSeconds=0")
        return int(found["metadata"]["deletionGracePeriodSeconds"])

    def prints(self, pod: PodId, *texts: str, later: int = 0, heard: bool = True) -> None:
        """Its program prints, so many seconds from now; `heard`: all connections to its log have it."""
        for text in texts:
            at = time.time_ns() + later * 10**9
            seconds = datetime.fromtimestamp(at // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self.logs[pod.name].append((f"{seconds}.{at % 10**9:09d}Z", text))
        if heard:
            self._changed()

    def break_off(self) -> None:
        """Break all connections to logs, in the middle of a line."""
        self.breaks = True
        self._changed()
        self.breaks = False

    async def text(self, _api: Api, path: str, **query: str) -> AsyncIterator[bytes]:
        """What `Api.text` gives."""
        name, sent = path.split("/")[-2], 0
        begin = nanoseconds(query["sinceTime"]) if "sinceTime" in query else 0
        log = self.logs[name]
        while True:
            changed, over = self.changed, name in self.ended
            for at, text in log[sent:]:
                if nanoseconds(at) >= begin:
                    yield f"{at} {text}\n".encode()
                sent += 1
            if over:
                return
            await changed.wait()
            if self.breaks:
                if sent < len(log):
                    yield f"{log[sent][0]} {log[sent][1]}".encode()[:-2]
                raise TemporaryError("the API server restarts")

    def _changed(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    @staticmethod
    def _container(**state: Any) -> dict[str, Any]:
        ready = "running" in state
        return {
            "name": "program",
            "image": "x",
            "imageID": "",
            "ready": ready,
            "restartCount": 0,
            "state": state,
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Handler(Heard):
    """A handler that takes over what `wanted` names."""

    def __init__(self, wanted: Collection[PodId] = ()) -> None:
        super().__init__()
        self.wanted = set(wanted)
        self.left: dict[PodId, str] = {}

    def takes_over(self, programs: Mapping[PodId, str]) -> Collection[PodId]:
        self.left = dict(programs)
        return self.wanted & programs.keys()


def training_job(program: dict[str, Any] | None = None, **changes: Any) -> TrainingJob:
    return TrainingJob.from_json(
        {
            "apiVersion": "coach.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "job"},
            "spec": {
                "image": "me/train:1",
                "program": {"command": ["python3", "train.py"], **(program or {})},
                "target": {"loss": 0.1},
                "budget": {"amount": 1, "currency": "USD"},
                "gracePeriod": "2s",
                **changes,
            },
        }
    )


@pytest.fixture
def opened(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Awaitable[tuple[KubernetesPlatform, Node1, Handler]]]:
    monkeypatch.setenv("KUBECONFIG", str(server.admin.kubeconfig))
    monkeypatch.setattr(module, "FORCE_SECONDS", 0.3)
    monkeypatch.setattr(pod_logs, "RETRY_SECONDS", 0.05)

    async def open_(
        node: Node1 | None = None, wanted: Collection[PodId] = (), volume: str = "", account: str = ""
    ) -> tuple[KubernetesPlatform, Node1, Handler]:
        node = node or Node1(server)
        await node.node("n1")
        served_by = node

        def text(api: Api, path: str, **query: str) -> AsyncIterator[bytes]:
            return served_by.text(api, path, **query)

        monkeypatch.setattr(Api, "text", text)
        settings = Settings("coach-functions:9", handler="h", volume_claim=volume, service_account=account)
        settings = replace(settings, state_claim="state", token_secret="coach-token")
        platform, heard = (
            KubernetesPlatform(Api.connect, settings, lambda _: tmp_path, time.time),
            Handler(wanted),
        )
        await platform.open(heard)
        return platform, node, heard

    return open_


def runs(body: Callable[[], Awaitable[None]], server: ApiServer) -> None:
    """Run it; nothing is left afterwards."""
    asyncio.run(asyncio.wait_for(body(), 120))  # type: ignore[arg-type]
    for path in (PODS, GANGS, LEASES):
        assert server.admin.get(path)["items"] == [], path
    names = [one["metadata"]["name"] for one in server.admin.get(SERVICES)["items"]]
    assert names == ["kubernetes"]


async def deploy(
    platform: KubernetesPlatform,
    node: Node1,
    job: TrainingJob,
    *workers: PodId,
    size: GangSize | None = None,
) -> dict[PodId, str]:
    """Have these workers run; their identities."""
    count = Allocation(len(workers), 0)
    await platform.gang(size or GangSize("job", count, count, 0), job)
    pods = [Pod(worker, "", job.spec.resources.of(Role.WORKER)) for worker in workers]
    starting = [asyncio.create_task(platform.deploy(pod, job)) for pod in pods]
    for worker in workers:
        await node.start(worker)
    return dict(zip(workers, [(await one).address for one in starting], strict=True))


def order_of(job: TrainingJob, pods: Mapping[PodId, str], number: int = 1, **more: Any) -> EpochOrder:
    due = more.pop("due", time.time() + 100)
    action = whole_epoch(list(pods), "file:///out", token=f"job.{number}", group="job.g1")
    return EpochOrder(action, job, pods, due, **more)


async def epoch(platform: KubernetesPlatform, order: EpochOrder) -> EpochReport:
    return (await platform.run_epoch(order, lambda _: None))[0]


async def finish(platform: KubernetesPlatform, *workers: PodId) -> None:
    await platform.release(workers)
    await platform.forget("job")
    await platform.close()


def test_a_pod_has_the_users_image_and_command_and_nothing_of_coach(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened(volume="coach-volume")
        program = {
            "command": ["sh", "-c", "echo $(HOME) $$ $HOME"],
            "directory": "/workspace",
            "env": {"A": "$(B)", "LD_PRELOAD": "own.so", "COACH_JOB": "other", "COACH_CHECKPOINTS": "/"},
            "secrets": {"TOKEN": {"secret": "hub", "key": "token"}},
            "volumes": {"/data": "imagenet"},
            "resumes": True,
        }
        job = training_job(program, checkpoint={"uri": "/data/kept"})
        await deploy(platform, node, job, FIRST)
        made = (await node.there(FIRST.name))["spec"]
        (container,) = made["containers"]
        assert container["image"] == "me/train:1" and container["workingDir"] == "/workspace"
        assert container["command"] == ["sh", "-c", "echo $$(HOME) $$$$ $$HOME"], "the words are literal"
        said = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
        assert said == {
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "HOME": "/tmp",
            "A": "$$(B)",
            "LD_PRELOAD": "own.so",
            "COACH_JOB": "job",
            "COACH_CHECKPOINTS": "/data/kept/job",
            "TOKEN": {"secretKeyRef": {"name": "hub", "key": "token"}},
        }
        claims = {one["name"]: one.get("persistentVolumeClaim", {}).get("claimName") for one in made["volumes"]}
        seen = {
            one["mountPath"]: (claims[one["name"]], one.get("subPath"), one.get("readOnly", False))
            for one in container["volumeMounts"]
        }
        assert seen == {
            "/dev/shm": (None, None, False),
            "/data": ("imagenet", None, False),
            "/data/kept/job": ("imagenet", "kept/job", False),
            "/var/lib/coach/data": ("coach-volume", "data", True),
        }
        assert made["terminationGracePeriodSeconds"] == 2 and made["restartPolicy"] == "Never"
        assert made["schedulerName"] == "coach" and not made["automountServiceAccountToken"]
        gang = (await node.there("job", GANGS))["spec"]["roles"]
        assert {role["name"]: role["required"] for role in gang} == {"scheduler": 0, "server": 0, "worker": 1}
        await finish(platform, FIRST)

    runs(body, server)


def test_files_that_were_sent_along_are_in_the_folder_that_the_command_runs_in(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        data = {"train.py": "print()", "nets-.-res.py": ""}
        server.admin.create(MAPS, {"metadata": {"name": "job-code"}, "data": data})
        try:
            await deploy(platform, node, training_job({"code": "job-code"}), FIRST)
            made = (await node.there(FIRST.name))["spec"]
            (container,) = made["containers"]
            assert container["workingDir"] == "/workspace"
            seen = {one["mountPath"]: (one["name"], one.get("subPath")) for one in container["volumeMounts"]}
            assert seen == {
                "/dev/shm": ("shm", None),
                "/workspace": ("workspace", None),
                "/workspace/train.py": ("code", "train.py"),
                "/workspace/nets/res.py": ("code", "nets-.-res.py"),
            }
            await finish(platform, FIRST)
            one = Allocation(1, 0)
            platform, _, _ = await opened(node)
            with pytest.raises(PodError, match="no ConfigMap other; coach --context NAME submit FILE makes it"):
                await platform.gang(GangSize("job", one, one, 0), training_job({"code": "other"}))
            await platform.forget("job")
            await platform.close()
        finally:
            await node._ask("DELETE", f"{MAPS}/job-code")

    runs(body, server)


def test_workers_know_each_other_as_torchrun_would_have_it(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        job = training_job(workers={"min": 2})
        await deploy(platform, node, job, FIRST, SECOND)
        made = [(await node.there(pod.name))["spec"] for pod in (FIRST, SECOND)]
        said = [{one["name"]: one["value"] for one in spec["containers"][0]["env"]} for spec in made]
        assert [one["RANK"] for one in said] == ["0", "1"]
        for one in said:
            assert (one["WORLD_SIZE"], one["LOCAL_RANK"]) == ("2", "0")
            assert one["MASTER_ADDR"] == f"{made[0]['hostname']}.{made[0]['subdomain']}"
            assert one["MASTER_ADDR"] == "job-worker-0.coach-job" and one["MASTER_PORT"] == "29500"
        service = (await node.there("coach-job", SERVICES))["spec"]
        assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
        labels = (await node.there(FIRST.name))["metadata"]["labels"]
        assert service["selector"].items() <= labels.items()
        await finish(platform, FIRST, SECOND)

    runs(body, server)


def test_other_workers_are_other_pods_and_what_the_change_took_is_measured(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened(volume="coach-volume")
        job = training_job({"resumes": True}, workers={"min": 1, "max": 2})
        pods = await deploy(platform, node, job, FIRST)
        said = (await node.there(FIRST.name))["spec"]["containers"][0]["env"]
        assert {"name": "WORLD_SIZE", "value": "1"} in said, "the same program runs alone and in a group"
        node.prints(FIRST, "loss 0.9")
        assert (await epoch(platform, order_of(job, pods))).stop_seconds == 0
        releasing = asyncio.create_task(platform.release([FIRST]))
        assert await node.obey(FIRST) == 2
        await releasing
        await asyncio.sleep(2)
        size = GangSize("job", Allocation(1, 0), Allocation(2, 0), 0)
        pods = await deploy(platform, node, job, FIRST, SECOND, size=size)
        gang = (await node.there("job", GANGS))["spec"]
        assert gang["roles"][-1] == {"name": "worker", "required": 2, "desired": 2}, "all of them or none"
        assert gang["gracePeriodSeconds"] == 2
        node.prints(FIRST, "loss 0.8")
        order = order_of(job, pods, 2)
        report = await epoch(platform, replace(order, action=replace(order.action, group="job.g2")))
        assert report.warm_up_samples and 0.9 < report.stop_seconds < 60
        node.prints(FIRST, "loss 0.7", later=1)
        order = order_of(job, pods, 3)
        report = await epoch(platform, replace(order, action=replace(order.action, group="job.g2")))
        assert (report.warm_up_samples, report.stop_seconds) == (0, 0)
        releasing = asyncio.create_task(platform.release([FIRST, SECOND]))
        await asyncio.gather(node.obey(FIRST), node.obey(SECOND))
        await releasing
        await finish(platform)

    runs(body, server)


def test_a_program_whose_room_the_scheduler_needs_has_its_grace_period_for_a_checkpoint(
    opened: Any, server: ApiServer
) -> None:
    async def body() -> None:
        platform, node, heard = await opened(volume="coach-volume")
        job = training_job({"resumes": True}, gracePeriod="9s")
        pods = await deploy(platform, node, job, FIRST)
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods)))
        await asyncio.sleep(0.1)
        draining = {"by": "default/trial", "since": _now(), "until": _now()}
        await node._ask("PATCH", f"{GANGS}/job/status", {"status": {"draining": draining}})
        assert await node.obey(FIRST) == 9
        with pytest.raises(EpochError, match="preempted by default/trial") as failed:
            await waiting
        assert failed.value.reason is Reason.DISRUPTED
        assert [pod for pod, _, _ in heard.lost] == [FIRST], "another pod is made for it"
        await finish(platform)

    runs(body, server)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_node_that_goes_away_with_notice_gives_a_program_that_resumes_time_for_a_checkpoint(
    opened: Any, server: ApiServer, resumes: bool
) -> None:
    async def body() -> None:
        platform, node, heard = await opened(volume="coach-volume")
        job = training_job({"resumes": resumes}, gracePeriod="9s")
        pods = await deploy(platform, node, job, FIRST)
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods)))
        await asyncio.sleep(0.1)
        at = (await node.there(FIRST.name))["spec"]["nodeName"]
        notice = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
        await node.node(at, taints=[notice])
        await heard.until(lambda: heard.clusters and at in heard.clusters[-1].unavailable)
        if resumes:
            assert await node.obey(FIRST) == 9
            with pytest.raises(EpochError, match=f"node {at} goes away, by its taint {notice['key']}") as failed:
                await waiting
            assert failed.value.reason is Reason.DISRUPTED
        else:  # it would begin again: the node's last minutes may be enough
            assert "deletionTimestamp" not in (await node.there(FIRST.name))["metadata"]
            node.prints(FIRST, "loss 0.8")
            assert (await waiting).loss == 0.8
            releasing = asyncio.create_task(platform.release([FIRST]))
            await node.obey(FIRST)
            await releasing
        await node.node(at, taints=None)
        await finish(platform)

    runs(body, server)


def test_the_peers_of_a_pod_that_is_taken_away_have_the_whole_grace_period(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened(volume="coach-volume")
        job = training_job({"resumes": True}, workers={"min": 2}, gracePeriod="9s")
        pods = await deploy(platform, node, job, FIRST, SECOND)
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods)))
        await asyncio.sleep(0.1)
        target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        await node.status(SECOND.name, conditions=[{"type": "Ready", "status": "True"}, target])
        await node._ask("DELETE", f"{PODS}/{SECOND.name}")
        await node.obey(SECOND)
        assert await node.obey(FIRST) == 9
        with pytest.raises(EpochError) as failed:
            await waiting
        assert failed.value.reason is Reason.DISRUPTED
        await finish(platform)

    runs(body, server)


def test_each_report_of_the_log_counts_once_though_connections_break(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, heard = await opened()
        job = training_job({"metrics": {"loss": "loss ([0-9.]+)", "f1": "f1 ([0-9.]+)"}})
        pods = await deploy(platform, node, job, FIRST)
        node.prints(FIRST, "starts", "f1 0.5", "loss 0.9")
        report = await epoch(platform, order_of(job, pods))
        assert (report.loss, report.metrics) == (0.9, {"f1": 0.5})
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods, 2)))
        await asyncio.sleep(0)
        node.prints(FIRST, "loss 0.8")
        assert (await waiting).loss == 0.8
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods, 3)))
        node.logs[FIRST.name].append((node.logs[FIRST.name][-1][0], "loss 0.7"))  # at the same time
        node.break_off()
        assert (await waiting).loss == 0.7
        for later in (1, 2, 3):
            node.prints(FIRST, f"loss 0.{7 - later}", later=later, heard=False)
        node.break_off()
        found = [await epoch(platform, order_of(job, pods, number)) for number in (4, 5, 6)]
        assert [report.loss for report in found] == [0.6, 0.5, 0.4], "what came during the break, one by one"
        seconds = [report.train_seconds for report in found[1:]]
        assert seconds == [pytest.approx(1.0, abs=0.1)] * 2, "in the log's own time"
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods, 7)))
        node.break_off()
        node.prints(FIRST, "goodbye", later=4)
        await node.end(FIRST)
        with pytest.raises(EpochError) as ended:
            await waiting
        assert ended.value.reason is Reason.PROGRAM_ENDED, "no report of before came again"
        assert not heard.lost
        log = (platform._folder("job") / "job-worker-0.log").read_text()
        assert log.count("loss 0.8") == log.count("starts") == log.count("goodbye") == 1
        await finish(platform, FIRST)

    runs(body, server)


@pytest.mark.parametrize(
    ("end", "reason", "words"),
    [
        (
            {"code": 3, "reason": "Error"},
            Reason.PROGRAM_FAILED,
            "exit code 3 after 0.0 s; it printed last: oh",
        ),
        ({"code": 137, "reason": "OOMKilled"}, Reason.OUT_OF_MEMORY, "1.00 GiB"),
        (
            {"code": 128, "reason": "StartError", "message": 'exec: "pthon": not found'},
            Reason.PROGRAM_FAILED,
            'cannot start exec: "pthon": not found',
        ),
    ],
    ids=["exit code", "memory", "no such command"],
)
def test_a_program_that_fails_says_how(
    opened: Any, server: ApiServer, end: dict[str, Any], reason: Reason, words: str
) -> None:
    async def body() -> None:
        platform, node, heard = await opened()
        job = training_job()
        pods = await deploy(platform, node, job, FIRST)
        node.prints(FIRST, "oh")
        await node.end(FIRST, **end)
        with pytest.raises(EpochError) as failed:
            await epoch(platform, order_of(job, pods))
        assert failed.value.reason is reason and words in str(failed.value)
        assert [pod for pod, _, _ in heard.lost] == [FIRST], "another attempt makes another pod"
        await finish(platform)

    runs(body, server)


def test_a_program_that_ended_before_its_pod_was_seen_to_run_has_run(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        job, one = training_job(), Allocation(1, 0)
        await platform.gang(GangSize("job", one, one, 0), job)
        starting = asyncio.create_task(platform.deploy(Pod(FIRST, "", Resources(1.0, 1.0)), job))
        await node.bind(FIRST.name, "n1")
        node.logs[FIRST.name] = []
        node.prints(FIRST, "loss 0.4")
        await node.end(FIRST)
        pods = {FIRST: (await starting).address}
        assert (await epoch(platform, order_of(job, pods))).loss == 0.4
        with pytest.raises(EpochError) as ended:
            await epoch(platform, order_of(job, pods, 2))
        assert ended.value.reason is Reason.PROGRAM_ENDED
        await finish(platform, FIRST)

    runs(body, server)


def test_where_one_worker_fails_the_others_are_ended(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        job = training_job(workers={"min": 2})
        pods = await deploy(platform, node, job, FIRST, SECOND)
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods)))
        await node.end(SECOND, 9, "Error")
        assert await node.obey(FIRST) == 3
        with pytest.raises(EpochError, match="worker 1: exit code 9") as failed:
            await waiting
        assert failed.value.reason is Reason.PROGRAM_FAILED
        await finish(platform)

    runs(body, server)


@pytest.mark.parametrize("resumes", [False, True])
def test_a_pod_that_the_cluster_takes_is_made_again_only_where_the_program_can_resume(
    opened: Any, server: ApiServer, resumes: bool
) -> None:
    async def body() -> None:
        platform, node, _ = await opened(volume="coach-volume")
        job = training_job({"resumes": resumes})
        pods = await deploy(platform, node, job, FIRST)
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods)))
        await asyncio.sleep(0.1)
        target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        await node.status(FIRST.name, conditions=[{"type": "Ready", "status": "True"}, target])
        await node._ask("DELETE", f"{PODS}/{FIRST.name}")
        await node.obey(FIRST)
        with pytest.raises(EpochError, match="PreemptionByScheduler") as failed:
            await waiting
        assert failed.value.reason is (Reason.DISRUPTED if resumes else Reason.PROGRAM_FAILED)
        await finish(platform)

    runs(body, server)


def test_a_program_gets_sigterm_a_grace_period_before_its_money_ends(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, said = await opened()
        job = training_job()
        pods = await deploy(platform, node, job, FIRST)
        order = order_of(job, pods, due=time.time() + 6)
        waiting = asyncio.create_task(epoch(platform, order))
        assert await node.obey(FIRST) == 2
        assert time.time() <= order.due - 2, "it has its grace period before the money ends"
        with pytest.raises(EpochError) as failed:
            await waiting
        assert failed.value.reason is Reason.DEADLINE_EXCEEDED
        assert [signal for _, signal, _ in said.signals] == ["SIGTERM"]
        await finish(platform)

    runs(body, server)


def test_a_pod_that_is_deleted_as_soon_as_it_has_ended_has_its_exit_code(opened: Any, server: ApiServer) -> None:
    """A watch that has fallen behind brings both at once."""

    async def body() -> None:
        platform, node, said = await opened()
        job = training_job()
        pods = await deploy(platform, node, job, FIRST)
        order = order_of(job, pods)
        waiting = asyncio.create_task(epoch(platform, order))
        node.prints(FIRST, "loss 0.9")
        await waiting
        behind = list[tuple[str, Any]]()
        change = platform._pods._set
        platform._pods._set = lambda *found: behind.append(found)
        releasing = asyncio.create_task(platform.release([FIRST]))
        await node.obey(FIRST)
        while not behind or behind[-1] != (FIRST.name, None):
            await asyncio.sleep(0.02)
        platform._pods._set = change
        for name, found in behind:
            change(name, found)
        await releasing
        assert [signal for _, signal, _ in said.signals] == ["SIGTERM"]
        await finish(platform)

    runs(body, server)


def test_the_end_of_an_earlier_programs_money_does_not_end_the_one_that_has_its_name(
    opened: Any, server: ApiServer
) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        job = training_job()
        pods = await deploy(platform, node, job, FIRST)
        node.prints(FIRST, "loss 0.9")
        await epoch(platform, order_of(job, pods))
        earlier = platform._programs._runs["job"]
        releasing = asyncio.create_task(platform.release([FIRST]))
        await node.obey(FIRST)
        await releasing
        await deploy(platform, node, job, FIRST)
        earlier._deadline()  # its timer
        await asyncio.sleep(0.5)
        assert "deletionTimestamp" not in (await node.there(FIRST.name))["metadata"]
        releasing = asyncio.create_task(platform.release([FIRST]))
        await node.obey(FIRST)
        await releasing
        await finish(platform)

    runs(body, server)


def test_a_program_that_reports_nothing_for_its_stall_timeout_is_ended_and_its_pod_made_again(
    opened: Any, server: ApiServer
) -> None:
    async def body() -> None:
        platform, node, heard = await opened()
        job = training_job({"stallTimeout": "1s"})
        pods = await deploy(platform, node, job, FIRST)
        order = order_of(job, pods)
        action = replace(order.action, stall_timeouts=StallTimeouts(0.2, 0.2, 0.2, 0.2))
        waiting = asyncio.create_task(epoch(platform, replace(order, action=action)))
        assert await node.obey(FIRST) == 3
        with pytest.raises(EpochError, match="no report in") as failed:
            await waiting
        assert failed.value.reason is Reason.STALLED
        assert [pod for pod, _, _ in heard.lost] == [FIRST]
        await finish(platform)

    runs(body, server)


def test_a_pattern_that_takes_for_ever_holds_up_nothing_but_its_own_reports(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        job = training_job({"metrics": {"loss": "((?:a+)+)b"}})
        pods = await deploy(platform, node, job, FIRST)
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods)))
        node.prints(FIRST, "a" * 64, "loss=0.5")
        await asyncio.sleep(1)
        assert not waiting.done()
        await node.end(FIRST, 1)
        await asyncio.gather(waiting, return_exceptions=True)
        await finish(platform, FIRST)

    runs(body, server)


def sends(port: int, token: str, what: Any) -> int:
    """What a program's POST is answered with."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"http://127.0.0.1:{port}/status", json=what, headers=headers, timeout=60).status_code


def test_a_program_reports_with_its_pods_own_token_for_itself_alone(
    opened: Any, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_metrics_status, "BURST", 3)
    monkeypatch.setattr(program_metrics_status, "PER_SECOND", 0.0)

    async def token(pod: PodId, uid: str, audience: str = AUDIENCE) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": uid}
        asked = {"spec": {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound}}
        found = await asyncio.to_thread(server.admin.create, f"{ACCOUNTS}/programs/token", asked)
        return str(found["status"]["token"])

    async def body() -> None:
        platform, node, _ = await opened(volume="coach-volume", account="programs")
        job = training_job({"resumes": True}, workers={"min": 2})
        pods = await deploy(platform, node, job, FIRST, SECOND)
        statuses = Statuses(platform._api, platform._programs.sender, port=0)
        try:
            waiting = asyncio.create_task(epoch(platform, order_of(job, pods)))
            await asyncio.sleep(0.1)

            async def send(shown: str, what: Any) -> int:
                return await asyncio.to_thread(sends, statuses.port, shown, what)

            status = {"trainerStatus": {"metrics": [{"name": "loss", "value": "0.5"}]}}
            assert await send("nobody's", status) == 401
            assert await send(await token(FIRST, pods[FIRST], "another.dev"), status) == 401
            first, second = await token(FIRST, pods[FIRST]), await token(SECOND, pods[SECOND])
            assert await send(second, {"values": {"loss": 0.7}}) == 200
            assert await send(first, {"values": {"loss": "x" * (64 << 10)}}) == 413
            assert await send(first, status) == 200
            assert (await waiting).loss == 0.5, "the first worker's counts"
            answers = [await send(first, status) for _ in range(6)]
            assert answers == [200, 200, 429, 429, 429, 429], "as many as it may send at once"
            releasing = asyncio.create_task(platform.release([FIRST, SECOND]))
            await asyncio.gather(node.obey(FIRST), node.obey(SECOND))
            await releasing
            assert await send(first, status) == 401, "it has ended"
        finally:
            await asyncio.to_thread(statuses.close)
        await finish(platform)

    runs(body, server)


def test_metrics_of_files_on_coachs_volume_are_read(
    opened: Any, server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def body() -> None:
        platform, node, _ = await opened(volume="coach-volume", account="programs")
        own = tmp_path / "checkpoints/job"
        for version in ("before", "now"):
            (own / version).mkdir(parents=True)
        (own / "before/metrics.csv").write_text("epoch,loss\n1,0.1\n")
        os.utime(own / "before/metrics.csv", (1, 1))
        platform._programs._settings = replace(platform._settings, status_url="http://h/status")
        platform._settings = platform._programs._settings
        job = training_job({"metrics": {"loss": f"csv:{own}"}, "resumes": True})
        pods = await deploy(platform, node, job, FIRST)
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods)))
        (own / "now/metrics.csv").write_text("epoch,loss\n1,0.9\n")
        assert (await waiting).loss == 0.9, "what an earlier run wrote does not count"
        releasing = asyncio.create_task(platform.release([FIRST]))
        await node.obey(FIRST)
        await releasing
        await finish(platform)

    for where in (manifests, program_pods):
        monkeypatch.setattr(where, "VOLUME", str(tmp_path))
    runs(body, server)


def test_an_extended_program_goes_on(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        job = training_job()
        pods = await deploy(platform, node, job, FIRST)
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods, due=time.time() + 6)))
        before = int((await node.there("job-lease", LEASES))["spec"]["ttlSecondsAfterFinished"])
        await asyncio.sleep(0.1)
        await platform.extend_epoch("job.1", time.time() + 300)
        async with asyncio.timeout(120):
            while (await node.there("job-lease", LEASES))["spec"]["ttlSecondsAfterFinished"] < 200:
                await asyncio.sleep(0.02)
        assert before <= 90
        await asyncio.sleep(3)
        assert "deletionTimestamp" not in (await node.there(FIRST.name))["metadata"]
        stopping = asyncio.create_task(platform.stop_epoch("job.1", Reason.SUSPENDED))
        assert await node.obey(FIRST) == 2
        await stopping
        with pytest.raises(EpochError) as failed:
            await waiting
        assert failed.value.reason is Reason.SUSPENDED
        await finish(platform, FIRST)

    runs(body, server)


async def die(platform: KubernetesPlatform) -> None:
    """What is left of a handler that was killed: nothing of it runs any more."""
    await platform._programs.follow_none()
    for task in platform._tasks:
        task.cancel()
    await asyncio.gather(*platform._tasks, return_exceptions=True)
    await asyncio.gather(*(one.close() for one in platform._followed))
    await platform._calls.close()
    await platform._api.close()


def test_a_program_without_a_handler_ends_when_its_money_does(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        job = training_job()
        pods = await deploy(platform, node, job, FIRST)
        before = (await node.there("job-lease", LEASES))["spec"]["ttlSecondsAfterFinished"]
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods, due=time.time() + 8)))
        # Renewed once, counted from when it was made; or over already, where the machine is slow.
        while (await node._ask("GET", f"{LEASES}/job-lease")).get("spec", {}).get("ttlSecondsAfterFinished") == before:
            await asyncio.sleep(0.02)
        waiting.cancel()
        await die(platform)
        assert await node.obey(FIRST) == 2, "with its grace period"
        await node.gone("job-lease", LEASES)
        platform, _, heard = await opened(node, wanted=[FIRST])
        assert not heard.left
        await platform.close()

    runs(body, server)


def test_a_killed_handler_takes_the_program_over_and_counts_no_report_twice(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        job = training_job()
        pods = await deploy(platform, node, job, FIRST)
        node.prints(FIRST, "loss 0.9")
        first = await epoch(platform, order_of(job, pods))
        waiting = asyncio.create_task(epoch(platform, order_of(job, pods, 2)))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await die(platform)
        node.prints(FIRST, "loss 0.8")
        platform, _, heard = await opened(node, wanted=[FIRST])
        assert heard.left == pods, "they are known by their identities"
        second = await epoch(platform, order_of(job, pods, 2, mark=first.mark))
        assert second.loss == 0.8 and 0 < second.train_seconds < 60
        node.prints(FIRST, "loss 0.7")
        third = await epoch(platform, order_of(job, pods, 3))
        assert third.loss == 0.7 and third.mark > second.mark > first.mark
        releasing = asyncio.create_task(platform.release([FIRST]))
        assert await node.obey(FIRST) == 2
        await releasing
        await finish(platform)

    runs(body, server)


def test_what_a_handler_does_not_take_over_is_ended(opened: Any, server: ApiServer) -> None:
    async def body() -> None:
        platform, node, _ = await opened()
        await deploy(platform, node, training_job(), FIRST)
        await die(platform)
        platform, _, heard = await opened(node)
        assert heard.left.keys() == {FIRST}
        await node.gone(FIRST.name)
        await platform.close()

    runs(body, server)


@pytest.mark.parametrize(
    ("changes", "volume", "words"),
    [
        ({"image": None}, "", "runs in an image of its own: say spec.image"),
        (
            {"program": {"command": ["x"], "volumes": {"/all": "coach-volume"}}},
            "coach-volume",
            "coach-volume is Coach's own volume",
        ),
        ({"program": {"command": ["x"], "volumes": {"/all": "state"}}}, "", "state is Coach's own volume"),
        (
            {"program": {"command": ["x"], "secrets": {"A": {"secret": "coach-token", "key": "token"}}}},
            "",
            "program.secrets.A: coach-token opens Coach's own API",
        ),
        (
            {
                "program": {
                    "command": ["x"],
                    "secrets": {"A": {"secret": "sh.helm.release.v1.coach.v1", "key": "release"}},
                }
            },
            "",
            "program.secrets.A: sh.helm.release.v1.coach.v1 opens",
        ),
        ({"program": {"command": ["x"], "resumes": True}}, "", "name a claim in program.volumes"),
        (
            {"program": {"command": ["x"], "metrics": {"loss": "csv:metrics.csv"}}},
            "",
            "only a handler in the cluster, with Coach's volume, reads files",
        ),
    ],
    ids=["no image", "Coach's volume", "the journal's", "token", "release", "no volume", "a file in the pod"],
)
def test_what_cannot_run_on_this_cluster_is_refused_with_the_reason(
    opened: Any, server: ApiServer, changes: dict[str, Any], volume: str, words: str
) -> None:
    async def body() -> None:
        platform, _, _ = await opened(volume=volume)
        one = Allocation(1, 0)
        with pytest.raises(PodError, match=words) as refused:
            await platform.gang(GangSize("job", one, one, 0), training_job(**changes))
        assert refused.value.reason is Reason.POD_REFUSED
        await platform.close()

    runs(body, server)
